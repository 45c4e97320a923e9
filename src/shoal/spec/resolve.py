"""Turns a validated draft into a `ClusterSpec`, and records the origin of each of its values.

Command lists are joined here in the order in which they run. Nothing is checked here.
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
from shoal.spec.problems import KeyPath
from shoal.spec.spec_draft import DEFAULT, Draft, Origin

Origins = dict[KeyPath, Origin]

# `autoscaling_mode: aggressive` of Ray 1.x: scaling up is not limited.
AGGRESSIVE_UPSCALING_SPEED = 99_999.0


def resolve(draft: Draft) -> tuple[ClusterSpec, Origins]:
    """The spec, and the origin of each of its values by path."""
    reader = _Reader(draft)
    provider = draft.get("provider")
    reader.record(("provider", "type"), "provider", "type")
    settings = {key: value for key, value in provider.items() if key != "type"}
    reader.record(("provider", "settings"), "provider")
    reader.origins[("shoal",)] = DEFAULT  # of every setting that the file leaves out
    head_setup = _setup(
        reader,
        ("head_setup",),
        initialization=[("initialization_commands",)],
        setup=[("setup_commands",), ("head_setup_commands",)],
        start=[("head_start_ray_commands",)],
        container=_container(reader, ("head_setup",), "head", draft.get("head_node_type")),
    )
    spec = ClusterSpec(
        cluster_name=reader.value(("cluster_name",), "cluster_name"),
        provider=ProviderSpec(provider["type"], settings),
        auth=_auth(reader),
        head_node_type=reader.value(("head_node_type",), "head_node_type"),
        node_types={name: _node_type(reader, name) for name in draft.get("available_node_types")},
        head_setup=head_setup,
        files=_files(reader),
        scaling=_scaling(reader),
        no_restart=reader.value(("no_restart",), "no_restart"),
        metadata=reader.value(("metadata",), "metadata"),
        shoal=_shoal(reader),
    )
    return spec, reader.origins


def _shoal(reader: _Reader) -> ShoalSettings:
    values = {
        item.name: reader.value(("shoal", item.name), "shoal", item.name)
        for item in fields(ShoalSettings)
    }
    settings = {name: value for name, value in values.items() if value is not None}
    if "hosts" in settings:
        settings["hosts"] = {host: HostSpec(**data) for host, data in settings["hosts"].items()}
    if "registry" in settings:
        settings["registry"] = RegistrySpec(**{"server": "docker.io", **settings["registry"]})
    if "fallback" in settings:
        settings["fallback"] = {name: tuple(types) for name, types in settings["fallback"].items()}
    if "volumes" in settings:
        settings["volumes"] = volumes_section.volumes(reader.draft, settings["volumes"])
    if "mounts" in settings:
        settings["mounts"] = volumes_section.mounts(settings["mounts"])
    for key in ("code", "requirements", "provider_path"):
        if settings.get(key):  # a later command may run in another directory
            settings[key] = os.path.abspath(_expand_home(settings[key]))  # noqa: PTH100
    if "ssh_from" in settings:
        settings["ssh_from"] = tuple(settings["ssh_from"])
    return ShoalSettings(**settings)


class _Reader:
    """Reads values from a draft and records their origins by their paths in the spec."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.origins: Origins = {}

    def value(self, target: KeyPath, *path: str, default: Any = None) -> Any:
        """The value at `path` of the draft; its origin is recorded for `target` of the spec."""
        if not self.draft.has(*path):
            self.origins[target] = DEFAULT
            return default
        self.record(target, *path)
        return self.draft.get(*path)

    def record(self, target: KeyPath, *path: str) -> None:
        """Record the origins of the draft's value at `path` for `target` of the spec."""
        self.origins[target] = self.draft.origin(*path)
        for inner, origin in self.draft.origins_below(*path):
            self.origins[target + inner] = origin

    def joined(self, target: KeyPath, paths: list[tuple[str, ...]]) -> tuple[str, ...]:
        """The joined lists at the paths; each item keeps its own origin."""
        items: list[str] = []
        existing = [path for path in paths if self.draft.has(*path)]
        self.origins[target] = self.draft.origin(*existing[-1]) if existing else DEFAULT
        for path in existing:
            for index, item in enumerate(self.draft.get(*path)):
                item_target: KeyPath = (*target, len(items))
                self.origins[item_target] = self.draft.origin(*path, index)
                items.append(item)
        return tuple(items)


