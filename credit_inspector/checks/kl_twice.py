"""The KL term counted twice."""

from __future__ import annotations

from credit_inspector.checks import check
from credit_inspector.panel import Finding, Severity
from credit_inspector.store import Store

CODE = "kl-in-reward-and-loss"


@check(CODE)
def kl_twice(store: Store) -> list[Finding]:
    """Whether the rule holds on to the reference in the reward and in the loss at once."""
    rules = [store.read_step(step, [])[0].algorithm for step in store.steps]
    both = [rule for rule in rules if rule is not None and rule.kl_in_reward and rule.kl_beta]
    if not both:
        return []
    rule = both[0]
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            sentence=f"{rule.name} has the KL term in the reward ({rule.kl_in_reward:g}) and in the loss ({rule.kl_beta:g}) at "
            "once.",
            how_sure=f"the rule's own settings ({rule.source}), in {len(both)} of {len(rules)} steps",
            why="The pull towards the reference is then counted twice, once through advantages and once beside them.",
            do="Keep one of the two, or set the other's weight to 0.",
            cannot_tell="Whether both are meant.",
            numbers={"kl_in_reward": rule.kl_in_reward, "kl_beta": rule.kl_beta},
        )
    ]
