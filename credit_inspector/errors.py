"""Everything this package raises on purpose.

CreditInspectorError            one line: what was found, what was wanted, what to do
├── UsageError                  the call names something that does not exist
├── FormatError                 a file or folder is not what it should be
│   └── AlignmentError          values that do not belong to the tokens beside them
├── CheckpointError             a checkpoint that cannot be loaded
├── MissingColumn               a column was asked for that the data cannot give
├── MissingExtra                an optional package is not installed
└── StoreError                  an analysis folder that cannot be written or read

The command line prints the line and exits with code 2. A bad rollout among good ones is no error but a ``Problem``
(``rollout.py``): it is counted and shown.
"""

from __future__ import annotations


class CreditInspectorError(Exception):
    """One line for a person: what was found, what was wanted, what to do."""

    def __init__(self, found: str, *, wanted: str = "", do: str = "") -> None:
        parts = [found, f"wanted {wanted}" if wanted else "", do]
        super().__init__("; ".join(" ".join(part.split()) for part in parts if part))


class UsageError(CreditInspectorError):
    """The call names something that does not exist."""


class FormatError(CreditInspectorError):
    """A file or folder is not what it should be."""


class AlignmentError(FormatError):
    """Values that do not belong to the tokens beside them."""


class CheckpointError(CreditInspectorError):
    """A checkpoint that cannot be loaded."""


class MissingColumn(CreditInspectorError):
    """A column was asked for that the data cannot give."""


class MissingExtra(CreditInspectorError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs {package}, which is not installed", do=f'pip install "credit-inspector[{extra}]"')


class StoreError(CreditInspectorError):
    """An analysis folder that cannot be written or read."""
