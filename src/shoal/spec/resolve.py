"""A finished draft as a `ClusterSpec`, and where each of the spec's values came from.

Lists are joined here in the order in which they run. Nothing is checked any more: a draft that
gets here is sound.
"""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

from shoal.core.node_phase import Role
from shoal.spec import docker_section, volumes_section
from shoal.spec.cluster_spec import (
    AuthSpec,
    ClusterSpec,
    ContainerSpec,
    FilesSpec,
    HostSpec,
    NodeSetup,
    NodeType,
    ProviderSpec,
    RegistrySpec,
    ScalingSpec,
    ShoalSettings,
)
from shoal.spec.defaults import CONTAINER_NAME
from shoal.spec.draft import DEFAULT, Draft, Origin
from shoal.spec.problems import KeyPath

Origins = dict[KeyPath, Origin]

# What Ray 1.x made of `autoscaling_mode: aggressive`: no brake at all.
AGGRESSIVE_UPSCALING_SPEED = 99_999.0


def resolve(draft: Draft) -> tuple[ClusterSpec, Origins]:
    """The spec, and by the path of each of its values the value's origin."""
    book = _Book(draft)
    provider = draft.get("provider")
    book.note(("provider", "type"), "provider", "type")
    settings = {key: value for key, value in provider.items() if key != "type"}
    book.note(("provider", "settings"), "provider")
    book.origins[("shoal",)] = DEFAULT  # holds for each setting that is not given
    head_setup = _setup(
        book,
        ("head_setup",),
        initialization=[("initialization_commands",)],
        setup=[("setup_commands",), ("head_setup_commands",)],
        start=[("head_start_ray_commands",)],
        container=_container(book, ("head_setup",), "head", draft.get("head_node_type")),
    )
    spec = ClusterSpec(
        cluster_name=book.value(("cluster_name",), "cluster_name"),
        provider=ProviderSpec(provider["type"], settings),
        auth=_auth(book),
        head_node_type=book.value(("head_node_type",), "head_node_type"),
        node_types={name: _node_type(book, name) for name in draft.get("available_node_types")},
        head_setup=head_setup,
        files=_files(book),
        scaling=_scaling(book),
        no_restart=book.value(("no_restart",), "no_restart"),
        metadata=book.value(("metadata",), "metadata"),
        shoal=_shoal(book),
    )
    return spec, book.origins


def _shoal(book: _Book) -> ShoalSettings:
    values = {
        item.name: book.value(("shoal", item.name), "shoal", item.name)
        for item in fields(ShoalSettings)
    }
    given = {name: value for name, value in values.items() if value is not None}
    if "hosts" in given:
        given["hosts"] = {host: HostSpec(**data) for host, data in given["hosts"].items()}
    if "registry" in given:
        given["registry"] = RegistrySpec(**{"server": "docker.io", **given["registry"]})
    if "fallback" in given:
        given["fallback"] = {name: tuple(types) for name, types in given["fallback"].items()}
    if "volumes" in given:
        given["volumes"] = volumes_section.volumes(book.draft, given["volumes"])
    if "mounts" in given:
        given["mounts"] = volumes_section.mounts(given["mounts"])
    if "ssh_from" in given:
        given["ssh_from"] = tuple(given["ssh_from"])
    return ShoalSettings(**given)


