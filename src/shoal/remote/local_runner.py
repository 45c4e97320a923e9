"""Runs commands on this machine, each in a new session.

For nodes of embedded clusters. Every process gets the environment that the constructor was given,
by which the provider finds all processes of a node.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shoal.core.errors import ConfigError, UnreachableError
from shoal.core.own_commands import COMMAND_VARIABLE
from shoal.remote.container import Container
from shoal.remote.process import run_process
from shoal.remote.runner import (
    Completed,
    Filters,
    OnBytes,
    OnLine,
    PortForward,
    PreconditionFailedError,
)
from shoal.remote.tcp_forward import forwarded_ports
from shoal.remote.terminal import run_in_terminal, run_on_streams

_OWN = {COMMAND_VARIABLE: "1"}


class LocalRunner:
    """Commands run in `directory`; an attached command runs in the current directory. `address` is
    where the node's programs listen. Commands that read no profile are Shoal's own, and marked as
    such."""

    def __init__(self, directory: Path, env: Mapping[str, str], address: str = "127.0.0.1") -> None:
        self._directory = directory
        self._env = dict(env)
        self._address = address

    async def connect(self, *, timeout: float) -> None:
        if not _is_directory(self._directory):
            raise self._gone_error()

    async def run(
        self,
        command: str,
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        on_line: OnLine | None = None,
        on_bytes: OnBytes | None = None,
        timeout: float | None = None,
        skip_profile: bool = False,
    ) -> Completed:
        try:
            return await run_process(
                _shell(command),
                cwd=self._directory,
                env=self._environment({**(env or {}), **(_OWN if skip_profile else {})}),
                stdin=stdin,
                on_line=on_line,
                on_bytes=on_bytes,
                timeout=timeout,
            )
        except FileNotFoundError:
            if _is_directory(self._directory):
                raise
            raise self._gone_error() from None

    async def attach(
        self,
        command: str | None,
        *,
        env: Mapping[str, str] | None = None,
        tty: bool = True,
        forwards: Sequence[PortForward] = (),
        precondition: str = "",
    ) -> int:
        if precondition and not (await self.run(precondition)).ok:
            raise PreconditionFailedError
        argv = _shell(command) if command is not None else [os.environ.get("SHELL", "/bin/sh")]
        # A port with the same number is on this machine already, and the command may open it.
        others = [forward for forward in forwards if forward.local != forward.remote]
        async with forwarded_ports(self._address, others):
            if tty:
                return await run_in_terminal(argv, self._environment(env))
            return await run_on_streams(argv, self._environment(env), new_session=True)

    async def forward(self, forwards: Sequence[PortForward], opened: Callable[[], None]) -> None:
        async with forwarded_ports(self._address, forwards):
            opened()
            await asyncio.Event().wait()

    async def put(self, source: Path, target: str, filters: Filters = Filters()) -> None:
        raise _nothing_to_copy_error()

    async def get(self, source: str, target: Path, filters: Filters = Filters()) -> None:
        raise _nothing_to_copy_error()

    async def relogin(self) -> None:
        """Nothing to do: there is no login."""

    def in_container(self, container: Container) -> LocalRunner:
        raise ConfigError("the nodes of an embedded cluster have no containers")

    async def close(self) -> None:
        pass

    def _gone_error(self) -> UnreachableError:
        return UnreachableError(
            "the node no longer exists", why=f"its directory {self._directory} was removed"
        )

    def _environment(self, extra: Mapping[str, str] | None) -> dict[str, str]:
        return {**os.environ, **self._env, **(extra or {})}


def _is_directory(path: Path) -> bool:
    return path.is_dir()


def _shell(command: str) -> list[str]:
    # bash if there is one, because the commands of cluster files are bash commands
    return [shutil.which("bash") or "/bin/sh", "-c", command]


def _nothing_to_copy_error() -> ConfigError:
    return ConfigError(
        "there is nothing to copy",
        why="the nodes of an embedded cluster use this machine's files",
        fix="use the local paths",
    )
