"""A large cluster in which nothing happens, to measure what the loop costs. Ray's reply is a real
protobuf message, parsed at every reading. Half of the nodes are busy, the others idle."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from shoal import spec
from shoal.controller.controller_config import ControllerConfig
from shoal.controller.loop import Controller, Dependencies
from shoal.controller.paths import CONFIG
from shoal.core.clock import SystemClock
from shoal.providers.model import Instance, State
from shoal.ray_runtime import gcs_client
from shoal.ray_runtime.gcs_client import FailedLaunch, GcsReading, PendingInstance
from shoal.scaling.inputs import Offering
from shoal.spec.cluster_spec import ClusterSpec


class IdleCluster:
    """The GCS client and the node manager of such a cluster, with only what an idle loop calls."""

    def __init__(self, nodes: int) -> None:
        from ray.core.generated import autoscaler_pb2

        self._messages = autoscaler_pb2
        self._known = gcs_client.NodeCache()
        self._started = time.monotonic()
        ids = ["head", *(f"i-{n}" for n in range(nodes))]
        self._instances = [
            Instance(
                id=id,
                cluster="idle",
                name=id,
                node_type="head" if id == "head" else "worker",
                role="head" if id == "head" else "worker",
                state=State.RUNNING,
                address="10.0.0.1",
                created_at=0.0,
            )
            for id in ids
        ]
        state = autoscaler_pb2.ClusterResourceState(cluster_resource_state_version=1)
        for id in ids:
            node = state.node_states.add(
                node_id=id.encode(),
                instance_id=id,
                ray_node_type_name="worker",
                status=autoscaler_pb2.RUNNING,
            )
            node.total_resources.update({"CPU": 16.0, "memory": 64e9, f"node:{id}": 1.0})
            node.available_resources.update({"CPU": 2.0, "memory": 8e9, f"node:{id}": 1.0})
        self._state = state.SerializeToString()
        self._spec = self._file(nodes)

    def controller(self, directory: Path) -> Controller:
        config = ControllerConfig(self._spec, "", "", "")
        (directory / CONFIG).write_text(json.dumps(config.to_json()))
        dependencies = Dependencies(self, lambda _: self, SystemClock())  # type: ignore[arg-type,return-value]
        return Controller(directory, config, dependencies)

    def read(self) -> GcsReading:
        state = self._messages.ClusterResourceState()
        state.ParseFromString(self._state)
        idle_ms = int(1000 * (time.monotonic() - self._started))
        for node in state.node_states[::2]:
            node.idle_duration_ms = idle_ms
        return gcs_client.parse(state, self._known)

    def report(
        self, version: int, pending: Sequence[PendingInstance], failed: Sequence[FailedLaunch] = ()
    ) -> None:
        pass

    async def offerings(self) -> Sequence[Offering]:
        return []

    list_interval_s = 20.0
    worker_hosts = None

    async def list_instances(self) -> Sequence[Instance]:
        return self._instances

    @staticmethod
    def _file(nodes: int) -> ClusterSpec:
        settings = spec.Overrides(cluster_name="idle", min_workers=nodes, max_workers=nodes)
        return spec.default_embedded(settings).spec
