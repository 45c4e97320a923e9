"""The registry of clusters that were brought up from this machine: one JSON file per cluster, and
one for its last `up` unless that succeeded; the options of its `up` and locks are beside it.

It is a convenience: it lets a command find a cluster by name. Nothing may depend on it, because
every command also works from the YAML file alone, on a machine that never saw the cluster.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Literal

from shoal import providers, spec
from shoal.cluster import shutdown_note
from shoal.core.atomic_write import write_atomically
from shoal.core.errors import ConfigError
from shoal.core.logs import suppress_and_log
from shoal.ops.context import Context
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

_IDENTITY_SETTINGS = ("head_ip", "region", "project_id")


async def known_names(ctx: Context) -> list[str]:
    """Names of the recorded clusters, and of embedded clusters that a crash left unrecorded."""
    names = set(recorded_names(ctx.home))
    with suppress_and_log(_log, "list embedded clusters", ConfigError):
        instances = await providers.embedded_provider(ctx.home, ctx.clock).list_instances()
        names |= {instance.cluster for instance in instances}
    return sorted(names)


def recorded_names(home: Path) -> list[str]:
    """Names of the recorded clusters, from local files only."""
    return sorted(path.stem for path in _directory(home).glob("*.json"))


def is_recorded(ctx: Context, name: str) -> bool:
    return file_of(ctx, name, "json").is_file()


def record(ctx: Context, cluster: ClusterSpec) -> None:
    """Store the spec of a cluster that is up under its name, replacing an older one."""
    _write(ctx.home, _file(ctx.home, cluster.cluster_name), cluster)
    _attempt_file(ctx.home, cluster.cluster_name).unlink(missing_ok=True)


def record_attempt(ctx: Context, cluster: ClusterSpec) -> None:
    """Store the spec of a cluster that is about to be brought up, so that `down` finds it by name
    whatever happens. A spec that has worked stays recorded until the new one has."""
    name = cluster.cluster_name
    recorded, attempt = _file(ctx.home, name), _attempt_file(ctx.home, name)
    has_worked = recorded.is_file() and not (
        attempt.is_file() and attempt.read_bytes() == recorded.read_bytes()
    )
    _write(ctx.home, attempt, cluster)
    if not has_worked:
        _write(ctx.home, recorded, cluster)


def failed_attempt(ctx: Context, cluster: ClusterSpec) -> ClusterSpec | None:
    """The spec of a later `up` of this recorded cluster that has not succeeded, if it differs."""
    try:
        recorded = _file(ctx.home, cluster.cluster_name).read_text()
        attempt = spec.from_json(
            json.loads(_attempt_file(ctx.home, cluster.cluster_name).read_text())
        )
        is_recorded = spec.from_json(json.loads(recorded)) == cluster
    except (OSError, ValueError) as error:
        _log.debug("no readable attempt of %s: %s", cluster.cluster_name, error)
        return None
    return attempt if is_recorded and attempt != cluster else None


def load_recorded(ctx: Context, name: str) -> ClusterSpec:
    """The recorded spec. An unrecorded cluster can only be an embedded one, and a default spec of
    that name is enough to find and terminate its nodes."""
    path = file_of(ctx, name, "json")
    try:
        return spec.from_json(json.loads(path.read_text()))
    except FileNotFoundError:
        return spec.default_embedded(spec.Overrides(cluster_name=name)).spec
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"could not read the local record of cluster {name}",
            why=f"{path}: {error}",
            fix="pass its YAML file instead; if it was an embedded cluster, delete that file",
        ) from None


def forget(ctx: Context, cluster: ClusterSpec) -> None:
    """Delete the record of a cluster, if there is one, and the options of its `up`, but not those
    of another cluster with the same name."""
    name = cluster.cluster_name
    _attempt_file(ctx.home, name).unlink(missing_ok=True)
    with suppress_and_log(_log, f"read the record of {name}", ConfigError):
        if is_recorded(ctx, name) and not _is_same(load_recorded(ctx, name), cluster):
            return
    for suffix in ("json", "flags"):
        file_of(ctx, name, suffix).unlink(missing_ok=True)
    shutdown_note.remove(ctx.home, name)


def file_of(ctx: Context, name: str, suffix: Literal["json", "flags", "up", "down"]) -> Path:
    """A local file of a cluster: its record, the options of its `up`, the lock of a running `up` or
    `down`."""
    return _directory(ctx.home) / f"{name}.{suffix}"


def _is_same(one: ClusterSpec, other: ClusterSpec) -> bool:
    """Whether two specs with the same name describe the same cluster: of one provider, account and
    head. Their workers may differ."""

    def identity(cluster: ClusterSpec) -> list[object]:
        settings = cluster.provider.settings
        return [cluster.provider.type, *(settings.get(key) for key in _IDENTITY_SETTINGS)]

    return identity(one) == identity(other)


def _directory(home: Path) -> Path:
    return home / "clusters"


def _file(home: Path, name: str) -> Path:
    return _directory(home) / f"{name}.json"


def _attempt_file(home: Path, name: str) -> Path:
    return _directory(home) / "attempts" / f"{name}.json"


def _write(home: Path, path: Path, cluster: ClusterSpec) -> None:
    shutdown_note.remove(home, cluster.cluster_name)  # it is brought up again
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(path, json.dumps(spec.to_json(cluster)))
