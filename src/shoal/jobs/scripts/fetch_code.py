"""Unpacks a package of Ray's GCS on the head, for a command that is not a Ray job:

    fetch_code.py ADDRESS URI DIRECTORY

The directory is named by the content: one that exists is complete.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import zipfile
from pathlib import Path


def main(address: str, uri: str, directory: Path) -> None:
    if directory.exists():
        return
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    content = GcsClient(address=address).internal_kv_get(uri.encode(), None)
    if content is None:
        sys.exit(f"shoal: the cluster has no {uri}")
    draft = directory.with_name(f".{directory.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    with zipfile.ZipFile(io.BytesIO(content)) as package:
        for member in package.infolist():
            path = Path(package.extract(member, draft))
            if mode := member.external_attr >> 16:
                path.chmod(mode & 0o777)
    draft.rename(directory)


if __name__ == "__main__":
    target = Path(sys.argv[3]).expanduser()
    target.parent.mkdir(parents=True, exist_ok=True)
    main(sys.argv[1], sys.argv[2], target)
