"""Runs `shoal simulate` for the page, in a process of its own: it computes for up to a minute, and
the page must go on."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from aiohttp import web

from shoal.core.errors import ConfigError, ShoalError

_MAX_SECONDS = 120.0
_MAX_POINTS = 1000


async def simulate(request: web.Request) -> web.Response:
    """Compare two policies: `cluster` and `trace` are texts of files, `changes` the settings of the
    second policy."""
    asked = await request.json()
    cluster, trace = asked.get("cluster", ""), asked.get("trace", "")
    if not isinstance(cluster, str) or not isinstance(trace, str) or not cluster or not trace:
        raise ConfigError("a simulation needs a cluster file and a trace")
    arguments = []
    for name in ("boot", "interruptions", "failures"):
        value = asked.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            arguments.append(f"--{name}={value}")
    changes = str(asked.get("changes", "")).strip()
    if changes:
        arguments.append(f"--with={changes}")
    with tempfile.TemporaryDirectory(prefix="shoal-simulate-") as temporary:
        directory = Path(temporary)
        (directory / "cluster.yaml").write_text(cluster, "utf-8")
        (directory / "trace.jsonl").write_text(trace, "utf-8")
        results = await _run(directory, arguments)
    for result in results:
        samples = result["samples"]
        step = max(1, len(samples) // _MAX_POINTS)
        result["samples"] = [*samples[:-1:step], *samples[-1:]]
    return web.json_response(results)


async def _run(directory: Path, arguments: list[str]) -> list[dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "shoal", "simulate", "cluster.yaml", "trace.jsonl", "--json",
        *arguments,
        cwd=directory, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        output, problem = await asyncio.wait_for(process.communicate(), _MAX_SECONDS)
    except asyncio.TimeoutError:
        why = f"it has not ended within {_MAX_SECONDS:.0f} s"
        raise ShoalError(
            "the simulation takes too long", why=why, fix="shorten the trace"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        text = problem.decode(errors="replace").strip()
        raise ConfigError("the simulation cannot run", why=text[-4000:])
    results: list[dict[str, Any]] = json.loads(output)
    return results
