"""Decides between two `shoal up` of one cluster that launch at the same time."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from shoal.core.errors import TransientError
from shoal.providers.model import Instance, State

_log = logging.getLogger(__name__)


async def abort_if_older_head(
    own: Sequence[Instance],
    listed: Sequence[Instance],
    terminate: Callable[[Sequence[Instance]], Awaitable[None]],
) -> None:
    """Terminate our own instances and raise if another `up` launched its head first. Both commands
    see both heads, so exactly one of them continues."""
    rival = rival_head(own, listed)
    if rival is None:
        return
    _log.warning("another shoal up launched head %s first", rival.id)
    await terminate(own)
    raise TransientError(
        f"another shoal up of cluster {rival.cluster} is running",
        why=f"it launched its head {rival.id} first; the instances of this command were terminated",
        fix="when it is done: shoal up CLUSTER",
    )


def rival_head(own: Sequence[Instance], listed: Sequence[Instance]) -> Instance | None:
    """The head of another launch that is older than the running head among `own`, if any."""
    own_ids = {i.id for i in own}
    heads = [i for i in (*own, *listed) if i.role == "head"]
    running = [i for i in heads if i.state in (State.PENDING, State.RUNNING)]
    if not any(i.id in own_ids for i in running):
        return None
    oldest = min(running, key=lambda i: (i.created_at or 0.0, i.id))
    return None if oldest.id in own_ids else oldest
