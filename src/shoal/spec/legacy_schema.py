"""Keys of the first years, moved to where today's file has them, with the meaning they had.

`head_node`/`worker_nodes` described the only two kinds of machine there were, and later the
settings that every type starts from. `min_workers` at the top counted workers of the one kind,
later of `worker_default_node_type`. The other three steer scaling and go there as they are.
"""

from __future__ import annotations

from shoal.spec.defaults import default_for, default_node_types
from shoal.spec.draft import COMMAND_LINE, DEFAULT, Draft, Origin
from shoal.spec.problems import did_you_mean, dotted

LEGACY_HEAD = "ray-legacy-head-node-type"
LEGACY_WORKER = "ray-legacy-worker-node-type"


def modernise(draft: Draft, provider: str) -> None:
    """Rewrite the legacy descriptions of machines. Runs before defaults are filled in."""
    for key in ("head_node", "worker_nodes"):
        if not draft.get(key):
            draft.drop(key)
    if not draft.has("head_node") and not draft.has("worker_nodes"):
        return
    if draft.has("available_node_types"):
        _merge_under_types(draft)
    else:
        _two_kinds(draft, provider)


def _two_kinds(draft: Draft, provider: str) -> None:
    head, worker = default_node_types(provider)
    kinds = ((LEGACY_HEAD, "head_node", head), (LEGACY_WORKER, "worker_nodes", worker))
    for name, key, default in kinds:
        path = ("available_node_types", name)
        if not draft.has(key):
            draft.put(path, {**default, "min_workers": 0}, default_for(provider))
            continue
        # Declared resources stood beside the machine's own settings, in either spelling.
        for spelling in ("resources", "Resources"):
            if draft.has(key, spelling):
                draft.move_legacy((key, spelling), (*path, "resources"))
        draft.move_legacy((key,), (*path, "node_config"))
        draft.put((*path, "min_workers"), 0, DEFAULT)
    draft.put(("available_node_types", LEGACY_HEAD, "max_workers"), 0, DEFAULT)
    draft.put(("head_node_type",), LEGACY_HEAD, DEFAULT)


def _merge_under_types(draft: Draft) -> None:
    head = draft.get("head_node_type")
    for key in ("head_node", "worker_nodes"):
        if not draft.has(key):
            continue
        line = draft.origin(key)
        shared = draft.get(key)
        for name in draft.get("available_node_types"):
            if (name == head) != (key == "head_node"):
                continue
            for setting, value in shared.items():
                if setting not in ("resources", "Resources"):
                    path = ("available_node_types", name, "node_config", setting)
                    draft.put_missing(path, value, line)
        draft.warn(
            f"{key} is merged under the node types",
            "where both are given, the type's own node_config wins, as it did in Ray 1.x",
            key,
        )
        draft.drop(key)


def spread_min_workers(draft: Draft) -> None:
    """Give a top-level `min_workers` to the one type it can mean. Runs after defaults."""
    favourite = draft.drop("worker_default_node_type") if _favourite_known(draft) else None
    if not draft.has("min_workers"):
        return
    origin = draft.origin("min_workers")
    asked = origin == COMMAND_LINE
    if not asked:
        origin = Origin("legacy", "min_workers", origin.source, origin.line)
    count = draft.get("min_workers")
    candidates = [favourite] if favourite else _worker_types(draft)
    if len(candidates) == 1:
        path = ("available_node_types", candidates[0], "min_workers")
        if asked or draft.origin(*path).kind != "file" or not draft.has(*path):
            draft.put(path, count, origin)
        elif draft.get(*path) != count:
            draft.warn("min_workers is ignored", f"{dotted(path)} says otherwise", "min_workers")
    elif asked:
        which = f"one of {', '.join(candidates)}" if candidates else "a worker type"
        draft.refuse(f"set min_workers of {which} in the file instead", "min_workers")
    elif count:
        draft.warn(
            "min_workers is ignored",
            f"with several worker types ({', '.join(candidates)}) each has its own min_workers"
            if candidates
            else "the file has no worker type to give them to",
            "min_workers",
        )
    draft.drop("min_workers")


def _favourite_known(draft: Draft) -> bool:
    name = draft.get("worker_default_node_type")
    if name is None:
        return False
    types = list(draft.get("available_node_types"))
    if name not in types:
        message = f"{name!r} is not among available_node_types{did_you_mean(name, types)}"
        draft.refuse(message, "worker_default_node_type")
    return name in types


def _worker_types(draft: Draft) -> list[str]:
    """The types of which workers can be made: all but a head type that is only the head's."""
    head = draft.get("head_node_type")
    return [
        name
        for name in draft.get("available_node_types")
        if name != head or draft.get("available_node_types", name, "max_workers", default=0) > 0
    ]
