"""A slow link: packets on their way to a host wait in this process before they go on.

netem would do this in the kernel, but is not in every kernel. A TUN device takes the host's
place in the router's table; what comes out of it goes back in later, and then finds the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct

_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
_LARGEST = 65536


class Delay:
    """Holds back every packet that the kernel routes into its device. Needs a running loop."""

    def __init__(self, device: str, seconds: float) -> None:
        self.seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._tunnel = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        request = struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI)
        fcntl.ioctl(self._tunnel, _TUNSETIFF, request)
        self._open = True
        self._loop.add_reader(self._tunnel, self._take)

    def _take(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                packet = os.read(self._tunnel, _LARGEST)
                self._loop.call_later(self.seconds, self._give, packet)

    def _give(self, packet: bytes) -> None:
        if self._open:
            with contextlib.suppress(OSError):  # a packet may be lost, as packets are
                os.write(self._tunnel, packet)

    def close(self) -> None:
        """Let go of the device, which ends with it."""
        self._open = False
        self._loop.remove_reader(self._tunnel)
        os.close(self._tunnel)
