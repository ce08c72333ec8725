"""Write ``sample_runs/formats/prime_rl`` with prime-rl's own code, read at commit 559b447, and verifiers at a60a606.

    PYTHONPATH=prime-rl/src:prime-rl/packages/prime-rl-configs/src:verifiers python -P sample_runs/recipe/formats/prime_rl.py

prime-rl's functions score the groups (``GRPOAlgorithm.score_group``), make training samples of the traces (``trace_to_samples``),
drop those without an advantage (``_prune_zero_advantages``), cut and pack them for two ranks (``prepare_batch``) and write the
export (``TokenExporter``). Traces are written to the letter of ``FileMonitor.log_episodes``. The trainer's log-probs and entropy
are made up, as there is no model.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from formats.traces import FORMATS, Said, Talk, episode, logprobs, talk

OUT = FORMATS / "prime_rl" / "outputs"
RANKS, PAD_TO = 2, 4
SEQ_LEN = 29

FIRST, SECOND, THIRD, FOURTH = (
    "Use 3, 5, 7 to make 22.\n",
    "Use 2, 6, 9 to make 21.\n",
    "Use 4, 8, 3 to make 20.\n",
    "Use 1, 5, 6 to make 31.\n",
)
STEPS: dict[int, list[Talk]] = {
    1: [
        talk("t10", "g1", FIRST, "3*5+7", correct=1.0, brief=1.0),
        talk("t11", "g1", FIRST, "3*5+7", correct=1.0, brief=1.0),
        talk("t12", "g1", FIRST, "让我想想。龘 3+5+7", correct=0.0, brief=0.0),
        talk("t13", "g1", FIRST, "3*5=15, 15*7", cut=True, correct=0.0, brief=0.0),
        talk("t14", "g2", SECOND, "2*6", "12\n", "12+9", correct=1.0, brief=0.0),
        Talk(
            "t15",
            "g2",
            (
                Said("user", SECOND),
                Said("assistant", "9+6", 0),
                Said("user", "Sum up.", 1),
                Said("assistant", "15", 2),
                Said("user", "Go on.", 1),
                Said("assistant", "15+6", 4),
            ),
            {"correct": 1.0, "brief": 0.5},
        ),
        talk("t16", "g2", SECOND, "2+6+9", correct=0.0, brief=1.0),
    ],
    2: [
        talk("t20", "g3", THIRD, "4*3+8", correct=1.0, brief=1.0),
        talk("t21", "g3", THIRD, "4+8*3", correct=0.0, brief=1.0),
        talk("t22", "g4", FOURTH, "5*6+1", correct=1.0, brief=1.0),
        talk("t23", "g4", FOURTH, "1+5*6", correct=1.0, brief=1.0),
    ],
}
FAILED = talk("t24", "g4", FOURTH, "5*6", error="the calculator is gone", correct=None, brief=None)
LOST = talk("t25", "g4", FOURTH, "", correct=None, brief=None)
EVAL = talk("t26", "g9", FOURTH, "6*5+1", correct=1.0, brief=1.0)


def main() -> None:
    """Write all of it anew."""
    shutil.rmtree(OUT, ignore_errors=True)
    for step, talks in STEPS.items():
        write_step(step, talks)
    partial = OUT / "token_exports" / "step_3"
    partial.mkdir()
    begun = (OUT / "token_exports" / "step_2" / "rank_0.jsonl").read_text("utf-8").splitlines()[0]
    (partial / "rank_0.jsonl").write_text(begun.replace('"step":2', '"step":3')[:700], "utf-8")


def write_step(step: int, talks: list[Talk]) -> None:
    """The traces of a step and its export."""
    whole = import_module("verifiers.v1.episode")
    work = whole.TrainWorkInfo(step=step, policy=whole.PolicySpan(start=step - 1, end=step - 1))
    run = whole.TrainRunInfo(id="run-1", name="countdown", work=work)
    episodes = [episode([one], group=True, run=run) for one in talks]
    grpo = import_module("prime_rl.orchestrator.algo.grpo").GRPOAlgorithm(SimpleNamespace(length_penalty=None), None)
    for group in dict.fromkeys(one.group for one in talks):
        asyncio.run(grpo.score_group([one for one in episodes if one.group.id == group]))
    shipped = [(one, samples) for one in episodes if (samples := training_samples(one))]
    log(step, "train/effective", [one for one, _ in shipped])
    if step == 2:
        log(step, "train/all", [*episodes, episode([FAILED], group=True, run=run), episode([LOST], error="no sandbox was free")])
        rest = whole.TrainRunInfo(id="run-1", work=whole.EvalWorkInfo(step=step))
        log(step, "eval/all", [episode([EVAL], group=True, run=rest)])
    export(step, [sample for _, samples in shipped for sample in samples])


def training_samples(one: Any) -> list[Any]:
    """As ``TrainSink.process_group`` and ``process_batch`` make them."""
    to_samples = import_module("prime_rl.orchestrator.trajectories").trace_to_samples
    is_kept = import_module("prime_rl.orchestrator.train_sink")._prune_zero_advantages
    found = [sample for trace in one.traces for sample in to_samples(trace, env_name="countdown")]
    for sample in found:
        sample.temperatures = [1.0] * len(sample.token_ids)
    return [sample for sample in found if is_kept(sample)]


def log(step: int, name: str, episodes: list[Any]) -> None:
    """To the letter of ``FileMonitor.log_episodes``."""
    path = OUT / "rollouts" / f"step_{step}" / name / "traces.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    options = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
    with path.open("ab") as file:
        for one in episodes:
            file.write(orjson.dumps(one.to_record(), default=str, option=options))


def export(step: int, samples: list[Any]) -> None:
    """As the trainer's loop does for each rank's micro-batches."""
    batch, exporting = import_module("prime_rl.trainer.batch"), import_module("prime_rl.trainer.rl.token_export")
    loss = import_module("prime_rl.configs.trainer").DefaultLossConfig()
    grid = batch.prepare_batch(samples, SEQ_LEN, RANKS, batch.build_bin_cost(None), PAD_TO)
    exporters = [exporting.TokenExporter(OUT, rank) for rank in range(RANKS)]
    for exporter, micro_batches in zip(exporters, grid, strict=True):
        for place, micro_batch in enumerate(micro_batches):
            tensors = _tensors(micro_batch)
            exporter.export(step, place, tensors, _model_output(tensors), micro_batch.sequence_lengths, loss)
    for exporter in exporters:
        exporter.mark_stable()


def _tensors(micro_batch: Any) -> dict[str, Any]:
    """To the letter of ``DataLoader._micro_batch_to_tensor`` in ``trainer/rl/data.py``."""
    kinds = {"input_ids": torch.long, "position_ids": torch.long, "loss_mask": torch.bool}
    floats = ("advantages", "inference_logprobs", "rl_weights", "ce_weights", "ref_kl_weights")
    found: dict[str, Any] = {"env_names": micro_batch.env_names}
    for name, kind in {**kinds, **dict.fromkeys(floats, torch.float)}.items():
        values = getattr(micro_batch, name)
        found[name] = None if values is None else torch.tensor(values, dtype=kind).unsqueeze(0)
    return found


def _model_output(tensors: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Near the sampler's log-probs where there are some; two tokens moved so far that the loss cuts them."""
    sampled, mask = tensors["inference_logprobs"][0], tensors["loss_mask"][0]
    name = " ".join(map(str, tensors["input_ids"][0].tolist()))
    apart = torch.tensor(logprobs(f"{name} apart", len(sampled))) / 32
    other = torch.tensor(logprobs(f"{name} other", len(sampled)))
    trainer = torch.where(mask, sampled + apart, other)
    for place in torch.nonzero(mask).flatten().tolist()[:2]:
        trainer[place] = -0.015625 if trainer[place] < -0.5 else -1.5
    return {"logprobs": trainer[None], "entropy": -torch.tensor(logprobs(f"{name} entropy", len(sampled)))[None]}


if __name__ == "__main__":
    main()
