"""What a script may ask about the job it runs in."""

from shoal.train.env import (
    adaptdl_sched_version,
    checkpoint_path,
    from_ray,
    job_id,
    master_addr,
    master_port,
    num_nodes,
    num_replicas,
    num_restarts,
    replica_rank,
    share_path,
    supervisor_url,
)

__all__ = [
    "adaptdl_sched_version",
    "checkpoint_path",
    "from_ray",
    "job_id",
    "master_addr",
    "master_port",
    "num_nodes",
    "num_replicas",
    "num_restarts",
    "replica_rank",
    "share_path",
    "supervisor_url",
]
