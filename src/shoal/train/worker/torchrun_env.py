"""The environment variables of torchrun, for scripts that make their own process group."""

from __future__ import annotations

import os
import socket

from shoal.train import messages


def free_port(host: str) -> int:
    """A port that a script can listen on, should this worker become rank 0."""
    try:
        with socket.create_server((host, 0)) as server:
            return int(server.getsockname()[1])
    except OSError:
        return 0


def variables(generation: messages.Generation, worker: str) -> dict[str, str]:
    """Empty if the generation may change while the script runs."""
    if generation.master is None:
        return {}
    rank = generation.rank(worker)
    nodes = generation.nodes
    on_node = [r for r, node in enumerate(nodes) if node == nodes[rank]]
    values = {
        "RANK": rank,
        "WORLD_SIZE": len(generation.members),
        "LOCAL_RANK": on_node.index(rank),
        "LOCAL_WORLD_SIZE": len(on_node),
        "GROUP_RANK": list(dict.fromkeys(nodes)).index(nodes[rank]),
        "GROUP_WORLD_SIZE": len(set(nodes)),
        "MASTER_ADDR": generation.master.host,
        "MASTER_PORT": generation.master.port,
        "TORCHELASTIC_RUN_ID": os.environ.get("ADAPTDL_JOB_ID", ""),
        "TORCHELASTIC_RESTART_COUNT": os.environ.get("ADAPTDL_NUM_RESTARTS", "0"),
    }
    return {name: str(value) for name, value in values.items()}
