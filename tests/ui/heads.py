"""Clusters whose heads are directories of this machine, with files as a controller writes them: for
tests of the page, its screenshots and its benchmark, which need many clusters or a certain history.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from shoal.cluster.handle import ClusterHandle
from shoal.controller import status_file
from shoal.controller.history import History, Sample
from shoal.controller.lifecycle import Node
from shoal.controller.paths import CONFIG, DIRECTORY, USAGE_LEDGER
from shoal.controller.state import ControllerState, Decision, Entry, Failure, NodeUpdated
from shoal.controller.status_file import ControllerStatus, WaitingDemand
from shoal.core.errors import ShoalError
from shoal.core.node_phase import Phase
from shoal.costs.ledger import UsageLedger
from shoal.ops import known_clusters
from shoal.ops.context import Context
from shoal.providers.model import Instance, State
from shoal.providers.protocol import Capabilities
from shoal.remote.local_runner import LocalRunner
from shoal.scaling import LaunchFailure
from shoal.spec.cluster_spec import ClusterSpec, ProviderSpec
from tests import specs


class Head:
    """A provider with one cluster. `hangs` makes every call wait without end."""

    def __init__(self, root: Path, spec: ClusterSpec, *, costs_money: bool = True) -> None:
        self.spec = spec
        self.home = root / spec.cluster_name
        self.directory = self.home / DIRECTORY
        self.directory.mkdir(parents=True)
        (self.directory / CONFIG).touch()
        self.capabilities = Capabilities(costs_money=costs_money)
        self.hangs = False
        self.error: ShoalError | None = None
        self.is_up = True
        self.terminated = 0
        self._state = ControllerState()
        self._history = History(self.directory)
        self._ledger = UsageLedger(self.directory / USAGE_LEDGER)
        self._resources: dict[str, dict[str, float]] = {}
        self.used: dict[str, float] = {}
        self._published: dict[str, Any] = {}

    async def list_instances(self, *_: object) -> list[Instance]:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        if not self.is_up:
            return []
        nodes = self._state.nodes.values()
        return [
            Instance(
                n.id, self.spec.cluster_name, n.name, n.node_type, n.role, State.RUNNING,
                n.address, n.created, price_per_hour=n.price_per_hour, market=n.market,
            )
            for n in nodes
        ]  # fmt: skip

    def runner(self, *_: object) -> LocalRunner:
        return LocalRunner(self.home, {"HOME": str(self.home)})

    async def terminate(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        self.terminated += len(instances)
        self.is_up = False

    async def release(self, spec: ClusterSpec) -> list[str]:
        return []

    def record(self, *entries: Entry) -> None:
        """As the controller's journal does."""
        self._history.record(entries, self._state)
        for entry in entries:
            self._state.apply(entry)
        self._ledger.record_nodes(e.node for e in entries if isinstance(e, NodeUpdated))

    def node(self, id: str, phase: Phase, at: float, **values: Any) -> None:
        """A node enters a phase."""
        before = self._state.nodes.get(id)
        if before is None:
            before = Node(id, id, "worker", "worker", phase, at, at, f"10.0.0.{len(id)}")
        self.record(NodeUpdated(replace(before, phase=phase, since=at, **values)))

    def decide(self, at: float, action: Any, subject: str, why: str) -> None:
        self.record(Decision(at, action, subject, why))

    def fail(self, at: float, node_type: str, text: str) -> None:
        self.record(Failure(LaunchFailure(node_type, at, "capacity"), text))

    def resources(self, id: str, **total: float) -> None:
        self._resources[id] = total

    def fall_silent(self, error: ShoalError) -> None:
        """From now on the head and its provider answer with an error."""
        self.error = error
        shutil.rmtree(self.directory)

    def train(self, job: str) -> None:
        """A training with progress and a rescale."""
        directory = self.home / ".shoal/train" / job
        directory.mkdir(parents=True)
        entries: list[dict[str, Any]] = []
        for step in range(40):
            workers = 2 if step < 20 else 4
            at = time.time() - 400 + 10 * step
            if step == 20:
                text = "worker-3, worker-4 joined"
                entries.append({"time": at, "kind": "generation", "text": text})
            entries.append(
                {"time": at, "kind": "progress", "epoch": 0, "step": 10 * step, "workers": workers,
                 "batch_size": 64 * workers, "throughput": 100.0 * workers,
                 "goodput": 90.0 * workers}
            )  # fmt: skip
            entries.append({"time": at, "kind": "metrics", "values": {"loss": 2.0 / (step + 1)}})
        sizes = [
            {"workers": n, "nodes": n, "throughput": 100.0 * n, "goodput": 90.0 * n,
             "batch_size": 64 * n}
            for n in range(1, 5)
        ]  # fmt: skip
        entries.append(
            {"time": time.time() - 5, "kind": "decision", "target": 4, "current": 2,
             "why": "2 more workers make it 90% faster", "objective": "time", "sizes": sizes,
             "prices": {"per_worker": 0.1, "others": 0.05}}
        )  # fmt: skip
        lines = "".join(json.dumps(entry) + "\n" for entry in entries)
        (directory / "journal.jsonl").write_text(lines + '{"kind": "prog')
        (directory / "output.log").write_text("epoch 1 of 3\n")

    def sample(self, at: float, pending: dict[str, float] | None = None, waiting: int = 0) -> None:
        used, total = self._sums()
        phases: dict[str, int] = {}
        for node in self._state.nodes.values():
            phases[str(node.phase)] = phases.get(str(node.phase), 0) + 1
        price = math.fsum(n.price_per_hour or 0.0 for n in self._state.nodes.values())
        self._history.sample(Sample(at, used, total, pending or {}, waiting, phases, price))

    def publish(self, at: float | None = None, **values: Any) -> None:
        """Write state.json; without values, with those of the last time."""
        values = self._published = values or self._published
        used, total = self._sums()
        limits = status_file.limits(self.spec)
        share = {name: used.get(name, 0.0) / total[name] for name in total if total[name]}
        ready = [n for n in self._state.nodes.values() if n.phase is Phase.READY]
        status = ControllerStatus(
            time.time() if at is None else at,
            1,
            self.spec.cluster_name,
            usage={name: (used.get(name, 0.0), total[name]) for name in total},
            node_usage={
                n.id: {k: (round(v * share.get(k, 0.0)), v) for k, v in resources.items()}
                for n in ready
                if (resources := self._resources.get(n.id))
            },
            price_per_hour=0.0,
            limits=limits,
            **status_file.journaled(self._state),
        )
        status_file.write(self.directory, replace(status, **values))

    def _sums(self) -> tuple[dict[str, float], dict[str, float]]:
        total: dict[str, float] = {}
        for node in self._state.nodes.values():
            if node.phase in (Phase.READY, Phase.DRAINING):
                for name, value in self._resources.get(node.id, {}).items():
                    total[name] = total.get(name, 0.0) + value
        return {k: min(v, total.get(k, 0.0)) for k, v in self.used.items()}, total


