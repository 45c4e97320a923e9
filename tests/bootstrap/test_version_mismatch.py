"""A worker with another Ray than the head's."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.bootstrap import version_mismatch
from shoal.bootstrap.node_plan import NodePlan
from shoal.core.errors import SetupError
from shoal.providers.model import Instance, State
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.local_runner import LocalRunner
from shoal.spec.cluster_spec import FilesSpec
from tests.specs import cluster

FAILED = SetupError("start command 1 of 1 failed with exit code 1", output=["Traceback"])


def node(directory: Path, ray_version: str, python_version: str = "") -> NodePlan:
    """A node whose Python has this version of Ray; none if it is empty. The Python says that it
    has another version, if there is one."""
    directory.mkdir()
    if ray_version:
        info = directory / f"ray-{ray_version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: ray\nVersion: {ray_version}\n")
    if python_version:
        platform = f"def python_version(): return {python_version!r}\n"
        (directory / "platform.py").write_text(platform)
    python = directory / "python"
    run = shlex.join(["env", f"PYTHONPATH={directory}", sys.executable, "-S"])
    python.write_text(f'#!/bin/sh\nexec {run} "$@"\n')
    python.chmod(0o755)
    runner = LocalRunner(directory, {})
    spec = cluster()
    return NodePlan(
        instance=Instance("i", "c", directory.name, "w", "worker", State.RUNNING, "h", None),
        runner=runner,
        node_runner=runner,
        setup=spec.head_setup,
        start=RayStart((), {}, "h:1", "./python", 0, find_python=":"),
        files=FilesSpec(mounts={}),
        files_digest="",
    )


async def test_both_versions_are_named(tmp_path: Path) -> None:
    worker, head = node(tmp_path / "worker-1", "2.60.0"), node(tmp_path / "head", "2.55.0")
    error = await version_mismatch.explain(FAILED, worker, head)
    assert "it has Ray 2.60.0 on Python" in error.why
    assert "the head has Ray 2.55.0 on Python" in error.why
    assert "ray[default]==2.55.0" in error.fix
    assert (error.node, error.output) == ("worker-1", FAILED.output)


async def test_for_another_python_the_fix_is_not_another_ray(tmp_path: Path) -> None:
    worker = node(tmp_path / "worker-1", "2.60.0", "3.12.1")
    head = node(tmp_path / "head", "2.60.0", "3.10.4")
    error = await version_mismatch.explain(FAILED, worker, head)
    assert "on Python 3.12.1, the head has Ray 2.60.0 on Python 3.10.4" in error.why
    assert error.fix.startswith("run Ray with Python 3.10.4 on all nodes\n")
    assert "pip install" not in error.fix


@pytest.mark.parametrize("version", ["2.60.0", ""], ids=["same", "unknown"])
async def test_another_cause_is_left_alone(tmp_path: Path, version: str) -> None:
    worker, head = node(tmp_path / "worker-1", version), node(tmp_path / "head", "2.60.0")
    assert await version_mismatch.explain(FAILED, worker, head) is FAILED
    silent = replace(worker, start=replace(worker.start, find_python=""))
    assert await version_mismatch.explain(FAILED, silent, head) is FAILED
