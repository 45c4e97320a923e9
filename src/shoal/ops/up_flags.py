"""The options of `shoal up` that stay in force: --min-workers, --max-workers and --autostop.

What an option set holds for every later command on the cluster, until another `up` sets it again,
the file itself gets another value for it, or the cluster is terminated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from shoal import spec
from shoal.core.atomic_write import write_atomically
from shoal.ops import known_clusters
from shoal.ops.context import Context
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.durations import duration_text
from shoal.spec.overrides import with_overrides

_KEYS = ("min_workers", "max_workers", "autostop")


@dataclass(frozen=True)
class UpFlag:
    """An option's value, and the value that the file had for the same setting then."""

    value: float
    file_value: Any


UpFlags = Mapping[str, UpFlag]


def load_with_flags(
    ctx: Context, load: Callable[[spec.Overrides], spec.LoadedSpec], overrides: spec.Overrides
) -> tuple[spec.LoadedSpec, UpFlags]:
    """Load a file with these overrides and the options of earlier commands that are still in
    force. Returns what was loaded, and all options in force."""
    given = {key: value for key in _KEYS if (value := getattr(overrides, key)) is not None}
    try:
        own = load(replace(overrides, **dict.fromkeys(_KEYS)))
    except spec.SpecError:
        if not given:
            raise
        return load(overrides), {}  # only the options make it valid
    recorded = read(ctx, own.spec.cluster_name)
    flags = {k: f for k, f in recorded.items() if f.file_value == _file_value(own.spec, k)}
    flags.update({k: UpFlag(value, _file_value(own.spec, k)) for k, value in given.items()})
    if not flags:
        return own, {}
    values: dict[str, Any] = {key: flag.value for key, flag in flags.items()}
    return load(replace(overrides, **values)), flags


def override_recorded(
    ctx: Context, recorded: ClusterSpec, overrides: spec.Overrides
) -> tuple[ClusterSpec, UpFlags]:
    """The spec of a known cluster, in which earlier options are in force already, with these
    overrides."""
    flags = dict(read(ctx, recorded.cluster_name))
    for key in _KEYS:
        if (value := getattr(overrides, key)) is not None:
            base = flags[key].file_value if key in flags else _file_value(recorded, key)
            flags[key] = UpFlag(value, base)
    return with_overrides(recorded, overrides), flags


def describe(flags: UpFlags) -> str:
    """The options as they are typed."""
    return " ".join(f"--{key.replace('_', '-')} {_text(key, f.value)}" for key, f in flags.items())


def read(ctx: Context, cluster: str) -> dict[str, UpFlag]:
    """The options that earlier commands recorded."""
    try:
        text = known_clusters.file_of(ctx, cluster, "flags").read_text()
    except FileNotFoundError:
        return {}
    return {key: UpFlag(**flag) for key, flag in json.loads(text).items()}


def record(ctx: Context, cluster: str, flags: UpFlags) -> None:
    """Store the options in force, replacing the recorded ones."""
    data = {key: asdict(flag) for key, flag in flags.items()}
    write_atomically(known_clusters.file_of(ctx, cluster, "flags"), json.dumps(data))


def _file_value(cluster: ClusterSpec, key: str) -> Any:
    if key == "max_workers":
        return cluster.scaling.max_workers
    if key == "autostop":
        return cluster.shoal.autostop
    return {name: t.min_workers for name, t in cluster.node_types.items()}


def _text(key: str, value: float) -> str:
    return duration_text(value) if key == "autostop" else f"{value:g}"
