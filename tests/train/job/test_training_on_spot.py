"""Training on spot instances that the provider takes away."""

from __future__ import annotations

import pytest

from tests.polling import until
from tests.providers.aws.aws_bed import Bed
from tests.providers.aws.spot_bed import head_of, ready_workers, spot_cluster
from tests.train.job.training_bed import TrainingBed

pytest.importorskip("torch", reason="needs torch")
pytestmark = [
    pytest.mark.simcloud,
    pytest.mark.ray,
    pytest.mark.long,
    pytest.mark.timeout(1500),
]

_WORKERS = 2
_ALL_WORKERS = ("-m", str(_WORKERS), "--objective", "size")
_CHECKPOINTS = ("--checkpoint-dir", "/home/ubuntu/checkpoints")


async def _start(training: TrainingBed) -> str:
    await training.write_code()
    job = await training.start(*_ALL_WORKERS, *_CHECKPOINTS, "--", "100000")
    await training.await_workers(job, _WORKERS)
    return job


async def _replaced(bed: Bed, gone: str) -> None:
    await until(
        lambda: len(ready_workers(bed) - {gone}) == _WORKERS, "a replacement", timeout=240, every=1
    )
    await until(lambda: gone not in bed.running(), "the instance is terminated", timeout=120)


def _first_after(training: TrainingBed, job: str, kind: str, time: float) -> float:
    return next(e["time"] for e in training.entries(job, kind) if e["time"] >= time)


async def test_training_outlives_two_interruptions_in_a_row() -> None:
    async with spot_cluster(_WORKERS) as bed:
        training = TrainingBed(bed, head_of(bed))
        job = await _start(training)
        for round in (1, 2):
            interrupted = sorted(ready_workers(bed))[0]
            await bed.cloud.ec2.spot_notice(interrupted, 90)
            await until(
                lambda round=round: len(training.entries(job, "notice")) >= round,  # type: ignore[misc]
                "the notice reaches the job",
                timeout=30,
            )
            await _replaced(bed, interrupted)
            await training.await_workers(job, _WORKERS)
            notice = training.entries(job, "notice")[-1]["time"]
            assert _first_after(training, job, "request", notice) < notice + 2
            assert _first_after(training, job, "checkpoint", notice) < notice + 20
        assert not training.entries(job, "all_lost")
        assert not training.entries(job, "node_lost")
        assert training.longest_stall(job) < 30
        await training.stop(job)
        training.assert_each_sample_once(job)
        await bed.down()


async def test_training_outlives_instances_that_fail_without_a_notice() -> None:
    async with spot_cluster(_WORKERS) as bed:
        training = TrainingBed(bed, head_of(bed))
        job = await _start(training)
        for fault in ("power", "link"):
            host = bed.cloud.ec2.host(sorted(ready_workers(bed))[0])
            await (host.kill() if fault == "power" else host.cut())
            await training.await_workers(job, 1, within=60)
            await training.await_workers(job, _WORKERS)
        assert training.longest_stall(job) < 30
        await training.stop(job)
        training.assert_each_sample_once(job, lost_workers=2)
        await bed.down()
