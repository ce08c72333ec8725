"""Segmenters: text → spans.

To add one, drop a file in that decorates a function with ``@segmenter``. It gets the whole response as text and returns
``TextSpan``s in order, without overlap; text between spans belongs to none.
"""

from collections.abc import Callable

from credit_inspector.registry import Registry
from credit_inspector.spans import Segmenter

segmenters: Registry[Segmenter] = Registry("segmenters", __name__)


def segmenter(name: str) -> Callable[[Segmenter], Segmenter]:
    """Put a segmenter in under a name."""
    return lambda function: segmenters.add(name, function)


__all__ = ["segmenter", "segmenters"]
