"""Ray's own autoscaler as the peer: the same head, the same tasks, its settings as shipped. Its
provider only records launches (`recording_provider`), so that only the decision is timed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.controller_bench.recording_provider import LAUNCH_LOG
from shoal.core.clock import SystemClock
from shoal.providers.embedded import processes

_MARKER = "bench-ray-peer"
_ADDRESS, _PORT = "127.77.99.1", 26379
_HEAD = "bench-head"


@contextlib.contextmanager
def ray_with_autoscaler(directory: Path, types: int) -> Iterator[dict[str, str]]:
    """A head with Ray's autoscaler and this many node types. Yields the environment in which a
    program connects to it."""
    config = directory / "peer.json"
    config.write_text(json.dumps(_config(types)))
    launch_log = directory / "launches"
    launch_log.touch()
    env = {
        **os.environ,
        **processes.process_environment(_MARKER),
        LAUNCH_LOG: str(launch_log),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": _HEAD,
        "RAY_NODE_TYPE_NAME": "head",
        "RAY_AUTH_MODE": "disabled",
    }
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head"),
        *(f"--port={_PORT}", f"--node-ip-address={_ADDRESS}", "--num-cpus=1"),
        *(f"--temp-dir={directory}/r", "--include-dashboard=false", "--disable-usage-stats"),
        *(f"--autoscaling-config={config}", "--ray-client-server-port=26380"),
        "--object-store-memory=100000000",
    ]
    try:
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        yield {**env, "RAY_ADDRESS": f"{_ADDRESS}:{_PORT}"}
    finally:
        asyncio.run(processes.end({_MARKER}, SystemClock()))


def launched_at(directory: Path, node_type: str) -> float:
    """When Ray launched a node of this type."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for line in (directory / "launches").read_text().splitlines():
            name, launched = line.split()
            if name == node_type:
                return float(launched)
        time.sleep(0.05)
    raise SystemExit(f"Ray launched no node of type {node_type}")


def _config(types: int) -> dict[str, object]:
    workers = {
        f"t{n}": {
            "resources": {f"r{n}": 1},
            "node_config": {},
            "min_workers": 0,
            "max_workers": 1,
        }
        for n in range(types)
    }
    head = {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 0}
    empty: list[str] = []
    return {
        "cluster_name": "peer",
        "max_workers": types,
        "upscaling_speed": 1000.0,
        "idle_timeout_minutes": 60.0,
        "provider": {
            "type": "external",
            "module": "benchmarks.controller_bench.recording_provider.RecordingProvider",
            "head": _HEAD,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "auth": {},
        "head_node_type": "head",
        "available_node_types": {"head": head, **workers},
        "file_mounts": {},
        "cluster_synced_files": empty,
        "file_mounts_sync_continuously": False,
        "rsync_exclude": empty,
        "rsync_filter": empty,
        "initialization_commands": empty,
        "setup_commands": empty,
        "head_setup_commands": empty,
        "worker_setup_commands": empty,
        "head_start_ray_commands": empty,
        "worker_start_ray_commands": empty,
    }
