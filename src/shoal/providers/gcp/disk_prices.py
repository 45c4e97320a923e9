"""What the disks of a `node_config` cost: Google's list prices in the US, by capacity. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HOURS_PER_MONTH = 730.0
# US dollars per GB and month. Other types also charge for IOPS and throughput.
_PER_GB_MONTH = {"pd-standard": 0.04, "pd-balanced": 0.10, "pd-ssd": 0.17}
_DEFAULT_TYPE = "pd-standard"
_DEFAULT_GB = 10


def new_disks(config: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Type and size of the disks that are created with an instance, as far as their price is
    known."""
    found = []
    for disk in config.get("disks") or ():
        parameters = disk.get("initializeParams") or {}
        kind = str(parameters.get("diskType") or _DEFAULT_TYPE).rpartition("/")[2]
        is_new = not disk.get("source") and disk.get("type") != "SCRATCH"
        if is_new and kind in _PER_GB_MONTH:
            size = parameters.get("diskSizeGb") or disk.get("diskSizeGb") or _DEFAULT_GB
            found.append((kind, int(size)))
    return found


def describe(config: Mapping[str, Any]) -> str:
    """The disks as text: `50 GB pd-standard`."""
    return ", ".join(f"{size} GB {kind}" for kind, size in new_disks(config))


def per_hour(config: Mapping[str, Any]) -> float:
    """What the disks cost per hour, in US dollars."""
    monthly = sum(_PER_GB_MONTH[kind] * size for kind, size in new_disks(config))
    return monthly / _HOURS_PER_MONTH
