"""Write the samples of tinker-cookbook's logs with its own code, at version 0.6.1.

    PYTHONPATH=path/to/tinker_cookbook python sample_runs/recipe/formats/tinker.py      # and the tinker package

``serialize_rollout_summaries`` and ``TrainingRunStore.write_rollouts`` write the summaries, ``JsonlFileSink`` the capture
beside them, ``wire_rows_from_sample_record`` and ``CaptureDB.ingest_wire`` the store, which is then written again in small
pages. The records are those of ``_sample_request_metadata`` and ``_sample_outcome``, under ``capture(run_id=…, iteration=…,
group_idx=…, traj_idx=…)``. The message list is to the letter of what a fork dumps. Tokens are those of the shipped tokenizer,
log-probs are made up.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])

from formats.batch_answers import EOS, FORMATS, Answer, answers, encode  # noqa: E402

OUT = FORMATS / "tinker"
CONFIG = {
    "model_name": "small-llama",
    "loss_fn": "importance_sampling",
    "num_substeps": 1,
    "kl_penalty_coef": 0.0,
    "remove_constant_reward_groups": False,
    "temperature": 1.0,
    "max_tokens": 128,
    "rollout_json_export": True,
}


def turns(answer: Answer) -> Iterator[tuple[list[int], list[int], list[float]]]:
    """Prompt, tokens and log-probs of each turn."""
    prompt, logprobs = answer.prompt_ids, answer.logprobs("rollout")
    for place in range(0, len(answer.parts), 2):
        if place:
            between = encode(answer.parts[place - 1])
            prompt, logprobs = [*prompt, *between], logprobs[len(between) :]
        ids = encode(answer.parts[place]) + [EOS] * (place + 1 == len(answer.parts) and not answer.is_cut)
        yield prompt, ids, logprobs[: len(ids)]
        prompt, logprobs = [*prompt, *ids], logprobs[len(ids) :]


def records(step: int) -> Iterator[dict[str, Any]]:
    """What capture makes of a step's calls, in the order in which they were answered: first turns, then second ones."""
    instrument = import_module("tinker_cookbook.capture.instrument")
    names = {name: place for place, name in enumerate(dict.fromkeys(one.group for one in answers(step)))}
    found = []
    for one in answers(step):
        for place, (prompt, ids, logprobs) in enumerate(turns(one)):
            scope = {"run_id": "countdown", "run_attempt": 1, "split": "train", "iteration": step - 1}
            scope |= {"group_idx": names[one.group], "traj_idx": one.place}
            client = SimpleNamespace(
                _sampling_session_id="session", model_path=f"tinker://countdown/sampler_weights/{step - 1:06d}"
            )
            asked = SimpleNamespace(to_ints=lambda prompt=prompt: prompt)
            settings = SimpleNamespace(max_tokens=128, temperature=1.0, top_p=1.0, top_k=-1, seed=None)
            meta = instrument._sample_request_metadata(None, client, asked, 1, settings)
            made = 1000.0 * step + 10 * place + one.place
            record = {"kind": "sample", "scope": scope, "created_at": made, **meta}
            record["seq_id"] = int(made) * 10 + names[one.group]
            reply = SimpleNamespace(
                sequences=[SimpleNamespace(tokens=ids, logprobs=logprobs, stop_reason="length" if one.is_cut else "stop")]
            )
            instrument._sample_outcome(record, reply)
            found.append({**record, "latency_sec": 0.25})
    yield from sorted(found, key=lambda record: -record["created_at"])


def group_of(rows: list[Answer]) -> Any:
    """A trajectory group as the training loop has it."""
    kinds = import_module("tinker_cookbook.rl.types")
    model_input = import_module("tinker").ModelInput
    completed = import_module("tinker_cookbook.completers").TokensWithLogprobs
    trajectories = []
    for one in rows:
        steps = list(turns(one))
        made = [
            kinds.Transition(
                ob=model_input.from_ints(prompt),
                ac=completed(tokens=ids, maybe_logprobs=logprobs),
                reward=one.reward if place == len(steps) - 1 else 0.0,
                episode_done=place == len(steps) - 1,
                metrics={"format": 1},
            )
            for place, (prompt, ids, logprobs) in enumerate(steps)
        ]
        trajectories.append(kinds.Trajectory(transitions=made, final_ob=model_input.empty()))
    return kinds.TrajectoryGroup(trajectories, [0.0] * len(rows), [{} for _ in rows])


