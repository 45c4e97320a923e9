"""The agent as a Ray actor: sets up the node's directory, and talks to the controller.

If the controller is gone, the agent and its workers go on. It keeps what it has to report until a
restarted controller takes it. Only if there is no controller any more does it end them.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from shoal.train.job import share_archive
from shoal.train.job.agent import Agent, AgentEvent, ExitEvent
from shoal.train.job.code_archive import changed_files, extract
from shoal.train.job.job_spec import NAMESPACE, JobSpec
from shoal.train.job.worker_env import worker_command, worker_environment
from shoal.train.messages import ControllerMessage

_log = logging.getLogger(__name__)

_BEAT_S = 0.25
_CALL_S = 5.0
# How long workers train on without a controller: it restarts within seconds.
_ORPHANED_S = 300.0


class AgentActor:
    def __init__(self, id: str, node: str, spec_json: str) -> None:
        self._id = id
        self._node = node
        self._spec = JobSpec.from_json(spec_json)
        self._directory = self._spec.node_path(node)
        self._agent: Agent | None = None
        self._ready = asyncio.Event()
        self._cancelled: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._heard = time.monotonic()
        self._controller: Any = None

    async def open(self, code: bytes) -> None:
        """Unpack the code, and begin to send heartbeats."""
        self._tasks.append(asyncio.create_task(self._beat()))
        self._agent = Agent(self._node, self._directory / "logs")
        for name in ("share", "tensorboard"):
            (self._directory / name).mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(extract, code, self._directory / "code")
        await self._agent.open()
        self._tasks.append(asyncio.create_task(self._forward(self._agent)))
        self._ready.set()

    async def shared_files(self) -> bytes:
        """What rank 0 has downloaded for all workers, as a tar file."""
        return await asyncio.to_thread(share_archive.pack, self._directory / "share")

    async def add_shared_files(self, files: bytes) -> None:
        """What the scripts of this node need before they start."""
        await self._ready.wait()
        await asyncio.to_thread(share_archive.extract, files, self._directory / "share")

    async def start_worker(
        self,
        worker: str,
        rank: int,
        replicas: int,
        restarts: int,
        gpus: Sequence[str],
    ) -> None:
        await self._ready.wait()
        if worker in self._cancelled:
            return
        assert self._agent is not None
        env = worker_environment(
            self._spec, os.environ, worker=worker, node=self._node,
            host=ray.util.get_node_ip_address(), socket=self._agent.socket, rank=rank,
            replicas=replicas, restarts=restarts, gpus=gpus,
        )  # fmt: skip
        code = self._directory / "code"
        await self._agent.start_worker(worker, worker_command(self._spec), code, env)

    async def deliver(self, worker: str, message: ControllerMessage) -> None:
        if self._agent is not None:
            self._agent.deliver(worker, message)

    async def kill(self, worker: str) -> None:
        self._cancelled.add(worker)
        if self._agent is not None:
            self._agent.kill(worker)

    async def signal(self, worker: str, number: int) -> None:
        if self._agent is not None:
            self._agent.signal(worker, number)

    async def output_files(self) -> bytes:
        """What the script has saved beside its code, as a zip file."""
        return await asyncio.to_thread(_zipped_changes, self._directory / "code")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._agent is not None:
            await self._agent.close()

    # --- to the controller ---

    async def _beat(self) -> None:
        while True:
            started = time.monotonic()
            answer = await self._call("beat", self._id)
            if answer == "report" and self._ready.is_set():
                assert self._agent is not None
                await self._call("report", self._id, self._node, self._agent.reports())
            elif answer == "leave":
                await self._end("the controller has replaced this agent")
            elif answer is not None:
                self._heard = time.monotonic()
            elif time.monotonic() - self._heard > _ORPHANED_S:
                await self._end("the controller is gone")
            await asyncio.sleep(max(0.0, started + _BEAT_S - time.monotonic()))

    async def _forward(self, agent: Agent) -> None:
        while True:
            batch: list[AgentEvent] = [await agent.events.get()]
            while not agent.events.empty():
                batch.append(agent.events.get_nowait())
            while await self._call("receive", self._id, batch) is None:  # noqa: ASYNC110
                await asyncio.sleep(_BEAT_S)
            for event in batch:
                if isinstance(event, ExitEvent):
                    agent.exit_is_known(event.worker)

    async def _call(self, method: str, *arguments: object) -> Any:
        """The controller's answer, or None if it does not answer now."""
        try:
            if self._controller is None:
                name = self._spec.actor_name
                self._controller = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
            call = getattr(self._controller, method).remote(*arguments)
            return await asyncio.wait_for(asyncio.wrap_future(call.future()), _CALL_S)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            _log.info("the controller does not answer: %s", error)
            self._controller = None
            return None

    async def _end(self, why: str) -> None:
        _log.warning("ending this agent: %s", why)
        if self._agent is not None:
            with contextlib.suppress(Exception):
                await self._agent.close()
        os._exit(0)


def _zipped_changes(code: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in changed_files(code):
            archive.write(path, path.relative_to(code))
    return buffer.getvalue()
