"""Brings files to a machine: from here, or from the head, which has a better way to its workers
than a laptop at the end of a thin line."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.bootstrap.mount_files import Manifest, manifest
from shoal.core.errors import SetupError
from shoal.providers.model import Instance
from shoal.remote.container import Container
from shoal.remote.runner import Filters, Runner, capture, quote
from shoal.spec.cluster_spec import FilesSpec

_SHORT_SECONDS = 30.0
# What is smaller is there sooner than the head could be asked to send it.
_WORTH_RELAYING_BYTES = 1_000_000
# Nor is it worth it where all workers have it so soon, one after the other, nor on such a line: its
# limits are the processors at its ends, which new connections would burden as well.
_SOON_SECONDS = 5.0
_GOOD_LINE_BYTES_PER_SECOND = 10_000_000

# Copies one path from the head to the same path on a worker, over the cluster's own key. What is
# not there on the head is left out, as Ray does. $0 is the path, $1 the login, $2 the port, $3 the
# words that lead into the worker's container, if it has one, $4 how it is to be copied, $5 the
# worker's host keys.
_SHARE = r"""
case $0 in "~/"*) here=$HOME/${0#"~/"}; there=${0#"~/"};; *) here=$0; there=$0;; esac
[ -e "$here" ] || exit 0
if [ -d "$here" ]; then here=$here/; there=$there/; fi
known=$HOME/.shoal/known/${1#*@}
mkdir -p "${known%/*}" && printf '%s\n' "$5" | sed 's/^/worker /' > "$known" || exit
exec rsync $4 -s --rsync-path="$3 sh -c 'cd; exec rsync \"\$@\"' rsync" \
 -e "ssh -q -p $2 -i $HOME/.shoal/cluster_key -o IdentitiesOnly=yes \
 -o BatchMode=yes -o ConnectTimeout=10 -o StrictHostKeyChecking=yes -o HostKeyAlias=worker \
 -o UserKnownHostsFile=$known" "$here" "$1:$there"
"""
_ALL = "-a"
# Only what a list on standard input names: there may be more at that place by now.
_LISTED = "-lpt --from0 --files-from=-"
_MAKE_PARENT = (
    r"""case $0 in "~/"*) path=$HOME/${0#"~/"};; *) path=$0;; esac; mkdir -p "${path%/*}" """
)


# The worker itself says by what the head shall know it, over a connection to it that is trusted.
_HOST_KEYS = "cat /etc/ssh/ssh_host_*_key.pub"


def relayed(files: FilesSpec) -> Manifest:
    """The file mounts that can go to the head once, and from there to all others. A path must mean
    the same to a shell there as to rsync."""
    return {
        there: parcel
        for there, parcel in manifest(files).items()
        if parcel.size >= _WORTH_RELAYING_BYTES and parcel.paths and there.startswith(("/", "~/"))
    }


def should_relay(relayed: Manifest, seconds: float, workers: int) -> bool:
    """Whether these files should go by the head, which had them after so many seconds: not where a
    new connection between two machines costs more than one that is there."""
    size = sum(parcel.size for parcel in relayed.values())
    is_slow = size < _GOOD_LINE_BYTES_PER_SECOND * seconds
    return is_slow and seconds * workers >= _SOON_SECONDS


async def send(runner: Runner, files: FilesSpec) -> None:
    """Bring the file mounts to a machine from here."""
    filters = Filters(files.rsync_exclude, files.rsync_filter)
    for there, here in files.mounts.items():
        await runner.put(Path(here), there, filters)


class HeadRelay:
    """What the head has, for a worker. The worker has let the head in. `machine` leads to where its
    SSH server is, if that is not where the files go."""

    def __init__(
        self,
        head: Runner,
        worker: Runner,
        instance: Instance,
        seconds: float,
        container: Container | None = None,
        machine: Runner | None = None,
    ) -> None:
        self._head = head
        self._worker = worker
        self._instance = instance
        self._seconds = seconds
        self._container = container
        self._machine = machine or worker

    async def share(self, path: str, why: str) -> None:
        """Bring a file or a tree of the head's to the worker, into its container if it has one."""
        await self._copy(path, _ALL, why)

    async def relay(
        self,
        files: FilesSpec,
        relayed: Manifest,
        on_detour: Callable[[SetupError], None],
    ) -> None:
        """Bring the file mounts to the worker, which the head has just got: those from there, and
        the others from here, as are all where the head has no way to its worker, which is told."""
        filters = Filters(files.rsync_exclude, files.rsync_filter)
        for there, here in files.mounts.items():
            if there in relayed:
                listed = b"".join(os.fsencode(path) + b"\0" for path in relayed[there].paths)
                try:
                    await self._copy(there, _LISTED, "it is to be the same on every node", listed)
                except SetupError as error:
                    on_detour(error)
                else:
                    continue
            await self._worker.put(Path(here), there, filters)

    async def _copy(self, path: str, how: str, why: str, listed: bytes | None = None) -> None:
        instance, container = self._instance, self._container
        login = f"{instance.user}@{instance.address}"
        enter = "exec" if container is None else quote(container.exec_argv())
        port = str(instance.port or 22)
        make_parent = quote(["sh", "-c", _MAKE_PARENT, path])
        try:
            await self._worker.run(make_parent, timeout=_SHORT_SECONDS)
            _, keys = await capture(self._machine, _HOST_KEYS, timeout=_SHORT_SECONDS)
            words = ["sh", "-c", _SHARE, path, login, port, enter, how, "\n".join(keys)]
            done = await self._head.run(quote(words), stdin=listed, timeout=self._seconds)
        except TimeoutError:
            raise self._failure(path, "one of the two machines does not answer") from None
        if not done.ok:
            raise self._failure(path, why, done.tail)

    def _failure(self, path: str, why: str, output: Sequence[str] = ()) -> SetupError:
        return SetupError(
            f"the head could not send {path}",
            why=why,
            fix="let the head reach this machine by SSH, and install rsync on both",
            node=self._instance.name,
            output=output,
        )
