"""The shared connection to a host (an OpenSSH control master): opened once, used by every command.

An ssh process in the background holds it, not this process, so the next command finds it open;
unused, it closes by itself. A process that finds it dead replaces it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from shoal.core.backoff import backoff_delays
from shoal.core.clock import Clock, SystemClock
from shoal.core.errors import UnreachableError
from shoal.core.file_lock import FileLock
from shoal.core.logs import suppress_and_log
from shoal.core.polling import poll_until
from shoal.remote.command_output import TAIL_LINES
from shoal.remote.private_key import private_key_problem
from shoal.remote.process import run_process
from shoal.remote.runner import Completed
from shoal.remote.ssh_errors import Retry, SshFailure, classify
from shoal.remote.ssh_target import SshTarget, control_argv, master_argv, prepare_control_directory

_log = logging.getLogger(__name__)

# For the TCP connection and the SSH banner; the login may take as long again.
_CONNECT_SECONDS = 10
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 1.0
# Long, because servers penalize and fail2ban bans addresses whose logins fail often.
_DENIED_PAUSE = 4.0
_CONTROL_COMMAND_SECONDS = 2.0
_LOCK_POLL_SECONDS = 0.02


async def open_connection(
    node: str, target: SshTarget, *, timeout: float, login_grace: float, clock: Clock
) -> None:
    """Return once the shared connection is open. Temporary failures are retried until `timeout`, a
    rejected login only for `login_grace` seconds; other failures are raised immediately."""
    _check_files(node, target)
    deadline = clock.monotonic() + timeout
    denied_since: float | None = None
    delays = backoff_delays(_FIRST_PAUSE, _LONGEST_PAUSE, factor=1.5, jitter=(0.8, 1.2))
    while True:
        remaining = deadline - clock.monotonic()
        if target.jump is not None:
            await open_connection(
                node, target.jump, timeout=remaining, login_grace=login_grace, clock=clock
            )
            remaining = deadline - clock.monotonic()
        failure = await _try_to_open(node, target, max(remaining, 1.0))
        if failure is None:
            return
        now = clock.monotonic()
        if failure.retry is Retry.BRIEFLY:
            denied_since = now if denied_since is None else denied_since
            delay, retry_until = _DENIED_PAUSE, min(deadline, denied_since + login_grace)
        else:
            delay, retry_until = next(delays), deadline
        if failure.retry is Retry.NEVER or now + delay > retry_until:
            raise failure.error
        _log.info("%s: %s; retrying in %.1f s", node, failure.error, delay)
        await clock.sleep(delay)


async def is_open(target: SshTarget) -> bool:
    """Whether a process holds a shared connection. The host may no longer answer on it."""
    try:
        _, writer = await asyncio.open_unix_connection(str(target.socket))
    except OSError:
        return False
    writer.close()
    return True


async def close_connection(target: SshTarget) -> None:
    """Close the shared connection and end what runs over it."""
    await _send_control_command(target, "exit")


async def stop_multiplexing(target: SshTarget) -> None:
    """Make the next command open a new shared connection. What runs over the old one continues."""
    await _send_control_command(target, "stop")


async def _send_control_command(target: SshTarget, control_command: str) -> None:
    if not await is_open(target):
        return
    async with _lock(target, _CONTROL_COMMAND_SECONDS) as is_held:
        if is_held and await is_open(target):
            # An ssh process that does not react ends by itself once its host stops answering.
            with suppress_and_log(_log, f"send {control_command!r} to {target}", TimeoutError):
                await run_process(
                    control_argv(target, control_command), timeout=_CONTROL_COMMAND_SECONDS
                )
            target.socket.unlink(missing_ok=True)


def _check_files(node: str, target: SshTarget) -> None:
    problem = None if target.key is None else private_key_problem(target.key)
    if problem is not None:
        problem.node = node
        raise problem
    prepare_control_directory(target.control_dir)
    target.known_hosts.parent.mkdir(parents=True, exist_ok=True)


async def _try_to_open(node: str, target: SshTarget, seconds: float) -> SshFailure | None:
    """Try once, unless another process has just succeeded."""
    async with _lock(target, seconds) as is_held:
        if await is_open(target):
            return None
        if not is_held:
            return SshFailure(_lock_error(node, target), Retry.UNTIL_DEADLINE)
        target.proxy_errors.unlink(missing_ok=True)
        connect_timeout = max(1, min(_CONNECT_SECONDS, int(seconds)))
        try:
            result = await run_process(
                master_argv(target, connect_timeout=connect_timeout), timeout=2 * connect_timeout
            )
        except TimeoutError:
            result = Completed(255, ("Connection timed out during the login",))
        if result.ok:
            _log.info("%s: opened a connection to %s", node, target)
            return None
        return classify(node, target, (*result.tail, *_last_lines(target.proxy_errors)))


def _lock_error(node: str, target: SshTarget) -> UnreachableError:
    return UnreachableError(
        f"another process holds the SSH connection lock for {target} and is not making progress",
        why="only one process at a time may connect; it may be a shoal that Ctrl-Z has stopped",
        fix="resume or end that process, then try again",
        node=node,
    )


def _last_lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    except FileNotFoundError:
        return []


@contextlib.asynccontextmanager
async def _lock(target: SshTarget, seconds: float) -> AsyncIterator[bool]:
    """Hold the lock under which one process at a time opens a connection: a second ssh process
    would find the socket in use and stay in the background unused. Yields false if another process
    still holds it after so many seconds."""
    with FileLock(target.socket.with_suffix(".lock"), mode=0o600) as lock:
        yield await poll_until(
            lock.try_acquire, clock=SystemClock(), timeout=seconds, interval=_LOCK_POLL_SECONDS
        )
