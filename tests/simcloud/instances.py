"""The machines behind EC2's books: each is driven to the state that the books ask for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.simcloud import firewall, launch_data
from tests.simcloud.host_image import Machine
from tests.simcloud.hosts import Host
from tests.simcloud.keys import SshKey, new_key
from tests.simcloud.network import Fabric

Record = dict[str, Any]
"""An instance as `aws_backend.inventory` describes it."""

_WANTED = {
    "pending": "running",
    "running": "running",
    "stopping": "stopped",
    "stopped": "stopped",
    "shutting-down": "gone",
    "terminated": "gone",
}


class Books(Protocol):
    """Where instances are recorded, and what became of them is written down."""

    async def inventory(self) -> dict[str, list[Record]]: ...

    async def settle(
        self, record: Record, state: str, reason: tuple[str, str] | None = None
    ) -> None: ...


class Builder(Protocol):
    """Who makes and ends machines."""

    @property
    def fabric(self) -> Fabric: ...

    async def build(self, machine: Machine) -> Host: ...

    async def destroy(self, host: Host) -> None: ...


@dataclass
class _Instance:
    record: Record
    authorized_keys: list[str]
    seen: float = field(default_factory=time.monotonic)
    host: Host | None = None
    published: str | None = None
    actual: str = "new"
    wanted: str = "running"
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    driver: asyncio.Task[None] | None = None


class Instances:
    """All instances of one cloud. Lives on the fabric's loop."""

    def __init__(
        self,
        builder: Builder,
        books: Books,
        environment: dict[str, str],
        on_ended: Callable[[str], None],
    ) -> None:
        self._boot_delay_s = 0.0
        self._builder, self._books = builder, books
        self._environment = environment
        self._on_ended = on_ended
        self._known: dict[str, _Instance] = {}
        self._following = asyncio.Lock()
        self._errands: set[asyncio.Task[None]] = set()

    def host(self, instance_id: str) -> Host | None:
        known = self._known.get(instance_id)
        return known.host if known else None

    def by_address(self, address: str) -> str | None:
        """Return the id of the instance that has this private address now."""
        for instance_id, known in self._known.items():
            if known.actual != "gone" and known.record["private"] == address:
                return instance_id
        return None

    def age(self, instance_id: str) -> float:
        known = self._known.get(instance_id)
        return time.monotonic() - known.seen if known else 0.0

    async def follow(self) -> list[Record]:
        """Look at the books, set every machine to work, and return instances never seen before."""
        async with self._following:  # or an older look could undo a newer one
            return await self._follow(await self._books.inventory())

    async def _follow(self, books: dict[str, list[Record]]) -> list[Record]:
        new = []
        for record in books["instances"]:
            known = self._known.get(record["id"])
            if known is None:
                keys = [
                    key["public"]
                    for key in books["keys"]
                    if (key["name"], key["region"]) == (record["key"], record["region"])
                ]
                known = self._known[record["id"]] = _Instance(record, keys)
                new.append(record)
            known.record = record
            wanted = _WANTED[record["state"]]
            if known.wanted != wanted:
                known.wanted = wanted
                known.changed.set()
            if known.actual != known.wanted and (known.driver is None or known.driver.done()):
                known.driver = asyncio.create_task(self._drive(known))
            elif known.actual == "running":
                await self._publish(known)
        await self._guard(books)
        return new

    def delay_boots(self, seconds: float) -> None:
        """Have every boot take this much longer, also those that are being delayed now."""
        self._boot_delay_s = seconds
        for known in self._known.values():
            known.changed.set()

    async def reboot(self, instance_id: str) -> None:
        known = self._known.get(instance_id)
        if known and known.host and known.actual == "running":
            self.errand(known.host.reboot())

    def errand(self, work: Awaitable[Any]) -> None:
        """Let something happen in its own time; the cloud's end cancels it."""

        async def run() -> None:
            await work

        task = asyncio.create_task(run())
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def close(self) -> None:
        drivers = [known.driver for known in self._known.values() if known.driver]
        tasks = [task for task in (*drivers, *self._errands) if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _drive(self, known: _Instance) -> None:
        try:
            await self._reach_wanted(known)
        except Exception as error:
            # EC2 says so too when a machine it promised cannot be had after all.
            known.actual = known.wanted = "gone"
            self._on_ended(known.record["id"])
            await self._books.settle(
                known.record, "terminated", ("Server.InternalError", str(error))
            )
            raise

    async def _reach_wanted(self, known: _Instance) -> None:
        while known.actual != known.wanted:
            known.changed.clear()
            if known.wanted == "running":
                await self._bring_up(known)
            elif known.wanted == "stopped":
                if known.host:
                    await known.host.power_off()
                await self._withdraw(known)
                await self._arrive(known, "stopped", "stopped")
            else:
                await self._withdraw(known)
                if known.host:
                    await known.host.power_off()
                    await self._builder.destroy(known.host)
                    known.host = None
                self._on_ended(known.record["id"])
                await self._arrive(known, "gone", "terminated")

    async def _bring_up(self, known: _Instance) -> None:
        if known.host is None:
            known.host = await self._builder.build(self._plan(known))
            known.host.on_ended = lambda how: self._went_down(known, how)
            async with self._following:
                await self._guard(await self._books.inventory())
        began = time.monotonic()
        while known.wanted == "running":
            left = began + self._boot_delay_s - time.monotonic()
            if left <= 0:
                break
            known.changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(known.changed.wait(), left)
        else:
            return  # something else is wanted by now
        await self._publish(known)
        await known.host.boot()
        await self._arrive(known, "running", "running")

    async def _arrive(self, known: _Instance, actual: str, state: str) -> None:
        known.actual = actual
        await self._books.settle(known.record, state)

    def _plan(self, known: _Instance) -> Machine:
        record = known.record
        given = launch_data.host_key(record["user_data"])
        name = "ip-" + record["private"].replace(".", "-")
        return Machine(
            name=name,
            aliases=[f"{name}.{record['region']}.compute.internal"],
            address=record["private"],
            host_key=SshKey(*given) if given else new_key(record["id"]),
            user_keys=[
                *known.authorized_keys,
                *launch_data.authorized_keys(record["user_data"]),
            ],
            environment=self._environment,
            user_data=record["user_data"],
        )

    def _went_down(self, known: _Instance, how: str) -> None:
        """A machine went down by itself; one that was killed still counts as running in EC2."""
        assert known.host is not None
        if how == "reboot":
            self.errand(known.host.boot())
        elif how == "poweroff":
            self.errand(self._shut_down(known))

    async def _shut_down(self, known: _Instance) -> None:
        ending = known.record["at_shutdown"] == "terminate"
        reason = (
            "Client.InstanceInitiatedShutdown",
            "Instance initiated shutdown",
        )
        await self._books.settle(known.record, "shutting-down" if ending else "stopping", reason)
        await self.follow()

    async def _publish(self, known: _Instance) -> None:
        public = known.record["public"]
        if public == known.published:
            return
        await self._withdraw(known)
        if public:
            await self._builder.fabric.publish(public, known.record["private"])
            known.published = public

    async def _withdraw(self, known: _Instance) -> None:
        if known.published:
            public, known.published = known.published, None
            await self._builder.fabric.withdraw(public, known.record["private"])

    async def _guard(self, books: dict[str, list[Record]]) -> None:
        links = {
            instance_id: known.host.link
            for instance_id, known in self._known.items()
            if known.host and known.host.link
        }
        rules = firewall.rules(books["instances"], books["groups"], links)
        await self._builder.fabric.nft(rules)
