"""The single steps of a bootstrap. Each does one thing on one node, can be repeated, and raises a
`ShoalError` with what failed, why, and the fix."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from shoal.bootstrap.claims import EXIT_CLAIMED, EXIT_OWNED_BY_OTHER_USER
from shoal.core.clock import Clock
from shoal.core.errors import ClaimedError, SetupError, ShoalError
from shoal.core.events import Emit, Output, Warned
from shoal.core.node_phase import Phase
from shoal.providers.host_claims import claimed_error
from shoal.providers.model import Instance
from shoal.ray_runtime.ray_start import RayStart, wait_for_port_command
from shoal.remote.runner import Completed, Runner, Stream, capture
from shoal.remote.scripts import script_command

_log = logging.getLogger(__name__)

_SHORT_SECONDS = 30.0
# Longer than the providers' own bounds.
_FIRST_BOOT_SECONDS = 900.0
# Claiming a host may have to end what another cluster runs there.
_CLAIM_SECONDS = 90.0
# How long a worker waits for a head that is being set up, and for the GCS of one that is up.
_HEAD_SECONDS = 1800.0
_GCS_SECONDS = 60.0
# A setup command is retried once: most failures are a download or a package lock.
_RETRY_PAUSE_SECONDS = 2.0

RETRY_NODE = "retry this node only: shoal up CLUSTER"


class NodeReporter:
    """Emits the phase changes and the output of one node as events."""

    def __init__(self, instance: Instance, emit: Emit) -> None:
        self.node = instance.name
        self._instance = instance
        self._emit = emit

    def phase(self, phase: Phase, detail: str = "") -> None:
        _log.info("%s: %s%s", self.node, phase.value, f" ({detail})" if detail else "")
        self._emit(self._instance.entered(phase, detail))

    def warn(self, what: str, error: ShoalError) -> None:
        _log.warning("%s: %s: %s", self.node, what, error)
        why = f"{error.what}: {error.why}" if error.why else error.what
        self._emit(Warned(what, why, error.fix, self.node))

    def output(self, line: str, stream: Stream) -> None:
        self._emit(Output(self.node, line, stream))


async def claim(runner: Runner, command: str, reporter: NodeReporter) -> None:
    """Claim the host for this cluster."""
    done, output = await capture(runner, command, timeout=_CLAIM_SECONDS, skip_profile=True)
    owner = output[0] if output else "another cluster"
    if done.code == EXIT_CLAIMED:
        raise claimed_error(owner, reporter.node)
    if done.code == EXIT_OWNED_BY_OTHER_USER:
        user, file = output[-2:]
        raise ClaimedError(
            f"only {user} can release the host for this cluster",
            why=f"{file} on the host belongs to that user",
            fix=f"run shoal down on that cluster\nor on the host as {user} or root: rm {file}",
            node=reporter.node,
        )
    if not done.ok:
        raise SetupError(
            "could not claim the host",
            why=done.tail[-1] if done.tail else "the claim file cannot be written",
            node=reporter.node,
            output=done.tail,
        )


def timeout_error(error: TimeoutError, node: str) -> SetupError:
    """The error of a node on which one of Shoal's own commands timed out."""
    return SetupError(
        "the node does not answer in time",
        why=str(error),
        fix=f"check its disks, its home directory and its container runtime\n{RETRY_NODE}",
        node=node,
    )


async def wait_for_gcs(runner: Runner, address: str, is_head_up: asyncio.Future[None]) -> None:
    """Return when the head's GCS port accepts connections from this node. It opens well before the
    head's `ray start` returns; once that has (`is_head_up`), it must be open. Raises the head's
    error, or `SetupError` after a deadline."""
    command = wait_for_port_command(address)
    waiting: asyncio.Future[Any] = asyncio.ensure_future(
        runner.run(command, timeout=_HEAD_SECONDS, skip_profile=True)
    )
    seconds = _HEAD_SECONDS
    try:
        await asyncio.wait({waiting, is_head_up}, return_when=asyncio.FIRST_COMPLETED)
        if is_head_up.done():
            is_head_up.result()
            seconds = _GCS_SECONDS
        await asyncio.wait_for(waiting, seconds)
    except (TimeoutError, asyncio.TimeoutError):
        raise SetupError(
            f"cannot reach the head's GCS at {address}",
            why=f"no connection within {seconds:.0f} s",
            fix="see whether the head's Ray runs: shoal status CLUSTER\n"
            "allow traffic between the nodes\nshoal up CLUSTER",
        ) from None
    finally:
        waiting.cancel()


