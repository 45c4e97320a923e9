"""Runs the program of a training job as a Ray job, through the API of any cluster's dashboard at
`http://HOST:PORT`. Needs no Ray on this machine."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import secrets
import urllib.error
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.bootstrap.package_upload import package_archive
from shoal.core.errors import AuthError, ConfigError, ShoalError, UnreachableError
from shoal.remote.runner import Completed, OnLine, quote
from shoal.train.job.job_spec import CODE_FILE, JOB_FILE, JobSpec

_POLL_S = 1.0
_REQUEST_S = 30.0
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
_FILES = "files"


class RayJobApi:
    """The code of the user is in a directory of the package that Ray unpacks, not at its top: there
    a `code.py` would hide the module of that name from Ray itself."""

    is_here = False
    directory = "~/.shoal/train"

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")
        self._files: dict[str, bytes] = {}

    async def send(self, job: JobSpec, archive: bytes) -> str:
        self._files = {
            f"{_FILES}/{JOB_FILE}": job.to_json().encode(),
            f"{_FILES}/{CODE_FILE}": archive,
        }
        return _FILES

    async def run(
        self, arguments: Sequence[str], on_line: OnLine, timeout: float | None = None
    ) -> Completed:
        working_dir = await asyncio.to_thread(self._upload)
        options = quote([*arguments, "--directory", self.directory])
        request = {
            "entrypoint": f"python -m shoal.train.job {options}",
            "submission_id": f"shoal-train-{secrets.token_hex(4)}",
            "runtime_env": {"working_dir": working_dir},
        }
        await asyncio.to_thread(self._request, "POST", "/api/jobs/", json.dumps(request).encode())
        return await asyncio.wait_for(self._follow(request["submission_id"], on_line), timeout)

    async def fetch_output(self, job: str, target: Path) -> None:
        raise ConfigError(
            "--output is not supported for an http:// address",
            fix="use the name of the cluster, or its ray:// address",
        )

    async def _follow(self, job: Any, on_line: OnLine) -> Completed:
        printed = 0
        lines: list[str] = []
        while True:
            state = await asyncio.to_thread(self._request, "GET", f"/api/jobs/{job}")
            logs = await asyncio.to_thread(self._request, "GET", f"/api/jobs/{job}/logs")
            has_ended = state["status"] in _ENDED
            text = logs["logs"]
            end = len(text) if has_ended else text.rfind("\n") + 1
            for line in text[printed:end].splitlines():
                on_line(line, "stdout")
                lines = [*lines[-19:], line]
            printed = max(printed, end)
            if has_ended:
                code = state.get("driver_exit_code")
                failed = code if code is not None else int(state["status"] != "SUCCEEDED")
                return Completed(failed, tuple(lines))
            await asyncio.sleep(_POLL_S)

    def _upload(self) -> str:
        """Upload Shoal and the files of the job as one package, unless it is there already."""
        buffer = io.BytesIO(package_archive().content)
        with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as package:
            for name, content in self._files.items():
                package.writestr(zipfile.ZipInfo(name), content)
        content = buffer.getvalue()
        name = f"_ray_pkg_{hashlib.sha256(content).hexdigest()[:16]}.zip"
        self._request("PUT", f"/api/packages/gcs/{name}", content)
        return f"gcs://{name}"

    def _request(self, method: str, path: str, body: bytes | None = None) -> Any:
        headers = {"Content-Type": "application/json"}
        if method == "PUT":
            headers = {"Content-Type": "application/octet-stream"}
        if token := _token():
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(
            self._address + path, data=body, headers=headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=_REQUEST_S) as reply:
                content = reply.read()
        except urllib.error.HTTPError as error:
            detail = error.read().decode(errors="replace")[-500:]
            if error.code in (401, 403):
                raise AuthError(
                    f"{self._address} refuses access",
                    why=detail,
                    fix="set RAY_AUTH_TOKEN to the token of the cluster",
                ) from None
            raise ShoalError(f"{method} {path} failed ({error.code})", why=detail) from None
        except OSError as error:
            raise UnreachableError(
                f"cannot reach {self._address}", why=str(getattr(error, "reason", error))
            ) from None
        return json.loads(content) if content else None


def _token() -> str:
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token"
    try:
        return Path(path).expanduser().read_text().strip()
    except OSError:
        return ""
