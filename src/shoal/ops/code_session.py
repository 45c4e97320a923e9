"""`--code` for a command that runs on the head without being a Ray job: the command and the workers
of its Ray program get the same code as those of a job."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import ConfigError
from shoal.jobs.code import SUPPORT_DIRECTORY
from shoal.ops import jobs
from shoal.ops.context import Context
from shoal.remote.runner import quote
from shoal.remote.scripts import read_script
from shoal.spec.cluster_spec import ClusterSpec

_CODE_DIRECTORY = "~/.shoal/code"


async def command_with_code(
    ctx: Context, spec: ClusterSpec, command: str, code: Path, requirements: Path | None
) -> str:
    """Upload the code, and return the shell command that runs `command` in a copy of it."""
    package = await asyncio.to_thread(jobs.make_package, ctx, code, requirements)
    assert package is not None
    async with jobs.connect(ctx, spec) as client:
        await jobs.upload(client, package)
    cluster = ClusterHandle.of(ctx, spec)
    head = await cluster.head()
    start = cluster.ray_start(head, head)
    directory = f"{_CODE_DIRECTORY}/{Path(package.name).stem}"
    if cluster.capabilities.shares_this_machine:
        directory = str(ctx.home / "code" / Path(package.name).stem)
    variables = jobs.cluster_env(ctx, spec)
    runtime_env = package.runtime_env() | ({"env_vars": variables} if variables else {})
    config = json.dumps({"runtime_env": runtime_env, "metadata": {}})
    fetch = read_script("shoal.jobs.scripts", "fetch_code.py")
    target = f'"$HOME"/{quote([directory[2:]])}' if directory[0] == "~" else quote([directory])
    arguments = quote([fetch, start.gcs_address, package.uri, directory])
    exports = {"RAY_JOB_CONFIG_JSON_ENV_VAR": config, **variables}
    return "\n".join(
        [
            start.find_python,
            f"{start.python} -c {arguments} || exit",
            f'cd {target} && export PYTHONPATH="$PWD${{PYTHONPATH:+:$PYTHONPATH}}" || exit',
            *(f"export {name}={quote([value])}" for name, value in exports.items()),
            f"exec {start.python} -I {SUPPORT_DIRECTORY}/job_driver.py {quote([command])}",
        ]
    )


def script_in(code: Path, script: Path) -> str:
    """The path of a script relative to the code that is sent."""
    try:
        return str(script.resolve().relative_to(code.resolve()))
    except ValueError:
        raise ConfigError(f"script {script} is not in --code {code}") from None
