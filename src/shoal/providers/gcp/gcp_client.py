"""Calls to Google's APIs: plain JSON over HTTPS with google-auth's credentials, retried where that
helps. Runs the blocking HTTP client in threads of its own."""

from __future__ import annotations

import functools
import json
import logging
import threading
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core.backoff import backoff_delays
from shoal.core.clock import Clock
from shoal.core.errors import AuthError, ConfigError, ShoalError, TransientError
from shoal.providers.gcp import credential_hints, error_codes
from shoal.providers.gcp.daemon_threads import DaemonThreads

_log = logging.getLogger(__name__)

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_COMPUTE = "https://compute.googleapis.com/compute/v1"
_CONNECT_SECONDS = 10.0
# Longer than the two minutes that Google holds a call that waits for an operation.
_READ_SECONDS = 150.0
_RETRY_SECONDS = 60.0
_FIRST_PAUSE_SECONDS = 0.25
_MAX_PAUSE_SECONDS = 5.0
_OPERATION_SECONDS = 1200.0
# What a call quoted (a fingerprint, an etag) has changed: it is the caller's to read again.
CHANGED = ("conditionNotMet", "ABORTED")
# Each operation that is waited for holds a thread.
_THREADS = 32


@dataclass(frozen=True)
class _Failure:
    """A failed request: Google's reason, and Shoal's error for it."""

    code: str
    error: ShoalError


