"""Hosts for the tests of `remote`: real SSH servers on loopback, real clients."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from shoal.remote.container import Container
from shoal.remote.control_master import close_connection
from shoal.remote.ssh_runner import SshRunner
from shoal.remote.ssh_target import SshTarget
from tests.remote.sshd import Sshd, new_key, target_of


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_key(tmp_path_factory.mktemp("keys") / "id")


@pytest.fixture
def state() -> Iterator[Path]:
    """The laptop's state. The paths of pytest's own directories are too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="sh-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
async def new_server(
    tmp_path: Path, state: Path, key: Path
) -> AsyncIterator[Callable[..., tuple[Sshd, SshTarget]]]:
    """Creates servers (not started) that accept the key, and the target of each."""
    made: list[tuple[Sshd, SshTarget]] = []

    def make(alias: str = "node-1", **options: object) -> tuple[Sshd, SshTarget]:
        server = Sshd(tmp_path / alias, **options)  # type: ignore[arg-type]
        server.authorize(key)
        target = target_of(server, state, key, alias)
        made.append((server, target))
        return server, target

    yield make
    for server, target in made:
        server.stop()
        await close_connection(target)


@pytest.fixture(scope="module")
def shared_server(
    tmp_path_factory: pytest.TempPathFactory, key: Path
) -> Iterator[tuple[Sshd, Path]]:
    server = Sshd(tmp_path_factory.mktemp("server") / "shared")
    server.authorize(key)
    server.start()
    with tempfile.TemporaryDirectory(prefix="sh-", dir="/tmp") as directory:
        yield server, Path(directory)
        # Its connections end with it.
        server.stop()


@pytest.fixture
def server(shared_server: tuple[Sshd, Path]) -> Iterator[Sshd]:
    """A server that the tests of a module share; its home is empty for each test."""
    server = shared_server[0]
    yield server
    for entry in server.home.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            os.unlink(entry)  # noqa: PTH108 - unlike Path.unlink, accepts any name


@pytest.fixture
def runner(server: Sshd, shared_server: tuple[Sshd, Path], key: Path) -> SshRunner:
    """A runner on that server; its connection stays open from test to test."""
    return SshRunner("node-1", target_of(server, shared_server[1], key))


# Runs commands on the host itself, in a new session: like a container's, they get no signal when
# the terminal closes. The ids of running containers are in the file `containers`.
_RUNTIME = """#!/bin/sh
cd "$(dirname "$0")" || exit
verb=$1
shift
case $verb in
exec)
  while :; do
    case $1 in -i | -it) shift ;; -e) shift 2 ;; *) break ;; esac
  done
  grep -qx "$1" containers || { echo "Error: No such container: $1" >&2; exit 1; }
  shift
  exec setsid --wait "$@"
  ;;
ps) printf '%s\\n' "$*" >> filters; cat containers ;;
rm) shift; for id; do sed -i "/^$id$/d" containers; done ;;
esac
"""


@pytest.fixture
def container(server: Sshd) -> Container:
    """A running container of a simulated container runtime on the server."""
    (server.home / "containers").write_text("box\n")
    runtime = server.home / "runtime"
    runtime.write_text(_RUNTIME)
    runtime.chmod(0o755)
    return Container(str(runtime), "box")
