"""Connections to a silent peer are ended, and only those."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from shoal.train.worker.group_sockets import open_sockets, shut_down


@contextlib.contextmanager
def _connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        with client, server:
            client.settimeout(5)
            yield client, server


def test_what_waits_for_a_peer_ends_when_the_connection_is_shut_down() -> None:
    before = open_sockets()
    with _connection() as (client, server):
        new = {s for s in open_sockets() - before if s[0] == client.fileno()}
        assert len(new) == 1
        shut_down(new, {"127.0.0.1"})
        assert client.recv(1) == b""
        assert server.recv(1) == b""


def test_connections_to_other_hosts_are_left_alone() -> None:
    before = open_sockets()
    with _connection() as (client, server):
        shut_down(open_sockets() - before, {"192.0.2.1"})
        server.send(b"x")
        assert client.recv(1) == b"x"


def test_a_descriptor_that_is_used_again_is_left_alone() -> None:
    with _connection() as (client, server):
        other = next(inode for fd, inode in open_sockets() if fd == server.fileno())
        shut_down({(client.fileno(), other), (9999, 1)}, {"127.0.0.1"})
        server.send(b"x")
        assert client.recv(1) == b"x"
        assert os.fstat(client.fileno()).st_ino != other
