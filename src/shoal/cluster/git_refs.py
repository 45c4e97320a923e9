"""File mounts of a git branch, `.git/refs/heads/NAME`: a widely used way to check out on the nodes
what is checked out here. Git moves such files into `packed-refs` when it cleans up, and a worktree
keeps them elsewhere."""

from __future__ import annotations

import logging
import subprocess
from dataclasses import replace
from pathlib import Path

from shoal.core.atomic_write import write_atomically
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.hashes import short_hash

_log = logging.getLogger(__name__)
_GIT_SECONDS = 10.0
_REFS = "/.git/refs/"


def with_ref_files(spec: ClusterSpec, home: Path) -> ClusterSpec:
    """The spec with a file for each mounted git ref that has none: one below `home` with the same
    content. A ref that git does not know stays as it is, and is reported as a missing file."""
    found = {
        target: _ref_file(source, home)
        for target, source in spec.files.mounts.items()
        if _REFS in source and not Path(source).exists()
    }
    if not found:
        return spec
    return replace(spec, files=replace(spec.files, mounts={**spec.files.mounts, **found}))


def _ref_file(source: str, home: Path) -> str:
    repository, _, name = source.partition(_REFS)
    commit = _commit(repository or "/", f"refs/{name}")
    if not commit:
        return source
    file = home / "git-refs" / short_hash([source])
    content = f"{commit}\n"
    if not file.exists() or file.read_text() != content:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, content, mode=0o644)
    return str(file)


def _commit(repository: str, ref: str) -> str:
    command = ["git", "-C", repository, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_GIT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.info("could not ask git for %s of %s: %s", ref, repository, error)
        return ""
    return done.stdout.strip()
