"""Monte-Carlo returns, and REINFORCE++, which whitens them: the discounted return of each token, KL term included."""

from __future__ import annotations

from credit_inspector.advantages import estimator
from credit_inspector.advantages.returns import discounted
from credit_inspector.advantages.token_rewards import token_rewards
from credit_inspector.algorithm import Algorithm
from credit_inspector.table import Floats, TokenTable


@estimator("returns", words="reward still to come")
@estimator("reinforce_pp", words="reward still to come")
def reinforce_pp(table: TokenTable, algorithm: Algorithm) -> Floats:
    """``[T]`` G_t = Σ_{k≥t} γ^{k−t} r_k of token rewards (Hu 2025, arXiv 2501.03262); NaN where not trained.

    No baseline and no group: ``Algorithm.whiten`` over tokens takes their place. OpenRLHF's ``reinforce`` is this too, with
    ``observation`` = ``count``; SkyRL's function sets the return to 0 at a gap of its mask (``reset``), and its trainer gives
    it a mask without gaps. Without discount and KL every token gets its response's reward.

    Raises:
        MissingColumn: the KL term needs log-probs that nobody recorded.
    """
    rewards = token_rewards(table, algorithm)
    return discounted(
        table,
        rewards.values,
        gamma=algorithm.gamma,
        observation=algorithm.observation,
        acts=rewards.acts,
    )
