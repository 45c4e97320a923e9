"""Finds nodes whose raylet has ended, before the GCS notices: that takes it about 20 s, in which it
lists the node as alive and its work as pending."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

_log = logging.getLogger(__name__)

_CONNECT_SECONDS = 0.5
# A check that was slow, because hosts did not answer, is not repeated for a while.
_SLOW_SECONDS, _PAUSE_SECONDS = 0.2, 5.0
# In a larger cluster, one node more or less does not matter so much.
_MAX_NODES = 256

# Addresses and ports of raylets, by Ray id.
Endpoints = Mapping[str, tuple[str, int]]


class RayletCheck:
    """Remembers which raylets have ended: none comes back with the same Ray id."""

    def __init__(self) -> None:
        self.ended: frozenset[str] = frozenset()
        self._next_at = float("-inf")

    def is_due(self, nodes: int) -> bool:
        """Whether a cluster of so many nodes should be checked now."""
        return 0 < nodes <= _MAX_NODES and time.monotonic() >= self._next_at

    def check(self, raylets: Endpoints) -> bool:
        """Add those of these raylets that have ended to `ended`: their host answers, and nothing
        listens there. Returns whether there are any."""
        began = time.monotonic()
        with ThreadPoolExecutor(32) as pool:
            refuses = pool.map(_refuses, raylets.values())
            ended = {id for id, is_ended in zip(raylets, refuses, strict=True) if is_ended}
        if time.monotonic() - began > _SLOW_SECONDS:
            self._next_at = time.monotonic() + _PAUSE_SECONDS
        if ended:
            _log.info("raylets have ended that the GCS still lists: %s", ", ".join(sorted(ended)))
            self.ended |= ended
        return bool(ended)


def _refuses(endpoint: tuple[str, int]) -> bool:
    try:
        socket.create_connection(endpoint, timeout=_CONNECT_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False  # its host does not answer, which may be the network's fault
    return False
