"""Running commands: a result that can be read, and a deadline on every wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """How a command ended and what it printed."""

    code: int
    stdout: str
    stderr: str

    def require(self, what: str) -> Result:
        """Return self, or raise with everything a person needs to see why it failed."""
        if self.code:
            raise CommandFailed(f"{what} ended with {self.code}\n{self.stdout}{self.stderr}")
        return self


class CommandFailed(Exception):
    """A command of the test bed itself did not do what it must."""


async def execute(
    argv: Sequence[str],
    *,
    stdin: str = "",
    timeout: float = 120,
    env: Mapping[str, str] | None = None,
) -> Result:
    """Run a command to its end, killing it at the deadline."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=None if env is None else dict(env),
    )
    return await finish(process, stdin, timeout, " ".join(argv), process.kill)


async def finish(
    process: asyncio.subprocess.Process,
    stdin: str,
    timeout: float,
    what: str,
    kill: Callable[[], None],
) -> Result:
    """Collect a process's output and exit code, or kill it when the deadline passes."""
    try:
        stdout, stderr = await asyncio.wait_for(process.communicate(stdin.encode()), timeout)
    except asyncio.TimeoutError:
        raise TimeoutError(f"still running after {timeout} s: {what}") from None
    finally:
        if process.returncode is None:
            kill()
            await process.wait()
    assert process.returncode is not None
    return Result(
        process.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace")
    )
