"""Resolves the CLUSTER that a command names: a YAML file, a URL, the name of a known cluster, or
nothing, which means the only known cluster."""

from __future__ import annotations

import functools
import logging
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shoal import spec
from shoal.core.errors import ConfigError, NotFoundError
from shoal.ops import known_clusters
from shoal.ops.context import Context
from shoal.ops.up_flags import UpFlags, load_with_flags, override_recorded
from shoal.ray_runtime.install_command import install_ray_command, local_ray_version
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.loading import SourceOf, unknown_source

if TYPE_CHECKING:
    from shoal.spec.nodes_file import NodesFile

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClusterRef:
    """How the user refers to a cluster: a file, URL or name, or a nodes file; with the overrides
    from the command line, which take precedence over the file."""

    source: str | NodesFile | None = None
    overrides: spec.Overrides = field(default_factory=spec.Overrides)

    @property
    def is_empty(self) -> bool:
        return self.source is None and self.overrides.cluster_name is None

    def arguments(self) -> str:
        """The command-line arguments that select this cluster; empty for the default."""
        source, arguments = self.source, []
        if isinstance(source, str):
            arguments.append(source)
        elif source is not None:
            arguments += ["--nodes", source.path]
            arguments += ["--key-file", source.key_file] if source.key_file else []
            arguments += ["--username", source.username] if source.username else []
        if self.overrides.cluster_name is not None:
            arguments += ["--cluster-name", self.overrides.cluster_name]
        return shlex.join(arguments)


@dataclass(frozen=True)
class LocatedSpec:
    """A resolved cluster, the line of its file that each value comes from, if it has one, and the
    options of `up` that are in force."""

    spec: ClusterSpec
    source_of: SourceOf = unknown_source
    flags: UpFlags = field(default_factory=dict)


async def resolve(ctx: Context, ref: ClusterRef) -> ClusterSpec:
    """The spec of the cluster; an empty reference means the only known cluster. Emits the
    warnings of its file."""
    return (await locate(ctx, ref)).spec


async def locate(ctx: Context, ref: ClusterRef) -> LocatedSpec:
    """Like `resolve`, with the source lines and the options in force."""
    loaded, flags = await _load(ctx, ref)
    for warning in loaded.warnings:
        from shoal.core.events import Warned  # slow to import, and rarely needed

        ctx.emit(Warned(str(warning)))
    return LocatedSpec(loaded.launchable(), loaded.source_of, flags)


def load_file(
    source: str | Path | NodesFile, overrides: spec.Overrides | None = None
) -> spec.LoadedSpec:
    """Load a cluster file, with the default command that installs Ray where the file has none."""
    return spec.load(
        source, overrides, install_ray=lambda: install_ray_command(local_ray_version())
    )


async def load(ctx: Context, ref: ClusterRef) -> spec.LoadedSpec:
    """Like `resolve`, with the origin of every value; emits nothing."""
    return (await _load(ctx, ref))[0]


async def _load(ctx: Context, ref: ClusterRef) -> tuple[spec.LoadedSpec, UpFlags]:
    source, overrides = ref.source, ref.overrides
    ctx.cluster_arguments.text = ref.arguments()
    if ref.is_empty:
        only = _only_cluster(ctx, await known_clusters.known_names(ctx))
        ctx.cluster_arguments.text = shlex.quote(only.cluster_name)
        return _without_file(ctx, only, overrides)
    if source is not None and (not isinstance(source, str) or looks_like_a_file(source)):
        return load_with_flags(ctx, functools.partial(load_file, source), overrides)
    name = source or overrides.cluster_name
    assert name is not None
    # Listing embedded clusters scans processes, which is slower than reading the record.
    if known_clusters.is_recorded(ctx, name) or name in await known_clusters.known_names(ctx):
        _log.info("using the recorded spec of cluster %s", name)
        return _without_file(ctx, known_clusters.load_recorded(ctx, name), overrides)
    raise NotFoundError(
        f"unknown cluster: {name!r}",
        why="it is neither a file nor a cluster that was brought up from this machine",
        fix="list the known clusters: shoal ls\nor pass the path of its YAML file\n"
        f"or start one of this name here: shoal up --cluster-name {shlex.quote(name)}",
    )


async def resolve_or_default(ctx: Context, ref: ClusterRef) -> ClusterSpec:
    """Like `resolve`, but where no cluster was named and none is known, the default embedded
    cluster: for commands that are about to bring it up."""
    return (await locate_or_default(ctx, ref)).spec


async def locate_or_default(ctx: Context, ref: ClusterRef) -> LocatedSpec:
    """Like `resolve_or_default`, with the source lines and the options in force."""
    try:
        return await locate(ctx, ref)
    except NotFoundError:
        if ref.source is not None:
            raise
        _log.info("no cluster is known; using the default embedded cluster")
        return locate_default(ctx, ref.overrides)


def locate_default(ctx: Context, overrides: spec.Overrides) -> LocatedSpec:
    """The default embedded cluster, whether it is up or not."""
    loaded, flags = load_with_flags(ctx, spec.default_embedded, overrides)
    ctx.cluster_arguments.text = f"--cluster-name {shlex.quote(loaded.spec.cluster_name)}"
    return LocatedSpec(loaded.spec, flags=flags)


def looks_like_a_file(source: str) -> bool:
    """Whether a CLUSTER argument is a file or URL rather than a name."""
    return (
        source.startswith(("http://", "https://"))
        or source.endswith((".yaml", ".yml"))
        or Path(source).is_file()
    )


def _without_file(
    ctx: Context, recorded: ClusterSpec, overrides: spec.Overrides
) -> tuple[spec.LoadedSpec, UpFlags]:
    cluster, flags = override_recorded(ctx, recorded, overrides)
    return spec.LoadedSpec(cluster, cluster.cluster_name, warnings=(), origins={}), flags


def _only_cluster(ctx: Context, names: list[str]) -> ClusterSpec:
    if len(names) == 1:
        return known_clusters.load_recorded(ctx, names[0])
    if not names:
        raise NotFoundError(
            "no cluster is up",
            why="none was brought up from this machine",
            fix="start one on this machine: shoal up\nor start yours: shoal up cluster.yaml",
        )
    raise ConfigError(
        "more than one cluster is up",
        why=f"these are up: {', '.join(names)}",
        fix="name one of them, or its YAML file",
    )
