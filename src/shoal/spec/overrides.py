"""Command-line options applied to a spec that was resolved before, as `shoal up NAME` does."""

from __future__ import annotations

from dataclasses import replace

from shoal.core.errors import ConfigError
from shoal.spec.cluster_spec import ClusterSpec, NodeType
from shoal.spec.loading import Overrides


def with_overrides(spec: ClusterSpec, overrides: Overrides) -> ClusterSpec:
    """The spec with these options, by the rules of a file: a new `max_workers` also applies to the
    types that had no lower one of their own, and `min_workers` to the only type that has workers.
    Raises `ConfigError` for counts that contradict each other."""
    if overrides.cluster_name not in (None, spec.cluster_name):
        raise ConfigError(
            f"cluster {spec.cluster_name} cannot be renamed to {overrides.cluster_name}",
            why="a known cluster was given, and --cluster-name overrides the name in a file",
            fix="omit one of the two names",
        )
    types = dict(spec.node_types)
    scaling, settings = spec.scaling, spec.shoal
    if overrides.max_workers is not None:
        limit, before = overrides.max_workers, scaling.max_workers
        scaling = replace(scaling, max_workers=limit)
        types = {
            name: replace(t, max_workers=limit) if t.max_workers >= before > 0 else t
            for name, t in types.items()
        }
    if overrides.min_workers is not None:
        name = _only_worker_type(spec)
        types[name] = replace(types[name], min_workers=overrides.min_workers)
    if overrides.autostop is not None:
        settings = replace(settings, autostop=overrides.autostop)
    changed = replace(spec, node_types=types, scaling=scaling, shoal=settings)
    _check_counts(changed)
    return changed


def _only_worker_type(spec: ClusterSpec) -> str:
    names = worker_types(spec)
    if len(names) == 1:
        return names[0]
    which = f"one of {', '.join(names)}" if names else "a worker type"
    raise ConfigError(
        "--min-workers cannot be applied",
        why="it is for clusters with one worker type",
        fix=f"set min_workers of {which} in the file, and run shoal up with the file",
    )


def worker_types(spec: ClusterSpec) -> list[str]:
    """The node types that workers can have."""
    types = spec.node_types.items()
    return [name for name, t in types if name != spec.head_node_type or t.max_workers > 0]


def _check_counts(spec: ClusterSpec) -> None:
    for node_type in spec.node_types.values():
        _check_type(node_type)
    total = sum(t.min_workers for t in spec.node_types.values())
    if total > spec.scaling.max_workers:
        raise ConfigError(
            f"max_workers is {spec.scaling.max_workers}, but min_workers of all node types add up "
            f"to {total}",
            fix=f"also pass --min-workers {spec.scaling.max_workers}, or a larger --max-workers",
        )


def _check_type(node_type: NodeType) -> None:
    if node_type.min_workers > node_type.max_workers:
        raise ConfigError(
            f"min_workers of {node_type.name} is {node_type.min_workers}, but its max_workers is "
            f"{node_type.max_workers}",
            fix=f"pass --min-workers {node_type.max_workers} or less, or a larger --max-workers",
        )
