"""The one shared connection to a machine: opened once, used by every command, left warm.

It is held by an ssh process in the background, not by this program, so the next command finds
it again; without use it ends by itself. Who finds it dead puts a new one in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from shoal.core.backoff import backoff_delays
from shoal.core.clock import Clock, SystemClock
from shoal.core.errors import ConfigError, UnreachableError
from shoal.core.file_lock import FileLock
from shoal.core.polling import poll_until
from shoal.remote.line_buffer import TAIL_LINES
from shoal.remote.process import run_process
from shoal.remote.runner import Completed, quote
from shoal.remote.ssh_errors import Chance, Trouble, diagnose
from shoal.remote.ssh_target import SshTarget, control_argv, master_argv, prepare_control_directory

# For the address to answer and for the greeting; what follows gets as much again.
_CONNECT_SECONDS = 10
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 1.0
# Servers punish and guards ban addresses that fail to log in often: ask rarely.
_DENIED_PAUSE = 4.0
_FAREWELL_SECONDS = 2.0
_LOCK_POLL_SECONDS = 0.02


async def open_connection(
    node: str, target: SshTarget, *, timeout: float, login_grace: float, clock: Clock
) -> None:
    """Return once the shared connection is there. What may pass is tried again until `timeout`,
    a refused login only for `login_grace` seconds; what cannot pass is raised at once."""
    _check_files(node, target)
    deadline = clock.monotonic() + timeout
    denied_since: float | None = None
    delays = backoff_delays(_FIRST_PAUSE, _LONGEST_PAUSE, factor=1.5, jitter=(0.8, 1.2))
    while True:
        left = deadline - clock.monotonic()
        if target.jump is not None:
            await open_connection(
                node, target.jump, timeout=left, login_grace=login_grace, clock=clock
            )
            left = deadline - clock.monotonic()
        trouble = await _attempt(node, target, max(left, 1.0))
        if trouble is None:
            return
        now = clock.monotonic()
        if trouble.chance is Chance.MAYBE:
            denied_since = now if denied_since is None else denied_since
            wait, until = _DENIED_PAUSE, min(deadline, denied_since + login_grace)
        else:
            wait, until = next(delays), deadline
        if trouble.chance is Chance.NEVER or now + wait > until:
            raise trouble.error
        await clock.sleep(wait)


async def is_open(target: SshTarget) -> bool:
    """Whether some process holds a shared connection. Not whether the machine still answers."""
    try:
        _, writer = await asyncio.open_unix_connection(str(target.socket))
    except OSError:
        return False
    writer.close()
    return True


async def close_connection(target: SshTarget) -> None:
    """End the shared connection and whatever runs over it."""
    await _say(target, "exit")


async def retire_connection(target: SshTarget) -> None:
    """Make room for a new shared connection. What runs over the old one may go on to its end."""
    await _say(target, "stop")


async def _say(target: SshTarget, verb: str) -> None:
    if not await is_open(target):
        return
    async with _lock(target, _FAREWELL_SECONDS) as got_it:
        if got_it and await is_open(target):
            # A holder that does not listen ends by itself once its peer stays silent.
            with contextlib.suppress(TimeoutError):
                await run_process(control_argv(target, verb), timeout=_FAREWELL_SECONDS)
            target.socket.unlink(missing_ok=True)


def _check_files(node: str, target: SshTarget) -> None:
    prepare_control_directory(target.control_dir)
    target.known_hosts.parent.mkdir(parents=True, exist_ok=True)
    if target.key is not None and not target.key.is_file():
        raise ConfigError(
            f"there is no key {target.key}",
            why="the cluster's file names it as `auth.ssh_private_key`",
            fix=f"put it there, or make one: {quote(['ssh-keygen', '-f', str(target.key)])}",
            node=node,
        )


async def _attempt(node: str, target: SshTarget, left: float) -> Trouble | None:
    """Try once, unless someone else just succeeded."""
    async with _lock(target, left) as got_it:
        if await is_open(target):
            return None
        if not got_it:
            return Trouble(_held_up(node, target), Chance.SOON)
        target.proxy_errors.unlink(missing_ok=True)
        connect_timeout = max(1, min(_CONNECT_SECONDS, int(left)))
        try:
            opened = await run_process(
                master_argv(target, connect_timeout=connect_timeout), timeout=2 * connect_timeout
            )
        except TimeoutError:
            opened = Completed(255, ("Connection timed out during the login",))
        if opened.ok:
            return None
        return diagnose(node, target, (*opened.tail, *_complaints(target.proxy_errors)))


def _held_up(node: str, target: SshTarget) -> UnreachableError:
    return UnreachableError(
        f"another program is connecting to {target}, and does not get on with it",
        why="one at a time may; it may be a shoal that was stopped with Ctrl-Z",
        fix="let it go on or end it, then try again",
        node=node,
    )


def _complaints(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    except FileNotFoundError:
        return []


@contextlib.asynccontextmanager
async def _lock(target: SshTarget, seconds: float) -> AsyncIterator[bool]:
    """One process at a time opens a connection: a second holder would find the socket taken and
    stay behind unused. The lock goes with its owner, however that ends; an owner that neither ends
    nor gets on is waited for so long, and then the answer is no."""
    with FileLock(target.socket.with_suffix(".lock"), mode=0o600) as lock:
        yield await poll_until(
            lock.try_acquire, clock=SystemClock(), timeout=seconds, interval=_LOCK_POLL_SECONDS
        )
