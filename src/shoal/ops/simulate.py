"""Simulate a trace of work on a cluster file: what it costs and how long it waits.

Reads the cluster file and the trace, and runs the simulation once for the file as it is and once
for every changed policy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.catalog import offerings_for
from shoal.core.errors import ConfigError
from shoal.scaling import Gang, LabelRule, Shape, Strategy
from shoal.scaling.simulation import Arrival, SimulationResult, SimulationSettings, simulate
from shoal.spec.cluster_spec import ClusterSpec

UNCHANGED = "unchanged"

# Seconds and counts of a trace: about thirty years, and more tasks than a simulation finishes.
_MAX_SECONDS = 1e9
_MAX_COUNT = 1e9
# The largest value of each setting that can be simulated.
_LIMITS = {
    "idle_timeout_minutes": 1e6,
    "max_workers": 1e6,
    "upscaling_speed": 1e6,
    "target_utilization_fraction": 1.0,
    "consolidate": 1.0,
}


@dataclass(frozen=True)
class Policy:
    """A cluster file with some settings changed, and a name for it."""

    name: str
    spec: ClusterSpec


@dataclass(frozen=True)
class PolicyResult:
    """The simulation's result for one policy."""

    policy: str
    result: SimulationResult


def compare(
    spec: ClusterSpec,
    trace: Sequence[Arrival],
    changes: Sequence[str],
    settings: SimulationSettings,
) -> list[PolicyResult]:
    """Simulate the file as it is, and with each set of changes (`idle_timeout_minutes=1,...`)."""
    policies = [Policy(UNCHANGED, spec), *(changed_policy(spec, text) for text in changes)]
    return [
        PolicyResult(p.name, simulate(p.spec, offerings_for(p.spec), trace, settings))
        for p in policies
    ]


def changed_policy(spec: ClusterSpec, text: str) -> Policy:
    """The spec with settings replaced, as `name=value` separated by commas."""
    for part in text.split(","):
        name, sign, value = part.strip().partition("=")
        change = _CHANGES.get(name)
        if not sign or change is None:
            raise ConfigError(
                f"{part.strip()!r} is not a setting that can be simulated",
                fix=f"use NAME=VALUE with one of {', '.join(sorted(_CHANGES))}",
            )
        spec = change(spec, _number(name, value))
    return Policy(text, spec)


def _number(name: str, value: str) -> float:
    booleans = {"true": 1.0, "false": 0.0}
    try:
        number = (
            booleans.get(value.lower(), math.nan) if value.lower() in booleans else float(value)
        )
    except ValueError:
        number = math.nan
    if not 0 <= number <= _LIMITS[name]:  # nor NaN
        raise ConfigError(
            f"invalid value {value!r} for {name}", fix=f"use a number from 0 to {_LIMITS[name]:g}"
        )
    return number


def _idle_timeout(spec: ClusterSpec, minutes: float) -> ClusterSpec:
    types = {n: replace(t, idle_timeout_s=minutes * 60) for n, t in spec.node_types.items()}
    scaling = replace(spec.scaling, idle_timeout_s=minutes * 60)
    return replace(spec, node_types=types, scaling=scaling)


def _max_workers(spec: ClusterSpec, max_workers: float) -> ClusterSpec:
    """The limit of the cluster, and of every type whose limit was at least as high."""
    before = spec.scaling.max_workers
    types = {
        n: replace(t, max_workers=int(max_workers)) if t.max_workers >= before > 0 else t
        for n, t in spec.node_types.items()
    }
    scaling = replace(spec.scaling, max_workers=int(max_workers))
    return replace(spec, node_types=types, scaling=scaling)


def _upscaling_speed(spec: ClusterSpec, speed: float) -> ClusterSpec:
    return replace(spec, scaling=replace(spec.scaling, upscaling_speed=speed))


def _target_utilization(spec: ClusterSpec, fraction: float) -> ClusterSpec:
    return replace(spec, scaling=replace(spec.scaling, target_utilization_fraction=fraction))


def _consolidate(spec: ClusterSpec, enabled: float) -> ClusterSpec:
    return replace(spec, shoal=replace(spec.shoal, consolidate=bool(enabled)))


_CHANGES: Mapping[str, Callable[[ClusterSpec, float], ClusterSpec]] = {
    "idle_timeout_minutes": _idle_timeout,
    "max_workers": _max_workers,
    "upscaling_speed": _upscaling_speed,
    "target_utilization_fraction": _target_utilization,
    "consolidate": _consolidate,
}


def read_trace(path: Path) -> list[Arrival]:
    """The arrivals in a file: one JSON object per line."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"could not read the trace {path}", why=str(error)) from error
    arrivals = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                arrivals.append(_arrival(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
                raise ConfigError(
                    f"line {number} of {path} is not a valid arrival",
                    why=f"{type(error).__name__}: {error}",
                    fix='write {"at": 0, "resources": {"CPU": 1}, "count": 10, "seconds": 60}',
                ) from error
    return arrivals


def _arrival(row: Mapping[str, Any]) -> Arrival:
    at, count = _within(row["at"], _MAX_SECONDS), _within(row.get("count", 1), _MAX_COUNT)
    if count != int(count):
        raise ValueError(f"the count {count:g} is not an integer")
    if "floor" in row:
        return Arrival(at, int(count), floor=_shape(row["floor"], row))
    seconds = _within(row["seconds"], _MAX_SECONDS)
    if "bundles" in row:
        bundles = tuple(_shape(bundle, row) for bundle in row["bundles"])
        gang = Gang(bundles, Strategy(row.get("gang", "PACK")))
        return Arrival(at, int(count), seconds, gang=gang)
    return Arrival(at, int(count), seconds, shape=_shape(row["resources"], row))


def _shape(resources: Mapping[str, float], row: Mapping[str, Any]) -> Shape:
    rules = [LabelRule(key, (str(value),)) for key, value in row.get("where", {}).items()]
    return Shape.of({k: float(v) for k, v in resources.items()}, [rules] if rules else ())


def _within(value: Any, limit: float) -> float:
    number = float(value)
    if not 0 <= number <= limit:  # nor NaN
        raise ValueError(f"{value} is not between 0 and {limit:g}")
    return number
