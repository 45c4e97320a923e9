"""Workers that were switched off because nobody needed them, and are taken again before new ones
are asked for: Ray's `cache_stopped_nodes`. Nothing here talks to AWS."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from shoal.providers.aws import tags
from shoal.providers.aws.instances import MARKET, read_instance
from shoal.providers.model import Instance, LaunchRequest, State
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.hashes import launch_hash

_AWAKE = (State.PENDING, State.RUNNING)


def are_kept(spec: ClusterSpec) -> bool:
    """Whether the file wants workers to be kept; as in Ray, it does unless it says otherwise."""
    return bool(spec.provider.settings.get("cache_stopped_nodes", True))


def can_be_kept(instance: Instance) -> bool:
    """Whether AWS lets a machine be switched off: not so one of a one-time spot request."""
    return instance.role == "worker" and instance.tags[MARKET] != "spot"


class Claims:
    """Which machines were taken for which wish. Two wishes may be looked after at once, and a
    listing shows for a while yet as switched off what was just switched on."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def free_for(self, token: str, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those that nobody else has taken."""
        return [r for r in records if self._owners.get(r["InstanceId"], token) == token]

    def take(self, token: str, machines: Sequence[Instance]) -> None:
        self._owners.update({machine.id: token for machine in machines})

    def release(self, machines: Sequence[Instance]) -> None:
        """They may be taken again."""
        for machine in machines:
            self._owners.pop(machine.id, None)


def for_wish(
    spec: ClusterSpec,
    wish: LaunchRequest,
    records: Sequence[dict[str, Any]],
    taken: Collection[str],
) -> list[Instance]:
    """Which machines that are there serve a wish: made as the file says today, and switched off.
    Those that were `taken` for the same wish before it was interrupted come first, awake or not."""
    goal = launch_hash(spec, wish.node_type)
    found = [read_instance(record, spec.auth.ssh_user) for record in records]
    fitting = [
        i
        for i in found
        if i.role == wish.role
        and i.node_type == wish.node_type
        and i.made_from == goal
        and i.tags.get(tags.TOKEN) != wish.token
    ]
    again = [i for i in fitting if i.id in taken and i.state in (*_AWAKE, State.STOPPED)]
    others = [i for i in fitting if i.id not in taken and i.state is State.STOPPED]
    youngest_first = sorted(others, key=lambda i: i.created_at or 0.0, reverse=True)
    return [*again, *youngest_first][: wish.count]
