"""Shoal: runs Ray clusters from the YAML that `ray up` reads.

The public API is `Cluster`, `InteractiveCluster`, `ExecResult`, `CommandFailedError` and
`ShoalError`.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Cluster", "CommandFailedError", "ExecResult", "InteractiveCluster", "ShoalError"]

if TYPE_CHECKING:
    from shoal.api import Cluster, CommandFailedError, ExecResult, InteractiveCluster
    from shoal.core.errors import ShoalError


def __getattr__(name: str) -> Any:
    # Imported on first use: the command line imports this package too, and must start quickly.
    if name in ("Cluster", "CommandFailedError", "ExecResult", "InteractiveCluster"):
        from shoal import api

        return getattr(api, name)
    if name == "ShoalError":
        from shoal.core.errors import ShoalError

        return ShoalError
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")
