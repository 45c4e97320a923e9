"""`up` and `down` killed at every AWS call, before and after it takes effect. Then one `down`, on
another laptop without local state, leaves nothing.

An undisturbed first run counts the calls. By default a random sample of kills is tried;
`SHOAL_CRASH_MATRIX=full` tries all of them, and `SHOAL_CRASH_SEED` repeats the sample of a run that
printed this seed. With baked images, the calls that make and delete these are among them.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import AsyncIterator

import pytest

from tests.providers.aws.aws_bed import Bed, cluster_file
from tests.providers.aws.forking_cli import ForkingCli
from tests.simcloud.calls import Call
from tests.simcloud.cloud import SimCloud
from tests.simcloud.faults import Fault, Trouble, When

pytestmark = pytest.mark.simcloud

FULL = os.environ.get("SHOAL_CRASH_MATRIX") == "full"
SEED = int(os.environ.get("SHOAL_CRASH_SEED") or random.randrange(1_000_000))
SAMPLE = 2
# `up` prints this when all of its instances are launched.
LAUNCHED = '"phase": "booting"'


class Crashes:
    """A laptop on which commands are killed, and others run after them."""

    def __init__(self, bed: Bed, cli: ForkingCli) -> None:
        self.bed = bed
        self._cli = cli
        self._laptops = itertools.count(1)

    async def launch(self) -> int:
        """Kill an `up` after it launched its instances; returns its number of calls."""
        return await self._count_calls("up c.yaml --yes --json", until=LAUNCHED)

    async def clean_up(self, after: str, options: str = "") -> int:
        """Check that `down` on another laptop leaves nothing; returns its number of calls."""
        calls = await self._count_calls(f"down c.yaml --yes {options}")
        left = await self.bed.cloud.ec2.leftovers()
        assert not left, f"{after}: {left}"
        return calls

    async def kill_at_call(self, command: str, nth: int, when: When) -> str:
        """Kill a command at its nth call; returns a description of the kill."""
        struck: list[Call] = []

        async def kill(call: Call) -> None:
            struck.append(call)
            await self._cli.kill()

        fault = self.bed.cloud.faults.at_call(nth, kill, when=when)
        arguments = f"{command} c.yaml --yes --json"
        until = LAUNCHED if command == "up" else ""
        code, output = await self._cli.run(arguments, home="/home/me/one", until=until)
        fault.lift()
        if not struck:  # the number of polls varies
            assert code == 0 or (until and until in output), output
            return f"{command} that made fewer than {nth} calls"
        return f"{command} killed {when} call {nth}, {struck[0].action}"

    async def kill_at_action(self, command: str, action: str, when: When) -> str:
        """Kill a command at its first call of this name; returns a description of the kill."""

        async def kill(_: Call) -> None:
            await self._cli.kill()

        fault = self.bed.cloud.faults.add(
            Fault(lambda call, _: call.action == action, Trouble.LOST, when=when, times=1, do=kill)
        )
        await self._cli.run(f"{command} --yes --json", home="/home/me/one")
        fault.lift()
        assert fault.struck, action
        return f"{command} killed {when} {action}"

    async def _count_calls(self, command: str, *, until: str = "") -> int:
        before = len(self.bed.cloud.ledger.entries)
        home = f"/home/me/laptop-{next(self._laptops)}"
        code, output = await self._cli.run(command, home=home, until=until)
        assert until in output if until else code == 0, output
        return len(self.bed.cloud.ledger.entries) - before


@pytest.fixture
async def crashes() -> AsyncIterator[Crashes]:
    async with SimCloud() as cloud:
        bed = Bed(cloud, await cloud.laptop())
        await bed.write()
        # Instances never boot, so that no run gets beyond the calls to AWS.
        cloud.ec2.boot_delay(3600)
        cli = await ForkingCli.start(bed.laptop)
        yield Crashes(bed, cli)
        await cli.close()


def points(count: int) -> list[tuple[int, When]]:
    """The kills to try, of this many calls."""
    whens: tuple[When, ...] = ("before", "after")
    every = list(itertools.product(range(1, count + 1), whens))
    chosen = every if FULL else random.Random(SEED).sample(every, SAMPLE)
    print(f"kills at {len(chosen)} of {len(every)} points: {sorted(chosen)}; seed {SEED}")
    return chosen


async def test_down_on_another_laptop_cleans_up_after_an_up_killed_at_any_call(
    crashes: Crashes,
) -> None:
    count = await crashes.launch()
    await crashes.clean_up("a complete up")
    for nth, when in points(count):
        await crashes.clean_up(await crashes.kill_at_call("up", nth, when))


async def test_down_on_another_laptop_finishes_a_down_killed_at_any_call(crashes: Crashes) -> None:
    await crashes.launch()
    count = await crashes.clean_up("a complete up")
    for nth, when in points(count):
        await crashes.launch()
        await crashes.clean_up(await crashes.kill_at_call("down", nth, when))


async def test_down_with_images_cleans_up_after_baking_or_deletion_was_killed(
    crashes: Crashes,
) -> None:
    bed = crashes.bed
    bed.cloud.ec2.boot_delay(0)
    shoal = {**cluster_file()["shoal"], "bake": True}
    await bed.write(shoal=shoal, setup_commands=["true"])
    up, down = "up c.yaml", "down c.yaml --images"
    kills: list[tuple[str, str, When]] = [
        (up, "CreateImage", "before"),
        (up, "CreateImage", "after"),
        (down, "DeregisterImage", "after"),
        (down, "DeleteSnapshot", "before"),
    ]
    for command, action, when in kills if FULL else random.Random(SEED).sample(kills, SAMPLE):
        if command == down:
            await bed.up()
        after = await crashes.kill_at_action(command, action, when)
        await crashes.clean_up(after, "--images")
