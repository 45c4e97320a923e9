"""Idle sessions on the connection to a host, for the next commands.

A new session starts the user's login shell, and that may read dotfiles that take long; a session
that is reused starts none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from shoal.remote.ssh_session import LINGER_SECONDS, Session

# Few and not for long: sshd allows ten sessions on a connection, and other processes use it too.
# One is kept for longer: while Ray starts on a node, Shoal has nothing to run there. A process that
# waits for a session (see `ssh_runner`) waits longer than that.
_MAX_IDLE = 3
_IDLE_SECONDS = 5.0
_LAST_IDLE_SECONDS = 20.0


class SessionPool:
    """Idle sessions by the command line that opened them. Each is held by a task, so that the end
    of the event loop, which cancels tasks, ends the sessions too."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, ...], list[_IdleSession]] = {}

    def take(self, argv: Sequence[str]) -> Session | None:
        """The session that was used last, if there is one."""
        sessions = self._idle.get(tuple(argv), [])
        while sessions:
            idle = sessions.pop()
            if idle.take():
                return idle.session
        return None

    async def put(self, argv: Sequence[str], session: Session) -> None:
        """Keep a session for the next command."""
        sessions = self._idle.setdefault(tuple(argv), [])
        sessions.append(_IdleSession(session, sessions))
        if len(sessions) > _MAX_IDLE:
            sessions.pop(0).end()
        await asyncio.sleep(0)  # a task that is cancelled before its first step would end nothing

    async def clear(self) -> None:
        """End all idle sessions, and return when they have ended."""
        idle = [session for sessions in self._idle.values() for session in sessions]
        self._idle.clear()
        for session in idle:
            session.end()
        await asyncio.gather(*(session.ended() for session in idle))


class _IdleSession:
    """A session, and the task that ends it unless it is taken in time. `_sessions` are the idle
    sessions that it belongs to, in the order in which they were used."""

    def __init__(self, session: Session, sessions: list[_IdleSession]) -> None:
        self.session = session
        self._sessions = sessions
        self._is_taken = False
        self._released = asyncio.Event()
        self._task = asyncio.ensure_future(self._hold())

    def take(self) -> bool:
        """Whether the session can be used; if so, it is no longer held."""
        if self._released.is_set() or self._task.done() or not self.session.is_idle:
            return False
        self._is_taken = True
        self._released.set()
        return True

    def end(self) -> None:
        self._released.set()

    async def ended(self) -> None:
        await asyncio.wait([self._task])

    async def _hold(self) -> None:
        try:
            await self._wait(_IDLE_SECONDS)
            if self._sessions[-1:] == [self]:
                await self._wait(_LAST_IDLE_SECONDS - _IDLE_SECONDS)
        finally:
            if not self._is_taken:
                if self in self._sessions:
                    self._sessions.remove(self)
                await self.session.close(LINGER_SECONDS)

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._released.wait(), seconds)
