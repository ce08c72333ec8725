"""The rule of a run is found in what its trainer left beside it, and nothing there stops a run from opening."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

from credit_inspector.algorithms.beside import find
from credit_inspector.trainers.opening import open_run

VERL = {
    "actor_rollout_ref": {
        "actor": {"ppo_mini_batch_size": 256, "clip_ratio_c": 3.0, "loss_agg_mode": "token-mean"},
        "rollout": {"temperature": 0.9},
    },
    "data": {"train_batch_size": "${oc.select:data.gen_batch_size,512}"},
    "algorithm": {"adv_estimator": "grpo"},
}
TRL = {"loss_type": "dapo", "num_generations": 8, "epsilon": 0.2, "beta": 0.0, "temperature": 1.0, "scale_rewards": "group"}
PRIME = {
    "trainer": {"weight_broadcast": {}, "model": {}, "loss": {"type": "default"}},
    "orchestrator": {"algo": {"type": "grpo"}},
}


def put(file: Path, data: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data) if file.suffix == ".json" else yaml.safe_dump(data)
    file.write_text(data if isinstance(data, str) else text, encoding="utf-8")


def wrapped(settings: dict[str, Any]) -> dict[str, Any]:
    """As wandb writes ``config.yaml``."""
    own = {"wandb_version": 1, "_wandb": {"desc": None, "value": {"python_version": "3.11"}}}
    return own | {name: {"desc": None, "value": value} for name, value in settings.items()}


@pytest.mark.parametrize(
    ("place", "data", "name"),
    [
        (".hydra/config.yaml", VERL, "verl/grpo"),
        ("config.yaml", VERL, "verl/grpo"),
        ("outputs/2026-01-01/10-00-00/.hydra/config.yaml", VERL, "verl/grpo"),
        ("wandb/run-1/files/config.yaml", wrapped(VERL), "verl/grpo"),
        ("files/config.yaml", wrapped(TRL), "trl/dapo"),
        ("training_args.json", TRL, "trl/dapo"),
        ("configs/rl.json", PRIME, "prime-rl/grpo"),
        (
            "configs/rl.toml",
            '[trainer.model]\n[trainer.loss]\ntype = "ipo"\n[orchestrator.algo]\ntype = "grpo"\n',
            "prime-rl/grpo+ipo",
        ),
    ],
)
def test_where_trainers_leave_it(tmp_path: Path, place: str, data: Any, name: str) -> None:
    put(tmp_path / place, data)
    found = find(tmp_path)
    assert found.algorithm is not None
    assert found.algorithm.name == name
    assert found.algorithm.source == f"read from {place}"
    assert found.notes == ()


def test_prime_rls_two_parts_are_one_configuration(tmp_path: Path) -> None:
    for name, part in PRIME.items():
        put(tmp_path / f"configs/{name}.json", part)
    found = find(tmp_path).algorithm
    assert found is not None
    assert (found.name, found.source) == ("prime-rl/grpo", "read from configs/trainer.json and configs/orchestrator.json")
    (tmp_path / "configs/orchestrator.json").unlink()
    assert find(tmp_path).algorithm is None
    assert "do not say how advantages are made" in find(tmp_path).notes[0]


@pytest.mark.parametrize(("deep", "found"), [(0, True), (1, True), (2, True), (3, False)])
def test_two_parents_are_looked_at_and_no_more(tmp_path: Path, deep: int, found: bool) -> None:
    put(tmp_path / "config.yaml", VERL)
    folder = tmp_path.joinpath(*"abc"[:deep])
    folder.mkdir(parents=True, exist_ok=True)
    assert (find(folder).algorithm is not None) == found


def test_the_nearest_wins(tmp_path: Path) -> None:
    put(tmp_path / "config.yaml", VERL)
    put(tmp_path / "run/config.yaml", {**VERL, "algorithm": {"adv_estimator": "rloo"}})
    found = find(tmp_path / "run").algorithm
    assert found is not None
    assert found.advantage == "rloo"


def test_a_file_is_looked_at_from_its_folder(tmp_path: Path) -> None:
    put(tmp_path / "config.yaml", VERL)
    put(tmp_path / "rows.json", [])
    assert find(tmp_path / "rows.json").algorithm is not None


def test_two_that_agree_are_one(tmp_path: Path) -> None:
    put(tmp_path / ".hydra/config.yaml", VERL)
    put(tmp_path / "wandb/run-1/files/config.yaml", wrapped(VERL))
    (tmp_path / "wandb/latest-run").symlink_to("run-1")
    found = find(tmp_path)
    assert found.algorithm is not None
    assert found.algorithm.source == "read from .hydra/config.yaml"
    assert found.notes == ()


def test_two_that_disagree_are_both_named_and_none_is_taken(tmp_path: Path) -> None:
    put(tmp_path / "wandb/run-1/files/config.yaml", wrapped(TRL))
    put(tmp_path / "wandb/run-2/files/config.yaml", wrapped({**TRL, "epsilon": 0.3}))
    found = find(tmp_path)
    assert found.algorithm is None
    (note,) = found.notes
    assert note == (
        "wandb/run-1/files/config.yaml and wandb/run-2/files/config.yaml disagree on the rule: clip_low is 0.2 and 0.3, "
        "clip_high is 0.2 and 0.3; name one with --algorithm"
    )


def test_a_setting_that_is_not_computed_gives_a_note_and_no_rule(tmp_path: Path) -> None:
    put(tmp_path / "config.yaml", {**VERL, "algorithm": {"adv_estimator": "my_own"}})
    found = find(tmp_path)
    assert found.algorithm is None
    (note,) = found.notes
    assert note == (
        "config.yaml does not give the rule: verl's adv_estimator='my_own' is a rule that is not computed; "
        "name one with --algorithm"
    )


def test_a_reference_that_leads_nowhere_is_unknown_and_not_guessed(tmp_path: Path) -> None:
    put(tmp_path / "config.yaml", {**VERL, "data": {"train_batch_size": "${env.batch}"}})
    found = find(tmp_path)
    assert found.algorithm is None
    assert "data.train_batch_size is unknown: ${env.batch} is not in the file" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.yaml", "a: [1", "config.yaml cannot be read: ParserError"),
        ("config.yaml", "!!python/object/apply:os.getcwd []", "config.yaml cannot be read: ConstructorError"),
        ("config.json", "[" * 100_000, "config.json cannot be read: RecursionError"),
        ("config.yaml", "a: " + "x" * 5_000_000, "config.yaml has 5000003 bytes"),
        ("configs/rl.toml", "a = ", "rl.toml cannot be read: TOMLDecodeError"),
        ("config.yaml", b"\xff\xfe\x00", "config.yaml cannot be read: UnicodeDecodeError"),
    ],
)
def test_what_cannot_be_read_is_said_and_nothing_of_it_runs(tmp_path: Path, name: str, text: str | bytes, said: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    found = find(tmp_path)
    assert found.algorithm is None
    assert found.notes[0].startswith(said)
    assert "\n" not in found.notes[0]


def test_settings_of_a_wrong_kind_are_a_note(tmp_path: Path) -> None:
    algorithm = {"adv_estimator": "grpo", "rollout_correction": {"rollout_is": "paragraph"}}
    put(tmp_path / "config.yaml", {**VERL, "algorithm": algorithm})
    found = find(tmp_path)
    assert found.algorithm is None
    assert found.notes[0].startswith("config.yaml holds a setting that cannot be read")


@pytest.mark.parametrize("text", ["[1, 2]", "a: 1", "model_type: qwen3\nhidden_size: 64", ""])
def test_a_file_that_is_no_trainers_is_passed_by(tmp_path: Path, text: str) -> None:
    put(tmp_path / "run/config.yaml", text)
    put(tmp_path / "config.yaml", VERL)
    found = find(tmp_path / "run")
    assert found.algorithm is not None
    assert found.notes == ()


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (Path("opened"), "opened"))


def test_what_only_looks_like_settings_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "checkpoint-5/trainer_state.json", {"log_history": [], "global_step": 5})
    (tmp_path / "checkpoint-5/training_args.bin").write_bytes(pickle.dumps(_Bomb()))
    found = find(tmp_path)
    assert found.algorithm is None
    assert found.notes == (
        "trainer_state.json beside the run holds steps and logged metrics and no settings of the loss",
        "training_args.bin beside the run is a pickle, which is never opened: opening one runs code",
    )
    assert not (tmp_path / "opened").exists()


def test_a_run_without_a_recorded_rule_gets_the_one_beside_it(tmp_path: Path) -> None:
    rows = [{"input": "1 + 1 =", "output": " 2", "score": 1.0, "step": 1} for _ in range(4)]
    file = tmp_path / "rollouts/1.jsonl"
    file.parent.mkdir()
    file.write_text("\n".join(json.dumps(row) for row in rows))
    assert open_run(tmp_path / "rollouts").algorithm is None
    put(tmp_path / ".hydra/config.yaml", VERL)
    run = open_run(tmp_path / "rollouts")
    assert run.algorithm is not None
    assert (run.algorithm.name, run.algorithm.temperature, run.algorithm.updates_per_batch) == ("verl/grpo", 0.9, 2)
    assert run.algorithm.source == "read from .hydra/config.yaml"
    put(tmp_path / ".hydra/config.yaml", {**VERL, "algorithm": {"adv_estimator": "my_own"}})
    run = open_run(tmp_path / "rollouts")
    assert run.algorithm is None
    assert "verl's adv_estimator='my_own'" in run.notes[-1]


def test_a_recorded_rule_is_not_replaced(sample_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.symlink_to(sample_run)
    put(tmp_path / "config.yaml", VERL)
    recorded = open_run(sample_run)
    assert recorded.algorithm is not None
    assert open_run(folder).algorithm == recorded.algorithm
