"""What the suite cannot do through a provider's verbs: make a cloud refuse, lag or run out of
capacity, and make hosts that exist already members of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from shoal.providers.model import Instance
from shoal.providers.protocol import Provider
from shoal.spec.cluster_spec import ClusterSpec

Refusal = Literal["capacity", "quota", "auth", "config", "transient"]


class Environment:
    """The base of environments: it can do nothing, and the checks that need more are skipped.
    A method that returns False cannot arrange what it is about."""

    async def refuse_launches(self, kind: Refusal) -> bool:
        """Have the cloud refuse every launch for this reason."""
        return False

    async def limit_capacity(self, count: int) -> bool:
        """Have the cloud launch at most `count` more workers."""
        return False

    async def delay_listings(self, seconds: float) -> bool:
        """Have the cloud list new instances only after so many seconds."""
        return False

    async def reset(self) -> None:
        """End all of these faults."""

    async def join(
        self, provider: Provider, spec: ClusterSpec, instances: Sequence[Instance]
    ) -> None:
        """Do what bootstrap does to make hosts that exist already members of the cluster."""

    async def leave(
        self, provider: Provider, spec: ClusterSpec, instances: Sequence[Instance]
    ) -> None:
        """Undo it, before the hosts are terminated."""
