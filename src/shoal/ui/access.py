"""Which requests the page's server answers. It listens on loopback, where any program and any web
page in the same browser can send requests, so each must prove that it comes from our page.

- The token of this start is in the fragment of the URL, which a browser does not send; our page
  sends it in a header. A cookie would be sent to every other server on this host, too.
- The Host must be ours, so that a name which another site points to this machine does not work.
- The Origin, if there is one, must be ours.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware

from shoal.core.errors import NotFoundError, ShoalError, as_shoal_error, fix_for_cluster

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# The page needs nothing from elsewhere, and may not be shown inside another page.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_API = "/api/"
# Requests with a body that change nothing.
_HARMLESS = ("/api/simulations",)


@dataclass(frozen=True)
class Access:
    """The rules of one start. With `read_only`, requests that change something are refused."""

    hosts: frozenset[str]
    token: str
    read_only: bool = False

    @staticmethod
    def on(port: int, *, read_only: bool = False) -> Access:
        """The rules of a server on this port of loopback, with a new token."""
        hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
        return Access(hosts, secrets.token_urlsafe(24), read_only)

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Why a request is not answered, with its status; None if it is."""
        if headers.get("Host", "") not in self.hosts:
            return 421, "this server is for its own page only"
        origin = headers.get("Origin")
        if origin is not None and origin.removeprefix("http://") not in self.hosts:
            return 403, "requests from other origins are refused"
        if headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            return 403, "requests from other sites are refused"
        if not path.startswith(_API):
            return None if method in ("GET", "HEAD") else (405, "only GET is allowed here")
        given = headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            return 401, "missing or wrong token: open the URL that `shoal ui` printed"
        if self.read_only and method != "GET" and path not in _HARMLESS:
            return 403, "this page is read-only: shoal ui was started with --read-only"
        return None


def middleware(access: Access) -> Middleware:
    """Refuses requests, turns errors into JSON, and adds the headers of every response."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = access.refusal(request.method, request.path, request.headers)
        if refusal is not None:
            status, text = refusal
            return web.json_response(error_json(ShoalError(text)), status=status)
        try:
            return await handler(request)
        except web.HTTPException as error:
            text = f"{error.status} {error.reason}"
            return web.json_response(error_json(ShoalError(text)), status=error.status)
        except ConnectionError:
            raise
        except Exception as error:
            failure = as_shoal_error(error)
            status = 404 if isinstance(failure, NotFoundError) else 500
            cluster = request.match_info.get("cluster", "")
            return web.json_response(error_json(failure, cluster), status=status)

    return answer


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """For `on_response_prepare`: streams are sent before their handler returns."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)


def error_json(error: ShoalError, cluster: str = "") -> dict[str, object]:
    """An error as the page shows it."""
    fix = fix_for_cluster(error.fix, cluster) if cluster else error.fix
    return {
        "error": {
            "what": error.what,
            "why": error.why,
            "fix": fix,
            "node": error.node,
            "output": list(error.output),
        }
    }
