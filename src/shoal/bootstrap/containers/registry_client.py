"""A minimal client of the OCI registry API: does an image exist, and how much disk does it need?
Used before there is a node with a container runtime that could ask.

A registry that cannot be reached or limits the rate of requests is not an error: the size is then
unknown.
"""

from __future__ import annotations

import asyncio
import base64
import difflib
import json
import logging
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.bootstrap.containers.registry_login import DOCKER_HUB, registry_of
from shoal.core.errors import AuthError, ConfigError
from shoal.providers.model import RegistryLogin

_log = logging.getLogger(__name__)

# The output of `uname -m`, and the name of that architecture in a registry.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}

_TIMEOUT_SECONDS = 5.0
_MAX_RESPONSE_BYTES = 4_000_000
_DOCKER_HUB_API = "registry-1.docker.io"
_MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_CHALLENGE_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Response:
    """An HTTP response. `challenge` is its WWW-Authenticate header, if any."""

    status: int
    content: bytes
    challenge: str = ""


# Sends a GET request to a URL with these headers.
HttpGet = Callable[[str, Mapping[str, str]], Response]


def http_get(url: str, headers: Mapping[str, str]) -> Response:
    """Send a GET request. Raises OSError if there is no response."""
    request = urllib.request.Request(url, headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as reply:
            return Response(reply.status, reply.read(_MAX_RESPONSE_BYTES))
    except urllib.error.HTTPError as error:
        challenge = str(error.headers.get("WWW-Authenticate") or "")
        return Response(error.code, b"", challenge)


async def image_disk_bytes(
    image: str, architecture: str, login: RegistryLogin | None, get: HttpGet = http_get
) -> int:
    """The least disk space that pulling an image needs; 0 if unknown. Raises `ConfigError` if the
    registry has no such image, and `AuthError` if it denies access."""
    return await asyncio.to_thread(_image_disk_bytes, _Registry(image, login, get), architecture)


def layer_sizes(manifest: Any) -> list[int]:
    """The compressed sizes of an image's layers from its manifest, which docker and podman wrap
    differently; empty if it is not a manifest."""
    if not isinstance(manifest, Mapping):
        return []
    inner = manifest.get("SchemaV2Manifest") or manifest.get("OCIManifest") or manifest
    return [int(layer.get("size", 0)) for layer in inner.get("layers") or ()]


def disk_bytes(compressed_sizes: Sequence[int]) -> int:
    """The least disk space that pulling these layers needs: each takes at least its compressed
    size once extracted, and the largest exists in both forms for a moment."""
    return sum(compressed_sizes) + max(compressed_sizes, default=0)


def _image_disk_bytes(registry: _Registry, architecture: str) -> int:
    try:
        manifest = registry.manifest()
        for entry in manifest.get("manifests") or ():
            if entry.get("platform", {}).get("architecture") == architecture:
                manifest = registry.manifest(entry["digest"])
                break
        return disk_bytes(layer_sizes(manifest))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        _log.debug("could not read the manifest: %s: %s", type(error).__name__, error)
        return 0


class _Registry:
    """The registry of one image. `_auth` holds the authorization header once one is required."""

    def __init__(self, image: str, login: RegistryLogin | None, get: HttpGet) -> None:
        self._image = image
        self._http_get = get
        self._headers = {"Accept": ", ".join(_MANIFEST_TYPES)}
        self._auth: dict[str, str] = {}
        host = registry_of(image)
        if login is not None and (login.server == host or {login.server, host} <= set(DOCKER_HUB)):
            pair = base64.b64encode(f"{login.username}:{login.password}".encode()).decode()
            self._auth = {"Authorization": f"Basic {pair}"}
        path, _, digest = image.removeprefix(f"{host}/").partition("@")
        parent, slash, last = path.rpartition("/")
        name, _, tag = last.partition(":")
        self._reference = digest or tag or "latest"
        self._name = parent + slash + name
        if host in DOCKER_HUB:
            host = _DOCKER_HUB_API
            self._name = self._name if "/" in self._name else f"library/{self._name}"
        self._base = f"https://{host}/v2/{self._name}"

    def manifest(self, reference: str = "") -> dict[str, Any]:
        response = self._get(f"{self._base}/manifests/{reference or self._reference}")
        if response.status == 404:
            raise self._not_found()
        if response.status in (401, 403):
            raise AuthError(
                f"the registry of {self._image} denied access",
                why="it has no such image, or requires a login to show it",
                fix="set the login in the cluster file: "
                "shoal: {registry: {server: ..., username: ...}}, or correct the image's name",
            )
        document = json.loads(response.content) if response.status == 200 else {}
        return document if isinstance(document, dict) else {}

    def _get(self, url: str) -> Response:
        response = self._http_get(url, {**self._headers, **self._auth})
        wants_token = response.status == 401 and response.challenge.lower().startswith("bearer")
        if wants_token:
            parameters = dict(_CHALLENGE_PARAMETER.findall(response.challenge))
            if token := self._token(parameters):
                self._auth = {"Authorization": f"Bearer {token}"}
                response = self._http_get(url, {**self._headers, **self._auth})
        return response

    def _token(self, challenge: dict[str, str]) -> str:
        realm = challenge.pop("realm", "")
        if not realm.startswith("https://"):
            return ""
        response = self._http_get(f"{realm}?{urllib.parse.urlencode(challenge)}", self._auth)
        document = json.loads(response.content) if response.status == 200 else {}
        return str(document.get("token") or document.get("access_token") or "")

    def _not_found(self) -> ConfigError:
        tags = self._tags()
        similar = difflib.get_close_matches(self._reference, tags, n=1, cutoff=0.0)
        image = self._image.removesuffix(f":{self._reference}")
        return ConfigError(
            f"image not found: {self._image}",
            why=f"the registry has these tags: {', '.join(tags[:10])}"
            if tags
            else "the registry has no image of that name",
            fix=f"docker: {{image: {image}:{similar[0]}}}"
            if similar
            else "correct the image's name, or push the image first",
        )

    def _tags(self) -> list[str]:
        try:
            response = self._get(f"{self._base}/tags/list")
            document = json.loads(response.content) if response.status == 200 else {}
            return [str(tag) for tag in document.get("tags") or ()]
        except (OSError, ValueError, AttributeError) as error:
            _log.debug("could not list the tags: %s: %s", type(error).__name__, error)
            return []
