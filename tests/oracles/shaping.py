"""What-if vectors: changed rewards in, advantages and scores out."""

from __future__ import annotations

from oracles import Checks, Vector, close, floats
from oracles.advantages import by_response


def length_penalty(vector: Vector) -> None:
    lengths = floats([vector["inputs"]["len_A"], vector["inputs"]["len_B"]])
    for row in vector["outputs"]["rows"]:
        rewards = 1 - row["alpha"] * lengths
        close(by_response("grpo", rewards, [0, 0], std_eps=1e-6), row["verl_std"], vector)
        close(by_response("grpo", rewards, [0, 0], std_eps=1e-4), row["trl_std"], vector)
        close(by_response("grpo", rewards, [0, 0], std="none"), row["no_std"], vector)


CHECKS: Checks = {
    "whatif.seed_AB_length_penalty": length_penalty,
}
