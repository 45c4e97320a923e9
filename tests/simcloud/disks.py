"""Disks for simulated machines: files behind loop devices, which are the computer's own. They go
with the process that made them, however that ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.simcloud.hosts import Host


@dataclass(frozen=True)
class Disk:
    """A disk of the computer that machines can be given."""

    device: Path

    def read(self) -> bytes:
        return self.device.read_bytes()

    def write(self, content: bytes, at: int = 0) -> None:
        with self.device.open("r+b") as file:
            file.seek(at)
            file.write(content)

    async def plug_into(self, host: Host, name: str) -> None:
        """Have it show as /dev/NAME, until the machine's next boot."""
        number = self.device.stat().st_rdev
        own = f"/dev/{self.device.name}"
        make = f"mknod -m 660 {own} b {os.major(number)} {os.minor(number)}"
        await host.run(f"{make}; ln -s {own} /dev/{name}")


@contextlib.contextmanager
def blank_disk(mib: int = 64) -> Iterator[Disk]:
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(mib << 20)
        words = ["losetup", "--find", "--show", file.name]
        made = subprocess.run(words, check=True, capture_output=True, text=True)
        device = Path(made.stdout.strip())
        held = os.open(device, os.O_RDONLY)
        # The kernel removes the device when its last user closes it.
        subprocess.run(["losetup", "--detach", str(device)], check=True)
    try:
        yield Disk(device)
    finally:
        os.close(held)
