"""Reuse of stopped workers, Ray's `cache_stopped_nodes`: workers that scale-down has stopped are
started again before new ones are launched. Makes no calls to a cloud itself."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace

from shoal.core.errors import CapacityError, QuotaError, ShoalError
from shoal.providers.model import Instance, LaunchRequest, State
from shoal.providers.vm import tags
from shoal.providers.vm.launch_records import LaunchRecords
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.hashes import launch_hash

_log = logging.getLogger(__name__)

_RUNNING_STATES = (State.PENDING, State.RUNNING)


class Assignments:
    """Which stopped instances are assigned to which launch, by token. Launches run concurrently,
    and for a while a listing still shows a started instance as stopped."""

    def __init__(self) -> None:
        self._tokens: dict[str, str] = {}

    def available_to(self, token: str, instances: Sequence[Instance]) -> list[Instance]:
        """The instances that are not assigned to another launch."""
        return [i for i in instances if self._tokens.get(i.id, token) == token]

    def assign(self, token: str, instances: Sequence[Instance]) -> None:
        self._tokens.update({instance.id: token for instance in instances})

    def release(self, instances: Sequence[Instance]) -> None:
        """Make instances available to other launches again."""
        for instance in instances:
            self._tokens.pop(instance.id, None)


def select_stopped(
    spec: ClusterSpec,
    launch: LaunchRequest,
    instances: Sequence[Instance],
    assigned: Collection[str],
) -> list[Instance]:
    """The ones of these instances to use for a launch: launched from the current configuration, and
    stopped. Those `assigned` to it before an interruption come first, stopped or not."""
    current_hash = launch_hash(spec, launch.node_type)
    matching = [
        i
        for i in instances
        if i.role == launch.role
        and i.node_type == launch.node_type
        and i.launch_hash == current_hash
        and i.tags.get(tags.TOKEN) != launch.token
    ]
    usable = (*_RUNNING_STATES, State.STOPPED)
    resumed = [i for i in matching if i.id in assigned and i.state in usable]
    stopped = [i for i in matching if i.id not in assigned and i.state is State.STOPPED]
    newest_first = sorted(stopped, key=lambda i: i.created_at or 0.0, reverse=True)
    return [*resumed, *newest_first][: launch.count]


async def start_stopped(
    spec: ClusterSpec,
    requests: Sequence[LaunchRequest],
    instances: Sequence[Instance],
    assignments: Assignments,
    launch_records: LaunchRecords,
    start: Callable[[Sequence[Instance]], Awaitable[list[Instance]]],
) -> tuple[list[Instance], list[LaunchRequest]]:
    """Start stopped workers, of these instances, with `start`, which returns those that run.
    Returns them, and the requests for the instances still missing."""
    started: list[Instance] = []
    remaining: list[LaunchRequest] = []
    for request in requests:
        record = launch_records.read(request.token)
        selected = select_stopped(
            spec,
            request,
            assignments.available_to(request.token, instances),
            record.instances if record else (),
        )
        # Recorded before the call, so that a repeated request gets the same instances, and no
        # other request does.
        assignments.assign(request.token, selected)
        if selected:
            launch_records.record_instances(request.token, [i.id for i in selected])
        running: list[Instance] = []
        try:
            running = await start(selected)
        except (CapacityError, QuotaError) as error:
            # Another zone may have capacity for a new instance.
            _log.info("could not start %d stopped workers: %s", len(selected), error.why)
            assignments.release(selected)
        except ShoalError:
            assignments.release(selected)
            raise
        if running:
            _log.info("started %d stopped %s workers", len(running), request.node_type)
        started += running
        remaining.append(replace(request, count=request.count - len(running)))
    return started, [request for request in remaining if request.count > 0]
