"""Starts the driver of a job: records the run, makes the environment ready, and runs the command.

    job_driver.py COMMAND

The record is kept beside others in ~/.shoal/jobs on the node of the driver, which is the head
unless the job asks for resources:

    ID/run.json         what ran: command, commit, branch, changes, packages
    trees/DIGEST.json   the files of a snapshot, by path
    objects/SHA256      the content of a file
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent

if TYPE_CHECKING:
    from shoal.jobs.scripts import node_environment
else:  # beside this file, without Shoal
    sys.path.insert(0, str(HERE))
    import node_environment

_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"


def main(command: str) -> None:
    job = node_environment.read_job(HERE)
    config = json.loads(os.environ.get(_CONFIG, "{}"))
    metadata = config.get("metadata") or {}
    run = {
        "id": metadata.get("job_submission_id", ""),
        "entrypoint": command,
        "started": time.time(),
        "python": platform.python_version(),
        **job,
    }
    record(run)
    env = node_environment.job_env(job, HERE)
    if job["environment"]:
        try:
            built = node_environment.ensure(job["environment"], HERE, progress=print, again=True)
        except node_environment.BuildError as error:
            sys.exit(f"shoal: {error}")
        env.update(built.env(env))
        run["packages"] = built.packages
        record(run)
        launch = f"sh {HERE.name}/launch.sh worker.py"
        if built.lock:
            launch += f" --lock {built.lock}"
        runtime_env = {**(config.get("runtime_env") or {}), "py_executable": launch}
        env[_CONFIG] = json.dumps({**config, "runtime_env": runtime_env})
    else:
        env["PATH"] = with_ray_python(env.get("PATH", os.defpath))
    sys.stdout.flush()
    os.execve("/bin/sh", ["sh", "-c", command], env)


def with_ray_python(path: str) -> str:
    """The PATH on which `python` is the one that Ray runs with: another has no Ray, or another
    version."""
    directory = str(Path(sys.executable).parent)
    first = shutil.which("python", path=path) or ""
    return path if str(Path(first).parent) == directory else f"{directory}:{path}"


def record(run: dict[str, Any]) -> None:
    """Keep what is needed to restore the tree of this run. A run goes on without it."""
    directory = Path(os.environ.get("SHOAL_JOBS_DIRECTORY") or "~/.shoal/jobs").expanduser()
    try:
        _keep_tree(directory)
        if run["id"]:
            _write(directory / run["id"] / "run.json", json.dumps(run).encode())
    except OSError as error:
        print(f"shoal: could not record the code of this run: {error}", file=sys.stderr)


def _keep_tree(directory: Path) -> None:
    manifest = (HERE / "manifest.json").read_bytes()
    tree = json.loads(manifest)
    target = directory / "trees" / f"{tree['digest']}.json"
    if target.exists():
        return
    for path, _, _, sha256 in tree["files"]:
        copy = directory / "objects" / sha256
        if copy.exists():
            continue
        content = (HERE.parent / path).read_bytes()
        # Jobs with the same code share its directory, and another may have changed a file.
        if hashlib.sha256(content).hexdigest() != sha256:
            raise OSError(f"{path} was changed by another job")
        _write(copy, content)
    _write(target, manifest)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)


if __name__ == "__main__":
    main(sys.argv[1])
