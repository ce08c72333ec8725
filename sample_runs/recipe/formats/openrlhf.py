"""Write ``sample_runs/formats/record`` from OpenRLHF's own tensors: what a user's recording of it holds (OpenRLHF 0.11.2).

    pip install --no-deps --target /tmp/openrlhf openrlhf==0.11.2
    cd sample_runs/recipe && python -m formats.openrlhf /tmp/openrlhf

OpenRLHF's functions make the experiences: ``SamplesGenerator._process_response_into_experience`` from the answers of an engine,
``Experience.concat_experiences`` pads them into micro-batches, ``Actor.forward`` and ``RemoteExperienceMaker``'s
``compute_advantages_and_returns`` fill in the rest, with the Countdown run's models as actor and reference. The record is then
written by this package's ``record_experiences``.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from credit_inspector.hooks.openrlhf import record_experiences
from formats.countdown_rows import SAMPLES, Response, step
from formats.their_code import taken

OUT = SAMPLES / "formats" / "record" / "openrlhf"
GROUP, MICRO_BATCH, PAD = 4, 3, 0
LONGEST = 60
"""``data.max_len``: one response is cut off by it."""


def main() -> None:
    """Write the record anew."""
    source = Path(sys.argv[1]) / "openrlhf"
    shutil.rmtree(OUT, ignore_errors=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(SAMPLES / "countdown" / "tokenizer")
    for number in (1, 2):
        made = experiences(source, step(number))
        assert record_experiences(OUT, number, made, tokenizer, samples_per_prompt=GROUP)
    header = json.loads((OUT / "record.json").read_text("utf-8"))
    header["trainer"] = "openrlhf 0.11.2"  # as it says itself where it is installed in the ordinary way
    (OUT / "record.json").write_text(json.dumps(header, indent=2, ensure_ascii=False) + "\n", "utf-8")


def experiences(source: Path, rows: Sequence[Response], *, longest: int = LONGEST) -> list[Any]:
    """One step's experiences as ``make_experience_batch`` returns them, in micro-batches that mix groups."""
    kind = experience_type(source)
    generated = _Generator(source, kind)
    samples = [generated.sample(row, longest) for row in rows]
    for at, sample in enumerate(samples):
        sample.index = [at]
    order = sorted(range(len(samples)), key=lambda at: (at * 5) % len(samples))  # dynamic batching mixes groups
    parts = [[samples[at] for at in order[begin : begin + MICRO_BATCH]] for begin in range(0, len(order), MICRO_BATCH)]
    batches = [kind.concat_experiences(part, PAD) for part in parts]
    forward = _forward(source)
    actor, reference = (model(name) for name in ("step_000120", "step_000000"))
    for batch in batches:
        batch.action_log_probs = forward(actor, batch.sequences, batch.action_mask, batch.attention_mask)
        batch.base_action_log_probs = forward(reference, batch.sequences, batch.action_mask, batch.attention_mask)
        batch.kl = torch.zeros_like(batch.action_log_probs)  # the KL term is in the loss
    return _with_advantages(source, batches)


def experience_type(source: Path) -> Any:
    """OpenRLHF's ``Experience``."""
    pad = taken(source / "utils" / "utils.py", "zero_pad_sequences", torch=torch, F=torch.nn.functional, List=list)
    around = {"Any": Any, "List": list, "Union": typing.Union, "torch": torch, "itertools": itertools}
    more = {"dataclass": dataclass, "field": field, "fields": fields, "zero_pad_sequences": pad.zero_pad_sequences}
    names = ("tensor_field", "to", "pin_memory", "Experience")
    return taken(source / "trainer" / "ppo_utils" / "experience.py", *names, **around, **more).Experience


class _Generator:
    """OpenRLHF's translation of an engine's answer."""

    def __init__(self, source: Path, kind: Any) -> None:
        name = "SamplesGenerator._process_response_into_experience"
        file = source / "trainer" / "ppo_utils" / "samples_generator.py"
        self._process = taken(file, name, torch=torch, Experience=kind)._process_response_into_experience

    def sample(self, row: Response, longest: int) -> Any:
        """The response as the engine gives it: joined ids, where the model wrote, log-probs with 0.0 elsewhere."""
        begin = len(row.prompt_ids)
        changes = [place for place in range(1, len(row.mask)) if row.mask[place] != row.mask[place - 1]]
        edges = [begin, *(begin + place for place in changes), begin + len(row.mask)]
        answer = {
            "prompt": row.prompt,
            "label": row.prompt.rpartition(" ")[2].strip(".\n"),
            "observation_tokens": [*row.prompt_ids, *row.ids],
            "action_ranges": list(zip(edges[::2], edges[1::2], strict=True)),
            "rollout_log_probs": [0.0] * begin + row.logprobs,
            "reward": row.reward,
            "scores": row.reward,
            "truncated": begin + len(row.ids) > longest,
        }
        return self._process(None, answer, max_len=longest)


def model(name: str) -> Any:
    """A checkpoint of the Countdown run."""
    found: Any = AutoModelForCausalLM.from_pretrained(SAMPLES / "countdown" / "checkpoints" / name)
    return found.eval()


def _forward(source: Path) -> Any:
    models = source / "models"
    utils = taken(
        models / "utils.py", "_logsumexp_by_chunk", "log_probs_from_logits", torch=torch, F=torch.nn.functional
    ).log_probs_from_logits
    around = {"torch": torch, "Optional": typing.Optional, "dist": torch.distributed, "log_probs_from_logits": utils}
    forward = taken(models / "actor.py", "Actor.forward", **around).forward

    @torch.no_grad()
    def run(policy: Any, sequences: Any, action_mask: Any, attention_mask: Any) -> Any:
        actor = SimpleNamespace(model=policy, packing_samples=False, is_vlm=False, temperature=1.0)
        return forward(actor, sequences, action_mask, attention_mask)

    return run


def _with_advantages(source: Path, batches: list[Any]) -> list[Any]:
    """By ``compute_advantages_and_returns`` (group_norm)."""
    names = ("RemoteExperienceMaker.compute_advantages_and_returns", "RemoteExperienceMaker.get_cumulative_returns")
    reward = taken(
        source / "models" / "utils.py", "compute_reward", torch=torch, Optional=typing.Optional, Union=typing.Union, Tuple=tuple
    )
    around = {"torch": torch, "itertools": itertools, "List": list, "Tuple": tuple, "Experience": Any}
    more = {"compute_reward": reward.compute_reward, "apply_length_penalties": lambda experiences, args: None}
    file = source / "trainer" / "ppo_utils" / "experience_maker.py"
    theirs = taken(file, *names, **around, **more)
    advantage = SimpleNamespace(estimator="group_norm", gamma=1.0, lambd=1.0, no_std_norm=False)
    args = SimpleNamespace(
        rollout=SimpleNamespace(n_samples_per_prompt=GROUP),
        algo=SimpleNamespace(advantage=advantage),
        reward=SimpleNamespace(clip_range=None),
    )
    maker = SimpleNamespace(
        strategy=SimpleNamespace(args=args),
        advantage_estimator=advantage.estimator,
        kl_ctl=SimpleNamespace(value=0.01),
        get_cumulative_returns=lambda *given: theirs.get_cumulative_returns(None, *given),
    )
    found: list[Any] = theirs.compute_advantages_and_returns(maker, batches)
    return found


if __name__ == "__main__":
    main()
