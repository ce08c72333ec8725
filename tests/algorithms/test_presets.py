"""Presets are complete, pinned and agree with what the trainer itself is configured to."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from trl import GRPOConfig

import credit_inspector.algorithms
from credit_inspector.advantages import estimators
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.from_trl import algorithm_of
from credit_inspector.algorithms.presets import preset, presets
from credit_inspector.errors import UsageError
from credit_inspector.losses import losses

FOLDER = Path(credit_inspector.algorithms.__file__).parent


@pytest.mark.parametrize("name", presets())
def test_a_preset_names_things_that_exist_and_is_pinned_to_a_version(name: str) -> None:
    algorithm = preset(name)
    assert (algorithm.name, algorithm.source) == (name, "preset")
    assert algorithm.advantage in estimators
    assert algorithm.loss in losses
    trainer, version = name.split("/", maxsplit=1)[0].split("-")
    assert trainer.isalpha()
    assert version.count(".") == 2
    assert Algorithm.from_json(algorithm.to_json()) == algorithm


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_every_setting_of_a_preset_stands_in_its_file(path: Path) -> None:
    """Only what the rule leaves off may be absent: a default of ours is no fact about a trainer."""
    off = {"name", "source", "dual_clip", "delta", "log_ratio_clamp", "horizon", "kl_in_reward", "entropy_bonus"}
    off |= {"clip_bounds"}
    missing = {field.name for field in fields(Algorithm)} - set(tomllib.loads(path.read_text())) - off
    assert not missing


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "bnpo", "dr_grpo", "cispo"])
def test_trl_presets_are_what_trl_is_configured_to(loss_type: str, tmp_path: Path) -> None:
    scaled = {"scale_rewards": "none"} if loss_type == "dr_grpo" else {}
    config = GRPOConfig(output_dir=str(tmp_path), loss_type=loss_type, bf16=False, use_cpu=True, **scaled)
    found = algorithm_of(config)
    assert found.name == f"trl-1.16.0/{loss_type}"
    assert asdict(replace(found, source="preset")) == asdict(preset(found.name))


def test_a_preset_can_be_changed_where_a_run_differs() -> None:
    changed = preset("verl-0.9.1/grpo", kl_beta=0.001, updates_per_batch=1)
    assert (changed.kl_beta, changed.updates_per_batch, changed.dual_clip) == (0.001, 1, 3.0)
    assert changed.source == "preset, with kl_beta, updates_per_batch set"
    with pytest.raises(UsageError, match="unknown algorithm setting 'beta'"):
        preset("verl-0.9.1/grpo", beta=0.1)


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"did you mean .*trl-1\.16\.0/dapo"):
        preset("trl-1.16/dapo")
    with pytest.raises(UsageError, match=r"known: .*verl-0\.9\.1/grpo"):
        preset("@@@@")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"std": "groups"}, "std is 'groups'; wanted one of group, batch, none"),
        ({"aggregation": "token_mean"}, "wanted one of token-mean"),
        ({"clip_low": "0.2"}, "clip_low is '0.2'; wanted a number"),
        ({"updates_per_batch": 1.5}, "updates_per_batch is 1.5; wanted a whole number"),
        ({"count_empty": 1}, "count_empty is 1; wanted true or false"),
        ({"horizon": True}, "horizon is True; wanted a number or nothing"),
        ({"temperature": float("nan")}, "temperature is nan; wanted a finite number"),
        ({"nonsense": 1}, "unknown algorithm setting 'nonsense'"),
    ],
)
def test_settings_that_no_algorithm_takes(setting: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Algorithm.from_json({"name": "n", "source": "s", **setting})
    assert said in str(caught.value)


def test_an_algorithm_has_a_name_and_a_source() -> None:
    with pytest.raises(UsageError, match="without 'source'"):
        Algorithm.from_json({"name": "n"})
