"""Starts a worker of a job as Ray's `py_executable`: in the job's environment, which is built first
if this node does not have it.

    worker.py [--no-environment] [--lock TEXT] PROGRAM [ARGUMENT...]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent

if TYPE_CHECKING:
    from shoal.jobs.scripts import node_environment
else:  # beside this file, without Shoal
    sys.path.insert(0, str(HERE))
    import node_environment


def main(arguments: list[str]) -> None:
    lock, builds = "", True
    while arguments and arguments[0].startswith("--"):
        option = arguments.pop(0)
        if option == "--lock":
            lock = arguments.pop(0)
        elif option == "--no-environment":
            builds = False
    job = node_environment.read_job(HERE)
    env = node_environment.job_env(job, HERE)
    if job["shadowed"]:
        env["SHOAL_RAY_FIRST"] = "1"
    python = sys.executable
    if builds and job["environment"]:
        try:
            built = node_environment.ensure(job["environment"], HERE, lock)
        except node_environment.BuildError as error:
            node_environment.report_to_driver(error, arguments)
            sys.exit(f"shoal: {error}")
        python = built.python
        env.update(built.env(env))
    os.execve(python, [python, *arguments], env)


if __name__ == "__main__":
    main(sys.argv[1:])
