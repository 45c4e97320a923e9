"""The page in Chromium, with clusters of a certain history."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from shoal.controller.paths import HISTORY
from shoal.core.errors import UnreachableError
from shoal.core.node_phase import Phase
from shoal.ui.server import serve
from tests.polling import until
from tests.ui import browser as browsers
from tests.ui.heads import Head, Heads, add_small_cluster, add_training_cluster

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Browser]:
    browsers.require()
    async with browsers.browser() as launched:
        yield launched


@dataclass
class Shown:
    """An open page, and what went wrong in it."""

    page: Page
    url: str
    base: str
    opened: list[str]
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@asynccontextmanager
async def shown(
    chromium: Browser, made: Heads, width: int = 1280, **options: Any
) -> AsyncIterator[Shown]:
    opened: list[str] = []

    async def publish() -> None:  # as running controllers do
        while True:
            for head in made.by_name.values():
                if head.directory.exists():
                    head.publish()
            await asyncio.sleep(1)

    publishing = asyncio.ensure_future(publish())
    async with serve(made.ctx, every=0.1, open_browser=opened.append, **options) as url:
        page = await chromium.new_page(viewport={"width": width, "height": 800})
        page.set_default_timeout(20_000)
        result = Shown(page, url, url.partition("/#")[0], opened)
        page.on("pageerror", lambda error: result.errors.append(str(error)))
        page.on("request", lambda request: result.requests.append(request.url))
        page.on(
            "console",
            lambda text: result.errors.append(text.text) if text.type == "error" else None,
        )
        try:
            yield result
        finally:
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
            await page.close()


async def open_cluster(shown: Shown, name: str) -> None:
    await shown.page.goto(shown.url)
    await shown.page.click(f"[data-cluster={name}] h2 a")
    await shown.page.wait_for_selector(f".clusterpage[data-cluster={name}] .noderow")


async def test_a_cluster_shows_why_it_has_its_size(chromium: Browser, made: Heads) -> None:
    add_training_cluster(made, time.time())
    async with shown(chromium, made) as s:
        await open_cluster(s, "llm-finetune")
        page = s.page
        await page.get_by_role("button", name="All", exact=True).click()
        row = page.locator(".noderow", has_text="gpu-2")
        await row.locator(".phase-ready").hover()
        tooltip = page.locator("#tooltip")
        assert "Launched because: 8 tasks of GPU: 1 wait" in await tooltip.inner_text()
        assert "Ended because: the provider terminates" in await tooltip.inner_text()
        text = await page.inner_text("main")
        for part in ("$6.21/h", "5 of 6", "no node type has 8 GPUs", "m5.xlarge on-demand", "spot"):
            assert part in text, part
        assert "pip install -r requirements.txt" in await page.locator("section").last.inner_text()
        assert not s.errors
        assert all(url.startswith(s.base) for url in s.requests), "nothing comes from elsewhere"
        assert "token" not in page.url


async def test_the_timeline_and_the_buttons_work_with_the_keyboard(
    chromium: Browser, made: Heads
) -> None:
    add_small_cluster(made, "demo", time.time(), nodes=2)
    async with shown(chromium, made) as s:
        await s.page.goto(s.url)
        link = s.page.locator("[data-cluster=demo] h2 a")
        await link.focus()
        await s.page.keyboard.press("Enter")
        await s.page.wait_for_selector(".noderow")
        await s.page.locator(".noderow").first.focus()
        assert "head" in await s.page.inner_text("#tooltip")
        label = await s.page.locator(".noderow").first.get_attribute("aria-label")
        assert label is not None and "ready for" in label
        await s.page.get_by_role("button", name="Terminate").focus()
        await s.page.keyboard.press("Enter")
        await s.page.wait_for_selector(".question")
        assert await s.page.evaluate("document.activeElement.textContent") == "No, change nothing"
        await s.page.keyboard.press("Escape")
        await s.page.locator("dialog").wait_for(state="detached")


async def test_ten_thousand_decisions_can_be_filtered(chromium: Browser, made: Heads) -> None:
    head = add_small_cluster(made, "demo", time.time(), nodes=1)
    for number in range(10_000):
        head.decide(time.time() - 20_000 + number, "unmet", f"GPU: {number}", "no type fits")
    async with shown(chromium, made) as s:
        await open_cluster(s, "demo")
        await s.page.get_by_text("10,001 of 10,001").wait_for()
        assert await s.page.locator("td .action").count() == 200
        await s.page.get_by_role("searchbox").fill("GPU: 4321")
        await s.page.get_by_text("1 of 10,001").wait_for()
        await s.page.get_by_role("searchbox").fill("")
        await s.page.get_by_label("Action").select_option("launch")
        await s.page.get_by_text("1 of 10,001").wait_for()
        assert not s.errors


async def test_a_cluster_that_stops_answering_turns_grey_and_the_others_go_on(
    chromium: Browser, made: Heads
) -> None:
    lost = add_small_cluster(made, "lost", time.time(), nodes=3)
    good = add_small_cluster(made, "good", time.time(), nodes=2)
    made.add("hangs").hangs = True
    async with shown(chromium, made) as s:
        await s.page.goto(s.url)
        await s.page.wait_for_selector("[data-cluster=lost] .phasebar")
        lost.fall_silent(UnreachableError("the head does not answer", fix="shoal status CLUSTER"))
        card = s.page.locator("[data-cluster=lost].stale")
        await card.get_by_text("does not answer").first.wait_for()
        assert "3 ready" in await card.inner_text()
        await card.get_by_text("shoal status lost").wait_for()
        good.node("worker-9", Phase.PREPARING, time.time())
        await s.page.locator("[data-cluster=good]").get_by_text("1 preparing").wait_for()
        assert "asking" in await s.page.inner_text("[data-cluster=hangs]")


async def test_a_broken_history_is_said_and_the_rest_is_shown(
    chromium: Browser, made: Heads
) -> None:
    head = add_small_cluster(made, "demo", time.time(), nodes=3)
    path = head.directory / HISTORY
    damaged = path.read_text()[5:].replace('"ready"', '"\x00"', 1) + '{"kind": "dec'
    path.write_text(damaged)
    async with shown(chromium, made) as s:
        await open_cluster(s, "demo")
        await s.page.get_by_text("part of the history is missing").wait_for()
        assert await s.page.locator(".noderow").count() == 3
        assert not s.errors


async def test_a_wrong_token_shows_nothing_but_what_to_do(chromium: Browser, made: Heads) -> None:
    add_small_cluster(made, "demo", time.time(), nodes=1)
    async with shown(chromium, made) as s:
        await s.page.goto(s.base + "/#token=wrong")
        await s.page.get_by_text("This page has no valid token").wait_for()
        assert "demo" not in await s.page.inner_text("body")
        await s.page.goto(s.url)
        await s.page.wait_for_selector("[data-cluster=demo]")


async def test_another_origin_gets_nothing_even_with_the_token(
    chromium: Browser, made: Heads
) -> None:
    head = add_small_cluster(made, "demo", time.time(), nodes=2)
    token = ""
    async with shown(chromium, made) as s, _other_site() as other:
        token = s.url.partition("#token=")[2]
        await s.page.goto(other)
        script = """async ([url, token, method]) => {
            try {
                const headers = token ? {Authorization: "Bearer " + token} : {};
                return (await fetch(url, {method, headers})).status;
            } catch (error) { return "refused"; }
        }"""
        action = f"{s.base}/api/clusters/demo/actions/down"
        for arguments in ([f"{s.base}/api/session", token, "GET"], [action, token, "POST"],
                          [action, "", "POST"]):  # fmt: skip
            assert await s.page.evaluate(script, arguments) == "refused"
        assert head.terminated == 0
        frame = "url => { document.body.innerHTML = `<iframe src=${url}></iframe>` }"
        await s.page.evaluate(frame, s.base + "/")
        await until(lambda: any("frame" in error for error in s.errors), "the refused frame")


@asynccontextmanager
async def _other_site() -> AsyncIterator[str]:
    """A page of another origin on this machine."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.readline()
            page = b"<!doctype html><body>another site"
            writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n" + page)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_actions_ask_as_the_commands_do(chromium: Browser, made: Heads) -> None:
    head = add_small_cluster(made, "demo", time.time(), nodes=3)
    async with shown(chromium, made) as s:
        await open_cluster(s, "demo")
        await s.page.get_by_role("button", name="Terminate").click()
        await s.page.get_by_text("Terminate all nodes of cluster demo?").wait_for()
        await s.page.get_by_role("button", name="No, change nothing").click()
        await s.page.get_by_text("Nothing was changed.").wait_for()
        assert head.terminated == 0
        await s.page.get_by_role("button", name="Close", exact=True).last.click()
        await s.page.get_by_role("button", name="Terminate").click()
        await s.page.get_by_role("button", name="Yes").click()
        await s.page.get_by_text("Done.").wait_for()
        assert head.terminated == 3
        await s.page.get_by_role("button", name="Close", exact=True).last.click()
        await s.page.locator(".chip.state", has_text="not up").wait_for()


