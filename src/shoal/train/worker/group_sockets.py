"""The connections of process groups.

Gloo cannot abort a collective: it waits for a silent peer, such as a machine without power, as long
as the connection is open. Ending the connection ends the collective.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Collection, Iterable

# A descriptor can be closed and used again for something else; the inode then differs.
Socket = tuple[int, int]


def open_sockets() -> set[Socket]:
    """The descriptors of all sockets of this process, with their inodes."""
    sockets = set()
    for name in os.listdir("/dev/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                sockets.add((int(name), status.st_ino))
    return sockets


def shut_down(sockets: Iterable[Socket], hosts: Collection[str]) -> None:
    """End the connections to these hosts, for both sides. Their owner still closes them."""
    for descriptor, inode in sockets:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            is_same = os.fstat(connection.fileno()).st_ino == inode
            if is_same and connection.getpeername()[0] in hosts:
                connection.shutdown(socket.SHUT_RDWR)
