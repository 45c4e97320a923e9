"""The `docker` sections of a cluster file: which container, if any, each kind of node runs in."""

from __future__ import annotations

from typing import Any, Literal

from shoal.spec.defaults import CONTAINER_NAME
from shoal.spec.draft import Draft
from shoal.spec.model import ContainerSpec


def head_container(draft: Draft) -> ContainerSpec | None:
    """The head's container."""
    return _container(draft.get("docker"), "head", {})


def worker_container(draft: Draft, node_type: str) -> ContainerSpec | None:
    """The container of workers of this type. What the type's own `docker` says replaces the
    cluster's settings of the same name; options for all nodes stay."""
    own = draft.get("available_node_types", node_type, "docker", default={})
    return _container(draft.get("docker"), "worker", own)


def check(draft: Draft) -> None:
    """Either every node runs in a container, or none does: they must be able to find each other
    in the same way."""
    docker = draft.get("docker")
    head = head_container(draft)
    workers = {
        name: worker_container(draft, name)
        for name in draft.get("available_node_types")
        if name != draft.get("head_node_type")
    }
    if head is None and docker.get("container_name") and not any(workers.values()):
        draft.refuse("needs an image beside it", "docker", "container_name")
    elif head is None and any(workers.values()):
        draft.refuse("has an image for workers but none for the head: set image", "docker")
    elif head is not None and None in workers.values():
        draft.refuse("has an image for the head but none for all workers: set image", "docker")


def _container(
    docker: dict[str, Any], role: Literal["head", "worker"], own: dict[str, Any]
) -> ContainerSpec | None:
    merged = {**docker, **own}
    image = merged.get(f"{role}_image") or docker.get("image")
    if not image:
        return None
    options = (*docker.get("run_options", ()), *merged.get(f"{role}_run_options", ()))
    return ContainerSpec(
        image=image,
        name=docker.get("container_name") or CONTAINER_NAME,
        engine="podman" if docker.get("use_podman") else "docker",
        run_options=options,
        pull_before_run=merged.get("pull_before_run", True),
        detect_gpu_runtime=not docker.get("disable_automatic_runtime_detection", False),
        detect_shm_size=not docker.get("disable_shm_size_detection", False),
    )
