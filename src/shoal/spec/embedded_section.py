"""The `embedded` provider's side of a cluster file: every node is on this machine.

A file that was written for a cloud can be rehearsed by changing its provider alone, so what has
no meaning here is taken out with a warning, never refused.
"""

from __future__ import annotations

from shoal.spec.defaults import default_for
from shoal.spec.draft import Draft

_SHARED_FILES = "the nodes share this machine's files"
_SHARED_DISKS = "the nodes share this machine's disks"
_NO_MEANING = {
    "docker": "the nodes run as processes of this machine, not in containers",
    "initialization_commands": "they prepare a machine, and this one is in use",
    "head_start_ray_commands": "the embedded provider starts each node itself",
    "worker_start_ray_commands": "the embedded provider starts each node itself",
    "file_mounts": _SHARED_FILES,
    "cluster_synced_files": _SHARED_FILES,
    "rsync_exclude": _SHARED_FILES,
    "rsync_filter": _SHARED_FILES,
}
# Templates have these in them; without file mounts they do nothing anyway.
_UNREMARKABLE = {"rsync_exclude", "rsync_filter"}


def prepare(draft: Draft) -> None:
    """Take out what has no meaning on one machine. Runs before defaults are filled in."""
    for key, why in _NO_MEANING.items():
        if draft.get(key) and key not in _UNREMARKABLE:
            draft.warn(f"{key} is ignored", why, key)
        draft.drop(key)
    for key in ("volumes", "mounts"):
        if draft.get("shoal", key):
            draft.warn(f"shoal.{key} is ignored", _SHARED_DISKS, "shoal", key)
        draft.drop("shoal", key)
    for name in draft.get("available_node_types", default={}):
        for key in ("docker", "initialization_commands"):
            path = ("available_node_types", name, key)
            if draft.get(*path):
                draft.warn(f"{key} of {name} is ignored", _NO_MEANING[key], *path)
            draft.drop(*path)


def give_cpus(draft: Draft) -> None:
    """A node that declares nothing has one CPU: all nodes claiming the whole machine would
    promise work more than there is. Runs after defaults."""
    for name in draft.get("available_node_types"):
        path = ("available_node_types", name, "resources")
        if not draft.get(*path):
            draft.put(path, {"CPU": 1.0}, default_for("embedded"))
