"""Takes one machine through all the steps that make it a Ray node.

Each node goes at its own pace: the only thing a worker ever waits for is the head's Ray, and
that only before its very last step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.bootstrap import receipt as receipts
from shoal.bootstrap.receipt import Receipt, digest
from shoal.engine.start import wait_for_port
from shoal.errors import SetupError, ShoalError
from shoal.events import Emit, NodeChanged, Output, Phase
from shoal.providers.base import Instance, RayStart
from shoal.remote.base import Runner, Stream
from shoal.spec.model import NodeSetup

# How long each phase may take before the node counts as failed.
REACHABLE_SECONDS = 300.0
COMMAND_SECONDS = 1800.0
START_SECONDS = 180.0
HEAD_SECONDS = 1800.0

Failures = dict[str, ShoalError]


@dataclass(frozen=True)
class NodeWork:
    """A machine, and all that is to be done on it."""

    instance: Instance
    runner: Runner
    setup: NodeSetup
    start: RayStart

    @property
    def goal(self) -> Receipt:
        """The receipt of a machine that has been through all of it."""
        return Receipt(
            setup=digest(self.setup.setup_commands),
            start=digest([self.start.commands, dict(self.start.env)]),
        )


async def assemble(works: Sequence[NodeWork], emit: Emit, *, head_runs: bool) -> Failures:
    """Take these machines through their steps side by side, and return what failed, by node
    name. A node that fails does not hold up the others, unless it is the head."""
    head_is_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if head_runs:
        head_is_up.set_result(None)
    failures: Failures = {}

    async def one(work: NodeWork) -> None:
        try:
            await bring_up(work, head_is_up, emit)
        except ShoalError as error:
            failures[work.instance.name] = error
            _Voice(work.instance, emit).phase(Phase.FAILED, str(error))
            if work.instance.role == "head":
                head_is_up.set_exception(SetupError("the head did not come up"))
                head_is_up.exception()  # looked at here, in case no worker is waiting

    await asyncio.gather(*(one(work) for work in works))
    return failures


async def bring_up(work: NodeWork, head_is_up: asyncio.Future[None], emit: Emit) -> None:
    """Make the machine a Ray node, or raise `ShoalError`. Safe to repeat."""
    say = _Voice(work.instance, emit)
    await work.runner.connect(timeout=REACHABLE_SECONDS)
    say.phase(Phase.REACHABLE)
    done = await receipts.read(work.runner)
    goal = work.goal

    if done.setup != goal.setup:
        say.phase(Phase.PREPARING)
        await _run_all(work, work.setup.setup_commands, "setup", COMMAND_SECONDS, say)
        await receipts.write(work.runner, replace(done, setup=goal.setup, start=""))

    if work.instance.role == "worker":
        say.phase(Phase.PREPARING, "waits for the head")
        await _gcs_answers(work, head_is_up)
    say.phase(Phase.STARTING)
    # `ray start` returns when the node has registered with the head's GCS, not before.
    await _run_all(work, work.start.commands, "start", START_SECONDS, say)
    await receipts.write(work.runner, goal)
    if work.instance.role == "head":
        head_is_up.set_result(None)
    say.phase(Phase.READY)


async def _gcs_answers(work: NodeWork, head_is_up: asyncio.Future[None]) -> None:
    """Wait, on the worker itself, for the head's GCS port. It opens well before the head's own
    `ray start` returns, and that it can be reached from here is what counts."""
    command = wait_for_port(work.start.gcs_address)
    waiting = asyncio.ensure_future(work.runner.run(command, timeout=HEAD_SECONDS))
    try:
        either: set[asyncio.Future[Any]] = {waiting, head_is_up}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if head_is_up.done():
            head_is_up.result()  # raises when the head failed
        await waiting
    except asyncio.TimeoutError:
        raise SetupError(
            f"the head's GCS cannot be reached at {work.start.gcs_address}",
            why=f"nothing answered there within {HEAD_SECONDS:.0f} s",
            fix="let the nodes talk to each other, then shoal up again",
            node=work.instance.name,
        ) from None
    finally:
        waiting.cancel()


async def _run_all(
    work: NodeWork, commands: Sequence[str], step: str, seconds: float, say: _Voice
) -> None:
    for number, command in enumerate(commands, start=1):
        title = f"{step} command {number} of {len(commands)}"
        try:
            done = await work.runner.run(
                command, env=work.start.env, on_line=say.output, timeout=seconds
            )
        except asyncio.TimeoutError:
            raise SetupError(
                f"{title} did not end within {seconds:.0f} s",
                why=_short(command),
                fix="make the command quicker or non-interactive, then shoal up again",
                node=work.instance.name,
            ) from None
        if not done.ok:
            raise SetupError(
                f"{title} failed with exit code {done.code}",
                why=_short(command),
                fix="shoal up again retries this node only",
                node=work.instance.name,
                output=done.tail,
            )


class _Voice:
    """Tells what happens to one node."""

    def __init__(self, instance: Instance, emit: Emit) -> None:
        self._instance = instance
        self._emit = emit

    def phase(self, phase: Phase, detail: str = "") -> None:
        i = self._instance
        self._emit(NodeChanged(i.name, i.node_type, i.role, phase, detail, i.address))

    def output(self, line: str, stream: Stream) -> None:
        self._emit(Output(self._instance.name, line, stream))


def _short(command: str) -> str:
    first = command.strip().splitlines()[0] if command.strip() else ""
    return first if len(first) <= 100 else first[:97] + "..."
