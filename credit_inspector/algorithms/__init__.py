"""Presets: named rules, pinned to a trainer's version, as data (``*.toml``).

To add one, drop a TOML file in whose keys are the fields of ``Algorithm``, each with a comment that says where the
trainer sets it. The file ``trl-1.16.0-grpo.toml`` is the preset ``trl-1.16.0/grpo``: the last dash before the rule is a
slash.

The modules beside them are the other ways in which a rule becomes known: ``presets`` reads these files, ``from_trl``
reads a live trainer, ``detect`` tries rules on stored advantages; ``normalise`` is what they share with the estimators.
"""
