"""Copies file mounts to nodes: from this machine, or from the head, whose connection to the workers
is faster than a laptop's."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.bootstrap.mount_files import Manifest, manifest
from shoal.core.errors import SetupError
from shoal.providers.model import Instance
from shoal.remote.container import Container
from shoal.remote.runner import Filters, Runner, capture, quote
from shoal.remote.scripts import script_command
from shoal.spec.cluster_spec import FilesSpec

_log = logging.getLogger(__name__)

_SCRIPTS = "shoal.bootstrap.scripts"
_SHORT_SECONDS = 30.0
# Sending a smaller mount directly is faster than asking the head to send it.
_MIN_RELAY_BYTES = 1_000_000
# Relaying does not pay if sending to all workers in sequence takes less than this, nor on a link
# this fast: its limit is the processors at both ends, which new connections would load too.
_MIN_RELAY_SECONDS = 5.0
_FAST_LINK_BYTES_PER_SECOND = 10_000_000

_RSYNC_ALL = "-a"
# Only the files listed on standard input: the head may hold more at that path by now.
_RSYNC_LISTED = "-lpt --from0 --files-from=-"

# Read over the authenticated connection to the worker, so that the head can verify the worker.
_READ_HOST_KEYS = "cat /etc/ssh/ssh_host_*_key.pub"


def relayable(files: FilesSpec) -> Manifest:
    """The file mounts that can be sent to the head once and from there to the workers. Their path
    must mean the same to a shell as to rsync."""
    return {
        path: mount
        for path, mount in manifest(files).items()
        if mount.size >= _MIN_RELAY_BYTES and mount.paths and path.startswith(("/", "~/"))
    }


def should_relay(mounts: Manifest, seconds: float, workers: int) -> bool:
    """Whether to send these mounts to the workers through the head, given how many seconds it took
    to send them to the head."""
    size = sum(mount.size for mount in mounts.values())
    is_slow = size < _FAST_LINK_BYTES_PER_SECOND * seconds
    return is_slow and seconds * workers >= _MIN_RELAY_SECONDS


async def send(runner: Runner, files: FilesSpec) -> None:
    """Send the file mounts to a node from this machine."""
    filters = Filters(files.rsync_exclude, files.rsync_filter)
    for remote_path, local_path in files.mounts.items():
        await runner.put(Path(local_path), remote_path, filters)


class HeadRelay:
    """Copies files from the head to one worker, which has authorized the head's key. `worker` runs
    commands where the files go, `worker_host` where the SSH server runs if that differs."""

    def __init__(
        self,
        head: Runner,
        worker: Runner,
        instance: Instance,
        seconds: float,
        container: Container | None = None,
        worker_host: Runner | None = None,
    ) -> None:
        self._head = head
        self._worker = worker
        self._instance = instance
        self._seconds = seconds
        self._container = container
        self._worker_host = worker_host or worker

    async def copy(self, path: str, why: str) -> None:
        """Copy a file or directory of the head to the worker, into its container if it has one."""
        await self._copy(path, _RSYNC_ALL, why)

    async def relay(
        self,
        files: FilesSpec,
        mounts: Manifest,
        on_fallback: Callable[[SetupError], None],
    ) -> None:
        """Copy the file mounts to the worker: those in `mounts` from the head, the others from
        this machine. A mount that the head cannot copy is sent from this machine too, after a call
        of `on_fallback`."""
        filters = Filters(files.rsync_exclude, files.rsync_filter)
        for remote_path, local_path in files.mounts.items():
            if remote_path in mounts:
                paths = mounts[remote_path].paths
                listed = b"".join(os.fsencode(path) + b"\0" for path in paths)
                try:
                    await self._copy(
                        remote_path, _RSYNC_LISTED, "every node needs the same files", listed
                    )
                except SetupError as error:
                    _log.info(
                        "%s: sending %s directly: %s", self._instance.name, remote_path, error
                    )
                    on_fallback(error)
                else:
                    continue
            await self._worker.put(Path(local_path), remote_path, filters)

    async def _copy(self, path: str, options: str, why: str, listed: bytes | None = None) -> None:
        instance, container = self._instance, self._container
        login = f"{instance.user}@{instance.address}"
        enter = "exec" if container is None else quote(container.exec_argv())
        port = str(instance.port or 22)
        make_parent = script_command(_SCRIPTS, "create_parent_dir.sh", path)
        try:
            await self._worker.run(make_parent, timeout=_SHORT_SECONDS)
            _, keys = await capture(self._worker_host, _READ_HOST_KEYS, timeout=_SHORT_SECONDS)
            relay = script_command(
                _SCRIPTS, "relay_path.sh", path, login, port, enter, options, "\n".join(keys)
            )
            done = await self._head.run(relay, stdin=listed, timeout=self._seconds)
        except TimeoutError:
            raise self._error(path, "the head or the worker does not answer") from None
        if not done.ok:
            raise self._error(path, why, done.tail)

    def _error(self, path: str, why: str, output: Sequence[str] = ()) -> SetupError:
        return SetupError(
            f"the head could not send {path}",
            why=why,
            fix="allow SSH from the head to this node, and install rsync on both",
            node=self._instance.name,
            output=output,
        )
