"""Writes the tree of a recorded run to a directory, exactly as it was submitted."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

from shoal.core.errors import ConfigError, ShoalError


def restore_tree(archive: bytes, target: Path) -> dict[str, Any]:
    """Write the files of an archive that `read_run.py` printed, and return the record of the run.
    `target` must be new or empty."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is not empty", fix="pass a new directory")
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        record: dict[str, Any] = json.loads(files.read("run.json"))
        tree = json.loads(files.read("tree.json"))
        target.mkdir(parents=True, exist_ok=True)
        links = dict(tree["links"])
        for path, executable, link, sha256 in tree["files"]:
            if link:
                links[path] = link
            if link or any(path.startswith(f"{each}/") for each in tree["links"]):
                continue  # the link itself is restored
            content = files.read(f"objects/{sha256}")
            if hashlib.sha256(content).hexdigest() != sha256:
                raise ShoalError(f"the record of {path} on the head is damaged")
            _write(target, path, content, executable=executable)
        for path, link in links.items():
            full = _inside(target, path)
            full.parent.mkdir(parents=True, exist_ok=True)
            full.symlink_to(link)
    return record


def _write(target: Path, path: str, content: bytes, *, executable: bool) -> None:
    full = _inside(target, path)
    full.parent.mkdir(parents=True, exist_ok=True)
    full.write_bytes(content)
    if executable:
        full.chmod(full.stat().st_mode | 0o111)


def _inside(target: Path, path: str) -> Path:
    """The path in the target. A record that was tampered with must not write elsewhere."""
    if path.startswith("/") or ".." in Path(path).parts:
        raise ShoalError(f"the record contains {path}, which is outside of the tree")
    return target / path
