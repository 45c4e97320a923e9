"""A cluster under random faults: every task finishes, nothing is left over, and the journal agrees
with the published status.

Real Ray on simulated machines. Faults are injected for SHOAL_SOAK_SECONDS, chosen with the seed
SHOAL_SOAK_SEED; each kind is injected once before any is repeated.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.controller import status_file
from shoal.controller.journal import replay
from tests.polling import until
from tests.providers.local.ssh_bed import USE_OUR_RAY, Bed
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host

pytestmark = [pytest.mark.simcloud, pytest.mark.ray]
SECONDS = float(os.environ.get("SHOAL_SOAK_SECONDS", "30"))
SEED = int(os.environ.get("SHOAL_SOAK_SEED", "7"))

# Runs waves of tasks until the file `enough` exists. A wave counts only when all of it is done, and
# after the death of the head the next program repeats it.
WAVES = """
import pathlib, ray, time
done = pathlib.Path("waves-done")
ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=1, max_retries=-1)
def work(n):
    time.sleep(0.5)
    return n

while not pathlib.Path("enough").exists():
    number = int(done.read_text()) if done.exists() else 0
    assert ray.get([work.remote(n) for n in range(10)], timeout=120) == list(range(10))
    done.write_text(str(number + 1))
pathlib.Path("all-done").touch()
"""
# A driver that has lost its GCS would wait for a minute before it exits.
LOOP = (
    "export RAY_gcs_rpc_server_reconnect_timeout_s=5; "
    "(until python code/waves.py; do sleep 1; done) > waves.log 2>&1 < /dev/null &"
)


class Soak:
    """The cluster, and the faults to inject."""

    def __init__(self, bed: Bed, rng: random.Random) -> None:
        self.bed = bed
        self.rng = rng
        self.home = bed.head.root() / "home/ubuntu"
        self.control = self.home / ".shoal/controller"
        self.injected: list[str] = []

    @property
    def faults(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            self.kill_controller,
            self.kill_supervisor,
            self.kill_a_workers_ray,
            self.kill_the_heads_ray,
            self.cut_a_link,
            self.power_cycle_a_worker,
        ]

    async def kill_controller_and_supervisor(self) -> None:
        """Kill both, and run what cron would run within a minute."""
        await self._kill_holders("controller", "supervisor")
        line = "crontab -l | sed -n 's/^[*] [*] [*] [*] [*] //p'"
        command = await self.bed.read(self.bed.head, line)
        assert "shoal" in command, command
        argv = ["env", "-i", "HOME=/home/ubuntu", "PATH=/usr/bin:/bin", "sh", "-c", command]
        (await self.bed.head.run(argv, user="ubuntu")).require("what cron does")

    async def kill_controller(self) -> None:
        await self._kill_holders("controller")

    async def kill_supervisor(self) -> None:
        await self._kill_holders("supervisor")

    async def kill_a_workers_ray(self) -> None:
        await self.some_worker().run("pkill -9 -x raylet; true")

    async def kill_the_heads_ray(self) -> None:
        await self.bed.head.run("pkill -9 -x gcs_server; true")

    async def cut_a_link(self) -> None:
        worker = self.some_worker()
        await worker.cut()
        await asyncio.sleep(self.rng.uniform(2, 8))
        await worker.heal()

    async def power_cycle_a_worker(self) -> None:
        worker = self.some_worker()
        await worker.kill()
        await asyncio.sleep(self.rng.uniform(0, 3))
        await worker.boot()

    async def inject(self, fault: Callable[[], Awaitable[None]]) -> None:
        """Inject a fault, and record it."""
        self.injected.append(f"{time.time():.1f} {fault.__name__}")
        await fault()

    def some_worker(self) -> Host:
        return self.rng.choice(self.bed.workers)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.control / "state.json").read_text())
        return state

    def has_scaled_down(self) -> bool:
        claims = [w for w in self.bed.workers if (w.root() / "var/tmp/shoal-owner").exists()]
        return not claims and len(self.state()["nodes"]) == 1

    def journal_agrees(self) -> bool:
        replayed, unreadable = replay(self.control / "journal.jsonl")
        expected = json.loads(json.dumps(status_file.journaled(replayed), default=vars))
        status = self.state()
        return unreadable == 0 and all(expected[key] == status[key] for key in ("nodes", "gone"))

    async def _kill_holders(self, *names: str) -> None:
        # Each restarts the other: killing one while the other is down kills both, and cron restarts
        # them only every minute.
        await until(self._both_run, "supervisor and controller run", timeout=120, every=0.5)
        pids = " ".join(f"$(cat {self._lock_path(name)})" for name in names)
        await self.bed.head.run(f"kill -9 {pids}; true")

    async def _both_run(self) -> bool:
        # A killed process that the other has not reaped yet does not run.
        files = " ".join(
            f"/proc/$(cat {self._lock_path(process)})/status"
            for process in ("supervisor", "controller")
        )
        done = await self.bed.head.run(f"grep -hc '^State:.[RSD]' {files}")
        return done.stdout.split() == ["1", "1"]

    def _lock_path(self, process: str) -> str:
        return f"/home/ubuntu/.shoal/controller/{process}.lock"


@pytest.mark.long
async def test_random_faults_lose_no_work_and_leave_nothing_behind() -> None:
    rng = random.Random(SEED)
    async with SimCloud() as cloud:
        laptop, *hosts = await asyncio.gather(cloud.laptop(), *(cloud.boot() for _ in range(3)))
        soak = Soak(await _cluster(Bed(cloud, laptop, hosts)), rng)
        (await soak.bed.shoal(f"exec c.yaml '{LOOP}'")).require("starting the program")
        await until(lambda: _waves(soak.home) > 0, "the first wave is done", timeout=120)
        try:
            await _inject_faults(soak)
            before = _waves(soak.home)
            (soak.home / "enough").touch()
            await until((soak.home / "all-done").exists, "all waves are done", timeout=300)
            assert _waves(soak.home) >= before
            await until(soak.has_scaled_down, "all hosts are released", timeout=240)
            await until(soak.journal_agrees, "the journal replays to the controller's state")
        except TimeoutError as error:
            pytest.fail(f"{error}\n{_diagnostics(soak)}")
        done = await soak.bed.shoal("down c.yaml --yes")
        assert done.code == 0, done.stderr


async def _inject_faults(soak: Soak) -> None:
    """Inject faults for SECONDS, and at last the one that takes longest to repair."""
    loop = asyncio.get_running_loop()
    end = loop.time() + SECONDS
    remaining: list[Any] = []
    while loop.time() < end:
        remaining = remaining or soak.rng.sample(soak.faults, len(soak.faults))
        await soak.inject(remaining.pop())
        await asyncio.sleep(soak.rng.uniform(0.5, 5))  # at an arbitrary moment
    await soak.inject(soak.kill_controller_and_supervisor)


async def _cluster(bed: Bed) -> Bed:
    await bed.laptop.run("mkdir code; cat > code/waves.py", stdin=WAVES)
    await bed.write(
        file_mounts={"~/code": "code"},
        setup_commands=[USE_OUR_RAY],
        min_workers=0,
        max_workers=2,
        idle_timeout_minutes=0.1,
        available_node_types={"local.cluster.node": {"resources": {"CPU": 1}}},
        shoal={"hosts": {bed.head.address: {"resources": {"CPU": 0}}}},
    )
    await bed.up()
    return bed


def _waves(home: Path) -> int:
    done = home / "waves-done"
    return int(done.read_text() or 0) if done.exists() else 0


def _diagnostics(soak: Soak) -> str:
    log = (soak.home / "waves.log").read_text()[-2000:]
    printed = (soak.control / "controller.log").read_text()[-2000:]
    return "\n".join([*soak.injected, json.dumps(soak.state(), indent=1), log, printed])
