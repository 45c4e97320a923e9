"""A class's own command runner as one of Shoal's runners.

Such a runner runs one command at a time and returns its output when it has ended. So a command is
wrapped: its exit code and both streams come back in one text, whatever else the runner prints.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.core.clock import Clock
from shoal.core.errors import ConfigError, SetupError, UnreachableError
from shoal.core.polling import PollUntilDeadline
from shoal.providers.external.launch_errors import error_for
from shoal.remote.container import Container
from shoal.remote.runner import (
    Completed,
    Filters,
    OnBytes,
    OnLine,
    PortForward,
    PreconditionFailedError,
    Stream,
    quote,
)
from shoal.remote.terminal import run_in_terminal, run_on_streams

_log = logging.getLogger(__name__)

_CONNECT_POLL_SECONDS = 5.0
_PROBE_SECONDS = 30.0
_COPY_SECONDS = 1800.0
_TAIL_LINES = 20


class CommandRunnerAdapter:
    """Runs commands with an object of Ray's `CommandRunnerInterface`."""

    def __init__(
        self, name: str, command_runner: Any, clock: Clock, prefix: Sequence[str] = ()
    ) -> None:
        self.name = name
        self._command_runner = command_runner
        self._clock = clock
        self._prefix = tuple(prefix)

    async def connect(self, *, timeout: float) -> None:
        why = ""
        async for _ in PollUntilDeadline(self._clock, timeout, _CONNECT_POLL_SECONDS):
            try:
                if (await self.run("true", timeout=_PROBE_SECONDS, skip_profile=True)).ok:
                    return
            except (UnreachableError, TimeoutError) as error:
                why = str(error)
        raise UnreachableError(
            "the node does not run commands",
            why=why or f"{self._kind} did not succeed within {timeout:.0f} s",
            fix="check that the node runs",
            node=self.name,
        )

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
        mark = f"shoal-{secrets.token_hex(6)}"
        text = self._wrapped(command, env or {}, stdin, mark, skip_profile=skip_profile)
        seconds = int(timeout) if timeout else 7 * 24 * 3600

        def run() -> Any:
            return self._command_runner.run(text, timeout=max(1, seconds), with_output=True)

        try:
            output = await asyncio.wait_for(asyncio.to_thread(run), timeout)
        except asyncio.TimeoutError:
            raise TimeoutError(f"no reply within {seconds} s") from None
        except (Exception, SystemExit) as error:
            raise UnreachableError(
                f"{self._kind} failed", why=f"{type(error).__name__}: {error}", node=self.name
            ) from error
        return self._completed(output, mark, on_line, on_bytes)

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
        if forwards:
            raise self._unsupported("forward ports")
        if command is not None:
            done = await self.run(command, env=env, on_bytes=_print)
            return done.code
        argv = shlex.split(str(self._command_runner.remote_shell_command_str()))
        return await (run_in_terminal(argv) if tty else run_on_streams(argv))

    async def forward(self, forwards: Sequence[PortForward], opened: Callable[[], None]) -> None:
        raise self._unsupported("forward ports")

    async def put(self, source: Path, target: str, filters: Filters = Filters()) -> None:
        await self._copy("run_rsync_up", _rsync_source(source), target, filters)

    async def get(self, source: str, target: Path, filters: Filters = Filters()) -> None:
        await self._copy("run_rsync_down", source, str(target), filters)

    async def relogin(self) -> None:
        """Nothing to do: each command logs in."""

    def in_container(self, container: Container) -> CommandRunnerAdapter:
        prefix = [*container.exec_argv(), "sh", "-c"]
        return CommandRunnerAdapter(self.name, self._command_runner, self._clock, prefix)

    async def close(self) -> None:
        pass

    @property
    def _kind(self) -> str:
        return type(self._command_runner).__name__

    def _wrapped(
        self,
        command: str,
        env: Mapping[str, str],
        stdin: bytes | None,
        mark: str,
        *,
        skip_profile: bool,
    ) -> str:
        shell = ["sh", "-c"] if skip_profile else ["bash", "-lc"]
        exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in env.items())
        program = quote([*shell, f"cd; {exports}{command}"])
        if self._prefix:
            program = quote([*self._prefix, program])
        given = base64.b64encode(stdin or b"").decode()
        script = (
            "d=$(mktemp -d) || exit\n"
            f"printf %s {given or chr(39) * 2} | base64 -d > $d/in\n"
            f"{program} < $d/in > $d/out 2> $d/err\n"
            "c=$?\n"
            f"echo; echo {mark} $c $(base64 < $d/out | tr -d '\\n'):"
            "$(base64 < $d/err | tr -d '\\n')\n"
            "rm -rf $d"
        )
        return quote(["sh", "-c", script])

    def _completed(
        self, output: Any, mark: str, on_line: OnLine | None, on_bytes: OnBytes | None
    ) -> Completed:
        text = output.decode(errors="replace") if isinstance(output, bytes) else str(output or "")
        line = next((line for line in text.splitlines() if line.startswith(mark)), "")
        try:
            _, code, encoded = line.split(" ", 2)
            streams = [base64.b64decode(part) for part in encoded.split(":")]
        except (ValueError, binascii.Error):
            raise UnreachableError(
                f"{self._kind} did not return the output of a command",
                why=text.strip()[-200:] or "it returned nothing",
                fix="its run() must return the output if with_output is set",
                node=self.name,
            ) from None
        tail: list[str] = []
        names: tuple[Stream, Stream] = ("stdout", "stderr")
        for stream, content in zip(names, streams, strict=True):
            if on_bytes is not None and content:
                on_bytes(content, stream)
            for each in content.decode(errors="replace").splitlines():
                tail.append(each)
                if on_line is not None:
                    on_line(each, stream)
        return Completed(int(code), tuple(tail[-_TAIL_LINES:]))

    async def _copy(self, method: str, source: str, target: str, filters: Filters) -> None:
        options = {
            "rsync_exclude": list(filters.exclude),
            "rsync_filter": list(filters.filter_files),
        }
        copy = getattr(self._command_runner, method)
        try:
            await asyncio.wait_for(asyncio.to_thread(copy, source, target, options), _COPY_SECONDS)
        except asyncio.TimeoutError:
            raise TimeoutError(f"{method} did not end within {_COPY_SECONDS:.0f} s") from None
        except (Exception, SystemExit) as error:
            raise SetupError(
                f"could not copy {source} to {target}",
                why=str(error_for(error, method)),
                node=self.name,
            ) from error

    def _unsupported(self, what: str) -> ConfigError:
        return ConfigError(
            f"cannot {what}",
            why=f"the node provider has a command runner of its own, {self._kind}",
            fix="use the tools of the node provider for that",
        )


def _rsync_source(path: Path) -> str:
    """A directory stands for its content."""
    return f"{path}/" if path.is_dir() else str(path)


def _print(content: bytes, stream: Stream) -> None:
    import sys

    output = sys.stdout if stream == "stdout" else sys.stderr
    output.buffer.write(content)
    output.flush()
