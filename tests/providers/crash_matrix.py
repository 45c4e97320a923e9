"""Commands killed at every call to a cloud, before and after it takes effect. Then one `down`, on
another laptop without local state, leaves nothing.

An undisturbed first run counts the calls. By default a random sample of kills is tried;
`SHOAL_CRASH_MATRIX=full` tries all of them, and `SHOAL_CRASH_SEED` repeats the sample of a run that
printed this seed.
"""

from __future__ import annotations

import itertools
import os
import random
from typing import Protocol

from tests.providers.forking_cli import ForkingCli
from tests.simcloud.calls import Call
from tests.simcloud.cloud import SimCloud
from tests.simcloud.faults import Fault, Trouble, When

FULL = os.environ.get("SHOAL_CRASH_MATRIX") == "full"
SEED = int(os.environ.get("SHOAL_CRASH_SEED") or random.randrange(1_000_000))
SAMPLE = 2
# `up` prints this when all of its instances are launched.
LAUNCHED = '"phase": "booting"'


class Bed(Protocol):
    """A cloud, and a laptop with a cluster file."""

    @property
    def cloud(self) -> SimCloud: ...


class Crashes:
    """A laptop on which commands are killed, and others run after them."""

    def __init__(self, bed: Bed, cli: ForkingCli) -> None:
        self._cloud = bed.cloud
        self._cli = cli
        self._laptops = itertools.count(1)

    async def launch(self) -> int:
        """Kill an `up` after it launched its instances; returns its number of calls."""
        return await self._count_calls("up c.yaml --yes --json", until=LAUNCHED)

    async def bring_up(self) -> int:
        """Run an `up` to its end; returns its number of calls."""
        return await self._count_calls("up c.yaml --yes --json")

    async def clean_up(self, after: str, options: str = "") -> int:
        """Check that `down` on another laptop leaves nothing; returns its number of calls."""
        calls = await self._count_calls(f"down c.yaml --yes {options}")
        left = await self._cloud.leftovers()
        assert not left, f"{after}: {left}"
        return calls

    async def down(self, after: str) -> str:
        """Run `down` on another laptop to its end; returns its output."""
        code, output = await self._cli.run("down c.yaml --yes", home=self._new_home())
        assert code == 0, f"{after}: {output}"
        return output

    async def kill_at_call(
        self, command: str, nth: int, when: When, *, to_the_end: bool = False
    ) -> str:
        """Kill a command at its nth call, `up` at the latest when its instances are launched unless
        `to_the_end`; returns a description of the kill."""
        struck: list[Call] = []

        async def kill(call: Call) -> None:
            struck.append(call)
            await self._cli.kill()

        fault = self._cloud.faults.at_call(nth, kill, when=when)
        arguments = f"{command} c.yaml --yes --json"
        until = LAUNCHED if command == "up" and not to_the_end else ""
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

        fault = self._cloud.faults.add(
            Fault(lambda call, _: call.action == action, Trouble.LOST, when=when, times=1, do=kill)
        )
        await self._cli.run(f"{command} --yes --json", home="/home/me/one")
        fault.lift()
        assert fault.struck, action
        return f"{command} killed {when} {action}"

    async def _count_calls(self, command: str, *, until: str = "") -> int:
        before = len(self._cloud.ledger.entries)
        code, output = await self._cli.run(command, home=self._new_home(), until=until)
        assert until in output if until else code == 0, output
        return len(self._cloud.ledger.entries) - before

    def _new_home(self) -> str:
        return f"/home/me/laptop-{next(self._laptops)}"


def points(count: int, first: int = 1) -> list[tuple[int, When]]:
    """The kills to try, of this many calls or those of them from the `first` on."""
    whens: tuple[When, ...] = ("before", "after")
    every = list(itertools.product(range(first, count + 1), whens))
    chosen = every if FULL else random.Random(SEED).sample(every, SAMPLE)
    print(f"kills at {len(chosen)} of {len(every)} points: {sorted(chosen)}; seed {SEED}")
    return chosen


async def check_killed_up(crashes: Crashes) -> None:
    """Check that `down` cleans up after an `up` that was killed at any call."""
    count = await crashes.launch()
    await crashes.clean_up("a complete up")
    for nth, when in points(count):
        await crashes.clean_up(await crashes.kill_at_call("up", nth, when))


async def check_killed_down(crashes: Crashes) -> None:
    """Check that `down` finishes a `down` that was killed at any call."""
    await crashes.launch()
    count = await crashes.clean_up("a complete up")
    for nth, when in points(count):
        await crashes.launch()
        await crashes.clean_up(await crashes.kill_at_call("down", nth, when))
