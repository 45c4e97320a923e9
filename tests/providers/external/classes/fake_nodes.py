"""Ray's fake nodes, which run on the head itself. The class wants a variable in its environment."""

from __future__ import annotations

import os

os.environ["RAY_FAKE_CLUSTER"] = "1"

from ray.autoscaler._private.fake_multi_node.node_provider import (
    FakeMultiNodeProvider,
)

__all__ = ["FakeMultiNodeProvider"]
