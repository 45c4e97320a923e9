"""The few functions of Ray that the controller and the agents of a job call, in one process: an
actor is an object, and its calls are tasks of this event loop, begun in order."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from shoal.train.job.fair_share import JobUse


class Ref:
    """The result of a call."""

    def __init__(self) -> None:
        self.result: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def future(self) -> concurrent.futures.Future[Any]:
        return self.result

    def __await__(self) -> Any:
        return asyncio.wrap_future(self.result).__await__()


class ActorHandle:
    def __init__(self, instance: Any, name: str) -> None:
        self.instance = instance
        self.name = name
        self.is_alive = True
        self.loop = asyncio.get_running_loop()
        self.tasks: set[asyncio.Task[None]] = set()

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._call(method, arguments))

    def _call(self, method: str, arguments: Sequence[Any]) -> Ref:
        ref = Ref()
        work = self._perform(ref, method, arguments)
        # A call may come from a thread.
        self.loop.call_soon_threadsafe(lambda: self._keep(self.loop.create_task(work)))
        return ref

    def _keep(self, task: asyncio.Task[None]) -> None:
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _perform(self, ref: Ref, method: str, arguments: Sequence[Any]) -> None:
        try:
            values = [await a if isinstance(a, Ref) else a for a in arguments]
            if not self.is_alive:
                raise RuntimeError(f"{self.name} is dead")
            ref.result.set_result(await getattr(self.instance, method)(*values))
        except Exception as error:
            ref.result.set_exception(error)


class LocalRay:
    """Stands in for the module `ray`. `nodes` maps the free places of each node."""

    def __init__(self) -> None:
        self.actors: dict[str, ActorHandle] = {}
        self.util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

    def remote(self, kind: Callable[..., Any]) -> Any:
        def options(**options: Any) -> Any:
            def create(*arguments: Any) -> ActorHandle:
                handle = ActorHandle(kind(*arguments), options["name"])
                self.actors[handle.name] = handle
                return handle

            return SimpleNamespace(remote=create)

        return SimpleNamespace(options=options)

    def get_actor(self, name: str, namespace: str) -> ActorHandle:
        if name not in self.actors or not self.actors[name].is_alive:
            raise ValueError(f"no actor {name}")
        return self.actors[name]

    def kill(self, handle: ActorHandle) -> None:
        handle.is_alive = False

    @staticmethod
    def put(value: Any) -> Any:
        return value

    @staticmethod
    def wait(refs: Sequence[Ref], num_returns: int, timeout: float) -> None:
        concurrent.futures.wait([ref.future() for ref in refs], timeout)


class LocalPlacements:
    """Grants each request on a node that has a free place."""

    def __init__(self, nodes: dict[str, int]) -> None:
        self.nodes = nodes
        self.draining: dict[str, float] = {}
        self._requests: list[str] = []
        self._near: dict[str, str] = {}
        self._placed: dict[str, str] = {}

    def request(self, worker: str, near: str = "") -> None:
        self._requests.append(worker)
        self._near[worker] = near

    def release(self, worker: str) -> None:
        if worker in self._requests:
            self._requests.remove(worker)
        if worker in self._placed:
            self.nodes[self._placed.pop(worker)] += 1

    def release_all(self) -> None:
        for worker in [*self._requests, *self._placed]:
            self.release(worker)

    def newly_placed(self) -> dict[str, str]:
        placed = {}
        for worker in list(self._requests):
            free = [n for n, count in self.nodes.items() if count and n not in self.draining]
            if free:
                node = self._near[worker] if self._near[worker] in free else free[0]
                self._requests.remove(worker)
                self.nodes[node] -= 1
                placed[worker] = self._placed[worker] = node
        return placed

    def uses_by_job(self) -> dict[str, JobUse]:
        return {}

    def restore(self, workers: set[str]) -> None:
        for worker in [*self._requests, *self._placed]:
            if worker not in workers:
                self.release(worker)

    def gpu_ids(self, worker: str) -> list[str]:
        return []
