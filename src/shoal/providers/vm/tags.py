"""The keys of tags and labels on what Shoal creates: the ones Ray's tools know, and Shoal's own, by
which it is found."""

from __future__ import annotations

CLUSTER = "shoal-cluster"
TOKEN = "shoal-token"

# Named as in Ray's own `ray.autoscaler.tags`.
RAY_CLUSTER_NAME = "ray-cluster-name"
RAY_NODE_KIND = "ray-node-type"
RAY_USER_NODE_TYPE = "ray-user-node-type"
RAY_NODE_STATUS = "ray-node-status"
RAY_NODE_NAME = "ray-node-name"
RAY_LAUNCH_CONFIG = "ray-launch-config"
