"""Takes machines through the steps that make them Ray nodes, each at its own pace.

There are no barriers: all that a worker ever waits for is what only the head can give it, its
credentials, the files that the head shares, and at the very last step its GCS.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from shoal.bootstrap import applied_state as receipts
from shoal.bootstrap import file_sync, node_probe, steps, volumes
from shoal.bootstrap.applied_state import AppliedState
from shoal.bootstrap.containers import node_container as containers
from shoal.bootstrap.file_sync import HeadRelay
from shoal.bootstrap.mount_files import Manifest
from shoal.bootstrap.node_plan import NodePlan
from shoal.bootstrap.node_probe import NodeProbe
from shoal.bootstrap.steps import NodeReporter
from shoal.core.clock import Clock
from shoal.core.concurrency import run_all
from shoal.core.errors import SetupError, ShoalError, UnreachableError
from shoal.core.events import Emit
from shoal.core.node_phase import Phase
from shoal.ray_runtime import cluster_secrets
from shoal.ray_runtime.cluster_secrets import Credentials
from shoal.remote.runner import Runner

Failures = dict[str, ShoalError]
T = TypeVar("T")

# A connection that breaks in the middle of a step is made anew this often.
_STEP_TRIES = 3

_RELAYS_AT_ONCE = 3


async def bootstrap_nodes(
    works: Sequence[NodePlan], head: NodePlan, emit: Emit, clock: Clock
) -> Failures:
    """Take these machines through their steps side by side, and return what failed, by node
    name. A node that fails does not hold up the others, unless it is the head. `head` is the
    cluster's head, whether or not it is among them."""
    shared = _Shared(head, works)
    failures: Failures = {}

    async def one(work: NodePlan) -> None:
        voice = NodeReporter(work.instance, emit)
        try:
            await _Pipeline(work, shared, voice, clock).run()
        except ShoalError as error:
            failures[work.instance.name] = error
            voice.phase(Phase.FAILED, str(error))
            if work.instance.role == "head":
                shared.head_failed()

    await run_all(one(work) for work in works)
    return failures


class _Shared:
    """What the head gives its workers, each thing as soon as it is there."""

    def __init__(self, head: NodePlan, works: Sequence[NodePlan]) -> None:
        loop = asyncio.get_running_loop()
        self.head = head
        self.credentials: asyncio.Future[Credentials] = loop.create_future()
        self.is_set_up: asyncio.Future[None] = loop.create_future()
        self.is_up: asyncio.Future[None] = loop.create_future()
        self.workers = sum(work is not head for work in works)
        # How many seconds it took the head to get the files just now, once that is known; None, if
        # it did not.
        self.head_has_files: asyncio.Future[float | None] = loop.create_future()
        # The head has work of its own to do over the same connection meanwhile.
        self.relays = asyncio.Semaphore(_RELAYS_AT_ONCE)
        self._asked: asyncio.Task[None] | None = None
        if head not in works:  # it runs already
            self.is_set_up.set_result(None)
            self.is_up.set_result(None)
            self.head_has_files.set_result(None)
            if head.start.shares_credentials:
                self._asked = asyncio.ensure_future(self.make_credentials())

    @functools.cached_property
    def relayed(self) -> Manifest:
        """The files that can go by the head: none, where they are in its container, which has no
        key to others at that time."""
        return file_sync.relayed(self.head.files) if self.head.container is None else {}

    async def make_credentials(self) -> None:
        try:
            head = self.head.instance
            made = await cluster_secrets.make(self.head.runner, head.cluster, head.id)
        except ShoalError:
            if self._asked is None:
                raise
            self.head_failed()
        else:
            self.credentials.set_result(made)

    def head_failed(self) -> None:
        if not self.head_has_files.done():
            self.head_has_files.set_result(None)
        for future in (self.credentials, self.is_set_up, self.is_up):
            if not future.done():
                future.set_exception(SetupError("the head did not come up"))
                future.exception()  # looked at here, in case no worker is waiting


