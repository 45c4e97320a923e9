"""A real embedded cluster that autoscales, and what tests observe of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.cli.shoal_command import Home

YAML = """
cluster_name: elastic
max_workers: 3
idle_timeout_minutes: 0.1
upscaling_speed: 10
provider: {type: embedded}
available_node_types:
  boss: {resources: {CPU: 0}}
  small: {resources: {CPU: 1}, max_workers: 3}
  gpu: {resources: {CPU: 1, GPU: 1}, max_workers: 2}
  broken: {resources: {broken: 1}, max_workers: 1, worker_setup_commands: [echo no luck; exit 3]}
  slow:
    resources: {slow: 1}
    max_workers: 1
    worker_setup_commands: ["until [ -e GATE ]; do sleep 0.1; done"]
head_node_type: boss
"""


class Elastic:
    """The shared cluster. Setup of nodes of type `slow` finishes when the file `gate` exists."""

    def __init__(self, home: Home, directory: Path, programs: Mapping[str, str]) -> None:
        self.home = home
        self.yaml = directory / "elastic.yaml"
        self.gate = directory / "gate"
        self.write()
        for name, text in programs.items():
            (directory / f"{name}.py").write_text(text)
        self._directory = directory

    def write(self, more: str = "") -> None:
        """Write the cluster file, followed by `more`."""
        self.yaml.write_text(YAML.replace("GATE", str(self.gate)) + more)

    def up(self, *flags: str) -> None:
        """Bring it up, and wait for the controller's first status."""
        done = self.home.shoal("up", str(self.yaml), *flags)
        assert done.returncode == 0, done.stderr
        until(lambda: (self.control / "state.json").exists(), 90.0)

    def reset(self) -> None:
        """Bring the cluster up with its file's settings, and wait until only its head runs."""
        self.gate.unlink(missing_ok=True)
        self.write()
        if not self.home.instance_ids():
            self.up("--autostop", "off")
        elif self.state()["limits"]["max_workers"] != 3:
            self.up("--max-workers", "3")
            until(lambda: self.state()["limits"]["max_workers"] == 3, 60.0)
        until(self.has_scaled_down)

    def run(self, program: str, *args: object) -> str:
        command = f"python {program}.py {' '.join(map(str, args))}"
        done = self.home.shoal("exec", "elastic", command, cwd=self._directory)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, program: str, *args: object) -> Any:
        command = f"python {self._directory / program}.py {' '.join(map(str, args))}"
        return self.home.start("exec", "elastic", command)

    @property
    def control(self) -> Path:
        (path,) = self.home.path.glob("e/*/.shoal/controller")
        return path

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.control / "state.json").read_text())
        return state

    def workers(self, phase: str = "ready") -> list[dict[str, Any]]:
        nodes = self.state()["nodes"]
        return [n for n in nodes if n["role"] == "worker" and n["phase"] == phase]

    def ever(self) -> set[str]:
        """The ids of all nodes, including those that are gone."""
        state = self.state()
        return {n["id"] for n in (*state["nodes"], *state["gone"])}

    def types_since(self, before: set[str]) -> set[str]:
        """The types of all nodes except these, including those that are gone."""
        state = self.state()
        nodes = (*state["nodes"], *state["gone"])
        return {n["node_type"] for n in nodes if n["id"] not in before}

    def launched_nodes(self, since: float) -> int:
        """How many nodes the controller decided to launch since then."""
        decisions = [d for d in self.state()["decisions"] if d["at"] >= since]
        return sum(int(d["subject"].split()[0]) for d in decisions if d["action"] == "launch")

    def pid(self, process: str) -> int:
        lock = self.control / f"{process}.lock"
        until(lambda: lock.read_text() != "", 60.0)  # a new holder may be about to write it
        return int(lock.read_text())

    def has_scaled_down(self) -> bool:
        return len(self.state()["nodes"]) == 1 and len(self.home.instance_ids()) == 1


def until(condition: Callable[[], bool], seconds: float = 150.0) -> float:
    """Wait for a condition, and return how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "the condition did not become true in time"
        time.sleep(0.1)
    return time.monotonic() - began
