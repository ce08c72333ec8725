"""Columns as functions, and the order in which wanted ones are made.

A metric or a credit method is a function that gives one column. It declares what it needs and receives exactly that, in the
order declared: other columns as ``[T]`` float64 arrays, or one of the ``Inputs`` by name::

    @metric("kl/k1", label="KL k1", needs=("logprob/policy", "logprob/ref"), unit="nats", scope="token", family="policy")
    def k1(policy, ref):
        '''log π − log π_ref of the sampled token (Schulman 2020).'''
        return policy - ref

A column that the trainer recorded is taken as it is; a function runs only for what is not there. What cannot be made is a
missing column with the reason, never a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import ArrayLike

from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import CreditInspectorError, MissingColumn
from credit_inspector.registry import Registry
from credit_inspector.spans import SpanTable
from credit_inspector.table import Column, Provenance, TokenTable

if TYPE_CHECKING:
    from credit_inspector.scoring import Models

Scope = Literal["token", "rollout", "group", "batch"]
"""What else a value may depend on: nothing but its token and what precedes it, its rollout, its group, the whole step."""

Family = Literal["assigned", "realised", "earned", "policy"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a column function may ask for besides columns."""

    table: TokenTable
    algorithm: Algorithm | None = None
    spans: SpanTable | None = None
    models: Models | None = None
    """The checkpoints, opened when first used (``scoring/``)."""


_INPUTS = ("table", "algorithm", "spans", "models")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    """A column: its meaning, and the function that makes it."""

    name: str
    label: str
    """A few words for a button."""
    needs: tuple[str, ...]
    unit: str
    sign: str
    """What plus and minus mean, in words; empty where there is no sign."""
    scope: Scope
    family: Family
    provenance: Provenance
    cost: str
    """What it takes beyond stored columns, such as ``one forward``; empty for arithmetic."""
    make: Callable[..., ArrayLike | Made]
    doc: str
    after: tuple[str, ...] = ()
    """Columns made first where they can be had; the function reads them from the table, or does without."""
    after_where: Mapping[str, Callable[[Algorithm], bool]] = field(default_factory=dict)
    """More of them, each for the rules that read it: what costs a forward pass is not made for the others."""

    def first(self, algorithm: Algorithm | None) -> tuple[str, ...]:
        """What is made before it under a rule."""
        more = (name for name, reads in self.after_where.items() if algorithm is not None and reads(algorithm))
        return (*self.needs, *self.after, *more)

    @property
    def diverging(self) -> bool:
        """Whether zero is the middle of its scale."""
        return bool(self.sign)


@dataclass(frozen=True, slots=True)
class Made:
    """A column function's answer where it has something to add to the values: the model used, an error, a rule."""

    values: ArrayLike
    note: str = ""
    provenance: Provenance | None = None


def declare(
    registry: Registry[ColumnSpec],
    name: str,
    *,
    label: str,
    needs: Sequence[str],
    unit: str,
    scope: Scope,
    family: Family,
    sign: str = "",
    provenance: Provenance = Provenance.DERIVED,
    cost: str = "",
    after: Sequence[str] = (),
    after_where: Mapping[str, Callable[[Algorithm], bool]] | None = None,
) -> Callable[[Callable[..., ArrayLike | Made]], Callable[..., ArrayLike | Made]]:
    """The decorator behind ``@metric`` and ``@credit``: put the function's column into a registry."""

    def put(function: Callable[..., ArrayLike | Made]) -> Callable[..., ArrayLike | Made]:
        doc = " ".join((function.__doc__ or "").split())
        spec = ColumnSpec(
            name=name,
            label=label,
            needs=tuple(needs),
            unit=unit,
            sign=sign,
            scope=scope,
            family=family,
            provenance=provenance,
            cost=cost,
            make=function,
            doc=doc,
            after=tuple(after),
            after_where=after_where or {},
        )
        registry.add(name, spec)
        return function

    return put


def order(
    wanted: Iterable[str],
    specs: Mapping[str, ColumnSpec],
    there: Iterable[str] = (),
    algorithm: Algorithm | None = None,
) -> list[ColumnSpec]:
    """The specs to run, each after what it needs; columns in ``there`` are not made again.

    A need that is neither there nor known stops nothing else: its column becomes a missing one, with the reason.

    Raises:
        MissingColumn: a wanted name that is neither there nor known.
    """
    done = set(there)
    ordered: list[ColumnSpec] = []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in done or name in _INPUTS:
            return
        if name not in specs:
            if path:
                return
            raise MissingColumn(f"no column named {name!r}", wanted=f"one of {', '.join(sorted(specs))}")
        if name in path:
            raise MissingColumn(f"columns need each other in a circle: {' → '.join((*path, name))}")
        for need in specs[name].first(algorithm):
            visit(need, (*path, name))
        done.add(name)
        ordered.append(specs[name])

    for name in wanted:
        visit(name, ())
    return ordered


def compute(
    inputs: Inputs,
    wanted: Iterable[str],
    specs: Mapping[str, ColumnSpec],
    *,
    on_done: Callable[[ColumnSpec], None] | None = None,
) -> None:
    """Make the wanted columns and what they need, into ``inputs.table``. A recorded column is never overwritten."""
    table = inputs.table
    there = [name for name, column in table.columns.items() if column.values is not None]
    for spec in order(wanted, specs, there, inputs.algorithm):
        table.columns[spec.name] = _make(spec, inputs)
        if on_done:
            on_done(spec)


def _make(spec: ColumnSpec, inputs: Inputs) -> Column:
    try:
        arguments: list[Any] = [_argument(name, inputs) for name in spec.needs]
        answer = spec.make(*arguments)
    except CreditInspectorError as error:
        return Column.missing(str(error))
    made = answer if isinstance(answer, Made) else Made(answer)
    inputs.table.add(spec.name, made.values, made.provenance or spec.provenance, made.note)
    return inputs.table.columns[spec.name]


def _argument(name: str, inputs: Inputs) -> Any:
    if name not in _INPUTS:
        return inputs.table.values(name)
    value = getattr(inputs, name)
    if value is None:
        raise MissingColumn(_ASK[name])
    return value


_ASK = {
    "algorithm": "the run does not say which rule it optimised; name it with --algorithm",
    "spans": "the text is not known, so there are no spans; give a tokenizer or a checkpoint",
    "models": "no checkpoint is at hand; give one with --policy",
}
