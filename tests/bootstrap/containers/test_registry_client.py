"""What a registry says of an image, before there is a machine that would pull it."""

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
    """Answers at some addresses; with a login, only to who has it."""

    def __init__(self, answers: Mapping[str, object], login: str = "", bearer: str = "") -> None:
        self._answers = answers
        self._login = base64.b64encode(login.encode()).decode()
        self._bearer = bearer

    def __call__(self, url: str, headers: Mapping[str, str]) -> Response:
        said = headers.get("Authorization", "")
        if url.startswith("https://auth/"):
            return Response(200, json.dumps({"token": self._bearer}).encode())
        if self._bearer and said != f"Bearer {self._bearer}":
            return Response(401, b"", 'Bearer realm="https://auth/token",service="r",scope="pull"')
        if self._login and said != f"Basic {self._login}":
            return Response(401, b"", 'Basic realm="images"')
        if url not in self._answers:
            return Response(404, b"")
        return Response(200, json.dumps(self._answers[url]).encode())


async def test_an_image_takes_its_layers_and_the_largest_once_more() -> None:
    registry = Registry({"https://r.example/v2/team/box/manifests/1": MANIFEST})
    assert await image_disk_bytes("r.example/team/box:1", "amd64", None, registry) == 5 * GIB


async def test_of_an_image_for_several_processors_the_right_one_counts() -> None:
    base = "https://r.example/v2/box/manifests"
    registry = Registry(
        {f"{base}/latest": INDEX, f"{base}/sha256:arm": SMALL, f"{base}/sha256:amd": MANIFEST}
    )
    assert await image_disk_bytes("r.example/box", "arm64", None, registry) == 2 * GIB
    assert await image_disk_bytes("r.example/box", "amd64", None, registry) == 5 * GIB


@pytest.mark.parametrize("image", ["rayproject/ray:2", "docker.io/rayproject/ray:2"])
async def test_the_hub_wants_a_token_and_gets_it(image: str) -> None:
    address = "https://registry-1.docker.io/v2/rayproject/ray/manifests/2"
    assert (
        await image_disk_bytes(image, "amd64", None, Registry({address: MANIFEST}, bearer="t"))
        == 5 * GIB
    )


async def test_a_private_registry_opens_to_its_login_and_is_told_when_it_does_not() -> None:
    registry = Registry({"https://r.example/v2/box/manifests/1": MANIFEST}, login="me:secret")
    login = RegistryLogin("r.example", "me", "secret")
    assert await image_disk_bytes("r.example/box:1", "amd64", login, registry) == 5 * GIB
    with pytest.raises(AuthError, match="denied access"):
        await image_disk_bytes("r.example/box:1", "amd64", None, registry)


async def test_a_password_is_shown_to_its_own_registry_only() -> None:
    seen: list[str] = []

    def registry(url: str, headers: Mapping[str, str]) -> Response:
        seen.append(headers.get("Authorization", ""))
        return Response(200, json.dumps(MANIFEST).encode())

    for server in ("docker.io", "other.example"):
        await image_disk_bytes(
            "r.example/box:1", "amd64", RegistryLogin(server, "me", "secret"), registry
        )
    assert seen == ["", ""]


async def test_a_tag_that_is_not_there_is_told_with_one_that_is() -> None:
    registry = Registry({"https://r.example/v2/box/tags/list": {"tags": ["2.1", "2.0"]}})
    with pytest.raises(ConfigError) as caught:
        await image_disk_bytes("r.example/box:2.2", "amd64", None, registry)
    assert caught.value.what == "image not found: r.example/box:2.2"
    assert caught.value.fix.startswith("docker: {image: r.example/box:2.")


async def test_a_registry_that_does_not_answer_tells_nothing_and_that_is_no_mistake() -> None:
    def unreachable(url: str, headers: Mapping[str, str]) -> Response:
        raise OSError("no route")

    assert await image_disk_bytes("r.example/box:1", "amd64", None, unreachable) == 0
    busy = Response(429, b"")
    assert await image_disk_bytes("r.example/box:1", "amd64", None, lambda url, headers: busy) == 0
    nonsense = Response(200, b"<html>")
    assert (
        await image_disk_bytes("r.example/box:1", "amd64", None, lambda url, headers: nonsense) == 0
    )