def write_summaries(store: Any, step: int, split: str, base_name: str, rows: list[Answer]) -> None:
    """The summaries of one iteration."""
    logging = import_module("tinker_cookbook.rl.rollout_logging")
    names = list(dict.fromkeys(one.group for one in rows))
    found = logging.serialize_rollout_summaries(
        split=split,
        iteration=step - 1,
        trajectory_groups_P=[group_of([one for one in rows if one.group == name]) for name in names],
        taglist_P=[["countdown"] for _ in names],
        sampling_client_steps_P=[step - 1 for _ in names],
    )
    store.write_rollouts(step - 1, found, base_name=base_name)


def message_list(answer: Answer) -> dict[str, Any]:
    """A trajectory as a fork of the cookbook dumps it."""
    chat: list[dict[str, Any]] = [{"role": "user", "content": answer.prompt.strip()}]
    for place, part in enumerate(answer.parts):
        if place % 2:
            chat.append({"role": "user", "content": part.strip()})
        else:
            call = {"type": "function", "id": None, "function": {"name": "calc", "arguments": '{"expression": "9+4"}'}}
            is_call = place + 1 < len(answer.parts)
            parts = [{"type": "text", "text": part}, *([{"type": "tool_call", "tool_call": call}] if is_call else [])]
            chat.append(
                {"role": "assistant", "content": parts if is_call else part, **({"tool_calls": [call]} if is_call else {})}
            )
    metrics = {"public_reward": answer.reward, "private_reward": answer.reward / 2, "n_tool_timeouts": 0}
    return {"rollouts": chat, "metrics": metrics, "env_type": "CountdownEnv", "env_config": {"max_steps": 8}}


def _with_small_pages(file: Path) -> None:
    """Write a store again in a quarter of its size; the rows and the journal's mode stay what they were."""
    with closing(sqlite3.connect(file)) as connection:
        for command in ("PRAGMA journal_mode=DELETE", "PRAGMA page_size=1024", "VACUUM", "PRAGMA journal_mode=WAL"):
            connection.execute(command)


def main() -> None:
    """A log folder with a capture, a store of the same samples, and a folder of message lists."""
    storage = import_module("tinker_cookbook.stores.storage").LocalStorage
    training = import_module("tinker_cookbook.stores.training_store").TrainingRunStore
    capture = import_module("tinker_cookbook.capture")
    client = import_module("tinker_cookbook.capture.store.client")
    for name in ("log_path", "message_lists"):
        shutil.rmtree(OUT / name, ignore_errors=True)
        (OUT / name).mkdir(parents=True)
    (OUT / "capture.sqlite").unlink(missing_ok=True)
    where = storage(str(OUT / "log_path"))
    (OUT / "log_path" / "config.json").write_text(json.dumps(CONFIG, indent=2), "utf-8")
    database = import_module("tinker_cookbook.capture.store.db").CaptureDB(OUT / "capture.sqlite")
    for step in (1, 2):
        write_summaries(training(where), step, "train", "train", answers(step))
        found = list(records(step))
        capture.JsonlFileSink(where).export(found)
        database.ingest_wire([row for record in found for row in client.wire_rows_from_sample_record(record)])
    write_summaries(training(where), 1, "eval/countdown", "eval_countdown", answers(1)[:4])
    database.close()
    _with_small_pages(OUT / "capture.sqlite")
    for number, one in enumerate(answers(1)[:4]):
        name = f"rollouts_0208T08:4{number}-{number}.json".replace(":", "-")
        (OUT / "message_lists" / name).write_text(json.dumps(message_list(one), ensure_ascii=False), "utf-8")


if __name__ == "__main__":
    main()