def _node_type(reader: _Reader, name: str) -> NodeType:
    source = ("available_node_types", name)
    target: KeyPath = ("node_types", name)
    is_head = name == reader.draft.get("head_node_type")

    def own(key: str, default: Any) -> Any:
        return reader.value((*target, key), *source, key, default=default)

    def fallback(key: str, common: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """A node type's own list replaces the common ones."""
        return [(*source, key)] if reader.draft.has(*source, key) else common

    max_workers = own("max_workers", 0)
    if not is_head and not reader.draft.has(*source, "max_workers"):
        max_workers = reader.value((*target, "max_workers"), "max_workers")
    if reader.draft.has(*source, "idle_timeout_s"):
        idle_timeout_s = own("idle_timeout_s", 0.0)
    else:
        idle_timeout_s = 60 * reader.value((*target, "idle_timeout_s"), "idle_timeout_minutes")
    reader.record((*target, "name"), *source)
    setup_target: KeyPath = (*target, "setup")
    setup = _setup(
        reader,
        setup_target,
        initialization=fallback("initialization_commands", [("initialization_commands",)]),
        setup=fallback("worker_setup_commands", [("setup_commands",), ("worker_setup_commands",)]),
        start=[("worker_start_ray_commands",)],
        container=_container(reader, setup_target, "worker", name),
    )
    return NodeType(
        name=name,
        node_config=own("node_config", {}),
        # Ray nodes only have whole units of a resource.
        resources={resource: n // 1 for resource, n in own("resources", {}).items()},
        labels=own("labels", {}),
        min_workers=own("min_workers", 0),
        max_workers=max_workers,
        idle_timeout_s=idle_timeout_s,
        priority=own("priority", 0),
        setup=setup,
    )


def _setup(
    reader: _Reader,
    target: KeyPath,
    *,
    initialization: list[tuple[str, ...]],
    setup: list[tuple[str, ...]],
    start: list[tuple[str, ...]],
    container: ContainerSpec | None,
) -> NodeSetup:
    return NodeSetup(
        initialization_commands=reader.joined((*target, "initialization_commands"), initialization),
        setup_commands=reader.joined((*target, "setup_commands"), setup),
        start_commands=reader.joined((*target, "start_commands"), start),
        container=container,
    )


def _container(reader: _Reader, setup: KeyPath, role: Role, node_type: str) -> ContainerSpec | None:
    target: KeyPath = (*setup, "container")
    keys = docker_section.keys_for(reader.draft, role, node_type)
    if keys is None:
        reader.record(target, "docker")
        return None

    def common(field: str, key: str, default: Any) -> Any:
        return reader.value((*target, field), "docker", key, default=default) or default

    use_podman = common("runtime", "use_podman", False)
    no_gpu = common("detect_gpu_runtime", "disable_automatic_runtime_detection", False)
    no_shm = common("detect_shm_size", "disable_shm_size_detection", False)
    return ContainerSpec(
        image=reader.value((*target, "image"), *keys.image),
        name=common("name", "container_name", CONTAINER_NAME),
        runtime="podman" if use_podman else "docker",
        run_options=reader.joined((*target, "run_options"), keys.run_options),
        pull_before_run=reader.value(
            (*target, "pull_before_run"), *keys.pull_before_run, default=True
        ),
        detect_gpu_runtime=not no_gpu,
        detect_shm_size=not no_shm,
    )


def _auth(reader: _Reader) -> AuthSpec:
    def value(key: str, default: Any) -> Any:
        return reader.value(("auth", key), "auth", key, default=default) or default

    def path(key: str) -> str | None:
        text = value(key, None)
        return _expand_home(text) if text else None

    return AuthSpec(
        ssh_user=value("ssh_user", AuthSpec.ssh_user),
        ssh_private_key=path("ssh_private_key"),
        ssh_public_key=path("ssh_public_key"),
        ssh_proxy_command=value("ssh_proxy_command", None),
        ssh_proxy_use_node_id=value("ssh_proxy_use_node_id", False),
    )


def _files(reader: _Reader) -> FilesSpec:
    mounts = reader.value(("files", "mounts"), "file_mounts")
    continuously = "file_mounts_sync_continuously"
    return FilesSpec(
        mounts={target: _expand_home(local) for target, local in mounts.items()},
        cluster_synced=tuple(reader.value(("files", "cluster_synced"), "cluster_synced_files")),
        sync_continuously=reader.value(("files", "sync_continuously"), continuously),
        rsync_exclude=tuple(reader.value(("files", "rsync_exclude"), "rsync_exclude")),
        rsync_filter=tuple(reader.value(("files", "rsync_filter"), "rsync_filter")),
    )


def _scaling(reader: _Reader) -> ScalingSpec:
    def value(key: str) -> Any:
        return reader.value(("scaling", key), key)

    mode = value("autoscaling_mode")
    speed = value("upscaling_speed")
    if mode == "aggressive" and reader.draft.origin("upscaling_speed").kind == "default":
        speed = AGGRESSIVE_UPSCALING_SPEED
        reader.origins[("scaling", "upscaling_speed")] = reader.draft.origin("autoscaling_mode")
    timeout = reader.value(("scaling", "idle_timeout_s"), "idle_timeout_minutes")
    return ScalingSpec(
        max_workers=value("max_workers"),
        upscaling_speed=speed,
        idle_timeout_s=60 * timeout,
        initial_workers=value("initial_workers"),
        autoscaling_mode=mode,
        target_utilization_fraction=value("target_utilization_fraction"),
    )


def _expand_home(path: str) -> str:
    """Expand `~`. `Path` would remove a trailing slash, which has a meaning for rsync."""
    return os.path.expanduser(path)  # noqa: PTH111
