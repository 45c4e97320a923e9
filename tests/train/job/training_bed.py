"""Training jobs on simulated hosts, started from a laptop with `shoal train`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shlex
import sysconfig
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shoal.train.job.journal import read_journal
from tests.polling import until
from tests.providers.local.ssh_bed import Bed
from tests.simcloud.cloud import SimCloud
from tests.simcloud.console import Result
from tests.simcloud.hosts import Host

SAMPLES = 96
# Counts how often each sample is used in each epoch. Rank 0 prints a JSON line per epoch.
CODE = f"""
import json, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
import adaptdl.torch as adl
from adaptdl import env
from settings import BATCH  # a module beside the script

adl.init_process_group("gloo")
shared = Path(env.share_path()) / "data.txt"
if env.replica_rank() == 0:
    shared.write_text("downloaded")
dist.barrier()
assert shared.read_text() == "downloaded"
x = torch.linspace(0, 1, {SAMPLES}).reshape(-1, 1)
data = torch.utils.data.TensorDataset(torch.arange({SAMPLES}), x, 3 * x + 4)
loader = adl.AdaptiveDataLoader(data, batch_size=BATCH, shuffle=True)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = adl.AdaptiveDataParallel(model, optimizer)
for epoch in adl.remaining_epochs_until(int(sys.argv[1])):
    counts = adl.Accumulator()
    for index, x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        counts.update({{int(i): 1 for i in index}})
        time.sleep(0.05)
    with counts.synchronized():
        used = [counts.get(i, 0) for i in range({SAMPLES})]
    if env.replica_rank() == 0:
        print(json.dumps({{"epoch": epoch, "workers": env.num_replicas(), "used": used}}))
if env.replica_rank() == 0:
    torch.save(model.module.state_dict(), "model.pt")
print("done")
"""
BATCH = 8
_RAY = "--disable-usage-stats --num-cpus=1 --object-store-memory=100000000"
# Petuum's adaptdl on a host, of which only the name and the version matter: it must not be used.
_INSTALL_ADAPTDL = f"""
cd {sysconfig.get_path("purelib")} && mkdir -p adaptdl adaptdl-0.4.3.dist-info
echo "raise SystemExit('the wrong adaptdl')" > adaptdl/__init__.py
cat > adaptdl-0.4.3.dist-info/METADATA << END
Metadata-Version: 2.1
Name: adaptdl
Version: 0.4.3
END
"""


class _Bed(Protocol):
    """What the beds of all providers have."""

    laptop: Host

    async def shoal(self, command: str, *, timeout: float = 300) -> Result: ...


@dataclass
class TrainingBed:
    """The jobs of one cluster, whose files are on its head."""

    bed: _Bed
    head: Host
    cluster: str = "mine"

    async def write_code(self) -> None:
        """A script that has the name of a module that Ray's own programs import."""
        command = "mkdir -p work && cat > work/code.py"
        (await self.bed.laptop.run(command, stdin=CODE)).require("writing the script")
        settings = f"echo BATCH = {BATCH} > work/settings.py"
        (await self.bed.laptop.run(settings)).require("writing its module")

    async def train(self, *arguments: str, timeout: float = 300) -> Result:
        options = f"-u {self.cluster} --working-dir work -f code.py"
        return await self.bed.shoal(f"train {options} {shlex.join(arguments)}", timeout=timeout)

    async def start(self, *arguments: str) -> str:
        """Start a job and return its id."""
        done = await self.train("--detach", "--json", *arguments)
        assert done.code == 0, done.stdout + done.stderr
        events = [json.loads(line) for line in done.stdout.splitlines()]
        (job,) = [event["job"] for event in events if event["event"] == "train_started"]
        return str(job)

    async def jobs(self) -> list[dict[str, Any]]:
        done = await self.bed.shoal(f"train list -u {self.cluster} --json")
        assert done.code == 0, done.stdout + done.stderr
        return list(json.loads(done.stdout))

    async def stop(self, job: str) -> None:
        done = await self.bed.shoal(f"train stop {job} -u {self.cluster}", timeout=200)
        assert done.code == 0, done.stdout + done.stderr

    def files(self, job: str) -> Path:
        return self.head.root() / "home/ubuntu/.shoal/train" / job

    def entries(self, job: str, kind: str) -> list[dict[str, Any]]:
        return [e for e in read_journal(self.files(job) / "journal.jsonl") if e["kind"] == kind]

    def steps(self, job: str) -> list[tuple[float, int]]:
        """When the job had made how many steps."""
        return [(e["time"], e["step"]) for e in self.entries(job, "progress")]

    def members(self, job: str) -> list[str]:
        generations = self.entries(job, "generation")
        return list(generations[-1]["members"]) if generations else []

    async def await_workers(
        self, job: str, count: int, *, without: str = "", within: float = 300
    ) -> None:
        """Until that many train, none of them `without`, and a step more is made."""

        def trains() -> bool:
            members = self.members(job)
            return len(members) == count and without not in members

        try:
            await until(trains, f"{count} workers of {job}", timeout=within, every=0.2)
            await self.await_steps(job)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.describe(job)}") from None

    def describe(self, job: str) -> str:
        entries = read_journal(self.files(job) / "journal.jsonl")
        changes = "\n".join(json.dumps(e) for e in entries if e["kind"] != "progress")
        output = self.files(job) / "output.log"
        return f"{changes[-4000:]}\n{output.read_text()[-3000:] if output.exists() else ''}"

    async def await_steps(self, job: str) -> None:
        before = len(self.steps(job))
        await until(lambda: len(self.steps(job)) > before + 1, "more steps", timeout=90, every=0.2)

    def longest_stall(self, job: str) -> float:
        """Between two reports of progress, which come every second."""
        times = [time for time, _ in self.steps(job)]
        return max(b - a for a, b in itertools.pairwise(times))

    def assert_each_sample_once(self, job: str, *, lost_workers: int = 0) -> None:
        """A worker that is lost takes along what it has counted in its last step, but no sample of
        the training."""
        logs = sorted(self.files(job).glob("output*.log"))
        lines = [line for log in logs for line in log.read_text().splitlines()]
        epochs = [json.loads(line) for line in lines if line.startswith("{")]
        assert sorted(e["epoch"] for e in epochs) == list(range(len(epochs)))
        assert max(max(e["used"]) for e in epochs) == 1
        assert sum(e["used"].count(0) for e in epochs) <= lost_workers * BATCH


@contextlib.asynccontextmanager
async def two_hosts() -> AsyncIterator[tuple[Bed, TrainingBed]]:
    """A head and a worker host, each with room for one worker of a job."""
    async with SimCloud() as cloud:
        laptop = await cloud.laptop()
        hosts = await asyncio.gather(cloud.boot(), cloud.boot())
        for host in hosts:
            (await host.run(_INSTALL_ADAPTDL, user="root")).require("installing another adaptdl")
        bed = Bed(cloud, laptop, list(hosts))
        await bed.write(
            head_start_ray_commands=["ray stop", f"ray start --head --port=6379 {_RAY}"],
            worker_start_ray_commands=["ray stop", f"ray start --address=$RAY_HEAD_IP:6379 {_RAY}"],
        )
        await bed.up()
        training = TrainingBed(bed, bed.head)
        await training.write_code()
        yield bed, training
