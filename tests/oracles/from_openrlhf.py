"""More vectors from OpenRLHF's ``PolicyLoss``: ``python tests/oracles/from_openrlhf.py LOSS.PY`` writes the file again.

``LOSS.PY`` is ``openrlhf/models/loss.py`` of the 0.11.2 wheel; of its package it needs ``masked_mean`` alone, which is loaded
from ``utils.py`` beside it, so that neither deepspeed nor Ray is installed for it.
"""

from __future__ import annotations
import __future__

import ast
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oracles.from_verl import GROUPS, drawn, mask_of, spelled

OUT = Path(__file__).parents[1] / "data" / "oracles_openrlhf.json"
GAINS = (1.25, -0.75, 0.5, -1.5, 0.0, 0.8)


def main(source: Path) -> None:
    """Write the vectors."""
    import torch

    torch.set_default_dtype(torch.float64)
    OUT.write_text(json.dumps({"vectors": list(vectors(policy_loss(source)))}, separators=(",", ":")) + "\n")


def policy_loss(source: Path) -> Any:
    """The class, with the one function that it takes from its package."""
    import torch

    utils = ast.parse((source.parent / "utils.py").read_text())
    wanted = next(node for node in utils.body if isinstance(node, ast.FunctionDef) and node.name == "masked_mean")
    beside = types.ModuleType("openrlhf_models.utils")
    beside.__dict__.update(torch=torch, Optional=Any | None, Union=Any, Tuple=tuple)
    code = compile(ast.Module([wanted], []), "utils.py", "exec", flags=__future__.annotations.compiler_flag)
    exec(code, beside.__dict__)  # noqa: S102 - the published source that is asked for on the command line
    package = types.ModuleType("openrlhf_models")
    package.__path__ = []
    loss = types.ModuleType("openrlhf_models.loss")
    loss.__package__ = "openrlhf_models"
    sys.modules |= {"openrlhf_models": package, "openrlhf_models.utils": beside, "openrlhf_models.loss": loss}
    exec(compile(source.read_text(), "loss.py", "exec"), loss.__dict__)  # noqa: S102 - as above
    return loss.PolicyLoss


def vectors(kind: Any) -> Iterator[Any]:
    """Every gate and level of the correction, and GSPO with and without one."""
    import torch

    for level, mode, gating, threshold in (
        ("token", "mask", "ratio", [0.8, 1.25]),
        ("seq", "mask", "ratio", [0.9, 1.1]),
        ("token", "mask", "binary_kl", [0.0, 0.05]),
        ("seq", "mask", "binary_kl", [0.0, 0.06]),
        ("token", "mask", "tv", [0.0, 0.1]),
        ("seq", "mask", "tv", [0.0, 0.11]),
        ("token", "clip", "ratio", [0.9, 1.1]),
    ):
        given = {f"is_correction_{k}": v for k, v in zip(("level", "mode", "gating"), (level, mode, gating), strict=True)}
        yield vector(kind, torch, f"is.{level}.{mode}.{gating}.wide", {**given, "is_correction_threshold": threshold})
    yield vector(kind, torch, "gspo.wide", {"policy_loss_type": "gspo"})
    off = {"is_correction_level": "token", "is_correction_mode": "mask", "is_correction_gating": "ratio"}
    yield vector(kind, torch, "gspo.corrected", {"policy_loss_type": "gspo", **off, "is_correction_threshold": [0.5, 5.0]})


def vector(kind: Any, torch: Any, name: str, params: dict[str, Any]) -> Any:
    """One of them, in the first set's form."""
    old, mask = drawn(6, -2, -0.01), mask_of(holes=True)
    policy, rollout = (old + drawn(7, -0.4, 0.4)).round(6), (old + drawn(8, -0.4, 0.4)).round(6)
    gains = [[gain] * old.shape[1] for gain in GAINS[: len(GROUPS)]]
    params = {"clip_eps_low": 0.2, "clip_eps_high": 0.28, **params}
    logp = torch.tensor(policy, requires_grad=True)
    arrays = (logp, torch.tensor(old), torch.tensor(gains), torch.tensor(mask), torch.tensor(rollout))
    loss, clip_ratio, *_ = kind(**params)(*arrays)
    loss.backward()
    return {
        "id": f"openrlhf.{name}",
        "quantity": "policy-loss:openrlhf",
        "producer": {"package": "openrlhf", "version": "0.11.2", "callable": "openrlhf.models.loss.PolicyLoss.forward"},
        "params": params,
        "inputs": {
            "log_prob": policy.tolist(),
            "old_log_prob": old.tolist(),
            "advantages": gains,
            "action_mask": mask.tolist(),
            "rollout_log_prob": rollout.tolist(),
        },
        "outputs": {"loss": loss.item(), "dloss_dlogp": spelled(logp.grad.tolist()), "clip_ratio": clip_ratio.item()},
        "tolerance": 1e-9,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