async def wait_for_raylet(runner: Runner, instance_id: str) -> bool:
    """Return when the raylet of this node runs: from then on its Python is known. Returns False
    where that cannot be seen."""
    command = script_command("shoal.bootstrap.scripts", "wait_for_raylet.sh", instance_id)
    return (await runner.run(command, timeout=_GCS_SECONDS, skip_profile=True)).ok


async def find_python(runner: Runner, start: RayStart, node: str) -> None:
    """Have the node remember the Python that its Ray runs with."""
    done = await runner.run(start.find_python, timeout=_SHORT_SECONDS, skip_profile=True)
    if done.tail:
        _log.info("%s: could not find Ray's Python: %s", node, done.tail[-1])


async def start_agent(runner: Runner, name: str, command: str, env: Mapping[str, str]) -> None:
    """Start an agent (`bootstrap.agents`) on the node."""
    done = await runner.run(command, env=env, timeout=_SHORT_SECONDS, skip_profile=True)
    if not done.ok:
        raise SetupError(f"could not start the {name}", output=done.tail)


async def wait_for_first_boot(runner: Runner, command: str, reporter: NodeReporter) -> None:
    """Return when the host's first boot is complete, or after a while without it: the user's
    commands may not need what is missing."""
    reporter.phase(Phase.PREPARING, "waiting for the end of the first boot")
    try:
        done = await runner.run(
            command, on_line=reporter.output, timeout=_FIRST_BOOT_SECONDS, skip_profile=True
        )
    except TimeoutError as error:
        _log.warning(
            "%s: continuing although its first boot is not complete: %s", reporter.node, error
        )
        return
    if not done.ok:
        _log.info("%s: could not wait for the first boot: %s", reporter.node, done.tail)


async def run_command(
    runner: Runner,
    title: str,
    command: str,
    user_command: str,
    reporter: NodeReporter,
    clock: Clock,
    *,
    env: Mapping[str, str],
    seconds: float,
    tries: int,
) -> None:
    """Run one of the user's commands. `user_command` is its text in the cluster file. If all tries
    fail, the error is that of the first: a command that half succeeded may fail for another reason
    the next time."""
    first_failure: Completed | None = None
    for attempt in range(tries):
        if attempt:
            _log.info("%s: retrying %s", reporter.node, title)
            await clock.sleep(_RETRY_PAUSE_SECONDS)
        try:
            done = await runner.run(command, env=env, on_line=reporter.output, timeout=seconds)
        except TimeoutError:
            raise SetupError(
                f"{title} timed out after {seconds:.0f} s",
                why=_shorten(user_command),
                fix="make sure that it does not wait for input, or raise shoal.command_timeout_s",
                node=reporter.node,
            ) from None
        if done.ok:
            _log.debug("%s: %s succeeded", reporter.node, title)
            return
        _log.info("%s: %s failed with exit code %d", reporter.node, title, done.code)
        first_failure = first_failure or done
    assert first_failure is not None
    raise SetupError(
        f"{title} failed with exit code {first_failure.code}",
        why=_shorten(user_command),
        fix=_fix(user_command, first_failure),
        node=reporter.node,
        output=first_failure.tail,
    )


def _fix(command: str, done: Completed) -> str:
    is_missing = done.code == 127 and "shared librar" not in " ".join(done.tail)
    if is_missing and "ray" in command:
        return "install Ray on the node: setup_commands: [pip install 'ray[default]']"
    return RETRY_NODE


def _shorten(command: str) -> str:
    first_line = command.strip().splitlines()[0] if command.strip() else ""
    return first_line if len(first_line) <= 100 else first_line[:97] + "..."