class _Pipeline:
    """One node's way. Every step can be repeated, and is when the connection breaks in it."""

    def __init__(self, work: NodePlan, shared: _Shared, voice: NodeReporter, clock: Clock) -> None:
        self._work = work
        self._shared = shared
        self._voice = voice
        self._clock = clock
        self._is_head = work.instance.role == "head"
        self._now = NodeProbe()
        self._initialized = False
        self._let_in = asyncio.Event()  # the head, by this node
        self._is_new = False  # its container, with nothing in it yet

    async def run(self) -> None:
        work, shared = self._work, self._shared
        await work.runner.connect(timeout=work.reach_seconds)
        self._voice.phase(Phase.REACHABLE)
        if work.claim:
            await self._step(lambda: steps.claim(work.runner, work.claim, self._voice))
        try:
            await run_all([self._share_credentials(), self._take_stock()])
        finally:
            if self._is_head and not shared.head_has_files.done():
                shared.head_has_files.set_result(None)
        if work.container is not None and work.start.shares_credentials:
            house = work.container
            await self._step(lambda: containers.lodge_secrets(work.runner, house))
        if work.interruption_agent:  # from now on: it may be taken away before it is a node
            await self._leave_running(work.interruption_agent)
        now = self._now
        if work.mode != "restart" or self._is_new:
            now = await self._set_up(now)
        if self._is_head:
            shared.is_set_up.set_result(None)
        if work.mode != "update" or not now.ray_runs:
            await self._start(now)
        if self._is_head:
            shared.is_up.set_result(None)
        self._voice.phase(Phase.READY)

    async def _share_credentials(self) -> None:
        if not self._work.start.shares_credentials:
            return
        if self._is_head:
            await self._step(self._shared.make_credentials)
        else:
            given = await asyncio.shield(self._shared.credentials)
            await self._step(lambda: cluster_secrets.accept(self._work.runner, given))
            self._let_in.set()

    async def _take_stock(self) -> None:
        """See how the machine is, and bring it the files if they are not what it has. What is
        written down is always true: a machine that was interrupted is known to be unfinished."""
        work = self._work
        now = await self._mount(await self._look())
        now = self._now = await self._settle(now)
        if (
            (work.mode == "restart" and not self._is_new)
            or now.applied_state.files == work.desired_state.files
            or not work.files.mounts
        ):
            return
        from_head = await self._head_has_files()
        self._voice.phase(Phase.PREPARING, "sends files")
        unfinished = replace(now.applied_state, files="", setup="")
        if now.applied_state != unfinished:
            await self._write(unfinished)
        if work.container is not None:
            house = work.container
            await self._step(lambda: containers.make_way(work.runner, house, work.files))
        began = self._clock.monotonic()
        if from_head:
            relayed = self._shared.relayed
            async with self._shared.relays:
                await self._step(
                    lambda: self._heads_files().relay(work.files, relayed, self._tell_detour)
                )
        else:
            await self._step(lambda: file_sync.send(work.node_runner, work.files))
        if self._is_head:
            self._shared.head_has_files.set_result(self._clock.monotonic() - began)

    async def _look(self) -> NodeProbe:
        work = self._work
        places = volumes.places(work.volumes)
        return await self._step(
            lambda: node_probe.read(work.runner, work.instance, work.setup.container, places)
        )

    async def _mount(self, now: NodeProbe) -> NodeProbe:
        """Have what is to be mounted, before anything is put on the machine."""
        work = self._work
        if work.mode == "restart" or now.applied_state.volumes == work.desired_state.volumes:
            return now
        if work.volumes:
            self._voice.phase(Phase.PREPARING, "prepares its volumes")
            await self._step(lambda: volumes.have(work.runner, work.volumes, work.instance.name))
            now = await self._look()  # a container may have been on what is no longer in use
        receipt = replace(now.applied_state, volumes=work.desired_state.volumes)
        await self._write(receipt)
        return replace(now, applied_state=receipt)

    def _tell_detour(self, error: ShoalError) -> None:
        self._voice.phase(Phase.PREPARING, f"sends files from here: {error.what}")

    async def _head_has_files(self) -> bool:
        """Whether this worker is to have files from the head. Large ones are waited for: in the end
        all wait for the head anyway."""
        work, shared = self._work, self._shared
        if self._is_head or not work.start.shares_credentials or not shared.relayed:
            return False
        if not shared.head_has_files.done():
            self._voice.phase(Phase.PREPARING, "waits until the head has its files")
        seconds = await asyncio.shield(shared.head_has_files)
        if seconds is None or not file_sync.should_relay(shared.relayed, seconds, shared.workers):
            return False
        await self._let_in.wait()
        return True

    async def _settle(self, now: NodeProbe) -> NodeProbe:
        """Have the node's container running, where it has one. A new one has nothing in it of
        what was done before."""
        work, house = self._work, self._work.container
        # One that should be another by now stays until more than Ray's restart is asked for.
        stays = house is not None and work.mode != "full" and now.applied_state.container != ""
        if stays or now.applied_state.container == work.desired_state.container:
            if house is not None and not now.container_runs:
                woken = house
                await self._step(lambda: containers.wake(work.runner, woken, self._voice))
            return now
        bare = AppliedState(volumes=now.applied_state.volumes)
        await self._write(bare)
        if house is None:
            await self._step(lambda: containers.leave(work.runner, work.instance))
            return NodeProbe(bare)
        await self._initialize()
        new = house
        await self._step(
            lambda: containers.build(work.runner, new, self._voice, seconds=work.command_seconds)
        )
        self._is_new = True
        return NodeProbe(replace(bare, container=house.digest), container_runs=True)

    async def _initialize(self) -> None:
        """What is done on the machine itself, once."""
        if not self._initialized:
            commands = self._work.setup.initialization_commands
            await self._run(commands, "initialization", self._work.runner, tries=2)
        self._initialized = True

    async def _set_up(self, now: NodeProbe) -> NodeProbe:
        """Initialization and setup, where they or the files have changed."""
        work, goal = self._work, self._work.desired_state
        done = now.applied_state
        if done.files != goal.files:
            done = replace(done, files=goal.files, setup="")
        if work.files.cluster_synced and not self._is_head:
            self._voice.phase(Phase.PREPARING, "waits for the head's files")
            await asyncio.shield(self._shared.is_set_up)
            await self._step(self._fetch_from_head)
        if done.setup != goal.setup:
            self._voice.phase(Phase.PREPARING)
            await self._initialize()
            await self._run(work.setup.setup_commands, "setup", work.node_runner, tries=2)
            done = replace(done, files=goal.files, setup=goal.setup)
        if done != now.applied_state:
            await self._write(done)
        return replace(now, applied_state=done)

    async def _start(self, now: NodeProbe) -> None:
        work = self._work
        if now.applied_state.start == receipts.STOPPED:
            # From here on it is meant to run; if it does not, nobody stopped it.
            await self._write(replace(now.applied_state, start=""))
        if not self._is_head:
            self._voice.phase(Phase.PREPARING, "waits for the head")
            await self._gcs_answers()
        self._voice.phase(Phase.STARTING)
        commands = steps.start_commands(work.start, ray_runs=now.ray_runs)
        # `ray start` returns when the node has registered with the head's GCS, not before.
        await self._run(commands, "start", work.node_runner, tries=1)
        if work.lease_agent:
            await self._leave_running(work.lease_agent)
        await self._write(replace(now.applied_state, start=work.desired_state.start))

    async def _leave_running(self, command: str) -> None:
        """Have the machine look after something by itself, until the node ends."""
        work = self._work
        await self._step(lambda: steps.leave_running(work.runner, command, work.start.env))

    async def _gcs_answers(self) -> None:
        """Wait, on the worker itself, for the head's GCS port. It opens well before the head's
        own `ray start` returns, and that it can be reached from here is what counts."""
        address = self._work.start.gcs_address
        waiting = asyncio.ensure_future(steps.wait_for_gcs(self._work.node_runner, address))
        either: set[asyncio.Future[Any]] = {waiting, self._shared.is_up}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._shared.is_up.done():
                self._shared.is_up.result()  # raises when the head failed
            await waiting
        finally:
            waiting.cancel()

    async def _fetch_from_head(self) -> None:
        for path in self._work.files.cluster_synced:
            await self._heads_files().share(path, "cluster_synced_files names it")

    def _heads_files(self) -> HeadRelay:
        work = self._work
        return HeadRelay(
            self._shared.head.node_runner,
            work.node_runner,
            work.instance,
            work.command_seconds,
            None if work.container is None else work.container.container,
            machine=work.runner,
        )

    async def _run(
        self, commands: Sequence[str], title: str, runner: Runner, *, tries: int
    ) -> None:
        work = self._work
        for number, command in enumerate(commands, start=1):
            name = f"{title} command {number} of {len(commands)}"
            action = functools.partial(
                steps.run_command,
                runner,
                name,
                work.start.command(command),
                command,
                self._voice,
                self._clock,
                env=work.start.env,
                seconds=work.command_seconds,
                tries=tries,
            )
            await self._step(action)

    async def _write(self, receipt: AppliedState) -> None:
        await self._step(lambda: receipts.write(self._work.runner, receipt))

    async def _step(self, action: Callable[[], Awaitable[T]]) -> T:
        try:
            for _ in range(_STEP_TRIES - 1):
                try:
                    return await action()
                except UnreachableError as error:
                    self._voice.phase(Phase.PREPARING, f"reconnects: {error.what}")
                    await self._work.runner.connect(timeout=self._work.reach_seconds)
            return await action()
        except TimeoutError as late:
            raise steps.too_late(late, self._voice.node) from None