@dataclass
class Heads:
    """Clusters of a temporary SHOAL_HOME."""

    ctx: Context
    root: Path
    by_name: dict[str, Head]

    def add(self, name: str, provider: str = "aws", *, max_workers: int = 10) -> Head:
        spec = specs.cluster(name=name, max_workers=max_workers)
        spec = replace(spec, provider=ProviderSpec(provider, {}))
        head = Head(self.root, spec, costs_money=provider == "aws")
        self.by_name[name] = head
        known_clusters.record(self.ctx, spec)
        return head


@contextmanager
def heads(ctx: Context, root: Path) -> Iterator[Heads]:
    """The clusters that are added are reached as any other."""
    made = Heads(ctx, root, {})

    def provider_for(spec: ClusterSpec, *_: object, **__: object) -> Any:
        return made.by_name[spec.cluster_name]

    def handle_of(ctx: Context, spec: ClusterSpec, **_: object) -> ClusterHandle:
        return ClusterHandle(provider_for(spec), spec)

    with (
        mock.patch.object(ClusterHandle, "of", handle_of),
        mock.patch("shoal.providers.provider_for", provider_for),
    ):
        yield made


def add_training_cluster(made: Heads, now: float) -> Head:
    """An example for people: six hours of a GPU cluster with spot instances, one of which is
    interrupted, a setup that failed, and demand that must wait."""
    head = made.add("llm-finetune", max_workers=12)
    start = now - 6 * 3600
    boot = {"market": "on-demand", "zone": "us-west-2a", "price_per_hour": 0.192}
    head.node("head", Phase.BOOTING, start, role="head", node_type="m5.xlarge", name="head",
              address="10.0.0.5", why="the head", **boot)  # fmt: skip
    head.node("head", Phase.PREPARING, start + 38)
    head.node("head", Phase.STARTING, start + 95)
    head.node("head", Phase.READY, start + 108)
    head.resources("head", CPU=4)
    head.used = {"CPU": 1}
    head.sample(start + 110)
    spot = {"market": "spot", "zone": "us-west-2b", "price_per_hour": 1.204, "node_type": "gpu"}
    lives = [(0.2, 5.9), (0.2, 3.1), (0.25, 6.0), (1.5, 3.4), (1.5, 3.4), (1.55, 6.0), (3.2, 6.0),
             (4.4, 5.2), (4.4, 6.0)]  # fmt: skip
    steps: list[tuple[float, Callable[[], None]]] = []
    for number, (begins, ends) in enumerate(lives, start=1):
        id, at = f"gpu-{number}", start + begins * 3600
        why = f"{4 * number} tasks of GPU: 1 wait" if number < 7 else "replaces gpu-2"

        def launch(id: str = id, at: float = at, why: str = why, number: int = number) -> None:
            head.decide(at, "launch", "1 x gpu", why)
            head.node(id, Phase.REQUESTED, at, why=why, address=f"10.0.1.{number}", **spot)
            head.node(id, Phase.BOOTING, at + 4)
            head.node(id, Phase.PREPARING, at + 45)
            head.node(id, Phase.STARTING, at + 170)
            head.node(id, Phase.READY, at + 190)
            head.resources(id, CPU=8, GPU=1)

        steps.append((at, launch))
        if ends < 6.0:
            until = start + ends * 3600
            interrupted = number == 2
            reason = (
                "the provider terminates the instance at 14:02:00 UTC"
                if interrupted
                else "idle for 300 s, longer than idle_timeout"
            )

            def end(id: str = id, at: float = until, reason: str = reason) -> None:
                head.decide(at, "drain", id, reason)
                head.node(id, Phase.DRAINING, at, ended=reason)
                head.node(id, Phase.TERMINATING, at + 60)
                head.node(id, Phase.GONE, at + 90)

            steps.append((until, end))

    def broken() -> None:
        at = start + 1.6 * 3600
        head.node("gpu-f", Phase.REQUESTED, at, name="gpu-10", why="8 tasks of GPU: 1 wait", **spot)
        head.node("gpu-f", Phase.BOOTING, at + 5)
        head.node("gpu-f", Phase.PREPARING, at + 40)
        why = "setup command 2 of 3 exited with status 1: pip install -r requirements.txt"
        head.node("gpu-f", Phase.FAILED, at + 140, detail=why, ended=why)
        head.decide(at + 140, "failed", "gpu-10", why)
        head.node("gpu-f", Phase.TERMINATING, at + 150)
        head.node("gpu-f", Phase.GONE, at + 180)
        head.fail(at + 200, "gpu", "us-west-2b has no spot capacity for g5.xlarge")
        head.decide(at + 200, "retry", "gpu", "tried us-west-2c, which has capacity")

    steps.append((start + 1.6 * 3600, broken))
    steps.sort(key=lambda step: step[0])
    times = [start + 120 + 60 * n for n in range(358)]
    for at in times:
        while steps and steps[0][0] <= at:
            steps.pop(0)[1]()
        hour = (at - start) / 3600
        wanted = 3 + 3 * math.sin(hour * 1.9) + (4 if 1.4 < hour < 3.2 else 0)
        head.used = {"CPU": 6 + 2 * wanted, "GPU": round(max(1, wanted))}
        waiting = max(0.0, round(wanted - 4))
        head.sample(at, {"GPU": waiting, "CPU": 2 * waiting}, int(waiting))
    at = now - 40
    head.decide(at, "unmet", "GPU: 8, CPU: 32", "no node type has 8 GPUs")
    head.node("gpu-11", Phase.REQUESTED, now - 70, why="6 tasks of GPU: 1 wait", **spot)
    head.node("gpu-11", Phase.PREPARING, now - 30, detail="setup command 1 of 3",
              address="10.0.1.11")  # fmt: skip
    head.used = {"CPU": 30, "GPU": 5}
    head.publish(
        waiting=(
            WaitingDemand("GPU: 1, CPU: 2", 6, now - 75, "coming: gpu-11 (gpu, preparing)"),
            WaitingDemand("GPU: 8, CPU: 32", 1, now - 40, "no node is coming: no node type has 8 "
                          "GPUs", "add a node type with 8 GPUs to the file\nshoal up llm-finetune"),
        ),
    )  # fmt: skip
    return head


def add_small_cluster(
    made: Heads, name: str, now: float, *, nodes: int, provider: str = "aws", busy: float = 0.5
) -> Head:
    """A cluster with this many ready nodes, the head included."""
    head = made.add(name, provider, max_workers=max(10, nodes))
    price = 0.34 if provider == "aws" else None
    for number in range(nodes):
        is_head = number == 0
        id = "head" if is_head else f"worker-{number}"
        at = now - 1800 + number
        node_type = "head" if is_head else "worker"
        role = "head" if is_head else "worker"
        head.node(id, Phase.BOOTING, at, role=role, node_type=node_type, price_per_hour=price,
                  market="on-demand" if price else "", address=f"10.0.2.{number % 250 + 1}",
                  why="the head" if is_head else "min_workers")  # fmt: skip
        head.node(id, Phase.READY, at + 60)
        head.resources(id, CPU=4)
    for n in range(20):
        head.used = {"CPU": round(4 * nodes * busy * (0.6 + 0.4 * math.sin(n / 3)))}
        head.sample(now - 1200 + 60 * n)
    head.decide(now - 1790, "launch", f"{nodes - 1} x worker", "min_workers")
    head.publish()
    return head
