"""Prints the record of a run and its files as a zip archive, on the head:

    read_run.py DIRECTORY ID

Exits with status 3 if there is no record, and 4 if a file of the tree is missing.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path


def main(directory: Path, id: str) -> None:
    try:
        record = (directory / id / "run.json").read_text()
        tree = (directory / "trees" / f"{json.loads(record)['digest']}.json").read_text()
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        sys.exit(3)
    with zipfile.ZipFile(sys.stdout.buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run.json", record)
        archive.writestr("tree.json", tree)
        for sha256 in sorted({each[3] for each in json.loads(tree)["files"]}):
            try:
                archive.write(directory / "objects" / sha256, f"objects/{sha256}")
            except FileNotFoundError as error:
                print(error, file=sys.stderr)
                sys.exit(4)


if __name__ == "__main__":
    main(Path(sys.argv[1]).expanduser(), sys.argv[2])
