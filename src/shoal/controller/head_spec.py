"""The cluster as its head sees it: the same machines, reached by other ways than from a laptop.

On the head there is the cluster's own key and no one else's, the files lie where `up` has put
them, and every other machine is a neighbour.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shoal.spec.cluster_spec import ClusterSpec, ProviderSpec

CLUSTER_KEY = "~/.shoal/cluster_key"


def from_the_head(spec: ClusterSpec) -> ClusterSpec:
    """A spec with which a program on the head reaches and sets up the cluster's machines. Not for
    a cluster on one machine, which looks the same from everywhere."""
    settings = {k: v for k, v in spec.provider.settings.items() if k != "external_head_ip"}
    mounts = {there: str(Path(there).expanduser()) for there in spec.files.mounts}
    return replace(
        spec,
        provider=ProviderSpec(spec.provider.type, settings),
        auth=replace(
            spec.auth,
            ssh_private_key=CLUSTER_KEY,
            ssh_proxy_command=None,
            ssh_proxy_use_node_id=False,
        ),
        files=replace(spec.files, mounts=mounts),
        shoal=replace(spec.shoal, via_head=False),
    )
