"""The registry of clusters that were brought up from this machine: one JSON file per cluster.

It is a convenience: it lets a command find a cluster by name. Nothing may depend on it, because
every command also works from the YAML file alone, on a machine that never saw the cluster.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from shoal import providers, spec
from shoal.core.atomic_write import write_atomically
from shoal.core.errors import ConfigError
from shoal.core.logs import suppress_and_log
from shoal.ops.context import Context
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)


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
    return _file(ctx.home, name).is_file()


def record(ctx: Context, cluster: ClusterSpec) -> None:
    """Store the cluster's spec under its name, replacing an older one."""
    directory = _directory(ctx.home)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(_file(ctx.home, cluster.cluster_name), json.dumps(spec.to_json(cluster)))


def load_recorded(ctx: Context, name: str) -> ClusterSpec:
    """The recorded spec. An unrecorded cluster can only be an embedded one, and a default spec of
    that name is enough to find and terminate its nodes."""
    path = _file(ctx.home, name)
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


def forget(ctx: Context, name: str) -> None:
    """Delete the record of a cluster, if there is one."""
    _file(ctx.home, name).unlink(missing_ok=True)


def _directory(home: Path) -> Path:
    return home / "clusters"


def _file(home: Path, name: str) -> Path:
    return _directory(home) / f"{name}.json"
