"""What a registry itself says of an image, asked from here: before there is a machine with an
engine that could ask.

Who cannot reach the registry, or is asked to come back later, learns nothing, which is no mistake.
"""

from __future__ import annotations

import asyncio
import base64
import difflib
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.bootstrap.containers import oci_manifest
from shoal.bootstrap.containers.registry_login import HUB, host_of
from shoal.core.errors import AuthError, ConfigError
from shoal.providers.model import RegistryLogin

_SECONDS = 5.0
_LARGEST = 4_000_000
_HUB_SERVER = "registry-1.docker.io"
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Answer:
    """What came back: `challenge` is how the registry wants to be greeted, if it told."""

    status: int
    content: bytes
    challenge: str = ""


# The answer at an address, to a request with these headers.
Fetch = Callable[[str, Mapping[str, str]], Answer]


def fetch(url: str, headers: Mapping[str, str]) -> Answer:
    """Ask over the network. Raises OSError where nobody answers."""
    request = urllib.request.Request(url, headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as reply:
            return Answer(reply.status, reply.read(_LARGEST))
    except urllib.error.HTTPError as error:
        challenge = str(error.headers.get("WWW-Authenticate") or "")
        return Answer(error.code, b"", challenge)


async def room(
    image: str, architecture: str, login: RegistryLogin | None, ask: Fetch = fetch
) -> int:
    """How many bytes of a disk an image takes at least; nothing where its registry does not tell.
    Raises `ConfigError` when the registry says that it has no such image, and `AuthError` when it
    has none for us."""
    return await asyncio.to_thread(_room, _Registry(image, login, ask), architecture)


def _room(registry: _Registry, architecture: str) -> int:
    try:
        document = registry.manifest()
        for one in document.get("manifests") or ():
            if one.get("platform", {}).get("architecture") == architecture:
                document = registry.manifest(one["digest"])
                break
        return oci_manifest.room(oci_manifest.layers(document))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return 0


class _Registry:
    """One image's registry, as one who may have to log in sees it."""

    def __init__(self, image: str, login: RegistryLogin | None, ask: Fetch) -> None:
        self._image = image
        self._ask = ask
        self._headers = {"Accept": ", ".join(_MANIFESTS)}
        self._login: dict[str, str] = {}
        host = host_of(image)
        if login is not None and (login.server == host or {login.server, host} <= set(HUB)):
            pair = base64.b64encode(f"{login.username}:{login.password}".encode()).decode()
            self._login = {"Authorization": f"Basic {pair}"}
        path, _, digest = image.removeprefix(f"{host}/").partition("@")
        parent, slash, last = path.rpartition("/")
        name, _, tag = last.partition(":")
        self._reference = digest or tag or "latest"
        self._name = parent + slash + name
        if host in HUB:
            host = _HUB_SERVER
            self._name = self._name if "/" in self._name else f"library/{self._name}"
        self._base = f"https://{host}/v2/{self._name}"

    def manifest(self, reference: str = "") -> dict[str, Any]:
        answer = self._get(f"{self._base}/manifests/{reference or self._reference}")
        if answer.status == 404:
            raise self._absent()
        if answer.status in (401, 403):
            raise AuthError(
                f"the registry of {self._image} does not let us in",
                why="it has no such image, or shows it only to those who log in",
                fix="name the login in the file: shoal: {registry: {server: ..., username: ...}}, "
                "or correct the image's name",
            )
        document = json.loads(answer.content) if answer.status == 200 else {}
        return document if isinstance(document, dict) else {}

    def _get(self, url: str) -> Answer:
        answer = self._ask(url, {**self._headers, **self._login})
        wants_token = answer.status == 401 and answer.challenge.lower().startswith("bearer")
        if wants_token and (token := self._token(dict(_PARAMETER.findall(answer.challenge)))):
            self._login = {"Authorization": f"Bearer {token}"}
            answer = self._ask(url, {**self._headers, **self._login})
        return answer

    def _token(self, challenge: dict[str, str]) -> str:
        realm = challenge.pop("realm", "")
        if not realm.startswith("https://"):
            return ""
        answer = self._ask(f"{realm}?{urllib.parse.urlencode(challenge)}", self._login)
        document = json.loads(answer.content) if answer.status == 200 else {}
        return str(document.get("token") or document.get("access_token") or "")

    def _absent(self) -> ConfigError:
        known = self._tags()
        close = difflib.get_close_matches(self._reference, known, n=1, cutoff=0.0)
        image = self._image.removesuffix(f":{self._reference}")
        return ConfigError(
            f"there is no image {self._image}",
            why=f"its registry has these of that name: {', '.join(known[:10])}"
            if known
            else "its registry has none of that name",
            fix=f"docker: {{image: {image}:{close[0]}}}"
            if close
            else "correct the image's name, or push the image first",
        )

    def _tags(self) -> list[str]:
        try:
            answer = self._get(f"{self._base}/tags/list")
            document = json.loads(answer.content) if answer.status == 200 else {}
            return [str(tag) for tag in document.get("tags") or ()]
        except (OSError, ValueError, AttributeError):
            return []
