from __future__ import annotations

import os
from pathlib import Path

from shoal.train.job.job_spec import JobSpec
from shoal.train.job.worker_env import worker_command, worker_environment


def environment(spec: JobSpec, **inherited: str) -> dict[str, str]:
    return worker_environment(
        spec, inherited, worker="w2", node="abcdef0123456789", host="10.0.0.2", socket="/tmp/s",
        rank=1, replicas=2, restarts=0, gpus=["3", "4"],
    )  # fmt: skip


def test_a_script_finds_what_adaptdl_promises() -> None:
    spec = JobSpec("job-1", "code.py", directory="/jobs", checkpoint_dir="s3://b/c")
    env = environment(spec)
    assert env["ADAPTDL_JOB_ID"] == "job-1"
    assert env["ADAPTDL_SHARE_PATH"] == "/jobs/job-1/node-abcdef012345/share"
    assert env["ADAPTDL_TENSORBOARD_LOGDIR"].startswith("/jobs/job-1/")
    assert env["ADAPTDL_REPLICA_RANK"] == "1"
    assert env["ADAPTDL_NUM_REPLICAS"] == "2"
    assert env["SHOAL_TRAIN_CHECKPOINT_DIR"] == "s3://b/c"


def test_a_share_of_the_user_is_used_as_it_is() -> None:
    assert environment(JobSpec("j", "c.py", share="/efs"))["ADAPTDL_SHARE_PATH"] == "/efs"


def test_rays_limits_for_its_own_processes_do_not_apply() -> None:
    spec = JobSpec("j", "c.py", cpus=4)
    env = environment(spec, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", RAY_JOB_ID="01")
    assert env["OMP_NUM_THREADS"] == "4"
    assert env["CUDA_VISIBLE_DEVICES"] == "3,4"
    assert "RAY_JOB_ID" not in env


def test_the_environment_of_the_job_wins() -> None:
    spec = JobSpec("j", "c.py", environment={"OMP_NUM_THREADS": "7"})
    assert environment(spec)["OMP_NUM_THREADS"] == "7"


def test_shoals_adaptdl_comes_before_any_other() -> None:
    env = environment(JobSpec("j", "c.py", directory="/jobs"), PYTHONPATH="/other")
    path = env["PYTHONPATH"].split(os.pathsep)
    assert path[0] == "/jobs/j/node-abcdef012345/code/.shoal-lib"
    assert path[-1] == "/other"
    assert (Path(path[1]) / "shoal").is_dir()


def test_the_script_gets_its_arguments_unchanged() -> None:
    command = worker_command(JobSpec("j", "sub/code.py", ("--lr", "0.1", "a b")))
    assert command[1:] == ["-m", "shoal.train.worker", "sub/code.py", "--lr", "0.1", "a b"]
