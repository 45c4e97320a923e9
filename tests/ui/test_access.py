"""Which requests the page's server answers. Every other one is refused, whatever it asks for."""

from __future__ import annotations

import pytest

from shoal.ui.access import Access

RULES = Access.on(8080)
OURS = {"Host": "127.0.0.1:8080", "Authorization": f"Bearer {RULES.token}"}


def status(method: str = "GET", path: str = "/api/session", **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    refusal = RULES.refusal(method, path, {**OURS, **named})
    return 200 if refusal is None else refusal[0]


def test_our_page_is_answered() -> None:
    assert status() == 200
    assert status(Host="localhost:8080", Origin="http://localhost:8080") == 200
    assert status("POST", Origin="http://127.0.0.1:8080", Sec_Fetch_Site="same-origin") == 200


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Bearer wrong", "Basic {token}", "Bearer {token}x"],
)
def test_a_missing_or_wrong_token_is_refused(authorization: str) -> None:
    assert status(Authorization=authorization.format(token=RULES.token)) == 401


def test_the_token_is_new_with_every_start() -> None:
    assert Access.on(8080).token != RULES.token
    assert len(RULES.token) >= 32


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:8080", "127.0.0.1", "127.0.0.1:8081", "0.0.0.0:8080"]
)
def test_a_name_that_another_site_points_here_is_refused(host: str) -> None:
    assert status(Host=host) == 421
    assert status(path="/", Host=host) == 421


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://evil.example",
        "https://127.0.0.1:8080",
        "http://127.0.0.1:8081",
        "http://127.0.0.1",
    ],
)
def test_another_origin_is_refused_even_with_the_token(origin: str) -> None:
    assert status(Origin=origin) == 403
    assert status("POST", Origin=origin) == 403


def test_a_request_that_another_site_starts_is_refused() -> None:
    assert status(Sec_Fetch_Site="cross-site") == 403
    assert status(Sec_Fetch_Site="same-site") == 403


def test_the_page_itself_needs_no_token_and_takes_no_posts() -> None:
    assert status(path="/", Authorization="") == 200
    assert status("POST", path="/", Authorization="") == 405


def test_a_read_only_page_refuses_what_changes_something() -> None:
    rules = Access.on(8080, read_only=True)
    headers = {"Host": "127.0.0.1:8080", "Authorization": f"Bearer {rules.token}"}
    assert rules.refusal("GET", "/api/stream", headers) is None
    assert rules.refusal("POST", "/api/simulations", headers) is None
    for path in ("/api/clusters/c/actions/down", "/api/clusters/c/dashboard"):
        refused = rules.refusal("POST", path, headers)
        assert refused is not None and refused[0] == 403