class GcpClient:
    """A project, with the file's `gcp_credentials`, or else those that google-auth finds. `on_head`
    is true where these come from the metadata server, which may be silent for a while."""

    def __init__(
        self,
        project: str,
        clock: Clock,
        *,
        credentials: Mapping[str, Any] | None = None,
        on_head: bool = False,
    ) -> None:
        self.project = project
        self.clock = clock
        self._file_credentials = credentials
        self._on_head = on_head
        self._lock = threading.Lock()
        self._session: Any = None
        self._threads = DaemonThreads(_THREADS)

    async def compute(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        ignore_codes: Collection[str] = (),
        retry_codes: Collection[str] = (),
        query: Mapping[str, str] | None = None,
        project: str = "",
    ) -> dict[str, Any]:
        """Make a call to Compute Engine; `path` is below the project, which is ours unless another
        is named. Returns an empty reply when it failed with a reason among `ignore_codes`.
        `retry_codes` are reasons, or parts of messages, of a resource that has not propagated
        yet."""
        url = f"{_COMPUTE}/projects/{project or self.project}" + (f"/{path}" if path else "")
        return await self._retry(method, url, body, query or {}, ignore_codes, retry_codes)

    async def call(
        self,
        service: str,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        ignore_codes: Collection[str] = (),
        retry_codes: Collection[str] = (),
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """The same for another service, such as `iam`; `path` starts below `v1/projects/` and the
        project."""
        url = f"https://{service}.googleapis.com/v1/projects/{self.project}{path}"
        return await self._retry(method, url, body, query or {}, ignore_codes, retry_codes)

    async def pages(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        ignore_codes: Collection[str] = (),
    ) -> AsyncIterator[dict[str, Any]]:
        """The pages of a listing."""
        parameters = dict(query or {})
        while True:
            page = await self.compute("GET", path, ignore_codes=ignore_codes, query=parameters)
            yield page
            if not page.get("nextPageToken"):
                return
            parameters["pageToken"] = str(page["nextPageToken"])

    async def items(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        ignore_codes: Collection[str] = (),
    ) -> list[dict[str, Any]]:
        """The items of a listing, from all pages."""
        pages = self.pages(path, query, ignore_codes=ignore_codes)
        return [item async for page in pages for item in page.get("items", ())]

    async def finish(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        """Wait until an operation is done, and return it. An error of the operation is not raised:
        see `error_codes.operation_error`."""
        current = dict(operation)
        deadline = self.clock.monotonic() + _OPERATION_SECONDS
        scope = str(operation["selfLink"]).partition(f"/projects/{self.project}/")[2]
        while current.get("status") != "DONE":
            if self.clock.monotonic() > deadline:
                raise TransientError(
                    f"Google has not finished the operation {operation['name']}",
                    why=f"it is {current.get('status')} after {_OPERATION_SECONDS:.0f} s",
                    fix="run the same command again to keep waiting",
                )
            current = await self.compute("POST", f"{scope}/wait")
        return current

    async def perform(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        ignore_codes: Collection[str] = (),
        retry_codes: Collection[str] = (),
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Make a call that starts an operation, wait for it, and raise its error."""
        operation = await self.compute(
            method, path, body, ignore_codes=ignore_codes, retry_codes=retry_codes, query=query
        )
        if not operation:
            return {}
        done = await self.finish(operation)
        if error := error_codes.operation_error(done):
            raise error
        return done

    def default_project(self) -> str:
        """The project that this machine's credentials name; empty if they name none. May run
        gcloud."""
        import google.auth
        from google.auth import exceptions

        try:
            credentials, project = google.auth.default(scopes=list(_SCOPES))
        except exceptions.GoogleAuthError as error:
            _log.debug("no default project: %s", error)
            return ""
        return str(project or getattr(credentials, "quota_project_id", None) or "")

    async def _retry(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str],
        ignore_codes: Collection[str],
        retry_codes: Collection[str],
    ) -> dict[str, Any]:
        deadline = self.clock.monotonic() + _RETRY_SECONDS
        for delay in backoff_delays(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS, jitter=(0.5, 1.0)):
            result = await self._threads.run(
                functools.partial(self._attempt, method, url, body, dict(query))
            )
            if not isinstance(result, _Failure):
                return result
            error = result.error
            if result.code in ignore_codes:
                return {}
            is_retryable = (
                isinstance(error, TransientError) and result.code not in CHANGED
            ) or any(code in error.why for code in retry_codes)
            if not is_retryable or self.clock.monotonic() + delay > deadline:
                _log.info("%s %s failed: %s", method, url, error.why)
                raise error
            _log.info("retrying %s %s in %.1f s: %s", method, url, delay, error.why)
            await self.clock.sleep(delay)
        raise AssertionError("the delays are endless")

    def _attempt(
        self, method: str, url: str, body: Mapping[str, Any] | None, query: dict[str, str]
    ) -> dict[str, Any] | _Failure:
        """One attempt of a request. Runs in a thread."""
        import requests
        from google.auth import exceptions

        service = url.removeprefix("https://").partition(".")[0]
        call = f"{service} {method} {url.partition('/projects/')[2]}"
        # Compute Engine counts calls against the project in the path. Other services count those
        # of a user who has logged in against gcloud's own project, which has not enabled them.
        headers = {} if service == "compute" else {"x-goog-user-project": self.project}
        try:
            reply = self._authorized_session().request(
                method,
                url,
                json=body,
                params=query,
                headers=headers,
                timeout=(_CONNECT_SECONDS, _READ_SECONDS),
                max_allowed_time=_READ_SECONDS,
            )
            content = reply.json() if reply.content else {}
        except ConfigError as error:
            return _Failure("", error)
        except exceptions.DefaultCredentialsError as error:
            return _Failure("", no_credentials(str(error)))
        except exceptions.RefreshError as error:
            self._session = None
            return _Failure("", self._cannot_refresh(str(error)))
        except (exceptions.TransportError, requests.RequestException) as error:
            return _Failure(
                "",
                TransientError(
                    "could not reach Google", why=str(error), fix="check this machine's network"
                ),
            )
        if reply.ok:
            return dict(content)
        code, message = error_codes.read_reply(content)
        return _Failure(
            code, error_codes.error_for(code, message or reply.reason, call, reply.status_code)
        )

    def _cannot_refresh(self, why: str) -> ShoalError:
        if self._on_head:
            return TransientError("the metadata server gave no token", why=why, fix="try again")
        return AuthError(
            "the Google credentials are expired or revoked",
            why=why,
            fix=credential_hints.login(),
        )

    def _authorized_session(self) -> Any:
        """The HTTP session. google-auth refreshes its token."""
        with self._lock:
            if self._session is None:
                import google.auth
                from google.auth.transport.requests import AuthorizedSession
                from requests.adapters import HTTPAdapter

                # It warns if the environment names no project. The file does.
                logging.getLogger("google.auth._default").setLevel(logging.ERROR)
                if self._file_credentials:
                    credentials = credentials_from_file(self._file_credentials)
                else:
                    credentials, _ = google.auth.default(scopes=list(_SCOPES))
                session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
                session.mount("https://", HTTPAdapter(pool_maxsize=_THREADS))
                self._session = session
            return self._session


def credentials_from_file(settings: Mapping[str, Any]) -> Any:
    """The credentials of `provider.gcp_credentials`, in the two forms that Ray accepts."""
    kind, content = settings.get("type"), settings.get("credentials")
    try:
        if kind == "service_account":
            from google.oauth2 import service_account

            account = json.loads(content) if isinstance(content, str) else content
            return service_account.Credentials.from_service_account_info(  # type: ignore[no-untyped-call]
                account, scopes=list(_SCOPES)
            )
        if kind == "credentials_token":
            from google.oauth2.credentials import Credentials

            return Credentials(str(content))  # type: ignore[no-untyped-call]
    except (ValueError, TypeError, AttributeError) as error:
        why = f"gcp_credentials cannot be read: {error}"
    else:
        why = f"gcp_credentials has the type {kind!r}"
    raise ConfigError(
        "the credentials in the file are invalid",
        why=why,
        fix="set type to service_account with the content of its JSON key, or to "
        "credentials_token with an access token\n"
        "or remove gcp_credentials, and log in: gcloud auth application-default login",
    )


def no_credentials(why: str) -> ShoalError:
    return AuthError(
        "no Google credentials",
        why=why.splitlines()[0] if why else "google-auth found none",
        fix=credential_hints.login(),
    )
