"""The simulated hosts of EC2 instances: each is brought to the state that EC2 records for it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.polling import cancel_and_wait
from tests.simcloud import firewall, user_data
from tests.simcloud.aws_encryption import LAUNCH_ERROR
from tests.simcloud.disk_images import DiskImages
from tests.simcloud.host_image import Machine
from tests.simcloud.hosts import Host
from tests.simcloud.keys import SshKey, new_key
from tests.simcloud.network import Fabric

Record = dict[str, Any]
"""An instance as `aws_backend.inventory` describes it."""

_TARGET_STATES = {
    "pending": "running",
    "running": "running",
    "stopping": "stopped",
    "stopped": "stopped",
    "shutting-down": "gone",
    "terminated": "gone",
}


class InstanceStore(Protocol):
    """The records of instances and their states."""

    async def inventory(self) -> dict[str, list[Record]]: ...

    async def set_state(
        self, record: Record, state: str, reason: tuple[str, str] | None = None
    ) -> None: ...


class Builder(Protocol):
    """Builds and destroys simulated hosts."""

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
    fails_at_launch: bool = False
    actual: str = "new"
    target: str = "running"
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    driver: asyncio.Task[None] | None = None


class Instances:
    """All instances of one cloud. Lives on the fabric's loop."""

    def __init__(
        self,
        builder: Builder,
        store: InstanceStore,
        environment: dict[str, str],
        on_ended: Callable[[str], None],
    ) -> None:
        self._boot_delay_s = 0.0
        self.fail_at_launch = 0
        """How many of the next instances end at launch."""
        self.first_boot_s = 0.0
        """How long cloud-init runs, and apt is locked, after an instance's sshd answers."""
        self.images = DiskImages()
        self._builder, self._store = builder, store
        self._environment = environment
        self._on_ended = on_ended
        self._instances: dict[str, _Instance] = {}
        self._reconciling = asyncio.Lock()
        self._background_tasks: set[asyncio.Task[None]] = set()

    def host(self, instance_id: str) -> Host | None:
        instance = self._instances.get(instance_id)
        return instance.host if instance else None

    def image(self, instance_id: str) -> str:
        """Return the AMI that an instance was launched from."""
        return str(self._instances[instance_id].record["image"])

    def by_address(self, address: str) -> str | None:
        """Return the id of the instance that has this private address now."""
        for instance_id, instance in self._instances.items():
            if instance.actual != "gone" and instance.record["private"] == address:
                return instance_id
        return None

    def age(self, instance_id: str) -> float:
        instance = self._instances.get(instance_id)
        return time.monotonic() - instance.seen if instance else 0.0

    async def reconcile(self) -> list[Record]:
        """Bring every host to its recorded state, and return the records of new instances."""
        async with self._reconciling:  # else an older inventory could undo a newer one
            return await self._reconcile(await self._store.inventory())

    async def _reconcile(self, inventory: dict[str, list[Record]]) -> list[Record]:
        new = []
        for record in inventory["instances"]:
            instance = self._instances.get(record["id"])
            if instance is None:
                keys = [
                    key["public"]
                    for key in inventory["keys"]
                    if (key["name"], key["region"]) == (record["key"], record["region"])
                ]
                instance = self._instances[record["id"]] = _Instance(record, keys)
                instance.fails_at_launch = self.fail_at_launch > 0
                self.fail_at_launch -= int(instance.fails_at_launch)
                new.append(record)
            instance.record = record
            target = _TARGET_STATES[record["state"]]
            if instance.target != target:
                instance.target = target
                instance.changed.set()
            if instance.actual != instance.target and (
                instance.driver is None or instance.driver.done()
            ):
                instance.driver = asyncio.create_task(self._converge(instance))
            elif instance.actual == "running":
                await self._publish(instance)
        await self._apply_firewall(inventory)
        return new

    def delay_boots(self, seconds: float) -> None:
        """Delay every boot by this much, also those that are being delayed now."""
        self._boot_delay_s = seconds
        for instance in self._instances.values():
            instance.changed.set()

    async def reboot(self, instance_id: str) -> None:
        instance = self._instances.get(instance_id)
        if instance and instance.host and instance.actual == "running":
            self.run_in_background(instance.host.reboot())

    def run_in_background(self, work: Awaitable[Any]) -> None:
        """Run a coroutine in the background; closing the cloud cancels it."""

        async def run() -> None:
            await work

        task = asyncio.create_task(run())
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    async def close(self) -> None:
        drivers = [instance.driver for instance in self._instances.values() if instance.driver]
        await cancel_and_wait([*drivers, *self._background_tasks])

    async def _converge(self, instance: _Instance) -> None:
        try:
            await self._reach_target(instance)
        except Exception as error:
            # EC2 reports the same when an instance fails to launch.
            instance.actual = instance.target = "gone"
            self._on_ended(instance.record["id"])
            await self._store.set_state(
                instance.record, "terminated", ("Server.InternalError", str(error))
            )
            raise

    async def _reach_target(self, instance: _Instance) -> None:
        while instance.actual != instance.target:
            instance.changed.clear()
            if instance.target == "running":
                await self._bring_up(instance)
            elif instance.target == "stopped":
                if instance.host:
                    await instance.host.power_off()
                await self._withdraw(instance)
                await self._set_state(instance, "stopped", "stopped")
            else:
                await self._withdraw(instance)
                if instance.host:
                    await instance.host.power_off()
                    await self._builder.destroy(instance.host)
                    instance.host = None
                self._on_ended(instance.record["id"])
                await self._set_state(instance, "gone", "terminated")

    async def _bring_up(self, instance: _Instance) -> None:
        if instance.fails_at_launch:
            instance.target = "gone"
            await self._store.set_state(instance.record, "shutting-down", LAUNCH_ERROR)
            return
        began = time.monotonic()
        while instance.target == "running":
            left = began + self._boot_delay_s - time.monotonic()
            if left <= 0:
                break
            instance.changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(instance.changed.wait(), left)
        else:
            return  # the target state has changed
        if instance.host is None:  # not earlier, so that a test without logins needs no hosts
            instance.host = await self._builder.build(self._plan(instance))
            instance.host.on_ended = lambda how: self._on_shutdown(instance, how)
            async with self._reconciling:
                await self._apply_firewall(await self._store.inventory())
        await self._publish(instance)
        await instance.host.boot()
        await self._set_state(instance, "running", "running")

    async def _set_state(self, instance: _Instance, actual: str, state: str) -> None:
        instance.actual = actual
        await self._store.set_state(instance.record, state)

    def _plan(self, instance: _Instance) -> Machine:
        record = instance.record
        key_pair = user_data.host_key(record["user_data"])
        name = "ip-" + record["private"].replace(".", "-")
        system = self.images.system(record["image"])
        return Machine(
            name=name,
            aliases=[f"{name}.{record['region']}.compute.internal"],
            address=record["private"],
            host_key=SshKey(*key_pair) if key_pair else new_key(record["id"]),
            user_keys=[
                *instance.authorized_keys,
                *user_data.authorized_keys(record["user_data"]),
            ],
            environment=self._environment,
            user_data=record["user_data"],
            image=self.images.disk(record["image"]),
            user=system.user,
            ray_on_path=system.has_ray,
            first_boot_s=self.first_boot_s,
        )

    def _on_shutdown(self, instance: _Instance, how: str) -> None:
        """A host shut down by itself; one that was killed still counts as running in EC2."""
        assert instance.host is not None
        if how == "reboot":
            self.run_in_background(instance.host.boot())
        elif how == "poweroff":
            self.run_in_background(self._shut_down(instance))

    async def _shut_down(self, instance: _Instance) -> None:
        terminates = instance.record["at_shutdown"] == "terminate"
        reason = (
            "Client.InstanceInitiatedShutdown",
            "Instance initiated shutdown",
        )
        await self._store.set_state(
            instance.record, "shutting-down" if terminates else "stopping", reason
        )
        await self.reconcile()

    async def _publish(self, instance: _Instance) -> None:
        public = instance.record["public"]
        if public == instance.published:
            return
        await self._withdraw(instance)
        if public:
            await self._builder.fabric.publish(public, instance.record["private"])
            instance.published = public

    async def _withdraw(self, instance: _Instance) -> None:
        if instance.published:
            public, instance.published = instance.published, None
            await self._builder.fabric.withdraw(public, instance.record["private"])

    async def _apply_firewall(self, inventory: dict[str, list[Record]]) -> None:
        links = {
            instance_id: instance.host.link
            for instance_id, instance in self._instances.items()
            if instance.host and instance.host.link
        }
        rules = firewall.rules(inventory["instances"], inventory["groups"], links)
        await self._builder.fabric.nft(rules)
