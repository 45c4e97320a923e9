"""Which cluster is meant: a YAML file, an address, the name of a cluster that is up, or none.

Clusters that were brought up from here are remembered by name, for convenience only: every
command also works from the YAML file alone, on a machine that never saw the cluster.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shoal import providers, spec
from shoal.core.atomic_write import write_atomically
from shoal.core.errors import ConfigError, NotFoundError
from shoal.core.events import Warned
from shoal.ops.context import Context
from shoal.ray_runtime.install_command import install_ray_command, local_ray_version
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.loading import SourceOf, unknown_source

if TYPE_CHECKING:
    from shoal.spec.nodes_file import NodesFile


@dataclass(frozen=True)
class ClusterRef:
    """What a person said of the cluster they mean: a file, an address or a name, or a list of
    machines; and what counts over what the file says."""

    source: str | NodesFile | None = None
    overrides: spec.Overrides = field(default_factory=spec.Overrides)

    @property
    def is_empty(self) -> bool:
        return self.source is None and self.overrides.cluster_name is None


@dataclass(frozen=True)
class LocatedSpec:
    """A cluster that was found, and where in its file the values stand, if it has one."""

    spec: ClusterSpec
    source_of: SourceOf = unknown_source


async def resolve(ctx: Context, ref: ClusterRef) -> ClusterSpec:
    """The spec of the cluster that is meant. Without a name it is the one cluster that is up;
    the warnings that a file gives rise to are emitted."""
    return (await locate(ctx, ref)).spec


async def locate(ctx: Context, ref: ClusterRef) -> LocatedSpec:
    """The same, with where its values stand."""
    loaded = await load(ctx, ref)
    for warning in loaded.warnings:
        ctx.emit(Warned(str(warning)))
    return LocatedSpec(loaded.launchable(), loaded.source_of)


def load_file(
    source: str | Path | NodesFile, overrides: spec.Overrides | None = None
) -> spec.LoadedSpec:
    """Load a cluster file, with the default command that installs Ray where the file has none."""
    return spec.load(
        source, overrides, install_ray=lambda: install_ray_command(local_ray_version())
    )


async def load(ctx: Context, ref: ClusterRef) -> spec.LoadedSpec:
    """The same, with where each value came from, as far as a file says."""
    named, overrides = ref.source, ref.overrides
    if ref.is_empty:
        return _without_file(_only_one(ctx, await names(ctx)))
    if named is not None and (not isinstance(named, str) or looks_like_a_file(named)):
        return load_file(named, overrides)
    name = named or overrides.cluster_name
    assert name is not None
    # Asking for embedded machines means looking at processes, which takes longer than the rest.
    if _is_remembered(ctx, name) or name in await names(ctx):
        return _without_file(recall(ctx, name))
    raise NotFoundError(
        f"no cluster named {name!r} is known here",
        why="it is neither a file nor a cluster that was brought up from this machine",
        fix="shoal ls shows the known ones; a path to its YAML file works from anywhere",
    )


async def resolve_or_default(ctx: Context, ref: ClusterRef) -> ClusterSpec:
    """The cluster that is meant, or, where none was named and none is up, one on this machine:
    for whoever is about to bring it up."""
    return (await locate_or_default(ctx, ref)).spec


async def locate_or_default(ctx: Context, ref: ClusterRef) -> LocatedSpec:
    """The same, with where its values stand."""
    try:
        return await locate(ctx, ref)
    except NotFoundError:
        if ref.source is not None:
            raise
        return LocatedSpec(spec.default_embedded(ref.overrides).spec)


def looks_like_a_file(named: str) -> bool:
    return (
        named.startswith(("http://", "https://"))
        or named.endswith((".yaml", ".yml"))
        or Path(named).is_file()
    )


async def names(ctx: Context) -> list[str]:
    """The clusters known here: those remembered, and embedded ones that a crash left."""
    remembered = set(remembered_names(ctx.home))
    with contextlib.suppress(ConfigError):
        instances = await providers.embedded_provider(ctx.home, ctx.clock).list_instances()
        remembered |= {i.cluster for i in instances}
    return sorted(remembered)


def remembered_names(home: Path) -> list[str]:
    """The clusters that were brought up from here, without asking anyone."""
    return sorted(p.stem for p in _directory(home).glob("*.json"))


def remember(ctx: Context, cluster: ClusterSpec) -> None:
    directory = _directory(ctx.home)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = directory / f"{cluster.cluster_name}.json"
    write_atomically(file, json.dumps(spec.to_json(cluster)))


def recall(ctx: Context, name: str) -> ClusterSpec:
    """A remembered spec. Of one that was never written down, its machines are on this one, and a
    default embedded cluster of that name is enough to find and end them."""
    path = _directory(ctx.home) / f"{name}.json"
    try:
        return spec.from_json(json.loads(path.read_text()))
    except FileNotFoundError:
        return spec.default_embedded(spec.Overrides(cluster_name=name)).spec
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"what is remembered of cluster {name} cannot be read",
            why=f"{path}: {error}",
            fix="name its YAML file instead; if it was an embedded cluster, remove that file",
        ) from None


def _is_remembered(ctx: Context, name: str) -> bool:
    return (_directory(ctx.home) / f"{name}.json").is_file()


def forget(ctx: Context, name: str) -> None:
    (_directory(ctx.home) / f"{name}.json").unlink(missing_ok=True)


def _directory(home: Path) -> Path:
    return home / "clusters"


def _without_file(cluster: ClusterSpec) -> spec.LoadedSpec:
    return spec.LoadedSpec(cluster, cluster.cluster_name, warnings=(), origins={})


def _only_one(ctx: Context, known: list[str]) -> ClusterSpec:
    if len(known) == 1:
        return recall(ctx, known[0])
    if not known:
        raise NotFoundError(
            "no cluster is up",
            why="none was brought up from this machine",
            fix="shoal up starts one here; shoal up cluster.yaml starts yours",
        )
    raise ConfigError(
        "it is not clear which cluster is meant",
        why=f"these are up: {', '.join(known)}",
        fix="name one of them, or its YAML file",
    )
