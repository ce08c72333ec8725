"""Files by people who do this job: each opens with scan, check and the app, with the right groups, rewards and tokens.

The files lie outside the source tree; where they are absent these tests are skipped. What is expected was read off the files.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

from app.test_app import app_modules, shown, start, strips  # noqa: F401 - fixtures
from credit_inspector.cli import app
from credit_inspector.panel import Strip
from credit_inspector.rollout import Rollout
from credit_inspector.store import Store
from credit_inspector.trainers.opening import open_run
from credit_inspector.views import Place, views
from places import REAL_FILES

pytest.importorskip("streamlit")


class Seen(NamedTuple):
    """What a file holds in its first step."""

    trainer: str
    steps: int
    groups: list[int]
    """Sizes."""
    rewards: list[float | None]
    tokens: list[tuple[int, int]] | None = None
    """Of prompt and response; ``None`` where the file has text alone."""


CUBE = [0.6455555555555557, 0.5955555555555556, 0.6455555555555557, 0.6307407407407408, 0.6355555555555557]
TRL = [0.6, 1.6, 0.0, 0.6, 0.6, 0.0, 0.8, 0.6, 0.0, 0.4, 0.4, 1.4, 0.0, 0.2]
FILES = {
    "atropos_selcube_scored_groups_tokens.jsonl": Seen(
        "atropos", 1, [4, 4], [*CUBE, *[-0.35444444444444445] * 3],
        [(1934, 157), (1647, 157), (1874, 157), (1867, 157), (2512, 159), *[(2095, 4)] * 3],
    ),
    "lsrl_gsm8k_grpo_groups.jsonl": Seen("group_lines", 20, [8], [1.0] * 8),
    "nemo_gym_blackjack_multi_turn.jsonl": Seen("nemo_gym", 1, [5], [-1.0, 1.0, -1.0, 1.0, 1.0]),
    "nemo_gym_competitive_coding_token_logprobs.jsonl": Seen(
        "nemo_gym", 1, [3], [0.0] * 3, [(109, 785), (109, 959), (109, 1038)]
    ),
    "nemo_gym_longmt_chinese.jsonl": Seen("nemo_gym", 1, [1], [0.7631636074611119]),
    "nemo_gym_tool_call_multireward.jsonl": Seen("nemo_gym", 1, [1] * 5, [2.0] * 5),
    "nemo_rl_nemo_gym_message_log_tokens.json": Seen("nemo_rl", 1, [1, 1], [None, None], [(3080, 0), (3048, 0)]),
    "verl_docs_sandbox_fusion_rollout.jsonl": Seen("verl", 1, [1], [0.0]),
    "verl_gsm8k_rollout_dump_steps1_11.jsonl": Seen("verl", 2, [1, 1], [1.0, 1.0]),
    "tinker_reward_hacking": Seen("tinker", 1, [1, 1], [None, None]),
    "tinker_reward_hacking/rollouts_0208T08-48-5785979632.json": Seen("tinker", 1, [1], [None]),
    "tinker_reward_hacking/rollouts_0208T09-05-14367698432.json": Seen("tinker", 1, [1], [None]),
    "trl_1.16.0/trl_1.16.0_conversational_completions_00001.parquet": Seen("trl", 1, [4] * 4, [1.6, 1.8, *TRL]),
    "trl_1.16.0/trl_1.16.0_plain_completions_00001.parquet": Seen("trl", 1, [4] * 4, [1.6, 1.0, *TRL]),
}  # fmt: skip


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    def copy(name: str) -> Path:
        if not REAL_FILES.is_dir():
            pytest.skip("the files are not here")
        source, target = REAL_FILES / name, tmp_path / Path(name).name
        return Path(shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target))

    return copy


@pytest.mark.parametrize("name", FILES)
def test_it_holds_these_groups_rewards_and_tokens(copied: Callable[[str], Path], name: str) -> None:
    expected = FILES[name]
    run = open_run(copied(name))
    step = run.read(run.steps[0])
    assert (run.trainer, len(run.steps)) == (expected.trainer, expected.steps)
    assert sorted(Counter(one.group_id for one in step.rollouts).values()) == sorted(expected.groups)
    found, wanted = (np.array(rewards, np.float64) for rewards in ([one.reward for one in step.rollouts], expected.rewards))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    tokens = [lengths(one) for one in step.rollouts]
    assert tokens == (expected.tokens or [None] * len(tokens))
    for one in step.rollouts:
        assert one.response or one.response_ids is not None
        assert all(len(values) == len(one.response_ids) for values in one.columns.values() if one.response_ids is not None)


def lengths(one: Rollout) -> tuple[int, int] | None:
    if one.response_ids is None or one.prompt_ids is None:
        return None
    return len(one.prompt_ids), len(one.response_ids)


@pytest.mark.parametrize("name", FILES)
def test_scan_check_and_the_app_open_it(copied: Callable[[str], Path], start: Callable[..., Any], name: str) -> None:  # noqa: F811
    path, expected = copied(name), FILES[name]
    before = {file: file.read_bytes() for file in [path, *path.rglob("*")] if file.is_file()}
    (seen,) = json.loads(CliRunner().invoke(app, ["scan", "--json", str(path)]).output)
    assert seen["what"] == f"run, written by {expected.trainer}"
    checked = CliRunner().invoke(app, ["check", str(path)])
    assert checked.exit_code == 0
    assert "Tests of the data" in checked.output
    folder = next(each for each in (path / "analysis", path.with_name(f"{path.name}.analysis")) if each.is_dir())
    for page in ("verdict", "response", "data", "integrity"):
        at = start(folder, page)
        assert not at.exception
        assert not at.error
        assert shown(at)
    assert strips(start(folder, "response"))
    store = Store(folder)
    table, _ = store.read_step(store.steps[0], [])
    for one in table.rollouts:
        panel = views["response"].build(store, Place(step=table.step, sample_id=one.sample_id))
        (strip,) = [block for block in panel.blocks if isinstance(block, Strip)]
        if expected.tokens is None:
            assert "".join(strip.pieces).endswith(one.response or "")
        else:
            assert strip.pieces
            assert (strip.token_ids >= 0).all()
    assert before == {file: file.read_bytes() for file in before}


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("trl_1.16.0/trl_1.16.0_trainer_state.json", "trainer state, without rollouts"),
        ("trl_1.16.0/trl_1.16.0_lora_adapter_config.json", "configuration of an adapter, without its weights"),
    ],
)
def test_a_file_that_belongs_to_a_run_is_told_for_what_it_is(copied: Callable[[str], Path], name: str, what: str) -> None:
    (seen,) = json.loads(CliRunner().invoke(app, ["scan", "--json", str(copied(name))]).output)
    assert seen["what"] == what
