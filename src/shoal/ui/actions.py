"""Runs the operations behind the page's buttons: the same functions as the commands, with their
events, and with their questions answered in the page.

Each runs in a thread with an event loop of its own, because an operation waits for the answer to
its question. An operation whose page has gone gets "no".
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import secrets
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from shoal import spec as specs
from shoal.core.errors import ConfigError, NotFoundError, as_shoal_error, fix_for_cluster
from shoal.core.events import DashboardOpened, Event, Output, to_json
from shoal.ops import cluster_lookup, stop_start
from shoal.ops.cluster_lookup import ClusterRef
from shoal.ops.context import Context, Severity
from shoal.ops.down import down
from shoal.ops.drain import drain
from shoal.ops.node_logs import with_log_files
from shoal.ops.up import UpOptions, up
from shoal.ui.access import error_json

_log = logging.getLogger(__name__)

# How long a question waits for its answer.
_ANSWER_SECONDS = 600.0
_KEPT = 20

Operation = Callable[[Context], Awaitable[bool]]


async def _up(ctx: Context, cluster: str, arguments: Mapping[str, Any]) -> bool:
    """As `shoal up NAME --max-workers N` does."""
    overrides = specs.Overrides(
        min_workers=_count(arguments, "min_workers"),
        max_workers=_count(arguments, "max_workers"),
        autostop=_seconds(arguments, "autostop"),
    )
    located = await cluster_lookup.locate(ctx, ClusterRef(cluster, overrides))
    options = UpOptions(source_of=located.source_of, flags=located.flags)
    ctx = with_log_files(ctx, cluster)
    return (await up(ctx, located.spec, options)).plan is not None


async def _drain(ctx: Context, cluster: str, arguments: Mapping[str, Any]) -> bool:
    spec = await cluster_lookup.resolve(ctx, ClusterRef(cluster))
    return await drain(ctx, spec, str(arguments.get("node", "")))


async def _stop(ctx: Context, cluster: str, arguments: Mapping[str, Any]) -> bool:
    spec = await cluster_lookup.resolve(ctx, ClusterRef(cluster))
    return await stop_start.stop(ctx, spec) is not None


async def _start(ctx: Context, cluster: str, arguments: Mapping[str, Any]) -> bool:
    spec = await cluster_lookup.resolve(ctx, ClusterRef(cluster))
    await stop_start.start(ctx, spec)
    return True


async def _down(ctx: Context, cluster: str, arguments: Mapping[str, Any]) -> bool:
    spec = await cluster_lookup.resolve(ctx, ClusterRef(cluster))
    return (await down(ctx, spec)).terminated is not None


_OPERATIONS = {"limits": _up, "drain": _drain, "stop": _stop, "start": _start, "down": _down}


def _count(arguments: Mapping[str, Any], name: str) -> int | None:
    value = arguments.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"{name} must be a whole number of 0 or more, not {value!r}")
    return value


def _seconds(arguments: Mapping[str, Any], name: str) -> float | None:
    value = arguments.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise ConfigError(f"{name} must be a number of seconds, not {value!r}")
    return float(value)


class Action:
    """One operation: its events as JSON, the last one `done`."""

    def __init__(self, cluster: str, name: str, arguments: Mapping[str, Any]) -> None:
        if name not in _OPERATIONS:
            raise NotFoundError(f"unknown action: {name!r}")
        self.id = secrets.token_hex(8)
        self.cluster = cluster
        self.name = name
        self.events: list[dict[str, Any]] = []
        self.readers = 0
        self._arguments = arguments
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._answer: concurrent.futures.Future[bool] | None = None

    @property
    def is_done(self) -> bool:
        return bool(self.events) and self.events[-1]["event"] == "done"

    def start(self, ctx: Context) -> None:
        own = replace(
            ctx,
            emit=self._emit,
            confirm=self._confirm,
            cluster_arguments=replace(ctx.cluster_arguments),
            asks=True,
        )
        threading.Thread(
            target=self._run, args=(own,), name=f"action-{self.id}", daemon=True
        ).start()

    def answer(self, is_yes: bool) -> None:
        """Answer the question that waits."""
        waiting, self._answer = self._answer, None
        if waiting is None or waiting.done():
            raise ConfigError("no question waits for an answer")
        waiting.set_result(is_yes)

    async def wait(self, seen: int) -> list[dict[str, Any]]:
        """The events after the first `seen`, once there are any."""
        while len(self.events) <= seen:
            self._changed.clear()
            await self._changed.wait()
        return self.events[seen:]

    def page_has_gone(self) -> None:
        """The page that followed the action was closed."""
        if self.readers == 0 and self._answer is not None:
            self.answer(False)

    def _run(self, ctx: Context) -> None:
        operation = _OPERATIONS[self.name]
        result: dict[str, Any] = {"event": "done", "ok": True}
        try:
            is_done = asyncio.run(operation(ctx, self.cluster, self._arguments))
            result["declined"] = not is_done
        except Exception as error:
            _log.info("action %s of %s failed: %s", self.name, self.cluster, error)
            result |= {"ok": False, **error_json(as_shoal_error(error), self.cluster)}
        self._post(result)

    def _emit(self, event: Event) -> None:
        # The URL of a dashboard is a secret; what nodes print is in the logs.
        if not isinstance(event, (DashboardOpened, Output)):
            data = to_json(event)
            if "fix" in data:
                data["fix"] = fix_for_cluster(data["fix"], self.cluster)
            self._post(data)

    def _confirm(self, question: str, severity: Severity = Severity.NORMAL) -> bool:
        answer: concurrent.futures.Future[bool] = concurrent.futures.Future()
        self._answer = answer
        destructive = severity is Severity.DESTRUCTIVE
        self._post({"event": "question", "text": question, "destructive": destructive})
        try:
            is_yes = answer.result(_ANSWER_SECONDS)
        except concurrent.futures.TimeoutError:
            is_yes = False
        self._post({"event": "answer", "yes": is_yes})
        return is_yes

    def _post(self, event: dict[str, Any]) -> None:
        def append() -> None:
            self.events.append(event)
            self._changed.set()

        self._loop.call_soon_threadsafe(append)


class Actions:
    """The actions of this start; one at a time for each cluster."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._actions: dict[str, Action] = {}

    def start(self, cluster: str, name: str, arguments: Mapping[str, Any]) -> Action:
        for other in self._actions.values():
            if other.cluster == cluster and not other.is_done:
                raise ConfigError(
                    f"another action of {cluster} has not ended: {other.name}",
                    fix="wait for it, or answer its question",
                )
        action = Action(cluster, name, arguments)
        done = [id for id, other in self._actions.items() if other.is_done]
        for id in done[:-_KEPT]:
            del self._actions[id]
        self._actions[action.id] = action
        action.start(self._ctx)
        return action

    def get(self, id: str) -> Action:
        if id not in self._actions:
            raise NotFoundError("unknown action")
        return self._actions[id]

    def refuse_questions(self) -> None:
        """The server ends: no question gets an answer any more."""
        for action in self._actions.values():
            action.readers = 0
            action.page_has_gone()
