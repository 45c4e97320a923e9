"""Training jobs on hosts that are reached over SSH, from the command line."""

from __future__ import annotations

import pytest

from tests.train.job.training_bed import two_hosts

pytest.importorskip("torch", reason="needs torch")
pytestmark = [pytest.mark.simcloud, pytest.mark.ray, pytest.mark.timeout(600)]

# The head's own: when the other host is off, all that is left of the job runs there.
_CHECKPOINTS = ("--checkpoint-dir", "/home/ubuntu/checkpoints")
_BOTH_HOSTS = ("-m", "2", "--objective", "size", *_CHECKPOINTS)


@pytest.mark.long
async def test_a_job_outlives_a_cut_link_and_a_host_that_is_powered_off() -> None:
    async with two_hosts() as (bed, training):
        job = await training.start(*_BOTH_HOSTS, "--", "1000")
        await training.await_workers(job, 2)

        async with bed.workers[0].cut_off():
            await training.await_workers(job, 1, within=20)
        await training.await_workers(job, 2)  # again on that host

        await bed.workers[0].kill()
        await training.await_workers(job, 1, within=20)
        assert training.longest_stall(job) < 20
        await training.stop(job)
        training.assert_each_sample_once(job, lost_workers=2)


@pytest.mark.long
async def test_a_job_on_hosts_is_listed_stopped_and_resumed_and_its_files_come_back() -> None:
    async with two_hosts() as (bed, training):
        job = await training.start(*_BOTH_HOSTS, "--", "1000")
        await training.await_workers(job, 2)
        (listed,) = await training.jobs()
        assert (listed["job"], listed["state"]) == (job, "running")

        await training.stop(job)
        (listed,) = await training.jobs()
        assert (listed["state"], listed["status"]) == ("stopped", 143)
        printed = await bed.shoal(f"train logs {job} -u mine")
        assert printed.stdout.count("the installed adaptdl 0.4.3 is not used") == 1
        reached = printed.stdout.count('{"epoch"')
        epochs = str(reached + 3)
        done = await training.train(
            "--resume", job, *_CHECKPOINTS, "--output", "results", "--", epochs
        )
        assert done.code == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1] == "done"
        assert f'{{"epoch": {reached}, ' in done.stdout
        saved = await bed.laptop.run("test -s results/model.pt")
        saved.require("the model that the script saved")
        training.assert_each_sample_once(job)
