"""What would this trace of work have cost on this cluster, and how long would it have waited?

Reads the cluster file and the trace, and runs the simulation once for the file as it is and once
for every other policy that is asked about.
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
from shoal.scaling.simulation import Arrival, Outcome, World, simulate
from shoal.spec.cluster_spec import ClusterSpec

AS_IT_IS = "as the file says"


@dataclass(frozen=True)
class Policy:
    """A cluster file with some settings changed, by name."""

    name: str
    spec: ClusterSpec


@dataclass(frozen=True)
class Result:
    """What a policy came to."""

    policy: str
    outcome: Outcome


def compare(
    spec: ClusterSpec, trace: Sequence[Arrival], changes: Sequence[str], world: World
) -> list[Result]:
    """Simulate the file as it is, and with each set of changes (`idle_timeout_minutes=1,...`)."""
    policies = [Policy(AS_IT_IS, spec), *(changed(spec, text) for text in changes)]
    return [Result(p.name, simulate(p.spec, offerings_for(p.spec), trace, world)) for p in policies]


def changed(spec: ClusterSpec, text: str) -> Policy:
    """The spec with settings replaced, as `name=value` separated by commas."""
    for part in text.split(","):
        name, sign, value = part.strip().partition("=")
        change = _CHANGES.get(name)
        if not sign or change is None:
            raise ConfigError(
                f"{part.strip()!r} is not a setting that can be simulated",
                fix=f"use name=value with one of {', '.join(sorted(_CHANGES))}",
            )
        spec = change(spec, _number(name, value))
    return Policy(text, spec)


def _number(name: str, value: str) -> float:
    words = {"true": 1.0, "false": 0.0}
    try:
        number = words.get(value.lower(), math.nan) if value.lower() in words else float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise ConfigError(f"{name} cannot be {value!r}", fix="give a number that is not negative")
    return number


def _idle_timeout(spec: ClusterSpec, minutes: float) -> ClusterSpec:
    types = {n: replace(t, idle_timeout_s=minutes * 60) for n, t in spec.node_types.items()}
    scaling = replace(spec.scaling, idle_timeout_s=minutes * 60)
    return replace(spec, node_types=types, scaling=scaling)


def _max_workers(spec: ClusterSpec, most: float) -> ClusterSpec:
    """The cluster's limit, and that of every type that had as many as the cluster."""
    before = spec.scaling.max_workers
    types = {
        n: replace(t, max_workers=int(most)) if t.max_workers >= before > 0 else t
        for n, t in spec.node_types.items()
    }
    scaling = replace(spec.scaling, max_workers=int(most))
    return replace(spec, node_types=types, scaling=scaling)


def _upscaling_speed(spec: ClusterSpec, speed: float) -> ClusterSpec:
    return replace(spec, scaling=replace(spec.scaling, upscaling_speed=speed))


def _target_utilization(spec: ClusterSpec, share: float) -> ClusterSpec:
    return replace(spec, scaling=replace(spec.scaling, target_utilization_fraction=share))


def _consolidate(spec: ClusterSpec, on: float) -> ClusterSpec:
    return replace(spec, shoal=replace(spec.shoal, consolidate=bool(on)))


_CHANGES: Mapping[str, Callable[[ClusterSpec, float], ClusterSpec]] = {
    "idle_timeout_minutes": _idle_timeout,
    "max_workers": _max_workers,
    "upscaling_speed": _upscaling_speed,
    "target_utilization_fraction": _target_utilization,
    "consolidate": _consolidate,
}


def read_trace(path: Path) -> list[Arrival]:
    """The arrivals in a file: a JSON object on every line."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"the trace {path} cannot be read", why=str(error)) from error
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append(_arrival(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
                raise ConfigError(
                    f"line {number} of {path} is not an arrival",
                    why=f"{type(error).__name__}: {error}",
                    fix='write {"at": 0, "resources": {"CPU": 1}, "count": 10, "seconds": 60}',
                ) from error
    return found


def _arrival(row: Mapping[str, Any]) -> Arrival:
    at, count = _positive(row["at"]), int(_positive(row.get("count", 1)))
    if "floor" in row:
        return Arrival(at, count, floor=_shape(row["floor"], row))
    seconds = _positive(row["seconds"])
    if "bundles" in row:
        bundles = tuple(_shape(bundle, row) for bundle in row["bundles"])
        return Arrival(at, count, seconds, gang=Gang(bundles, Strategy(row.get("gang", "PACK"))))
    return Arrival(at, count, seconds, shape=_shape(row["resources"], row))


def _shape(resources: Mapping[str, float], row: Mapping[str, Any]) -> Shape:
    rules = [LabelRule(key, (str(value),)) for key, value in row.get("where", {}).items()]
    return Shape.of({k: float(v) for k, v in resources.items()}, [rules] if rules else ())


def _positive(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{value} is negative or not a number")
    return number
