"""The single steps of a bootstrap. Each does one thing on one machine, can be repeated, and
raises a `ShoalError` that says what failed, why, and what to do."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.bootstrap.claims import EXIT_CLAIMED, EXIT_OWNED_BY_OTHER_USER
from shoal.core.clock import Clock
from shoal.core.errors import ClaimedError, SetupError
from shoal.core.events import Emit, Output
from shoal.core.node_phase import Phase
from shoal.providers.model import Instance
from shoal.ray_runtime.ray_start import RayStart, wait_for_port
from shoal.ray_runtime.start_commands import is_plain_stop
from shoal.remote.runner import Completed, Runner, Stream, capture

_SHORT_SECONDS = 30.0
# What another cluster runs there may have to be ended.
_CLAIM_SECONDS = 90.0
_GCS_SECONDS = 1800.0
# A setup command is tried again once: what fails most is a download or a package lock.
_RETRY_PAUSE_SECONDS = 2.0


class NodeReporter:
    """Tells what happens to one node."""

    def __init__(self, instance: Instance, emit: Emit) -> None:
        self.node = instance.name
        self._instance = instance
        self._emit = emit

    def phase(self, phase: Phase, detail: str = "") -> None:
        self._emit(self._instance.entered(phase, detail))

    def output(self, line: str, stream: Stream) -> None:
        self._emit(Output(self.node, line, stream))


async def claim(runner: Runner, command: str, voice: NodeReporter) -> None:
    """Make the machine this cluster's own."""
    done, printed = await capture(runner, command, timeout=_CLAIM_SECONDS, skip_profile=True)
    whose = printed[0] if printed else "another"
    if done.code == EXIT_CLAIMED:
        raise ClaimedError(
            f"the machine is part of {whose}",
            why="one machine, one cluster",
            fix="shoal down that cluster, or take it with shoal up --force",
            node=voice.node,
        )
    if done.code == EXIT_OWNED_BY_OTHER_USER:
        user, file = printed[-2:]
        raise ClaimedError(
            f"the machine can be given to this cluster only by {user}",
            why=f"{file} there belongs to that user",
            fix=f"shoal down that cluster, or as {user} or root, there: rm {file}",
            node=voice.node,
        )
    if not done.ok:
        raise SetupError(
            "the machine cannot be claimed",
            why=done.tail[-1] if done.tail else "the file that says whose it is cannot be written",
            node=voice.node,
            output=done.tail,
        )


def too_late(late: TimeoutError, node: str) -> SetupError:
    """What to tell of a machine on which one of our own commands took too long."""
    return SetupError(
        "the machine does not answer in time",
        why=str(late),
        fix="look at its disks, its home directory and its container engine; "
        "shoal up again retries this node only",
        node=node,
    )


def start_commands(start: RayStart, *, ray_runs: bool) -> list[str]:
    """What is really run to start Ray: without the customary `ray stop` where there is nothing
    to stop, since that alone takes seconds."""
    return [c for c in start.commands if ray_runs or not is_plain_stop(c)]


async def wait_for_gcs(runner: Runner, address: str) -> None:
    try:
        await runner.run(wait_for_port(address), timeout=_GCS_SECONDS)
    except TimeoutError:
        raise SetupError(
            f"the head's GCS cannot be reached at {address}",
            why=f"nothing answered there within {_GCS_SECONDS:.0f} s",
            fix="let the machines talk to each other, then shoal up again",
        ) from None


async def leave_running(runner: Runner, command: str, env: Mapping[str, str]) -> None:
    """Have the machine look after something by itself from now on."""
    done = await runner.run(command, env=env, timeout=_SHORT_SECONDS)
    if not done.ok:
        raise SetupError("the machine cannot look after itself", output=done.tail)


async def run_command(
    runner: Runner,
    title: str,
    command: str,
    shown: str,
    voice: NodeReporter,
    clock: Clock,
    *,
    env: Mapping[str, str],
    seconds: float,
    tries: int,
) -> None:
    """Run one of the user's commands; `shown` is what the user wrote. When all tries fail, the
    first is the one to tell of: a command that half worked may well fail for another reason the
    next time."""
    first: Completed | None = None
    for attempt in range(tries):
        if attempt:
            await clock.sleep(_RETRY_PAUSE_SECONDS)
        try:
            done = await runner.run(command, env=env, on_line=voice.output, timeout=seconds)
        except TimeoutError:
            raise SetupError(
                f"{title} did not end within {seconds:.0f} s",
                why=_short(shown),
                fix="see that it waits for nobody's answer, or raise shoal.command_timeout_s",
                node=voice.node,
            ) from None
        if done.ok:
            return
        first = first or done
    assert first is not None
    raise SetupError(
        f"{title} failed with exit code {first.code}",
        why=_short(shown),
        fix=_fix(shown, first),
        node=voice.node,
        output=first.tail,
    )


def _fix(command: str, done: Completed) -> str:
    if done.code == 127 and "ray" in command:
        return "install Ray there: setup_commands: [pip install 'ray[default]']"
    return "shoal up again retries this node only"


def _short(command: str) -> str:
    first = command.strip().splitlines()[0] if command.strip() else ""
    return first if len(first) <= 100 else first[:97] + "..."
