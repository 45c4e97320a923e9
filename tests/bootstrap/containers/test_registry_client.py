"""Queries to an image registry, before there is a host that pulls the image."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

import pytest

from shoal.bootstrap.containers.registry_client import Response, image_disk_bytes
from shoal.core.errors import AuthError, ConfigError
from shoal.providers.model import RegistryLogin

GIB = 2**30
MANIFEST = {"layers": [{"size": GIB}, {"size": 2 * GIB}]}
SMALL = {"layers": [{"size": GIB}]}
INDEX = {
    "manifests": [
        {"digest": "sha256:arm", "platform": {"architecture": "arm64"}},
        {"digest": "sha256:amd", "platform": {"architecture": "amd64"}},
    ]
}


class Registry:
    """Responds at some URLs; with a login, only to requests that have it."""

    def __init__(self, documents: Mapping[str, object], login: str = "", bearer: str = "") -> None:
        self._documents = documents
        self._login = base64.b64encode(login.encode()).decode()
        self._bearer = bearer

    def __call__(self, url: str, headers: Mapping[str, str]) -> Response:
        authorization = headers.get("Authorization", "")
        if url.startswith("https://auth/"):
            return Response(200, json.dumps({"token": self._bearer}).encode())
        if self._bearer and authorization != f"Bearer {self._bearer}":
            return Response(401, b"", 'Bearer realm="https://auth/token",service="r",scope="pull"')
        if self._login and authorization != f"Basic {self._login}":
            return Response(401, b"", 'Basic realm="images"')
        if url not in self._documents:
            return Response(404, b"")
        return Response(200, json.dumps(self._documents[url]).encode())


async def test_image_needs_its_layers_and_the_largest_twice() -> None:
    registry = Registry({"https://r.example/v2/team/box/manifests/1": MANIFEST})
    assert await image_disk_bytes("r.example/team/box:1", "amd64", None, registry) == 5 * GIB


async def test_size_of_a_multi_platform_image_is_that_of_the_architecture() -> None:
    base = "https://r.example/v2/box/manifests"
    registry = Registry(
        {f"{base}/latest": INDEX, f"{base}/sha256:arm": SMALL, f"{base}/sha256:amd": MANIFEST}
    )
    assert await image_disk_bytes("r.example/box", "arm64", None, registry) == 2 * GIB
    assert await image_disk_bytes("r.example/box", "amd64", None, registry) == 5 * GIB


@pytest.mark.parametrize("image", ["rayproject/ray:2", "docker.io/rayproject/ray:2"])
async def test_docker_hub_gets_a_bearer_token(image: str) -> None:
    address = "https://registry-1.docker.io/v2/rayproject/ray/manifests/2"
    assert (
        await image_disk_bytes(image, "amd64", None, Registry({address: MANIFEST}, bearer="t"))
        == 5 * GIB
    )


async def test_private_registry_needs_its_login() -> None:
    registry = Registry({"https://r.example/v2/box/manifests/1": MANIFEST}, login="me:secret")
    login = RegistryLogin("r.example", "me", "secret")
    assert await image_disk_bytes("r.example/box:1", "amd64", login, registry) == 5 * GIB
    with pytest.raises(AuthError, match="denied access"):
        await image_disk_bytes("r.example/box:1", "amd64", None, registry)


async def test_password_is_sent_only_to_its_own_registry() -> None:
    seen: list[str] = []

    def registry(url: str, headers: Mapping[str, str]) -> Response:
        seen.append(headers.get("Authorization", ""))
        return Response(200, json.dumps(MANIFEST).encode())

    for server in ("docker.io", "other.example"):
        await image_disk_bytes(
            "r.example/box:1", "amd64", RegistryLogin(server, "me", "secret"), registry
        )
    assert seen == ["", ""]


async def test_missing_tag_is_reported_with_an_existing_one() -> None:
    registry = Registry({"https://r.example/v2/box/tags/list": {"tags": ["2.1", "2.0"]}})
    with pytest.raises(ConfigError) as caught:
        await image_disk_bytes("r.example/box:2.2", "amd64", None, registry)
    assert caught.value.what == "image not found: r.example/box:2.2"
    assert caught.value.fix.startswith("docker: {image: r.example/box:2.")


async def test_size_is_unknown_if_the_registry_does_not_answer() -> None:
    def unreachable(url: str, headers: Mapping[str, str]) -> Response:
        raise OSError("no route")

    assert await image_disk_bytes("r.example/box:1", "amd64", None, unreachable) == 0
    busy = Response(429, b"")
    assert await image_disk_bytes("r.example/box:1", "amd64", None, lambda url, headers: busy) == 0
    nonsense = Response(200, b"<html>")
    assert (
        await image_disk_bytes("r.example/box:1", "amd64", None, lambda url, headers: nonsense) == 0
    )
