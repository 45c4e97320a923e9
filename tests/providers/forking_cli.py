"""Runs `shoal` many times but imports it once: one process on the laptop has loaded it, and forks
for every command. Each fork is an ordinary process and can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
import threading
from typing import Any

_DEADLINE_S = 150


class ForkingCli:
    """The test's side: runs one command at a time."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[dict[str, Any]] | None = None
        self._reader = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, laptop: Any, cloud: str) -> ForkingCli:
        from tests.simcloud.host_image import PROJECT

        program = shlex.join([sys.executable, "-m", "tests.providers.forking_cli", cloud])
        command = f"PYTHONPATH={shlex.quote(str(PROJECT))} exec {program}"
        return cls(await laptop.popen(command))

    async def run(self, command: str, *, home: str, until: str = "") -> tuple[int, str]:
        """Run a command until it exits, is killed, or prints the text `until`. Returns its exit
        code and output."""
        self._ended = asyncio.get_running_loop().create_future()
        self._send({"argv": command.split(), "home": home, "until": until})
        ended = await asyncio.wait_for(asyncio.shield(self._ended), _DEADLINE_S)
        return ended["code"], ended["output"]

    async def kill(self) -> None:
        """Kill the running command and wait until it is dead. May be awaited on any loop."""
        killed = asyncio.run_coroutine_threadsafe(self._kill(), self._loop)
        await asyncio.wrap_future(killed)

    async def _kill(self) -> None:
        assert self._ended is not None
        self._send({"kill": True})
        await asyncio.wait_for(asyncio.shield(self._ended), _DEADLINE_S)

    async def close(self) -> None:
        self._server.stdin.close()
        await self._server.wait()
        await self._reader

    def _send(self, request: dict[str, Any]) -> None:
        self._server.stdin.write(json.dumps(request).encode() + b"\n")

    async def _read(self) -> None:
        async for line in self._server.stdout:
            assert self._ended is not None
            self._ended.set_result(json.loads(line))


def _load_aws() -> None:
    import boto3  # noqa: F401

    import shoal.providers.aws.aws_provider  # noqa: F401
    from shoal.providers.aws.aws_client import models

    for service in ("ec2", "iam", "pricing", "service-quotas", "ssm", "sts"):
        for model in ("service-2", "endpoint-rule-set-1"):
            models().load_service_model(service, model)


def _load_gcp() -> None:
    import requests  # noqa: F401

    import shoal.providers.gcp.gcp_provider  # noqa: F401


def serve(cloud: str) -> None:
    """The laptop's side."""
    import shoal.cli.down
    import shoal.cli.up
    import shoal.ops.up  # noqa: F401

    {"aws": _load_aws, "gcp": _load_gcp}[cloud]()
    responses = os.fdopen(os.dup(1), "w")
    child = 0
    for line in sys.stdin:
        request = json.loads(line)
        if "kill" in request:
            _kill(child)
            continue
        output, child_end = os.pipe()
        child = os.fork()
        if child == 0:
            _run_shoal(request, child_end)
        os.close(child_end)
        watch = threading.Thread(target=_watch, args=(child, output, request["until"], responses))
        watch.start()


def _run_shoal(request: dict[str, Any], output: int) -> None:
    os.setsid()
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ["SHOAL_HOME"] = request["home"]
    from shoal.cli import main

    try:
        main(request["argv"])
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    finally:
        os._exit(70)


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may just have exited
        os.kill(child, signal.SIGKILL)


def _watch(child: int, output: int, until: str, responses: Any) -> None:
    printed = ""
    with os.fdopen(output) as lines:
        for line in lines:
            printed += line
            if until and until in line:
                _kill(child)
                break
    _, status = os.waitpid(child, 0)
    response = {"code": os.waitstatus_to_exitcode(status), "output": printed}
    responses.write(json.dumps(response) + "\n")
    responses.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
