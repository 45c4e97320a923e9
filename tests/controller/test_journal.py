"""The controller's state survives its process, and a full or damaged disk."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.controller.journal import replay
from shoal.controller.paths import JOURNAL
from shoal.core.node_phase import Phase
from tests.controller.fake_cluster import FakeCluster, Harness, never_return


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Make every write fail. The errno differs from that of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_stops_launches_and_nothing_else(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(2)
    await harness.iterate(2)
    first, second = harness.cluster.workers
    harness.cluster.set_pending_tasks(0)
    with full_disk():
        del harness.cluster.ray[first]
        harness.cluster.set_idle(second, 1000)
        await harness.iterate(3, seconds=400)
        assert harness.cluster.bootstrapped.count("worker-1") == 2, (
            "a lost node is bootstrapped again"
        )
        assert second not in harness.cluster.instances, "and an idle one is terminated"
        harness.cluster.busy = {first}
        harness.cluster.set_pending_tasks(1)
        await harness.iterate(20)
        assert harness.cluster.workers == [first], "nothing is launched that a crash would forget"
        harness.cluster.busy = set()
        harness.cluster.setup_failures = 1
        del harness.cluster.ray[first]
        await harness.iterate(3, seconds=20)
        assert harness.cluster.workers == [], (
            "a failed bootstrap is terminated even if its log cannot be written"
        )
        harness.restart()
        await harness.iterate(3)
        harness.controller._heartbeat()
        assert harness.controller.lease("worker") is not None, "leases are still renewed"
    await harness.iterate(3, seconds=40)
    assert len(harness.cluster.workers) == 1
    harness.cluster.set_pending_tasks(0)
    await harness.iterate()
    state, unreadable = replay(harness.directory / JOURNAL)
    assert (state.nodes, unreadable) == (harness.state.nodes, 0), "nothing is missing"
    assert not list(harness.directory.glob("*.new"))


@pytest.mark.parametrize("when", ["before the call", "after the call"])
async def test_killed_during_a_launch_it_launches_once(tmp_path: Path, when: str) -> None:
    fake = FakeCluster()
    harness = Harness(fake, tmp_path)
    await harness.iterate()
    fake.set_pending_tasks(2)
    dead = harness.controller
    if when == "after the call":
        fake.kill_during_launch = True
        await _die_during_an_iteration(harness)
    else:
        real, fake.launch = fake.launch, never_return  # type: ignore[assignment, method-assign]
        await _die_during_an_iteration(harness)
        fake.launch = real  # type: ignore[method-assign]
    fake.kill_during_launch = False
    assert len(dead.state.intents) == 1
    harness.restart()
    await harness.iterate(3)
    assert len(fake.workers) == 2
    assert {n.phase for n in harness.state.nodes.values()} == {Phase.READY}


async def test_killed_after_any_journal_line_it_converges_to_the_same_cluster(
    tmp_path: Path,
) -> None:
    first = tmp_path / "first"
    first.mkdir()
    fake = FakeCluster()
    harness = Harness(fake, first)
    fake.set_pending_tasks(3)
    await harness.iterate(3)
    journal = (first / "journal.jsonl").read_text().splitlines(keepends=True)
    assert len(journal) > 15
    for cut in range(len(journal)):
        directory = tmp_path / str(cut)
        directory.mkdir()
        torn = journal[cut][: len(journal[cut]) // 2]
        (directory / "journal.jsonl").write_text("".join(journal[:cut]) + torn)
        other = Harness(fake, directory)
        fake.time += 100
        await other.iterate(4)
        assert len(fake.workers) == 3, f"after {cut} lines"
        await other.controller.close()


async def test_a_damaged_journal_is_reported(harness: Harness) -> None:
    await harness.iterate()
    await harness.controller.close()
    with (harness.directory / JOURNAL).open("a") as file:
        file.write("{torn\n")
    harness.restart()
    assert harness.reasons("anomaly")[0].startswith("skipped 1 damaged lines")


async def _die_during_an_iteration(harness: Harness) -> None:
    """Run an iteration whose tasks are dropped before they can write to the journal."""
    harness.cluster.time += 1
    await harness.controller.run_once()
    await asyncio.sleep(0.02)
