"""Where things lie in the source tree."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "sample_runs" / "countdown"
FORMATS = ROOT / "sample_runs" / "formats"


def samples(name: str) -> list[Path]:
    """The shipped samples of a reader: what stands in its folder beside the README."""
    folder = FORMATS / name
    return sorted(path for path in folder.iterdir() if path.name != "README.md") if folder.is_dir() else []


REAL_FILES = ROOT.parent / "shared" / "real_files"
"""Files by other people, beside the source tree where they are at hand."""
