"""From ``KEY=VALUE`` to a changed rule and shapings.

Keys are the fields of ``Algorithm``, ``algorithm`` for a whole preset, the own settings of estimators and losses (``tau_pos`` or
``settings.tau_pos``), entries of a mapping (``reward_weights.format``), and shapings with their settings (``length_penalty``,
``length_penalty.only``). They are taken in the order given: the last value of a key counts.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args, get_origin, get_type_hints

from credit_inspector.advantages import estimators
from credit_inspector.algorithm import Algorithm
from credit_inspector.algorithms.presets import preset
from credit_inspector.credit.constants import SETTINGS as CONSTANTS
from credit_inspector.credit.entropy_push import SETTINGS as ENTROPY
from credit_inspector.errors import UsageError
from credit_inspector.losses import losses
from credit_inspector.shaping import Wanted, shapings, wanted
from credit_inspector.shaping.values import read

Settings = Mapping[str, Any] | Iterable[tuple[str, Any]]

OF_THE_RUN: Final = ("temperature", "updates_per_batch", "batch_tokens", "batch_responses")
"""Facts about what was sampled: a preset does not change them."""
IF_KNOWN: Final = ("horizon",)
"""Numbers that a preset has from its trainer's defaults: the run's own stands where it is known."""
_NAMES: Final = ("name", "source")
_TERMS: Final = (("rollout correction and masks", CONSTANTS), ("entropy bonus", ENTROPY))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be changed."""

    before: Algorithm
    after: Algorithm
    shapings: tuple[Wanted, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """The rule's fields that differ, with both values."""
        former, latter = self.before.to_json(), self.after.to_json()
        return {key: (former[key], latter[key]) for key in former if key not in _NAMES and former[key] != latter[key]}

    @property
    def advantage_changes(self) -> bool:
        """Whether a field changes that turns rewards into advantages."""
        return any(_of_advantage(key, pair, self.after) for key, pair in self.changed.items())


def plan(settings: Settings, rule: Algorithm) -> Plan:
    """Read the settings against a run's rule.

    Raises:
        UsageError: a key that nobody knows (the line names the nearest ones), or a value that it does not take.
    """
    work = _Work(rule)
    for key, value in _flat(settings):
        work.put(key, value)
    return work.done()


def keys() -> list[str]:
    """Everything that can be set, for ``did you mean``."""
    shaped = [name for shaping in shapings.members() for name in (shaping.name, *_dotted(shaping.name, shaping.settings))]
    own = sorted({name for _, settings in plug_ins() for name in settings})
    return ["algorithm", *(key for key in _hints() if key not in _NAMES), *own, *shaped]


def plug_ins() -> Iterator[tuple[str, Mapping[str, float]]]:
    """Each estimator, loss and term that has settings of its own, with their defaults."""
    yield from ((estimator.name, estimator.settings) for estimator in estimators.members() if estimator.settings)
    yield from ((loss.name, loss.settings) for loss in losses.members() if loss.settings)
    yield from _TERMS


class _Work:
    """The rule and the shapings while keys are read."""

    def __init__(self, rule: Algorithm) -> None:
        self.before = rule
        self.fields = rule.to_json()
        self.shaped: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self.said: list[str] = []

    def put(self, key: str, value: Any) -> None:
        head, _, tail = key.partition(".")
        if key == "algorithm":
            self._preset(str(value))
        elif key in _hints() and key not in _NAMES:
            self.fields[key] = read(key, value, _hints()[key])
        elif tail and _is_mapping(head):
            self._entry(head, tail, value)
        elif head in shapings:
            self.shaped.setdefault(head, {})[tail] = value
            return
        elif key in _own_settings():
            self._entry("settings", key, value)
        else:
            raise _unknown(key)
        self.said.append(f"{key}={value}")

    def done(self) -> Plan:
        self.fields["source"] = f"what-if: {', '.join(self.said)}" if self.said else self.before.source
        after = Algorithm.from_json(self.fields)
        estimator, loss = estimators[after.advantage], losses[after.loss]
        read = {**estimator.settings, **loss.settings, **CONSTANTS, **ENTROPY}
        for name in after.settings:
            if name not in read and name not in self.before.settings:
                self.notes.append(f"{name} is no setting of {after.advantage} or {after.loss}: it changes nothing")
        asked = (wanted(name, {k: v for k, v in given.items() if k}, given.get("")) for name, given in self.shaped.items())
        return Plan(
            before=self.before,
            after=after,
            shapings=tuple(one for one in asked if one is not None),
            notes=tuple(self.notes),
        )

    def _preset(self, name: str) -> None:
        chosen = preset(name).to_json()
        kept = {key: self.fields[key] for key in OF_THE_RUN}
        kept |= {key: self.fields[key] for key in IF_KNOWN if self.fields[key] is not None}
        self.fields = {**chosen, **kept}
        if differ := [f"{key} {value}" for key, value in kept.items() if chosen[key] != value]:
            self.notes.append(f"{name} with what the run fixes: {', '.join(differ)}")

    def _entry(self, field: str, name: str, value: Any) -> None:
        if field == "settings" and name not in _own_settings():
            raise _unknown(name)
        part = get_args(_hints()[field])[1]
        self.fields[field] = {**self.fields[field], name: read(f"{field}.{name}", value, part)}


def _flat(settings: Settings) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items() if isinstance(settings, Mapping) else settings:
        if isinstance(value, Mapping) and key in shapings:
            yield from ((f"{key}.{name}", one) for name, one in value.items())
        else:
            yield key, value


def field_types() -> dict[str, Any]:
    """The fields of a rule that can be set, with their types."""
    return {key: hint for key, hint in _hints().items() if key not in _NAMES}


def _hints() -> dict[str, Any]:
    return get_type_hints(Algorithm)


def _is_mapping(field: str) -> bool:
    return get_origin(_hints().get(field)) is Mapping


def _own_settings() -> set[str]:
    return {name for _, settings in plug_ins() for name in settings}


def _dotted(head: str, names: Iterable[str]) -> list[str]:
    return [f"{head}.{name}" for name in names]


def _unknown(key: str) -> UsageError:
    near = difflib.get_close_matches(key, keys(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "see credit-inspector what-if RUN --list"
    return UsageError(f"nothing named {key!r} can be set", do=hint)


def _of_advantage(key: str, pair: tuple[Any, Any], after: Algorithm) -> bool:
    if key == "settings":
        own = estimators[after.advantage].settings
        return any(name in own and pair[0].get(name) != pair[1].get(name) for name in {**pair[0], **pair[1]})
    names = [field.name for field in dataclasses.fields(Algorithm)]
    return names.index("advantage") <= names.index(key) < names.index("drop_dead_groups")
