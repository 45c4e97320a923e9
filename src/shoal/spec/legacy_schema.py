"""Keys of early Ray versions, moved to their current paths with the meaning they had.

`head_node` and `worker_nodes` were the only two node types, and later the base settings of every
node type. A top-level `min_workers` counted workers of the only worker type, later of
`worker_default_node_type`. `head_init_commands` and `worker_init_commands` of 2017 set a node up
and started Ray. An example of Ray's has `max_worker_nodes` for `max_workers`. The other three keys
control scaling and are kept unchanged.
"""

from __future__ import annotations

import re
from dataclasses import replace

from shoal.spec.defaults import default_for, default_node_types
from shoal.spec.problems import did_you_mean, dotted
from shoal.spec.spec_draft import COMMAND_LINE, DEFAULT, Draft, Origin

LEGACY_HEAD = "ray-legacy-head-node-type"
LEGACY_WORKER = "ray-legacy-worker-node-type"

# The first such command begins the part of `*_init_commands` that starts Ray.
_RAY_COMMAND = re.compile(r"\bray\s+(stop|start)\b")


def migrate_node_types(draft: Draft, provider: str) -> None:
    """Turn `head_node` and `worker_nodes` into node types. Runs before defaults are applied."""
    if draft.has("max_worker_nodes"):
        draft.move_legacy(("max_worker_nodes",), ("max_workers",))
    for key in ("head_node", "worker_nodes"):
        if not draft.get(key):
            draft.drop(key)
    if not draft.has("head_node") and not draft.has("worker_nodes"):
        return
    if draft.has("available_node_types"):
        _merge_into_types(draft)
    else:
        _create_legacy_types(draft, provider)


def _create_legacy_types(draft: Draft, provider: str) -> None:
    head, worker = default_node_types(provider)
    types = ((LEGACY_HEAD, "head_node", head), (LEGACY_WORKER, "worker_nodes", worker))
    for name, key, default in types:
        path = ("available_node_types", name)
        if not draft.has(key):
            draft.put(path, {**default, "min_workers": 0}, default_for(provider))
            continue
        # Resources were declared among the instance's settings, in either spelling.
        for spelling in ("resources", "Resources"):
            if draft.has(key, spelling):
                draft.move_legacy((key, spelling), (*path, "resources"))
        draft.move_legacy((key,), (*path, "node_config"))
        draft.put((*path, "min_workers"), 0, DEFAULT)
    draft.put(("available_node_types", LEGACY_HEAD, "max_workers"), 0, DEFAULT)
    draft.put(("head_node_type",), LEGACY_HEAD, DEFAULT)


def _merge_into_types(draft: Draft) -> None:
    head = draft.get("head_node_type")
    for key in ("head_node", "worker_nodes"):
        if not draft.has(key):
            continue
        origin = draft.origin(key)
        shared_settings = draft.get(key)
        for name in draft.get("available_node_types"):
            if (name == head) != (key == "head_node"):
                continue
            for setting, value in shared_settings.items():
                if setting not in ("resources", "Resources"):
                    path = ("available_node_types", name, "node_config", setting)
                    draft.put_missing(path, value, origin)
        draft.warn(
            f"{key} is merged into the node types",
            "a type's own node_config takes precedence, as in Ray 1.x",
            key,
        )
        draft.drop(key)


def migrate_init_commands(draft: Draft) -> None:
    """Split `head_init_commands` and `worker_init_commands` into setup and start commands. They
    were the only commands, so no default setup is added. Runs before defaults are applied."""
    for role in ("head", "worker"):
        key = f"{role}_init_commands"
        if not draft.has(key):
            continue
        origins = [draft.origin(key), *(draft.origin(key, i) for i in range(len(draft.get(key))))]
        legacy = [replace(origin, kind="legacy", detail=key) for origin in origins]
        commands = draft.drop(key)
        starts = (i for i, command in enumerate(commands) if _RAY_COMMAND.search(command))
        split = next(starts, len(commands))
        setup, start = commands[:split], commands[split:]
        later = draft.get(f"{role}_setup_commands", default=[])
        draft.put((f"{role}_setup_commands",), setup + later, legacy[0])
        if start:
            draft.put_missing((f"{role}_start_ray_commands",), start, legacy[split + 1])
        draft.put_missing(("setup_commands",), [], legacy[0])


def migrate_min_workers(draft: Draft) -> None:
    """Move a top-level `min_workers` to the worker type that it applies to. Runs after defaults."""
    default_type = draft.drop("worker_default_node_type") if _has_default_type(draft) else None
    if not draft.has("min_workers"):
        return
    origin = draft.origin("min_workers")
    from_command_line = origin == COMMAND_LINE
    if not from_command_line:
        origin = Origin("legacy", "min_workers", origin.source, origin.line)
    count = draft.get("min_workers")
    candidates = [default_type] if default_type else _worker_types(draft)
    if len(candidates) == 1:
        path = ("available_node_types", candidates[0], "min_workers")
        if from_command_line or draft.origin(*path).kind != "file" or not draft.has(*path):
            draft.put(path, count, origin)
        elif draft.get(*path) != count:
            draft.warn("min_workers is ignored", f"{dotted(path)} takes precedence", "min_workers")
    elif from_command_line:
        which = f"one of {', '.join(candidates)}" if candidates else "a worker type"
        draft.error(
            f"cannot be applied; set min_workers of {which} in the file instead", "min_workers"
        )
    elif count:
        draft.warn(
            "min_workers is ignored",
            f"the file has several worker types ({', '.join(candidates)}); set min_workers of each"
            if candidates
            else "the file has no worker type",
            "min_workers",
        )
    draft.drop("min_workers")


def _has_default_type(draft: Draft) -> bool:
    name = draft.get("worker_default_node_type")
    if name is None:
        return False
    types = list(draft.get("available_node_types"))
    if name not in types:
        message = f"{name!r} is not in available_node_types{did_you_mean(name, types)}"
        draft.error(message, "worker_default_node_type")
    return name in types


def _worker_types(draft: Draft) -> list[str]:
    """The types that workers can have: all but a head type without a `max_workers`."""
    head = draft.get("head_node_type")
    return [
        name
        for name in draft.get("available_node_types")
        if name != head or draft.get("available_node_types", name, "max_workers", default=0) > 0
    ]
