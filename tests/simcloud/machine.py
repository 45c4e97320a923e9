"""One simulated machine, run as `python -m tests.simcloud.machine` by the cloud that owns it.

The process is the machine's hardware: it holds the disk, the hostname and the network card, and
stays while the machine is switched off. Each boot forks an init (see `init.py`) into a new PID
namespace, where the kernel ends every process of the machine when init ends. Nothing here has a
name outside its namespaces, so when this process is gone, nothing is left of the machine.

It reads one JSON object a line: first the description of the machine, then orders. It writes
one JSON object a line: `made`, `booted`, `ended`, `filled`. With `made` goes the descriptor of the
disk, on which the layers have the names that `disk_layers` gives them.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.simcloud import init, kernel

_WORKSHOP = "/mnt"
"""Where the new root is put together: any directory will do, since only this process sees it."""

_OWN = {"/tmp": 0o1777, "/root": 0o700, "/home": 0o755}
"""Directories that start out empty: what the computer's users keep there is not for tests."""


def main() -> None:
    orders = sys.stdin.buffer
    machine = json.loads(orders.readline())
    kernel.die_with_parent(machine["owner"])
    own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWNET)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    socket.sethostname(machine["name"])
    disk = _enter_disk(machine)
    _tell(made=True, disk=disk)

    running: int | None = None  # a pidfd of init
    pid = 0
    first = True
    while True:
        watched = [orders] if running is None else [orders, running]
        ready, _, _ = select.select(watched, [], [])
        if running in ready:
            _, status = os.waitpid(pid, 0)
            os.close(running)  # type: ignore[arg-type]
            running = None
            _tell(ended=init.meaning_of(status))
        if orders not in ready:
            continue
        line = orders.readline()
        if not line:
            return
        order = json.loads(line)
        if order["do"] == "boot":
            pid, trouble = _fork_init(machine, own_pids, first)
            running, first = os.pidfd_open(pid), False
            _tell(booted=pid, trouble=trouble)
        elif order["do"] == "fill":
            _fill(disk)
            _tell(filled=True)


def _tell(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _enter_disk(machine: dict[str, Any]) -> int:
    """Lay a disk of the machine's own over everything this computer has, and move into it."""
    apart = [path for path in machine["visible"] if _needs_own_layer(path)]
    lower = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in ["/", *apart]}

    kernel.mount("disk", _WORKSHOP, "tmpfs", 0, f"size={machine['disk_mib']}m,mode=755")
    disk = os.open(_WORKSHOP, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    root = f"{_WORKSHOP}/root"
    layers = _name(lower["/"])
    if machine["image"]:
        # A copy, because the kernel refuses a layer that lies inside another.
        image = f"{_WORKSHOP}/image"
        subprocess.run(["cp", "-a", machine["image"], image], check=True)
        layers = f"{image}:{layers}"
    _lay_over(layers, root, "system")
    for path, mode in _OWN.items():
        own = Path(f"{_WORKSHOP}{path}.own")
        own.mkdir()
        own.chmod(mode)
        if baked := _baked(machine, path):
            subprocess.run(["cp", "-a", f"{baked}/.", str(own)], check=True)
        kernel.mount(str(own), root + path, None, kernel.MS_BIND)
    for number, path in enumerate(apart):
        layers = _name(lower[path])
        if _baked(machine, path):
            layers = f"{_WORKSHOP}/image{path}:{layers}"
        _lay_over(layers, root + path, f"apart{number}")
    for descriptor in lower.values():
        os.close(descriptor)
    for path in machine["visible"]:
        _let_everyone_through(root, path)
    kernel.enter_root(root)
    return disk


def _baked(machine: dict[str, Any], path: str) -> str | None:
    """The directory of the machine's image that has what belongs at `path`."""
    place = f"{machine['image']}{path}"
    return place if machine["image"] and Path(place).is_dir() else None


def disk_layers(visible: list[str]) -> dict[str, str]:
    """What a machine has changed, by path: the directory of its disk that holds it."""
    apart = [path for path in visible if _needs_own_layer(path)]
    return {
        "/": "system.upper",
        **{path: f"{path[1:]}.own" for path in _OWN},
        **{path: f"apart{number}.upper" for number, path in enumerate(apart)},
    }


def _needs_own_layer(path: str) -> bool:
    """Say whether the overlay of the root would not show `path`."""
    elsewhere = Path(path).stat().st_dev != Path("/").stat().st_dev
    return elsewhere or any(path.startswith(own + "/") for own in _OWN)


def _name(descriptor: int) -> str:
    """Name an open directory for the overlay, whatever has been mounted over it since."""
    return f"/proc/self/fd/{descriptor}"


def _lay_over(lower: str, target: str, name: str) -> None:
    """Show `lower` at `target`, with every change going to this machine's disk."""
    upper, work = f"{_WORKSHOP}/{name}.upper", f"{_WORKSHOP}/{name}.work"
    for directory in (upper, work, target):
        Path(directory).mkdir(parents=True, exist_ok=True)
    layers = f"lowerdir={lower},upperdir={upper},workdir={work}"
    kernel.mount("overlay", target, "overlay", 0, layers)


def _let_everyone_through(root: str, path: str) -> None:
    """Open the way to `path`: an interpreter below /root must serve the machine's users too."""
    for directory in (Path(path), *Path(path).parents):
        shown = Path(root + str(directory))
        mode = stat.S_IMODE(shown.stat().st_mode)
        if not mode & stat.S_IXOTH:
            shown.chmod(mode | stat.S_IXOTH)


def _fork_init(machine: dict[str, Any], own_pids: int, first: bool) -> tuple[int, str]:
    """Start init and wait until sshd listens; return its process id and what went wrong."""
    # A second unshare is refused while children still go to the first one's namespace.
    kernel.setns(own_pids, kernel.CLONE_NEWPID)
    kernel.unshare(kernel.CLONE_NEWPID)
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ready)
        init.run(machine, first, told)
    os.close(told)
    trouble = os.read(ready, 4096).decode(errors="replace")
    os.close(ready)
    return pid, trouble


def _fill(disk: int) -> None:
    ballast = os.open("ballast", os.O_CREAT | os.O_WRONLY, dir_fd=disk)
    step = 64 << 20
    size = 0
    while step:
        try:
            os.posix_fallocate(ballast, size, step)
            size += step
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            step //= 2
    os.close(ballast)


if __name__ == "__main__":
    main()
