"""Rules of the `embedded` provider: every node runs on this machine.

A cluster file for a cloud must also load with `provider: {type: embedded}`, so keys without a
meaning here are ignored with a warning, never reported as problems.
"""

from __future__ import annotations

from shoal.spec.defaults import default_for
from shoal.spec.spec_draft import Draft

_SHARED_FILES = "the nodes share this machine's file system"
_SHARED_DISKS = "the nodes share this machine's disks"
_IGNORED_KEYS = {
    "docker": "the nodes run as processes on this machine, not in containers",
    "initialization_commands": "they prepare a new instance, but the nodes run on this machine",
    "head_start_ray_commands": "the embedded provider starts each node itself",
    "worker_start_ray_commands": "the embedded provider starts each node itself",
    "file_mounts": _SHARED_FILES,
    "cluster_synced_files": _SHARED_FILES,
    "rsync_exclude": _SHARED_FILES,
    "rsync_filter": _SHARED_FILES,
}
# Templates contain these; without file mounts they have no effect.
_IGNORED_SILENTLY = {"rsync_exclude", "rsync_filter"}


def prepare(draft: Draft) -> None:
    """Remove the ignored keys. Runs before defaults are applied."""
    for key, reason in _IGNORED_KEYS.items():
        if draft.get(key) and key not in _IGNORED_SILENTLY:
            draft.warn(f"{key} is ignored", reason, key)
        draft.drop(key)
    for key in ("volumes", "mounts"):
        if draft.get("shoal", key):
            draft.warn(f"shoal.{key} is ignored", _SHARED_DISKS, "shoal", key)
        draft.drop("shoal", key)
    for name in draft.get("available_node_types", default={}):
        for key in ("docker", "initialization_commands"):
            path = ("available_node_types", name, key)
            if draft.get(*path):
                draft.warn(f"{key} of {name} is ignored", _IGNORED_KEYS[key], *path)
            draft.drop(*path)


def apply_default_cpus(draft: Draft) -> None:
    """Give one CPU to node types without resources: with Ray's default, every node would claim all
    CPUs of this machine. Runs after defaults."""
    for name in draft.get("available_node_types"):
        path = ("available_node_types", name, "resources")
        if not draft.get(*path):
            draft.put(path, {"CPU": 1.0}, default_for("embedded"))
