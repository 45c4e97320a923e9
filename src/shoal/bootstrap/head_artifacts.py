"""What workers wait for while they bootstrap in parallel with their head."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Sequence

from shoal.bootstrap import file_sync
from shoal.bootstrap.mount_files import Manifest
from shoal.bootstrap.node_plan import NodePlan
from shoal.bootstrap.ray_restart import RayRestart
from shoal.core.errors import SetupError, ShoalError
from shoal.ray_runtime import cluster_secrets
from shoal.ray_runtime.cluster_secrets import Credentials

_log = logging.getLogger(__name__)

_MAX_PARALLEL_RELAYS = 3


class HeadArtifacts:
    """What workers wait for: futures that the head's pipeline resolves as soon as it can, or
    that are resolved at once if the head runs already.

    `credentials` are the cluster's token and public key. `is_set_up` is resolved after the head's
    setup commands, `ray_runs` when its raylet runs, `is_up` when its start commands have returned
    too. `file_sync_seconds` is how long it took to send the file mounts to the head, None if they
    were not sent. `relay_slots` limits the workers that copy
    files from the head at the same time, because the head's own bootstrap uses that connection too.
    `ray_restart` is when the nodes that run restart.
    """

    def __init__(self, head: NodePlan, plans: Sequence[NodePlan]) -> None:
        loop = asyncio.get_running_loop()
        self.head = head
        self.workers = sum(plan is not head for plan in plans)
        self.credentials: asyncio.Future[Credentials] = loop.create_future()
        self.is_set_up: asyncio.Future[None] = loop.create_future()
        self.ray_runs: asyncio.Future[None] = loop.create_future()
        self.is_up: asyncio.Future[None] = loop.create_future()
        self.file_sync_seconds: asyncio.Future[float | None] = loop.create_future()
        self.relay_slots = asyncio.Semaphore(_MAX_PARALLEL_RELAYS)
        self.ray_restart = RayRestart(
            [plan.instance.name for plan in plans if plan.stops_ray],
            head_restarts=head.stops_ray,
            head_is_gone=head in plans and head.mode != "update" and not head.stops_ray,
        )
        self._credentials_task: asyncio.Task[None] | None = None
        self._may_bake_head = head in plans and head.bake is not None
        if head not in plans:  # it runs already
            self.is_set_up.set_result(None)
            self.set_ray_runs()
            self.is_up.set_result(None)
            self.file_sync_seconds.set_result(None)
            if head.start.shares_credentials:
                self._credentials_task = asyncio.ensure_future(self.create_credentials())

    @functools.cached_property
    def relayable(self) -> Manifest:
        """The file mounts that the head can relay: none if they are in its container, which has no
        key to the workers at that time."""
        return file_sync.relayable(self.head.files) if self.head.container is None else {}

    async def create_credentials(self) -> None:
        head = self.head.instance
        try:
            credentials = await cluster_secrets.create_credentials(
                self.head.runner, head.cluster, head.id, in_memory=self._may_bake_head
            )
        except ShoalError as error:
            if self._credentials_task is None:
                raise
            _log.info("%s: could not create the cluster's credentials: %s", head.name, error)
            self.set_head_failed()
        else:
            self.credentials.set_result(credentials)

    def set_ray_runs(self) -> None:
        if not self.ray_runs.done():
            self.ray_runs.set_result(None)

    def set_head_failed(self) -> None:
        if not self.file_sync_seconds.done():
            self.file_sync_seconds.set_result(None)
        for future in (self.credentials, self.is_set_up, self.ray_runs, self.is_up):
            if not future.done():
                future.set_exception(
                    self.ray_restart.error() or SetupError("the head did not come up")
                )
                future.exception()  # retrieved here, in case no worker is waiting
