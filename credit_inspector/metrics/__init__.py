"""Per-token metrics: what the policy said, how far it moved, how far it stands from the reference.

To add one, drop a file in that decorates a function with ``@metric``; the column then stands in the table, the app, the report
and the docs. The function gets the columns (and inputs) named in ``needs`` and returns one value per token.
"""

from functools import partial

from credit_inspector.columns import ColumnSpec, declare
from credit_inspector.registry import Registry

metrics: Registry[ColumnSpec] = Registry("metrics", __name__)
metric = partial(declare, metrics)

__all__ = ["metric", "metrics"]
