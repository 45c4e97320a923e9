"""The `docker` sections of a cluster file: which container, if any, the nodes of each type and role
run in, and which keys define it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shoal.core.node_phase import Role
from shoal.spec.spec_draft import Draft

Keys = tuple[str, ...]

# Names that Docker and Podman accept; they need no quoting on command lines.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class ContainerKeys:
    """The paths of the keys that define the container of one node type and role."""

    image: Keys
    pull_before_run: Keys
    run_options: list[Keys]


def keys_for(draft: Draft, role: Role, node_type: str) -> ContainerKeys | None:
    """The keys that define the container of nodes of this type and role; None if they have none.

    For workers, a node type's own `docker` section replaces the cluster's settings of the same
    name; the options for all nodes still apply.
    """

    def own_or_common(key: str) -> Keys:
        own = ("available_node_types", node_type, "docker", key)
        return own if role == "worker" and draft.get(*own) is not None else ("docker", key)

    candidates = (own_or_common(f"{role}_image"), ("docker", f"{role}_image"), ("docker", "image"))
    image = next((path for path in candidates if draft.get(*path)), None)
    if image is None:
        return None
    return ContainerKeys(
        image=image,
        pull_before_run=own_or_common("pull_before_run"),
        run_options=[("docker", "run_options"), own_or_common(f"{role}_run_options")],
    )


def check(draft: Draft) -> None:
    """Check the `docker` section. Either all nodes run in containers or none does: they must
    be able to reach each other in the same way."""
    name = draft.get("docker", "container_name")
    if name and not _NAME.fullmatch(name):
        draft.error(
            "may only contain letters, digits, '_', '.' and '-'", "docker", "container_name"
        )
    registry = draft.get("shoal", "registry")
    if registry is not None and not registry.get("username"):
        draft.error("requires username", "shoal", "registry")
    head_type = draft.get("head_node_type")
    head = keys_for(draft, "head", head_type)
    workers = [
        keys_for(draft, "worker", name)
        for name in draft.get("available_node_types")
        if name != head_type
    ]
    if head is None and draft.get("docker", "container_name") and not any(workers):
        draft.error("requires image", "docker", "container_name")
    elif head is None and any(workers):
        draft.error("has an image for workers but none for the head; set image", "docker")
    elif head is not None and None in workers:
        draft.error("has an image for the head but not for all workers; set image", "docker")
