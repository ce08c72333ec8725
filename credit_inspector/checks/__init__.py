"""Checks: diagnostics that read stored columns and conclude.

To add one, drop a file in that decorates a function with ``@check``. It gets the analysis (``Store``), reads the columns it
needs step by step, and returns findings: none on a clean run. A check that lacks its columns says nothing; what is missing is
shown with the columns themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from credit_inspector.panel import Finding
from credit_inspector.registry import Registry
from credit_inspector.store import Store

Check = Callable[[Store], list[Finding]]

checks: Registry[Check] = Registry("checks", __name__)


def check(code: str) -> Callable[[Check], Check]:
    """Put a check in under the code of its findings."""
    return lambda function: checks.add(code, function)


def run_checks(store: Store) -> list[Finding]:
    """All findings, the most severe first."""
    found = [finding for code in checks for finding in checks[code](store)]
    return sorted(found, key=lambda finding: (-finding.severity, finding.code))


__all__ = ["Check", "check", "checks", "run_checks"]
