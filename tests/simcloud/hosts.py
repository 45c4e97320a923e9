"""A simulated host as tests see it: boot, run things on it, hurt it, end it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.simcloud.console import Running
from tests.simcloud.host_image import PROJECT, SYSTEM_PATH, Machine
from tests.simcloud.machine import disk_layers
from tests.simcloud.network import GATEWAY, Fabric, ipv6_of, network_of, on_fabric
from tests.simcloud.processes import Result, execute
from tests.simcloud.sweep import mark

_ORDER_DEADLINE_S = 120
_SHUTDOWN_DEADLINE_S = 2


class BootFailed(Exception):
    """A machine did not come up; the message has what it printed."""


class Host:
    """A machine of the cloud. Every coroutine here may be awaited from any event loop."""

    def __init__(self, fabric: Fabric, machine: Machine) -> None:
        self.fabric = fabric
        self.machine = machine
        self.link = ""
        self.pid = 0
        """Init's process id on this computer; 0 while the machine is switched off."""
        self.on_ended: Callable[[str], None] | None = None
        """Called with `poweroff`, `reboot` or `killed` when the machine goes down by itself."""
        self._hardware: asyncio.subprocess.Process | None = None
        self._replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._listener: asyncio.Task[None] | None = None
        self._unwritten: list[str] = []
        self._doors: list[asyncio.subprocess.Process] = []
        self._down = asyncio.Event()
        self._commanded_down = False
        self._cut = False
        self._current_address = machine.address
        self._disk = -1

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def address(self) -> str:
        return self.machine.address

    @property
    def ipv6_address(self) -> str:
        return ipv6_of(self.address)

    @property
    def running(self) -> bool:
        return self.pid != 0

    @property
    def exists(self) -> bool:
        return self._hardware is not None

    # -- life ---------------------------------------------------------------------------------

    @on_fabric
    async def build(self) -> None:
        """Make the disk and the network card, and plug the card in; do not switch on yet."""
        self._hardware = await asyncio.create_subprocess_exec(
            *(sys.executable, "-S", "-E", "-m", "tests.simcloud.machine"),
            cwd=PROJECT,
            env={"PATH": SYSTEM_PATH, "PYTHONDONTWRITEBYTECODE": "1", **mark()},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        self._listener = asyncio.create_task(self._listen(self._hardware))
        self._disk = (await self._order(self.machine.describe(), "made"))["disk"]
        self.link = await self.fabric.attach(self._hardware.pid, self.address)

    @on_fabric
    async def boot(self) -> None:
        """Switch the machine on, and return when its sshd listens."""
        self._down.clear()
        self._commanded_down = False
        if not self._cut:
            await self.fabric.mend(self.link)
        reply = await self._order({"do": "boot"}, "booted")
        if reply["trouble"]:
            raise BootFailed(f"{self.name} did not boot: {reply['trouble']}")
        self.pid = reply["booted"]
        self._write_names()

    @on_fabric
    async def kill(self) -> None:
        """Pull the plug: nothing is said to anyone, and the disk stays."""
        if not self.running:
            return
        # A process that dies closes its sockets and its peers hear of it; a lost machine is mute.
        await self.fabric.sever(self.link)
        self._commanded_down = True
        os.kill(self.pid, signal.SIGKILL)
        self._open_doors()
        await self._down.wait()

    @on_fabric
    async def power_off(self) -> None:
        """Shut the machine down in good order, or pull the plug if it does not react."""
        if not self.running:
            return
        self._commanded_down = True
        os.kill(self.pid, signal.SIGUSR1)
        try:
            await asyncio.wait_for(self._down.wait(), _SHUTDOWN_DEADLINE_S)
        except asyncio.TimeoutError:
            await self.kill()

    @on_fabric
    async def reboot(self) -> None:
        """Shut down in good order and boot again, with the same disk."""
        await self.power_off()
        await self.boot()

    @on_fabric
    async def destroy(self) -> None:
        """End the machine for good, disk and all."""
        if self._hardware is None:
            return
        await self.kill()
        hardware, self._hardware = self._hardware, None
        with contextlib.suppress(ProcessLookupError):
            hardware.kill()
        assert hardware.stdin and hardware.stderr and self._listener
        hardware.stdin.close()
        # Read to the end, or the pipes would outlive the loop.
        await asyncio.gather(self._listener, hardware.stderr.read(), hardware.wait())
        await self.fabric.forget(self.address)

    async def close_doors(self) -> None:
        """Wait for the commands that were started here: they ended with the machine."""
        doors, self._doors = self._doors, []
        await asyncio.gather(*(door.communicate() for door in doors))

    def learn(self, other: Machine) -> None:
        """Make another machine's names known here: now, or at the next boot."""
        self._unwritten.append(" ".join([other.address, other.name, *other.aliases]) + "\n")
        if self.running:
            with contextlib.suppress(FileNotFoundError):  # it may be going down this very moment
                self._write_names()

    def _write_names(self) -> None:
        with (self.root() / "etc/hosts").open("a") as hosts:
            hosts.writelines(self._unwritten)
        self._unwritten.clear()

    async def _order(self, order: dict[str, Any], reply: str) -> dict[str, Any]:
        assert self._hardware is not None and self._hardware.stdin is not None
        self._hardware.stdin.write(json.dumps(order).encode() + b"\n")
        await self._hardware.stdin.drain()
        answer = await asyncio.wait_for(self._replies.get(), _ORDER_DEADLINE_S)
        if reply not in answer:
            raise BootFailed(f"{self.name}: {await self._last_words()}")
        return answer

    async def _listen(self, hardware: asyncio.subprocess.Process) -> None:
        assert hardware.stdout is not None
        async for line in hardware.stdout:
            event = json.loads(line)
            if "ended" not in event:
                self._replies.put_nowait(event)
                continue
            # The kernel would go on answering for it; a machine that is off does not.
            await self.fabric.sever(self.link)
            self.pid = 0
            self._down.set()
            if self.on_ended and not self._commanded_down:
                self.on_ended(event["ended"])
        self.pid = 0
        self._down.set()
        self._replies.put_nowait({})  # wakes whoever still waits for an answer

    async def _last_words(self) -> str:
        assert self._hardware is not None and self._hardware.stderr is not None
        with contextlib.suppress(ProcessLookupError):
            self._hardware.kill()
        return (await self._hardware.stderr.read()).decode(errors="replace").strip()

    # -- use ----------------------------------------------------------------------------------

    async def run(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        stdin: str = "",
        timeout: float = 120,
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """Run a command (a string is for bash) on the console, so with no need of SSH."""
        running = await self.popen(command, user=user, env=env)
        return await running.finish(stdin, timeout)

    async def popen(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int = asyncio.subprocess.PIPE,
        stdout: int = asyncio.subprocess.PIPE,
        stderr: int = asyncio.subprocess.PIPE,
    ) -> Running:
        """Start a command on the machine and return it while it runs."""
        process = await asyncio.create_subprocess_exec(
            *self.entry(user, env),
            *(["bash", "-c", command] if isinstance(command, str) else command),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
        self._doors.append(process)
        return Running(process, f"{command} on {self.name}")

    def _open_doors(self) -> None:
        # A door stops itself when the command behind it stops, and init cannot end before
        # every door has reaped its command.
        for door in self._doors:
            if door.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(door.pid, signal.SIGCONT)

    def entry(self, user: str | None = None, env: Mapping[str, str] | None = None) -> list[str]:
        """Return the command prefix that runs what follows on this machine, as `user`."""
        if not self.running:
            raise RuntimeError(f"{self.name} is switched off")
        user = user or self.machine.console_user
        home = "/root" if user == "root" else f"/home/{user}"
        variables = {"PATH": self.machine.path, **self.machine.environment, **(env or {})}
        return [
            *("nsenter", f"--target={self.pid}", "--mount", "--uts", "--ipc", "--net", "--pid"),
            *("--root", "--wd=/", "--"),
            *("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env"),
            *("--pdeathsig=KILL", "env", f"--chdir={home}"),
            *(f"{name}={value}" for name, value in variables.items()),
        ]

    def network(self) -> AbstractContextManager[None]:
        """Run the calling thread in this machine's network: `with laptop.network(): ...`."""
        return network_of(self.pid)

    def root(self) -> Path:
        """Return the machine's file system as seen from outside, for reading and writing."""
        return Path(f"/proc/{self.pid}/root")

    def disk_layers(self) -> dict[str, Path]:
        """Return what the machine has changed on its disk, by path, as seen from outside."""
        assert self._hardware is not None
        disk = Path(f"/proc/{self._hardware.pid}/fd/{self._disk}")
        names = disk_layers(self.machine.describe()["visible"])
        return {path: disk / name for path, name in names.items()}

    def pids(self) -> list[int]:
        """Return the machine's processes, by their ids on this computer."""
        if not self.running:
            return []
        own = Path(f"/proc/{self.pid}/ns/pid").readlink()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if (entry / "ns" / "pid").readlink() == own:
                        found.append(int(entry.name))
        return sorted(found)

    # -- faults -------------------------------------------------------------------------------

    async def cut(self) -> None:
        """Lose every packet to and from the machine until `heal`."""
        self._cut = True
        await self.fabric.within(self.fabric.sever(self.link))

    @on_fabric
    async def move_to(self, address: str) -> None:
        """Give the machine another address, as a laptop gets one in another network. Connections
        from the old one are lost. Its names still lead to the old address."""
        await self.fabric.route(self.link, address)
        network = ["nsenter", "--net", "--target", str(self.pid)]
        commands = (
            f"addr add {address}/32 dev eth0",
            f"route replace default via {GATEWAY} dev eth0 onlink src {address}",
            f"addr del {self._current_address}/32 dev eth0",
        )
        self._current_address = address
        result = await execute([*network, "ip", "-batch", "-"], stdin="\n".join(commands) + "\n")
        result.require(f"moving {self.name} to {address}")

    @contextlib.asynccontextmanager
    async def cut_off(self) -> AsyncIterator[None]:
        """Cut it for the length of a block, however that ends."""
        await self.cut()
        try:
            yield
        finally:
            await self.heal()

    async def heal(self) -> None:
        self._cut = False
        if self.running:
            await self.fabric.within(self.fabric.mend(self.link))

    async def freeze(self) -> None:
        """Stop the machine in its tracks: no process moves and nothing is answered."""
        await self.cut()
        stopped: set[int] = set()
        while new := set(self.pids()) - stopped:  # until no fork slipped through
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            stopped |= new

    async def thaw(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._open_doors()
        await self.heal()

    @on_fabric
    async def fill_disk(self) -> None:
        """Leave no byte free on the machine's disk, which holds /tmp as well."""
        await self._order({"do": "fill"}, "filled")

    @on_fabric
    async def deny_ssh(self, seconds: float) -> None:
        """Refuse new SSH connections for a while, as a machine does that still boots."""
        element = f'"{self.link}" timeout {int(seconds * 1000)}ms'
        await self.fabric.nft(f"add element inet fabric ssh_denied {{ {element} }}")

    @on_fabric
    async def lose_packets(self, percent: int) -> None:
        """Drop this share of the packets to and from the machine; 0 ends it."""
        chain = f"loss_{self.link}"
        lost = "drop" if percent == 100 else f"numgen random mod 100 < {percent} drop"
        await self.fabric.nft(
            f"add chain inet fabric {chain}\n"
            f"flush chain inet fabric {chain}\n"
            f"add rule inet fabric {chain} {lost}\n"
            f'add element inet fabric lossy {{ "{self.link}" : jump {chain} }}\n'
        )

    @on_fabric
    async def delay(self, milliseconds: float) -> None:
        """Add this much to the time that packets take to the machine; 0 ends it."""
        await self.fabric.slow_down(self.link, self.address, milliseconds / 1000)

    async def hang(self, command: str) -> None:
        """From now on, starting `command` (a name or a path) never returns on this machine."""
        script = "#!/bin/sh\nexec sleep infinity\n"
        place = shlex.quote(command)
        result = await self.run(
            f'target=$(realpath "$(command -v {place})") && cat > /run/hang && '
            'chmod 755 /run/hang && mount --bind /run/hang "$target"',
            stdin=script,
        )
        result.require(f"hanging {command} on {self.name}")
