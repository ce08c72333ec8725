"""Vectors of attribution and of prefix values."""

from __future__ import annotations

from oracles import Checks

CHECKS: Checks = {}
