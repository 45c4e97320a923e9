"""What changes for a running cluster when the controller gets another spec, as text."""

from __future__ import annotations

from dataclasses import replace

from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.durations import duration_text


def config_changes(old: ClusterSpec, new: ClusterSpec) -> list[str]:
    """Each changed setting with both values; other settings are named as a whole."""
    changes = [
        _change("max_workers", old.scaling.max_workers, new.scaling.max_workers),
        _change("autostop", duration_text(old.shoal.autostop), duration_text(new.shoal.autostop)),
        _change(
            "idle timeout",
            duration_text(old.scaling.idle_timeout_s),
            duration_text(new.scaling.idle_timeout_s),
        ),
    ]
    for name in sorted({*old.node_types, *new.node_types}):
        changes += _type_changes(name, old, new)
    changes = [change for change in changes if change]
    common = old.node_types.keys() & new.node_types.keys()
    if _others(old, common) != _others(new, common):
        changes.append("other settings of the file")
    return changes


def _type_changes(name: str, old: ClusterSpec, new: ClusterSpec) -> list[str]:
    before, after = old.node_types.get(name), new.node_types.get(name)
    if before is None:
        return [f"node type {name} is new"]
    if after is None:
        return [f"node type {name} is removed"]
    changes = [_change(f"min_workers of {name}", before.min_workers, after.min_workers)]
    follows_the_cluster = (before.max_workers, after.max_workers) == (
        old.scaling.max_workers,
        new.scaling.max_workers,
    )
    if not follows_the_cluster:
        changes.append(_change(f"max_workers of {name}", before.max_workers, after.max_workers))
    return changes


def _others(spec: ClusterSpec, names: set[str]) -> ClusterSpec:
    """The spec with equal values for what is described by its own text."""
    types = spec.node_types
    return replace(
        spec,
        scaling=replace(spec.scaling, max_workers=0, idle_timeout_s=0.0),
        shoal=replace(spec.shoal, autostop=0.0),
        node_types={n: replace(types[n], min_workers=0, max_workers=0) for n in names},
    )


def _change(name: str, old: object, new: object) -> str:
    return f"{name} {old} -> {new}" if old != new else ""
