"""What the laptop runs on the head: python -m shoal.train.job COMMAND. Prints one JSON object per
line, and exits with the status of the job.

    run FILES [--detach]       start the job whose job.json and code.zip are in FILES, and follow it
    follow JOB [--after N]     follow a running job
    stop JOB                   end a job after a checkpoint, and follow it until then
    resize JOB WORKERS         change the number of workers of a running job
    output JOB --to FILE       fetch what the script saved
    list | logs JOB | explain JOB     read the files of jobs on the head
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from shoal.core.errors import ShoalError
from shoal.train.job.job_spec import AUTO_GPUS, CODE_FILE, JOB_FILE, OUTPUT_FILE, JobSpec
from shoal.train.job.journal import Entry
from shoal.train.job.records import list_jobs, load_spec, read_log, read_reasons

_QUERIES = ("list", "logs", "explain")
_COMMANDS = ("run", "follow", "stop", "resize", "output", *_QUERIES)


def main() -> None:
    arguments = _parser().parse_args()
    try:
        sys.exit(_run(arguments))
    except ShoalError as error:
        _emit(
            {
                "kind": "error", "what": error.what, "why": error.why, "fix": error.fix,
                "exit_code": error.exit_code,
            }
        )  # fmt: skip
        sys.exit(error.exit_code)


def _run(arguments: argparse.Namespace) -> int:
    query = (arguments.command, arguments.directory, arguments.job, arguments.worker)
    if arguments.command in _QUERIES and not arguments.address:
        return _print(_query(*query))
    from shoal.train.job import launch

    with launch.connected(arguments.address, ships_package=arguments.ship_package):
        if arguments.command in _QUERIES:
            return _print(launch.on_head(_query, *query))
        if arguments.command == "output":
            content = launch.on_head(_read_output, arguments.directory, arguments.job)
            Path(arguments.to).write_bytes(content)
            return 0
        if arguments.command == "run":
            return _start(Path(arguments.job).expanduser(), detach=arguments.detach)
        controller = launch.find(arguments.job)
        if arguments.command == "resize":
            controller.resize.remote(arguments.workers)
            return 0
        if arguments.command == "stop":
            controller.stop.remote()
        spec = JobSpec(arguments.job, "", directory=arguments.directory)
        return launch.follow(spec, _emit, arguments.after)


def _query(command: str, directory: str, job: str, worker: str) -> list[Entry]:
    root = Path(directory).expanduser()
    if command == "list":
        return [{"kind": "job", **entry} for entry in list_jobs(root)]
    if command == "logs":
        return [{"kind": "output", "lines": [line]} for line in read_log(root / job, worker)]
    return [{**entry, "kind": "reason"} for entry in read_reasons(root / job)]


def _read_output(directory: str, job: str) -> bytes:
    return (Path(directory).expanduser() / job / OUTPUT_FILE).read_bytes()


def _print(entries: list[Entry]) -> int:
    for entry in entries:
        _emit(entry)
    return 0


def _start(files: Path, *, detach: bool) -> int:
    from shoal.train.job import launch

    spec = load_spec(files)
    if spec.gpus == AUTO_GPUS:
        spec = replace(spec, gpus=1.0 if launch.has_gpus() else 0.0)
        if not spec.gpus:
            _emit({"kind": "note", "level": "info", "text": "no GPUs in the cluster: --gpus 0"})
    (files / JOB_FILE).write_text(spec.to_json())
    launch.start(spec, (files / CODE_FILE).read_bytes())
    _emit({"kind": "job_started", "job": spec.id})
    return 0 if detach else launch.follow(spec, _emit)


def _emit(entry: Entry) -> None:
    print(json.dumps(entry), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="shoal.train.job")
    parser.add_argument("command", choices=_COMMANDS)
    parser.add_argument("job", nargs="?", default="")
    parser.add_argument("workers", nargs="?", type=int, default=0)
    parser.add_argument("--directory", default="~/.shoal/train")
    parser.add_argument("--address", default="")
    parser.add_argument("--ship-package", action="store_true")
    parser.add_argument("--detach", action="store_true")
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--worker", default="")
    parser.add_argument("--to", default="")
    return parser


if __name__ == "__main__":
    main()
