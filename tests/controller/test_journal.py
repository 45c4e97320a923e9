"""What the controller knows outlives its process, and a disk that is full or damaged."""

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
from tests.controller.fake_world import Life, World, never


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """No file can be written: its system says so by another name than a full disk's would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_stops_launches_and_nothing_else(life: Life) -> None:
    life.world.wants(2)
    await life.turns(2)
    first, second = life.world.workers
    life.world.wants(0)
    with full_disk():
        del life.world.ray[first]
        life.world.idle(second, 1000)
        await life.turns(3, seconds=400)
        assert life.world.brought_up.count("worker-1") == 2, "a node that was lost is brought back"
        assert second not in life.world.machines, "and one that is idle is given back"
        life.world.busy = {first}
        life.world.wants(1)
        await life.turns(20)
        assert life.world.workers == [first], "what could be forgotten is not begun"
        life.world.busy = set()
        life.world.setup_failures = 1
        del life.world.ray[first]
        await life.turns(3, seconds=20)
        assert life.world.workers == [], "one that cannot be brought back is ended, log or no log"
        life.again()
        await life.turns(3)
        life.controller._leave_sign()
        assert life.controller.lease("worker") is not None, "the others need not fear"
    await life.turns(3, seconds=40)
    assert len(life.world.workers) == 1
    life.world.wants(0)
    await life.turns()
    memory, unreadable = replay(life.directory / JOURNAL)
    assert (memory.nodes, unreadable) == (life.memory.nodes, 0), "nothing is missing"
    assert not list(life.directory.glob("*.new"))


@pytest.mark.parametrize("when", ["before the call", "after the call"])
async def test_killed_around_a_create_call_it_launches_once(tmp_path: Path, when: str) -> None:
    world = World()
    life = Life(world, tmp_path)
    await life.turns()
    world.wants(2)
    dead = life.controller
    if when == "after the call":
        world.kill_at_create = True
        await _die_in_a_turn(life)
    else:
        real, world.create = world.create, never  # type: ignore[assignment, method-assign]
        await _die_in_a_turn(life)
        world.create = real  # type: ignore[method-assign]
    world.kill_at_create = False
    assert len(dead.memory.intents) == 1
    life.again()
    await life.turns(3)
    assert len(world.workers) == 2
    assert {n.phase for n in life.memory.nodes.values()} == {Phase.READY}


async def test_killed_after_any_line_of_its_journal_it_comes_to_the_same_cluster(
    tmp_path: Path,
) -> None:
    first = tmp_path / "first"
    first.mkdir()
    world = World()
    life = Life(world, first)
    world.wants(3)
    await life.turns(3)
    journal = (first / "journal.jsonl").read_text().splitlines(keepends=True)
    assert len(journal) > 15
    for cut in range(len(journal)):
        directory = tmp_path / str(cut)
        directory.mkdir()
        torn = journal[cut][: len(journal[cut]) // 2]
        (directory / "journal.jsonl").write_text("".join(journal[:cut]) + torn)
        other = Life(world, directory)
        world.time += 100
        await other.turns(4)
        assert len(world.workers) == 3, f"after {cut} lines"
        await other.controller.close()


async def test_a_journal_with_damage_is_told(life: Life) -> None:
    await life.turns()
    await life.controller.close()
    with (life.directory / JOURNAL).open("a") as file:
        file.write("{torn\n")
    life.again()
    assert life.said("odd")[0].startswith("lines left out as damaged: 1")


async def _die_in_a_turn(life: Life) -> None:
    """A turn whose tasks are dropped, with no chance to write anything down."""
    life.world.time += 1
    await life.controller.turn()
    await asyncio.sleep(0.02)
