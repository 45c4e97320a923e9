"""Where the package `adaptdl` of the distribution `shoal-adaptdl` is on this machine."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

_DISTRIBUTION = "shoal-adaptdl"


def adaptdl_package() -> Path | None:
    """The directory of the package: what to copy to a directory on the path of workers. None if
    `shoal-adaptdl` is not installed."""
    source = Path(__file__).resolve().parents[3] / "adaptdl" / "src" / "adaptdl"
    if source.is_dir():
        return source
    try:
        distribution = importlib.metadata.distribution(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None
    installed = Path(str(distribution.locate_file("adaptdl")))
    return installed if installed.is_dir() else None