async def test_a_drain_reaches_the_controller(chromium: Browser, made: Heads) -> None:
    head = add_small_cluster(made, "demo", time.time(), nodes=2)
    async with shown(chromium, made) as s:
        await open_cluster(s, "demo")
        taking = asyncio.ensure_future(_take_drain(head))
        await s.page.locator("[data-node=worker-1]").get_by_role("button", name="Drain").click()
        await s.page.get_by_role("button", name="Yes").click()
        await s.page.get_by_text("worker-1 is draining").wait_for()
        assert await taking == "worker-1"


async def _take_drain(head: Head) -> str:
    """As the controller's loop does."""
    while True:
        for path in (head.directory / "drain").glob("*"):
            path.unlink()
            head.node(path.name, Phase.DRAINING, time.time(), ended="a user requested it")
            head.publish()
            return path.name
        await asyncio.sleep(0.05)


async def test_a_read_only_page_has_no_buttons(chromium: Browser, made: Heads) -> None:
    add_small_cluster(made, "demo", time.time(), nodes=2)
    async with shown(chromium, made, read_only=True) as s:
        await open_cluster(s, "demo")
        await s.page.get_by_text("This page is read-only.").wait_for()
        for name in ("Terminate", "Stop", "Drain", "Change limits", "Ray dashboard"):
            assert await s.page.get_by_role("button", name=re.compile(name)).count() == 0


