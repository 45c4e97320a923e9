"""Shoal: from the YAML that `ray up` reads to a running Ray cluster, and back to nothing."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Cluster", "ExecResult", "InteractiveCluster", "ShoalError"]

if TYPE_CHECKING:
    from shoal.api import Cluster, ExecResult
    from shoal.core.errors import ShoalError
    from shoal.interactive_cluster import InteractiveCluster


def __getattr__(name: str) -> Any:
    # Loaded on first use: the command line imports this package too, and must start quickly.
    if name in ("Cluster", "ExecResult"):
        from shoal import api

        return getattr(api, name)
    if name == "InteractiveCluster":
        from shoal.interactive_cluster import InteractiveCluster

        return InteractiveCluster
    if name == "ShoalError":
        from shoal.core.errors import ShoalError

        return ShoalError
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")
