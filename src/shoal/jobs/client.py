"""Ray's job API, as any cluster's dashboard has it at `http://HOST:PORT`. Needs no Ray on this
machine."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.core.errors import AuthError, ConfigError, NotFoundError, ShoalError, UnreachableError
from shoal.jobs.http_stream import http_stream

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
# The metadata in which Shoal keeps the command that the user gave.
ENTRYPOINT_KEY = "shoal_entrypoint"

# What the dashboard answers while the agent of the head is starting.
_STARTING = (
    "No available agent",
    "Failed to get head node agent",
    "Head node id has not yet been persisted",
)
_REQUEST_S = 60.0
_LOG_INTERVAL_S = 0.25


@dataclass(frozen=True)
class RayJob:
    """A job as Ray reports it. `exit_code` is the driver's, None while it runs or if it did not
    start. `node_id` is the node of the driver, once it has one. Times are seconds since the epoch,
    None if there is none."""

    id: str
    status: str
    entrypoint: str
    message: str = ""
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None
    node_id: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def status_code(self) -> int:
        """What a command that runs the job exits with."""
        if self.exit_code is not None:
            # A driver that a signal ended has a negative code.
            return self.exit_code if self.exit_code >= 0 else 128 - self.exit_code
        return int(self.status != "SUCCEEDED")

    @staticmethod
    def from_reply(reply: Mapping[str, Any]) -> RayJob:
        metadata = reply.get("metadata") or {}

        def seconds(key: str) -> float | None:
            return reply[key] / 1000 if reply.get(key) else None

        return RayJob(
            id=reply.get("submission_id") or reply.get("job_id") or "",
            status=reply["status"],
            entrypoint=metadata.get(ENTRYPOINT_KEY) or reply.get("entrypoint") or "",
            message=reply.get("message") or "",
            exit_code=reply.get("driver_exit_code"),
            started=seconds("start_time"),
            ended=seconds("end_time"),
            node_id=reply.get("driver_node_id") or "",
            metadata=metadata,
        )


class RayJobClient:
    """The job API at one address. `token` is the cluster's, empty without authentication. `name` is
    what errors call it, and `fix` what they propose. All methods raise `UnreachableError` if the
    address does not answer (any more), or its Ray is still starting."""

    def __init__(self, address: str, token: str = "", *, name: str = "", fix: str = "") -> None:
        self.address = address.rstrip("/")
        self._token = token
        self._name, self._fix = name or self.address, fix
        host = urllib.parse.urlsplit(self.address).hostname or ""
        # A proxy does not reach what is on this machine.
        handlers = [urllib.request.ProxyHandler({})] if host.startswith("127.") else []
        self._opener = urllib.request.build_opener(*handlers)

    async def has_package(self, name: str) -> bool:
        """Whether Ray has the package. It keeps it for some minutes then, also if unused."""
        try:
            await self.request("GET", f"/api/packages/gcs/{name}")
        except NotFoundError:
            return False
        return True

    async def put_package(self, name: str, content: bytes) -> str:
        """Upload a package; returns its URI."""
        await self.request("PUT", f"/api/packages/gcs/{name}", content)
        return f"gcs://{name}"

    async def submit(
        self,
        entrypoint: str,
        id: str,
        *,
        runtime_env: Mapping[str, object],
        metadata: Mapping[str, str] = {},
        resources: Mapping[str, float] = {},
    ) -> str:
        """Start a job. `resources` are for its driver; without any it runs on the head."""
        others = {k: v for k, v in resources.items() if k not in ("CPU", "GPU", "memory")}
        request = {
            "entrypoint": entrypoint,
            "submission_id": id,
            "runtime_env": dict(runtime_env),
            "metadata": dict(metadata),
            "entrypoint_num_cpus": resources.get("CPU"),
            "entrypoint_num_gpus": resources.get("GPU"),
            "entrypoint_memory": resources.get("memory"),
            "entrypoint_resources": others or None,
        }
        body = json.dumps({k: v for k, v in request.items() if v is not None}).encode()
        try:
            reply = await self.request("POST", "/api/jobs/", body)
        except ShoalError as error:
            if "already exists" in error.why:
                raise ConfigError(f"there is a job {id} already", fix="use another id") from None
            raise
        return str(reply["submission_id"])

    async def job(self, id: str) -> RayJob:
        try:
            return RayJob.from_reply(await self.request("GET", f"/api/jobs/{_quoted(id)}"))
        except NotFoundError:
            raise _unknown(id) from None

    async def jobs(self) -> list[RayJob]:
        """The submitted jobs, the oldest first. Other drivers are not listed."""
        replies = await self.request("GET", "/api/jobs/")
        submitted = [RayJob.from_reply(r) for r in replies if r.get("type") == "SUBMISSION"]
        return sorted(submitted, key=lambda job: job.started or 0.0)

    async def stop(self, id: str) -> bool:
        """End a job; false if it had ended already. Returns at once."""
        try:
            reply = await self.request("POST", f"/api/jobs/{_quoted(id)}/stop", b"")
        except NotFoundError:
            raise _unknown(id) from None
        return bool(reply["stopped"])

    async def log(self, job: RayJob, *, follow: bool, skip: int = 0) -> AsyncIterator[bytes]:
        """What the driver has printed so far, from the byte `skip` on, unchanged. With `follow`,
        what it prints from then on too: without end, also after the end of the job."""
        settings = {"node_id": job.node_id, "filename": f"job-driver-{job.id}.log", "lines": "-1"}
        if follow:
            settings["interval"] = str(_LOG_INTERVAL_S)
        query = urllib.parse.urlencode(settings)
        path = f"/api/v0/logs/{'stream' if follow else 'file'}?{query}"
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            async for chunk in http_stream(self.address + path, headers):
                if skip < len(chunk):
                    yield chunk[skip:]
                skip = max(0, skip - len(chunk))
        except OSError as error:
            raise self._unreachable(error) from None

    async def request(self, method: str, path: str, body: bytes | None = None) -> Any:
        """The JSON that the dashboard answers; None if it answers nothing."""

        def perform() -> bytes:
            with self._open(method, path, body, _REQUEST_S) as reply:
                content = reply.read()
                assert isinstance(content, bytes)
                return content

        try:
            content = await asyncio.to_thread(perform)
        except OSError as error:
            raise self._unreachable(error) from None
        return json.loads(content) if content else None

    def _open(self, method: str, path: str, body: bytes | None, timeout: float | None) -> Any:
        kind = "application/octet-stream" if method == "PUT" else "application/json"
        headers = {"Content-Type": kind}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(
            self.address + path, data=body, headers=headers, method=method
        )
        try:
            return self._opener.open(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            raise self._refused(method, path, error) from None
        except OSError as error:
            raise self._unreachable(error) from None

    def _refused(self, method: str, path: str, error: urllib.error.HTTPError) -> ShoalError:
        detail = error.read().decode(errors="replace").strip()
        if error.code in (401, 403):
            fix = "set RAY_AUTH_TOKEN to the token of the cluster"
            return AuthError(f"{self._name} refuses access", why=detail[-500:], fix=fix)
        if error.code == 404:
            return NotFoundError(f"{self._name} has no {path}", why=detail[-500:])
        if any(text in detail for text in _STARTING):
            return UnreachableError(f"{self._name} is not ready", why=detail[-500:], fix=self._fix)
        return ShoalError(f"{method} {path} failed ({error.code})", why=detail[-500:])

    def _unreachable(self, error: OSError) -> UnreachableError:
        why = str(getattr(error, "reason", error))
        return UnreachableError(f"cannot reach {self._name}", why=why, fix=self._fix)


def token_from_env() -> str:
    """The token of a cluster that is known by its address, from where Ray's own clients take it;
    empty if there is none."""
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token"
    try:
        return Path(path).expanduser().read_text().strip()
    except OSError:
        return ""


def _unknown(id: str) -> NotFoundError:
    return NotFoundError(f"unknown job: {id}", fix="list the jobs: shoal job list CLUSTER")


def _quoted(id: str) -> str:
    return urllib.parse.quote(id, safe="")
