"""`SimCloud`: a cloud for the length of a `with` block."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.simcloud.ec2 import Ec2
from tests.simcloud.faults import Faults
from tests.simcloud.gce import Gce
from tests.simcloud.host_image import Machine
from tests.simcloud.hosts import Host
from tests.simcloud.keys import new_key
from tests.simcloud.ledger import Ledger, Thing
from tests.simcloud.network import LAPTOP, Fabric, on_fabric
from tests.simcloud.sweep import sweep

_PLAIN_HOSTS = "10.20.0.{}"
LAPTOP_USER = "me"


class SimCloud:
    """Machines with addresses, SSH servers and process trees of their own, on this computer.

    async with SimCloud() as cloud:
        laptop = await cloud.laptop()
        host = await cloud.boot()
        await laptop.run(["ssh", f"ubuntu@{host.address}", "hostname"])
    """

    def __init__(self, *, gce: bool = False) -> None:
        self.fabric = Fabric()
        self.laptop_key = new_key("me@laptop")
        self.hosts: dict[str, Host] = {}
        """Every machine that exists, by its address."""
        self._ever: list[Host] = []
        self.faults = Faults()
        self.ledger = Ledger()
        self.ec2 = Ec2(self, self.faults, self.ledger)
        self._gce = Gce(self, self.faults, self.ledger) if gce else None
        self._numbers = itertools.count(1)
        self._laptop: Host | None = None
        self._unpacking = asyncio.Lock()

    @property
    def gce(self) -> Gce:
        """The Compute Engine of a cloud that was made with one. Its metadata server takes the
        address of EC2's."""
        if self._gce is None:
            raise RuntimeError("this cloud was made without gce=True")
        return self._gce

    async def __aenter__(self) -> SimCloud:
        sweep()
        await self.fabric.open()
        # Made in this thread, so that it is the test's own loopback and not the fabric's.
        local = socket.create_server(("127.0.0.1", 0))
        if self._gce is None:
            await self.fabric.within(self.ec2.open(local, self.ec2.metadata.handle))
        else:
            await self.fabric.within(self.ec2.open(local, self._gce.metadata.handle))
            other = socket.create_server(("127.0.0.1", 0))
            await self.fabric.within(self._gce.open(other))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._destroy_all()
            await asyncio.gather(*(host.close_doors() for host in self._ever))
        finally:
            await self.fabric.close()

    @on_fabric
    async def _destroy_all(self) -> None:
        await self.ec2.close()
        if self._gce is not None:
            await self._gce.close()
        await asyncio.gather(*(host.destroy() for host in list(self.hosts.values())))

    async def boot(
        self,
        address: str | None = None,
        *,
        image: Path | None = None,
        authorized_keys: Sequence[str] | None = None,
        user: str = "ubuntu",
        name: str | None = None,
        environment: Mapping[str, str] | None = None,
        disk_mib: int = 2048,
        ray_on_path: bool = True,
    ) -> Host:
        """Boot a machine of one's own, with no cloud API in between.

        The keys (the laptop's, unless said otherwise) open `user` and root.
        """
        number = next(self._numbers)
        keys = [self.laptop_key.public] if authorized_keys is None else authorized_keys
        machine = Machine(
            name=name or f"host-{number}",
            address=address or _PLAIN_HOSTS.format(number),
            host_key=new_key("host"),
            user=user,
            user_keys=keys,
            root_keys=keys,
            image=image,
            environment=environment or {},
            disk_mib=disk_mib,
            ray_on_path=ray_on_path,
        )
        host = await self.build(machine)
        await host.boot()
        return host

    async def laptop(self) -> Host:
        """Return the user's own computer: it has the SSH key, and no network but this cloud."""
        async with self._unpacking:
            if self._laptop is None:
                self._laptop = await self._unpack_laptop()
            return self._laptop

    async def _unpack_laptop(self) -> Host:
        machine = Machine(
            name="laptop",
            address=LAPTOP,
            host_key=new_key("laptop"),
            user=LAPTOP_USER,
            console_user=LAPTOP_USER,
            environment={
                **self.ec2.environment(),
                **(self._gce.environment() if self._gce else {}),
            },
            image=self._gce.authority.image if self._gce else None,
        )
        laptop = await self.build(machine)
        await laptop.boot()
        result = await laptop.run(
            "umask 077 && mkdir -p ~/.ssh && cat > ~/.ssh/id_ed25519 && "
            "ssh-keygen -y -f ~/.ssh/id_ed25519 > ~/.ssh/id_ed25519.pub",
            stdin=self.laptop_key.private,
        )
        result.require("putting the key on the laptop")
        return laptop

    @on_fabric
    async def build(self, machine: Machine) -> Host:
        """Make a machine, switched off, that knows every other by name and is known to them."""
        if machine.address in self.hosts:
            raise ValueError(f"{machine.address} is already taken in this cloud")
        host = Host(self.fabric, machine)
        for other in self.hosts.values():
            other.learn(machine)
            host.learn(other.machine)
        for service in self._gce.names() if self._gce else ():
            host.learn(service)
        self.hosts[machine.address] = host
        self._ever.append(host)
        try:
            await host.build()
        except BaseException:
            await self.destroy(host)
            raise
        return host

    @on_fabric
    async def destroy(self, host: Host) -> None:
        """End a machine for good and free its address."""
        await host.destroy()
        self.hosts.pop(host.address, None)

    async def leftovers(self) -> list[Thing]:
        """What a cloud's API still has that the test did not start with."""
        left = await self.ec2.leftovers()
        return [*left, *(await self._gce.leftovers() if self._gce else ())]

    async def assert_nothing_left(self) -> None:
        """Fail when there is anything left."""
        left = await self.leftovers()
        assert not left, "still there: " + ", ".join(map(str, left))
