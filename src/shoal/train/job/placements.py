"""The resources of a job's workers: one placement group with one bundle for each, so that Ray's
autoscaler sees what is still missing. Every method blocks: call it in a thread."""

from __future__ import annotations

import logging
from typing import Any

import ray
from ray.util.placement_group import (
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from shoal.core.logs import suppress_and_log
from shoal.train.job.fair_share import JobUse
from shoal.train.job.job_spec import JobSpec

_log = logging.getLogger(__name__)

_GPU_SECONDS = 60
_PREFIX = "shoal-train/"


class Placements:
    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._prefix = f"{_PREFIX}{spec.id}/"
        self._groups: dict[str, Any] = {}
        self._waiting: set[str] = set()
        self._gpu_holders: dict[str, Any] = {}

    def request(self, worker: str, near: str = "") -> None:
        """Request the resources of a worker, on the machine `near` if it is alive and has them."""
        nodes = ray.nodes() if near else []
        alive = [n["NodeID"] for n in nodes if n["Alive"] and n["NodeManagerAddress"] == near]
        self._groups[worker] = placement_group(
            [self._spec.resources()],
            name=f"{self._prefix}{worker}",
            # The controller may be restarted; the groups end with the job.
            lifetime="detached",
            **({"strategy": "STRICT_PACK", "_soft_target_node_id": alive[0]} if alive else {}),
        )
        self._waiting.add(worker)

    def release(self, worker: str) -> None:
        self._waiting.discard(worker)
        holder = self._gpu_holders.pop(worker, None)
        group = self._groups.pop(worker, None)
        with suppress_and_log(_log, f"release the resources of {worker}", Exception):
            if holder is not None:
                ray.kill(holder)
            if group is not None:
                remove_placement_group(group)

    def release_all(self) -> None:
        for worker in list(self._groups):
            self.release(worker)

    def newly_placed(self) -> dict[str, str]:
        """The workers whose resources have become available, and the node of each."""
        if not self._waiting:
            return {}
        placed = {}
        for row in placement_group_table().values():
            worker = row["name"].removeprefix(self._prefix)
            if worker in self._waiting and row["name"] != worker and row["state"] == "CREATED":
                placed[worker] = next(iter(row["bundles_to_node_id"].values()))
                self._waiting.discard(worker)
        return placed

    def uses_by_job(self) -> dict[str, JobUse]:
        """What the training jobs on this cluster have, and what they wait for."""
        uses: dict[str, JobUse] = {}
        for row in placement_group_table().values():
            if not row["name"].startswith(_PREFIX) or row["state"] == "REMOVED":
                continue
            job = row["name"].removeprefix(_PREFIX).split("/")[0]
            use = uses.get(job, JobUse(0, 0))
            placed = row["state"] == "CREATED"
            uses[job] = JobUse(use.placed + placed, use.waiting + (not placed))
        return uses

    def restore(self, workers: set[str]) -> None:
        """After a restart: keep the groups of these workers and remove all others of the job."""
        for row in placement_group_table().values():
            if row["name"].startswith(self._prefix) and row["state"] != "REMOVED":
                worker = row["name"].removeprefix(self._prefix)
                self._groups[worker] = get_placement_group(row["name"])
                if worker not in workers:
                    self.release(worker)

    def gpu_ids(self, worker: str) -> list[str]:
        """The GPUs of a placed worker. Ray assigns them to a process that runs in the bundle."""
        if not self._spec.gpus:
            return []
        holder = (
            ray.remote(_GpuHolder)
            .options(
                num_cpus=0,
                num_gpus=self._spec.gpus,
                lifetime="detached",
                name=f"gpu-{self._spec.id}-{worker}",
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._groups[worker], 0),
            )
            .remote()
        )
        self._gpu_holders[worker] = holder
        ids: list[str] = ray.get(holder.ids.remote(), timeout=_GPU_SECONDS)
        return ids


def draining_nodes() -> dict[str, float]:
    """The nodes that are going away, and when, in seconds since the epoch; 0 if that is not known.
    Shoal's node agents, and others, turn interruption notices into this state."""
    from ray._private.state import state

    deadlines: dict[str, int] = state.get_draining_nodes()
    return {node: deadline / 1000 for node, deadline in deadlines.items()}


class _GpuHolder:
    def ids(self) -> list[str]:
        return [str(id) for id in ray.get_gpu_ids()]
