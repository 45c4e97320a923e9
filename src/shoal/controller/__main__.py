"""`python -m shoal.controller COMMAND DIRECTORY`, on the head. The client on the laptop runs
`start`, `stop` and `resume`; these start `supervise` and `standby` as daemons."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.controller import crontab, supervisor
from shoal.controller.paths import CONTROLLER_LOCK, SUPERVISOR_LOCK
from shoal.core.file_lock import lock_owner
from shoal.core.logs import log_to_stderr


def main(argv: Sequence[str]) -> None:
    options = _parser().parse_args(argv)
    directory = options.directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    if options.command == "start":
        _start(directory, at_boot=options.at_boot, secrets=options.secret)
    elif options.command == "stop":
        _stop(directory, options.standby_seconds)
    elif options.command == "terminate-workers":
        _terminate_workers(directory)
    elif options.command == "resume":
        from shoal.controller import standby

        standby.resume_controller(directory)
    elif options.command == "supervise":
        log_to_stderr(1)
        control = functools.partial(_run, directory)
        supervisor.supervise(directory, _load, control)
    elif options.command == "standby":
        from shoal.controller import standby

        log_to_stderr(1)
        standby.run(directory, options.seconds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m shoal.controller")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text)
        added.add_argument("directory", type=Path)
        return added

    start = command("start", "start the controller of this directory")
    start.add_argument("--at-boot", action="store_true", help="also after a reboot, by cron")
    start.add_argument(
        "--secret", action="append", default=[], metavar="NAME", help="a variable it needs"
    )
    stop = command("stop", "stop the controller")
    stop.add_argument("--standby-seconds", type=float, default=0.0, help="renew leases for so long")
    command("terminate-workers", "stop the controller for good, and terminate all workers")
    command("resume", "start a stopped controller with the config it had")
    command("supervise", "run the supervisor in this process")
    standby = command("standby", "run the standby in this process")
    standby.add_argument("seconds", type=float)
    return parser


def _start(directory: Path, *, at_boot: bool, secrets: Sequence[str]) -> None:
    if _has_new_secrets(directory, secrets):
        supervisor.stop_holders(directory, SUPERVISOR_LOCK, CONTROLLER_LOCK)
    supervisor.start(directory)
    if at_boot:
        crontab.enable(directory)


def _has_new_secrets(directory: Path, secrets: Sequence[str]) -> bool:
    """Whether the running supervisor lacks secrets, such as a registry password, that this process
    has: it was started without them after a reboot, or before they changed. Secrets are kept in
    environments only, so the supervisor must be restarted."""
    pid = lock_owner(directory / SUPERVISOR_LOCK) if secrets else None
    if pid is None:
        return False
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return True  # it cannot be checked
    return any(f"{name}={os.environ[name]}".encode() not in environment for name in secrets)


def _stop(directory: Path, standby_seconds: float) -> None:
    from shoal.controller import standby

    crontab.disable(directory)
    standby.pause_config(directory)
    supervisor.stop(directory)
    if standby_seconds:
        standby.start(directory, standby_seconds)
    else:
        standby.forget_config(directory)


def _terminate_workers(directory: Path) -> None:
    from shoal.controller import controller_factory, standby

    crontab.disable(directory)
    standby.pause_config(directory)
    supervisor.stop(directory)
    controller_factory.terminate_workers(directory)
    standby.forget_config(directory)


def _load() -> None:
    from shoal.controller import controller_factory

    controller_factory.load()


def _run(directory: Path) -> None:
    from shoal.controller import controller_factory

    controller_factory.run(directory)


if __name__ == "__main__":
    main(sys.argv[1:])
