"""Operations of Compute Engine: accepted at once, done later, and failed perhaps only then."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from typing import Any

from tests.simcloud.calls import ApiError
from tests.simcloud.gce_store import API, PROJECT

_WAIT_S = 120.0
_MESSAGES = {400: "BAD REQUEST", 403: "FORBIDDEN", 409: "CONFLICT", 503: "SERVICE UNAVAILABLE"}


class OperationFailed(Exception):
    """An accepted operation ended with an error."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class Operations:
    """All operations of one project, by name. `take_s` is how long each takes at least."""

    def __init__(self, run: Callable[[Awaitable[Any]], None]) -> None:
        self.take_s = 0.1
        self._run = run
        self._numbers = itertools.count(1)
        self._operations: dict[str, dict[str, Any]] = {}
        self._done: dict[str, asyncio.Event] = {}

    def start(
        self,
        kind: str,
        target: str,
        scope: str,
        work: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> dict[str, Any]:
        """Accept an operation: `scope` is `zones/Z`, `regions/R` or `global`."""
        name = f"operation-{next(self._numbers):06}"
        operation: dict[str, Any] = {
            "kind": "compute#operation",
            "id": str(next(self._numbers)),
            "name": name,
            "operationType": kind,
            "targetLink": f"{API}/projects/{PROJECT}/{target}",
            "selfLink": f"{API}/projects/{PROJECT}/{scope}/operations/{name}",
            "status": "RUNNING",
            "progress": 0,
            "insertTime": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        }
        key = scope.partition("/")[0]
        if key in ("zones", "regions"):
            operation[key[:-1]] = f"{API}/projects/{PROJECT}/{scope}"
        self._operations[name] = operation
        self._done[name] = asyncio.Event()
        self._run(self._perform(operation, work))
        return dict(operation)

    async def _perform(
        self, operation: dict[str, Any], work: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        try:
            await asyncio.sleep(self.take_s)
            await work(operation)
        except OperationFailed as failure:
            error = failure.error
            operation["error"] = {"errors": [{"code": error.code, "message": error.message}]}
            operation["httpErrorStatusCode"] = error.status
            operation["httpErrorMessage"] = _MESSAGES.get(error.status, "ERROR")
        finally:
            operation.update(status="DONE", progress=100)
            operation["endTime"] = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
            self._done[operation["name"]].set()

    def get(self, name: str) -> dict[str, Any] | None:
        operation = self._operations.get(name)
        return None if operation is None else dict(operation)

    async def wait(self, name: str) -> dict[str, Any] | None:
        """The operation when it is done, or as it stands after two minutes."""
        if name not in self._done:
            return None
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._done[name].wait(), _WAIT_S)
        return self.get(name)
