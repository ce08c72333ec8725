"""Presets: named rules, pinned to a trainer's version, as data (``*.toml``).

To add one, drop a TOML file in whose keys are the fields of ``Algorithm``, each with a comment that says where the
trainer sets it. The file ``trl-1.16.0-grpo.toml`` is the preset ``trl-1.16.0/grpo``: the last dash before the rule is a
slash.

The modules beside them are the other ways in which a rule becomes known: ``presets`` reads these files, ``beside`` finds the
configuration that a trainer left beside a run and ``from_<trainer>`` makes a rule of its settings (``from_trl`` of a live
trainer's too), ``detect`` tries rules on stored advantages; ``normalise``, ``others`` and ``against_group`` are the
arithmetic that it shares with the estimators, ``words`` the names of rules.
"""
