"""The environment and command of a worker process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.train.job.code_archive import LIBRARY
from shoal.train.job.job_spec import JobSpec

_PACKAGE_ROOT = Path(__file__).resolve().parents[3]  # what `import shoal` needs on the path
# Ray sets these in its own processes; in a worker they would say something wrong.
_OF_RAY = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_CLIENT_MODE", "PYTHONBREAKPOINT")


def worker_command(spec: JobSpec) -> list[str]:
    return [sys.executable, "-m", "shoal.train.worker", spec.script, *spec.arguments]


def worker_environment(
    spec: JobSpec,
    inherited: Mapping[str, str],
    *,
    worker: str,
    node: str,
    host: str,
    socket: str,
    rank: int,
    replicas: int,
    restarts: int,
    gpus: Sequence[str] = (),
) -> dict[str, str]:
    directory = spec.node_path(node)
    env = {k: v for k, v in inherited.items() if k not in _OF_RAY}
    # Shoal's `adaptdl` comes before any other that is installed on the node.
    paths = [str(directory / "code" / LIBRARY), str(_PACKAGE_ROOT)]
    if already := env.get("PYTHONPATH"):
        paths += [p for p in already.split(os.pathsep) if p and p not in paths]
    env.update(
        PYTHONPATH=os.pathsep.join(paths),
        PYTHONUNBUFFERED="1",
        # Ray has limited its own processes to one thread; the user's may use what was reserved.
        OMP_NUM_THREADS=str(max(1, int(spec.cpus))),
        CUDA_VISIBLE_DEVICES=",".join(gpus),
        SHOAL_TRAIN_SOCKET=socket,
        SHOAL_TRAIN_WORKER=worker,
        SHOAL_TRAIN_HOST=host,
        SHOAL_TRAIN_DIR=str(directory),
        SHOAL_TRAIN_MAX_WORKERS=str(spec.max_workers),
        SHOAL_TRAIN_CHECKPOINT_DIR=spec.checkpoint_dir,
        SHOAL_TRAIN_RESUMES="1" if spec.resumes else "",
        ADAPTDL_JOB_ID=spec.id,
        ADAPTDL_SHARE_PATH=spec.share or str(directory / "share"),
        ADAPTDL_TENSORBOARD_LOGDIR=str(directory / "tensorboard"),
        ADAPTDL_REPLICA_RANK=str(rank),
        ADAPTDL_NUM_REPLICAS=str(replicas),
        ADAPTDL_NUM_NODES=str(replicas),
        ADAPTDL_NUM_RESTARTS=str(restarts),
    )
    env.update(spec.environment)
    return env
