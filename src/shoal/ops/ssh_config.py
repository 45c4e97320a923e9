"""A cluster's machines in the user's own ssh configuration, so that `ssh CLUSTER` works.

Each cluster has a file of its own below ~/.ssh/shoal, and ~/.ssh/config includes them all: of the
user's file, only the first two lines are ever ours.
"""

from __future__ import annotations

from pathlib import Path

from shoal.cluster.handle import ClusterHandle
from shoal.core.atomic_write import write_atomically
from shoal.core.errors import ConfigError
from shoal.ops.context import Context
from shoal.providers.model import Instance, State
from shoal.remote.ssh_config_file import ssh_config
from shoal.remote.ssh_runner import SshRunner
from shoal.spec.cluster_spec import ClusterSpec

_INCLUDE = "# Clusters of Shoal; shoal ssh-config --write put this here.\nInclude shoal/*.conf\n"


async def text(ctx: Context, spec: ClusterSpec) -> str:
    """The blocks for the cluster's machines: the head under the cluster's name, the others under
    that and their own."""
    cluster = ClusterHandle.of(ctx, spec)
    await cluster.head()
    targets = {}
    for instance in await cluster.instances():
        runner = cluster.runner(instance)
        if not isinstance(runner, SshRunner):
            raise ConfigError(
                f"the machines of {spec.cluster_name} are not reached by ssh",
                why="they are this one",
                fix="shoal attach opens a shell on them",
            )
        if instance.state is not State.UNREACHABLE:
            targets[_alias(spec, instance)] = runner.target
    return ssh_config(targets)


async def install(ctx: Context, spec: ClusterSpec, home: Path) -> Path:
    """Put the blocks below `home`/.ssh, and return the file that has them."""
    blocks = await text(ctx, spec)
    file = _file(spec.cluster_name, home)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(file, blocks)
    config = home / ".ssh" / "config"
    present = config.read_text() if config.exists() else ""
    if _INCLUDE not in present:
        # First, since a line further down would belong to whatever Host stands above it.
        _write(config, f"{_INCLUDE}\n{present}" if present else _INCLUDE)
    return file


def remove(cluster: str, home: Path) -> None:
    """Take a cluster's blocks away; the line that includes them may stay."""
    _file(cluster, home).unlink(missing_ok=True)


def _alias(spec: ClusterSpec, instance: Instance) -> str:
    name = spec.cluster_name
    return name if instance.role == "head" else f"{name}-{instance.name}"


def _file(cluster: str, home: Path) -> Path:
    return home / ".ssh" / "shoal" / f"{cluster}.conf"


def _write(file: Path, content: str) -> None:
    """Put a file in place whole, behind a link if it is one, and for its owner alone."""
    file = file.resolve()
    mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
    write_atomically(file, content, mode=mode)
