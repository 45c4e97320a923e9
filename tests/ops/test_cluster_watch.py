"""Watching clusters: one that hangs, breaks or ends does not disturb the others."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.cluster.handle import ClusterHandle
from shoal.controller import status_file
from shoal.controller.lifecycle import Node
from shoal.controller.paths import DIRECTORY, HISTORY
from shoal.controller.status_file import ControllerStatus, WaitingDemand
from shoal.controller.status_reader import StatusReport
from shoal.core.errors import AuthError
from shoal.core.events import ignore_events
from shoal.core.node_phase import Phase
from shoal.ops import known_clusters
from shoal.ops.cluster_snapshot import from_instances, from_report
from shoal.ops.cluster_watch import ClusterWatch, ClusterWatches
from shoal.ops.context import Context
from shoal.providers.model import Instance, State
from shoal.providers.protocol import Capabilities
from shoal.remote.local_runner import LocalRunner
from shoal.spec.cluster_spec import ClusterSpec
from tests import specs
from tests.polling import until

NODE = Node("i-head", "head", "head", "head", Phase.READY, 1.0, 1.0)


def instance(role: Any, state: State = State.RUNNING, price: float | None = None) -> Instance:
    return Instance(f"i-{role}", "c", role, role, role, state, "127.0.0.1", 1.0,
                    price_per_hour=price)  # fmt: skip


class Provider:
    """A provider whose head is a directory of this machine."""

    capabilities = Capabilities()

    def __init__(self, home: Path) -> None:
        self.home = home
        self.error: Exception | None = None
        self.hangs = False
        (home / DIRECTORY).mkdir(parents=True)

    async def list_instances(self, *_: object) -> list[Instance]:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return [instance("head")] if self.home.exists() else []

    def runner(self, *_: object) -> LocalRunner:
        return LocalRunner(self.home, {})

    def publish(self, **values: Any) -> None:
        node = vars(NODE)
        status = ControllerStatus(time.time(), 1, "c", nodes=(node,), limits={"max_workers": 3})
        status_file.write(self.home / DIRECTORY, replace(status, **values))


@pytest.fixture
def providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Provider]:
    made: dict[str, Provider] = {}

    def handle_of(ctx: Context, spec: ClusterSpec) -> ClusterHandle:
        provider: Any = made[spec.cluster_name]
        return ClusterHandle(provider, spec)

    monkeypatch.setattr(ClusterHandle, "of", handle_of)
    return made


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(ignore_events, home=tmp_path / "home")


def add(ctx: Context, providers: dict[str, Provider], name: str, tmp_path: Path) -> Provider:
    known_clusters.record(ctx, specs.cluster(name=name))
    providers[name] = Provider(tmp_path / name)
    return providers[name]


@contextlib.asynccontextmanager
async def running(ctx: Context) -> AsyncIterator[Mapping[str, ClusterWatch]]:
    watches = ClusterWatches(ctx, every=0.05)
    task = asyncio.ensure_future(watches.run())
    try:
        await until(lambda: watches.watches, "the first look")
        yield watches.watches
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_a_cluster_that_hangs_or_fails_does_not_hold_up_the_others(
    ctx: Context, providers: dict[str, Provider], tmp_path: Path
) -> None:
    add(ctx, providers, "good", tmp_path).publish()
    add(ctx, providers, "hangs", tmp_path).hangs = True
    add(ctx, providers, "denied", tmp_path).error = AuthError("no credentials", fix="aws sso login")
    async with running(ctx) as watches:
        await until(lambda: watches["good"].snapshot.state == "up", "the snapshot")
        await until(lambda: not watches["denied"].snapshot.answers, "the error")
        assert watches["hangs"].snapshot.state == "unknown"
        (problem,) = watches["denied"].snapshot.problems
        assert (problem.what, problem.fix) == ("no credentials", "aws sso login")


async def test_a_cluster_that_stops_answering_keeps_what_was_known(
    ctx: Context, providers: dict[str, Provider], tmp_path: Path
) -> None:
    provider = add(ctx, providers, "c", tmp_path)
    provider.publish()
    async with running(ctx) as watches:
        await until(lambda: watches["c"].snapshot.limits, "the controller's report")
        provider.error = AuthError("expired")
        shutil.rmtree(provider.home / DIRECTORY)
        await until(lambda: not watches["c"].snapshot.answers, "the error")
        assert [n.name for n in watches["c"].snapshot.nodes] == ["head"]


async def test_a_broken_history_and_status_are_told_and_survived(
    ctx: Context, providers: dict[str, Provider], tmp_path: Path
) -> None:
    provider = add(ctx, providers, "c", tmp_path)
    (provider.home / DIRECTORY / HISTORY).write_text('{"kind": "nod\n')
    provider.publish()
    async with running(ctx) as watches:
        await until(lambda: watches["c"].snapshot.problems, "the problem")
        (problem,) = watches["c"].snapshot.problems
        assert "1 lines of the head's files are damaged" in problem.why
        assert [row.phase for row in watches["c"].history.phases] == ["ready"]


async def test_a_cluster_that_is_terminated_is_shown_as_down(
    ctx: Context, providers: dict[str, Provider], tmp_path: Path
) -> None:
    add(ctx, providers, "c", tmp_path).publish()
    async with running(ctx) as watches:
        await until(lambda: watches["c"].snapshot.state == "up", "the snapshot")
        known_clusters.forget(ctx, specs.cluster(name="c"))
        await until(lambda: watches["c"].snapshot.state == "down", "the end")
        assert watches["c"].snapshot.nodes == ()


def test_a_cluster_that_comes_up_is_starting() -> None:
    spec = specs.cluster()
    snapshot = from_instances(spec, [instance("head")], at=1.0, costs_money=False, up_runs=True)
    assert (snapshot.state, snapshot.phases) == ("starting", {"preparing": 1})
    assert from_instances(spec, [], at=1.0, costs_money=False).state == "down"
    stopped = [instance("head", State.STOPPED)]
    assert from_instances(spec, stopped, at=1.0, costs_money=False).state == "stopped"


def test_a_price_is_incomplete_where_an_instance_has_none() -> None:
    both = [instance("head", price=1.5), instance("worker")]
    snapshot = from_instances(specs.cluster(), both, at=1.0, costs_money=True)
    assert (snapshot.price_per_hour, snapshot.priced) == (1.5, False)


def test_demand_that_cannot_be_met_and_a_silent_controller_are_problems_with_a_fix() -> None:
    row = WaitingDemand("GPU: 8", 2, 0.0, "no node is coming: no type has 8 GPUs", "add a type")
    status = ControllerStatus(100.0, 1, "c", nodes=(vars(NODE),), waiting=(row,))
    report = StatusReport(status, age_s=1.0, read_at=101.0)
    (problem,) = from_report(specs.cluster(), report, at=1.0, costs_money=False).problems
    assert (problem.what, problem.fix) == ("2 x GPU: 8 cannot run", "add a type")
    silent = replace(report, age_s=100.0)
    (problem,) = from_report(specs.cluster(), silent, at=1.0, costs_money=False).problems
    assert problem.fix == "restart it: shoal up c"


def test_a_controller_that_was_stopped_on_purpose_is_no_problem() -> None:
    status = ControllerStatus(100.0, 1, "c", nodes=(vars(NODE),), usage={"CPU": (1.0, 2.0)})
    report = StatusReport(status, age_s=100.0, read_at=200.0, is_configured=False)
    snapshot = from_report(specs.cluster(), report, at=1.0, costs_money=False)
    assert (snapshot.state, snapshot.phases, snapshot.problems) == ("stopped", {"stopped": 1}, ())
    while_up = from_report(specs.cluster(), report, at=1.0, costs_money=False, up_runs=True)
    assert (while_up.state, while_up.problems) == ("starting", ())
