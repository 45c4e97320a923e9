"""What runs on the head: python -m shoal.jobs.sweep COMMAND DIRECTORY

drive   run the sweep of the directory; the entry point of its Ray job
follow  print its journal and progress as JSON lines
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError


def main() -> None:
    parser = argparse.ArgumentParser(prog="shoal.jobs.sweep")
    parser.add_argument("command", choices=["drive", "follow"])
    parser.add_argument("directory")
    parser.add_argument("--attempt", type=int, default=1)
    parser.add_argument("--after", type=int, default=0)
    arguments = parser.parse_args()
    directory = Path(arguments.directory).expanduser()
    if not directory.is_absolute():
        directory = Path.home() / directory
    if arguments.command == "follow":
        from shoal.jobs.sweep.journal_follower import follow

        follow(directory, arguments.after, arguments.attempt, _emit)
        return
    from shoal.jobs.sweep.driver import drive

    try:
        drive(directory, arguments.attempt)
    except ShoalError as error:
        sys.exit(str(error))


def _emit(entry: dict[str, Any]) -> None:
    print(json.dumps(entry), flush=True)


if __name__ == "__main__":
    main()
