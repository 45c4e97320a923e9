"""Runs the real `shoal` command in a subprocess, with its own SHOAL_HOME."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from shoal.providers.embedded import processes

SHOAL = str(Path(sys.executable).parent / "shoal")


@dataclass(frozen=True)
class Home:
    """A SHOAL_HOME, and the commands that use it."""

    path: Path

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "SHOAL_HOME": str(self.path), "COLUMNS": "100"}

    def shoal(
        self, *args: str, cwd: Path | None = None, timeout: float = 150
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SHOAL, *args],
            env=self.env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [SHOAL, *args],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def json(self, *args: str) -> Any:
        done = self.shoal(*args, "--json")
        return json.loads(done.stdout)

    def last_event(self, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return event

    def instance_ids(self) -> set[str]:
        return {p.parent.name for p in self.path.glob("e/*/instance.json")}

    def instance_id(self, name: str) -> str:
        """The instance that is the node with this name."""
        records = [json.loads(p.read_text()) for p in self.path.glob("e/*/instance.json")]
        return str(next(r["id"] for r in records if r["name"] == name))

    def leftovers(self, instance_ids: set[str]) -> list[str]:
        """The remaining processes and directories of these instances."""
        leftovers = []
        for process in itertools.chain(*processes.processes_of(instance_ids).values()):
            with contextlib.suppress(psutil.NoSuchProcess):
                leftovers.append(f"{process.pid} {process.name()}")
        leftovers += [str(p) for p in self.path.glob("e/*/")]
        return leftovers


def daemons_of(instance_id: str, name: str) -> list[psutil.Process]:
    """The processes of Ray's daemon with this name on an embedded instance."""
    return [p for p in processes.processes_of({instance_id})[instance_id] if p.name() == name]