@pytest.mark.parametrize("width", [390, 1280])
async def test_no_page_is_wider_than_the_screen(chromium: Browser, made: Heads, width: int) -> None:
    add_training_cluster(made, time.time())
    async with shown(chromium, made, width) as s:
        await open_cluster(s, "llm-finetune")
        for path in ("#/", "#/clusters/llm-finetune", "#/jobs", "#/sweeps", "#/simulation"):
            await s.page.goto(f"{s.base}/{path}")
            await s.page.wait_for_selector("h1")
            assert await s.page.evaluate("document.documentElement.scrollWidth") <= width, path


async def test_two_policies_are_plotted(chromium: Browser, made: Heads) -> None:
    async with shown(chromium, made) as s:
        await s.page.goto(s.url)
        await s.page.goto(f"{s.base}/#/simulation")
        await s.page.get_by_role("button", name="Simulate").click()
        await s.page.get_by_text("Median wait").wait_for(timeout=60_000)
        assert await s.page.locator("path.line").count() == 6
        assert not s.errors


async def test_a_training_is_plotted_with_its_rescales(chromium: Browser, made: Heads) -> None:
    add_small_cluster(made, "demo", time.time(), nodes=1).train("mnist-1")
    async with shown(chromium, made) as s:
        await s.page.goto(s.url)
        await s.page.goto(f"{s.base}/#/trainings/demo/mnist-1")
        await s.page.get_by_text("4 workers, batch size 256").wait_for()
        await s.page.get_by_role("cell", name="worker-3, worker-4 joined").wait_for()
        # Workers, batch size, samples per second, goodput, step and the script's loss.
        assert await s.page.locator("section:not([hidden]) path.line").count() == 6
        chosen = s.page.locator("tr.chosen")
        assert "4 workers" in await chosen.inner_text()
        assert "$0.45" in await chosen.inner_text()
        await s.page.get_by_text("2 more workers make it 90% faster").first.wait_for()
        assert await s.page.locator(".mark").count() == 6
        await s.page.get_by_role("button", name="Output").click()
        await s.page.get_by_text("epoch 1 of 3").wait_for()
        assert not s.errors
