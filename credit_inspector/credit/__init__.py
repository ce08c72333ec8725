"""Credit methods: assigned, realised and earned credit, one column each.

To add one, drop a file in that decorates a function with ``@credit``. The function gets the columns (and inputs) named in
``needs`` and returns one value per token: positive where the token was pushed up, went up, or helped; NaN where there is no
value, never 0 for a missing one.
"""

from functools import partial

from credit_inspector.columns import ColumnSpec, declare
from credit_inspector.registry import Registry

credits: Registry[ColumnSpec] = Registry("credit", __name__)
credit = partial(declare, credits)

__all__ = ["credit", "credits"]
