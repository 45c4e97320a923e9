"""`up` and `down` killed at every single AWS call, before and after it took effect. Then `down`
alone, on another laptop that remembers nothing, leaves nothing.

The calls are counted, not listed: a first run that nobody disturbs tells how many there are.
By default a few kills are tried, others in each run; `SHOAL_CRASH_MATRIX=full` tries them all, and
`SHOAL_CRASH_SEED` those of a run that printed it.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import AsyncIterator

import pytest

from tests.providers.aws.aws_bed import Bed
from tests.providers.aws.forking_cli import Forks
from tests.simcloud.calls import Call
from tests.simcloud.cloud import SimCloud
from tests.simcloud.faults import When

pytestmark = pytest.mark.simcloud

FULL = os.environ.get("SHOAL_CRASH_MATRIX") == "full"
SEED = int(os.environ.get("SHOAL_CRASH_SEED") or random.randrange(1_000_000))
SAMPLE = 2
# What `up` prints when all of its machines are asked for and known.
LAUNCHED = '"phase": "booting"'


class Crashes:
    """A laptop on which programs are killed, and others come after them."""

    def __init__(self, bed: Bed, forks: Forks) -> None:
        self.bed = bed
        self._forks = forks
        self._laptops = itertools.count(1)

    async def launch(self) -> int:
        """An `up` that gets as far as its machines, and is killed then; its number of calls."""
        return await self._counted("up c.yaml --yes --json", until=LAUNCHED)

    async def clean_up(self, after: str) -> int:
        """`down` alone, elsewhere, leaves nothing; its number of calls."""
        made = await self._counted("down c.yaml --yes")
        left = await self.bed.cloud.ec2.leftovers()
        assert not left, f"{after}: {left}"
        return made

    async def killed(self, command: str, nth: int, when: When) -> str:
        """Kill a command at its nth call; what that was, in words."""
        struck: list[Call] = []

        async def kill(call: Call) -> None:
            struck.append(call)
            await self._forks.kill()

        fault = self.bed.cloud.faults.at_call(nth, kill, when=when)
        words = f"{command} c.yaml --yes --json"
        until = LAUNCHED if command == "up" else ""
        code, said = await self._forks.run(words, home="/home/me/one", until=until)
        fault.lift()
        if not struck:  # calls that wait for AWS are not the same number every time
            assert code == 0 or (until and until in said), said
            return f"{command} that got by with fewer than {nth} calls"
        return f"{command} killed {when} call {nth}, {struck[0].action}"

    async def _counted(self, command: str, *, until: str = "") -> int:
        before = len(self.bed.cloud.ledger.entries)
        home = f"/home/me/laptop-{next(self._laptops)}"
        code, said = await self._forks.run(command, home=home, until=until)
        assert until in said if until else code == 0, said
        return len(self.bed.cloud.ledger.entries) - before


@pytest.fixture
async def crashes() -> AsyncIterator[Crashes]:
    async with SimCloud() as cloud:
        bed = Bed(cloud, await cloud.laptop())
        await bed.write()
        # Machines that do not answer, so that no run gets further than AWS.
        cloud.ec2.boot_delay(3600)
        forks = await Forks.start(bed.laptop)
        yield Crashes(bed, forks)
        await forks.close()


def points(count: int) -> list[tuple[int, When]]:
    """Where to kill, of this many calls."""
    whens: tuple[When, ...] = ("before", "after")
    every = list(itertools.product(range(1, count + 1), whens))
    chosen = every if FULL else random.Random(SEED).sample(every, SAMPLE)
    print(f"kills at {len(chosen)} of {len(every)} points: {sorted(chosen)}; seed {SEED}")
    return chosen


async def test_an_up_killed_at_any_call_is_cleaned_up_from_elsewhere(crashes: Crashes) -> None:
    count = await crashes.launch()
    await crashes.clean_up("a whole up")
    for nth, when in points(count):
        await crashes.clean_up(await crashes.killed("up", nth, when))


async def test_a_down_killed_at_any_call_is_finished_from_elsewhere(crashes: Crashes) -> None:
    await crashes.launch()
    count = await crashes.clean_up("a whole up")
    for nth, when in points(count):
        await crashes.launch()
        await crashes.clean_up(await crashes.killed("down", nth, when))
