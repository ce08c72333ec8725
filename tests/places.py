"""Where things lie in the source tree."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "sample_runs" / "countdown"