class _Book:
    """Reads values out of a draft and keeps, for the spec's path of each, where it came from."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.origins: Origins = {}

    def value(self, target: KeyPath, *path: str, default: Any = None) -> Any:
        """The value at the draft's path, noted under the spec's path."""
        if not self.draft.has(*path):
            self.origins[target] = DEFAULT
            return default
        self.note(target, *path)
        return self.draft.get(*path)

    def note(self, target: KeyPath, *path: str) -> None:
        """The spec's value at `target` is the draft's at `path`."""
        self.origins[target] = self.draft.origin(*path)
        for inner, origin in self.draft.origins_below(*path):
            self.origins[target + inner] = origin

    def joined(self, target: KeyPath, paths: list[tuple[str, ...]]) -> tuple[str, ...]:
        """The lists at the paths, one after the other; each item keeps its own origin."""
        items: list[str] = []
        given = [path for path in paths if self.draft.has(*path)]
        self.origins[target] = self.draft.origin(*given[-1]) if given else DEFAULT
        for path in given:
            for index, item in enumerate(self.draft.get(*path)):
                spot: KeyPath = (*target, len(items))
                self.origins[spot] = self.draft.origin(*path, index)
                items.append(item)
        return tuple(items)


def _node_type(book: _Book, name: str) -> NodeType:
    source = ("available_node_types", name)
    target: KeyPath = ("node_types", name)
    is_head = name == book.draft.get("head_node_type")

    def own(key: str, default: Any) -> Any:
        return book.value((*target, key), *source, key, default=default)

    def fallback(key: str, common: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """A type's own list replaces the common ones altogether."""
        return [(*source, key)] if book.draft.has(*source, key) else common

    max_workers = own("max_workers", 0)
    if not is_head and not book.draft.has(*source, "max_workers"):
        max_workers = book.value((*target, "max_workers"), "max_workers")
    if book.draft.has(*source, "idle_timeout_s"):
        idle_timeout_s = own("idle_timeout_s", 0.0)
    else:
        idle_timeout_s = 60 * book.value((*target, "idle_timeout_s"), "idle_timeout_minutes")
    book.note((*target, "name"), *source)
    in_setup: KeyPath = (*target, "setup")
    setup = _setup(
        book,
        in_setup,
        initialization=fallback("initialization_commands", [("initialization_commands",)]),
        setup=fallback("worker_setup_commands", [("setup_commands",), ("worker_setup_commands",)]),
        start=[("worker_start_ray_commands",)],
        container=_container(book, in_setup, "worker", name),
    )
    return NodeType(
        name=name,
        node_config=own("node_config", {}),
        # Ray gives a node whole resources only, so nobody is to count on parts.
        resources={resource: n // 1 for resource, n in own("resources", {}).items()},
        labels=own("labels", {}),
        min_workers=own("min_workers", 0),
        max_workers=max_workers,
        idle_timeout_s=idle_timeout_s,
        priority=own("priority", 0),
        setup=setup,
    )


def _setup(
    book: _Book,
    target: KeyPath,
    *,
    initialization: list[tuple[str, ...]],
    setup: list[tuple[str, ...]],
    start: list[tuple[str, ...]],
    container: ContainerSpec | None,
) -> NodeSetup:
    return NodeSetup(
        initialization_commands=book.joined((*target, "initialization_commands"), initialization),
        setup_commands=book.joined((*target, "setup_commands"), setup),
        start_commands=book.joined((*target, "start_commands"), start),
        container=container,
    )


def _container(book: _Book, setup: KeyPath, role: Role, node_type: str) -> ContainerSpec | None:
    target: KeyPath = (*setup, "container")
    keys = docker_section.keys_for(book.draft, role, node_type)
    if keys is None:
        book.note(target, "docker")
        return None

    def common(field: str, key: str, default: Any) -> Any:
        return book.value((*target, field), "docker", key, default=default) or default

    podman = common("engine", "use_podman", False)
    no_gpu = common("detect_gpu_runtime", "disable_automatic_runtime_detection", False)
    no_shm = common("detect_shm_size", "disable_shm_size_detection", False)
    return ContainerSpec(
        image=book.value((*target, "image"), *keys.image),
        name=common("name", "container_name", CONTAINER_NAME),
        engine="podman" if podman else "docker",
        run_options=book.joined((*target, "run_options"), keys.run_options),
        pull_before_run=book.value(
            (*target, "pull_before_run"), *keys.pull_before_run, default=True
        ),
        detect_gpu_runtime=not no_gpu,
        detect_shm_size=not no_shm,
    )


def _auth(book: _Book) -> AuthSpec:
    def value(key: str, default: Any) -> Any:
        return book.value(("auth", key), "auth", key, default=default) or default

    def path(key: str) -> str | None:
        written = value(key, None)
        return _at_home(written) if written else None

    return AuthSpec(
        ssh_user=value("ssh_user", AuthSpec.ssh_user),
        ssh_private_key=path("ssh_private_key"),
        ssh_public_key=path("ssh_public_key"),
        ssh_proxy_command=value("ssh_proxy_command", None),
        ssh_proxy_use_node_id=value("ssh_proxy_use_node_id", False),
    )


def _files(book: _Book) -> FilesSpec:
    mounts = book.value(("files", "mounts"), "file_mounts")
    synced = "file_mounts_sync_continuously"
    return FilesSpec(
        mounts={there: _at_home(here) for there, here in mounts.items()},
        cluster_synced=tuple(book.value(("files", "cluster_synced"), "cluster_synced_files")),
        sync_continuously=book.value(("files", "sync_continuously"), synced),
        rsync_exclude=tuple(book.value(("files", "rsync_exclude"), "rsync_exclude")),
        rsync_filter=tuple(book.value(("files", "rsync_filter"), "rsync_filter")),
    )


def _scaling(book: _Book) -> ScalingSpec:
    def value(key: str) -> Any:
        return book.value(("scaling", key), key)

    mode = value("autoscaling_mode")
    speed = value("upscaling_speed")
    if mode == "aggressive" and book.draft.origin("upscaling_speed").kind == "default":
        speed = AGGRESSIVE_UPSCALING_SPEED
        book.origins[("scaling", "upscaling_speed")] = book.draft.origin("autoscaling_mode")
    timeout = book.value(("scaling", "idle_timeout_s"), "idle_timeout_minutes")
    return ScalingSpec(
        max_workers=value("max_workers"),
        upscaling_speed=speed,
        idle_timeout_s=60 * timeout,
        initial_workers=value("initial_workers"),
        autoscaling_mode=mode,
        target_utilization_fraction=value("target_utilization_fraction"),
    )


def _at_home(path: str) -> str:
    """`~` as the person's home. `Path` would take away a trailing slash, which rsync minds."""
    return os.path.expanduser(path)  # noqa: PTH111
