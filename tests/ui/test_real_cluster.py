"""The page in Chromium and a real cluster on this machine: it comes up, grows, loses a node,
shrinks and goes down, and the page shows each."""

from __future__ import annotations

import re
import signal
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import temporary_home
from tests.cli.shoal_command import Home, daemons_of
from tests.polling import until
from tests.ui import browser as browsers

pytestmark = [pytest.mark.ray, pytest.mark.long]

YAML = """
cluster_name: live
max_workers: 2
idle_timeout_minutes: 0.05
provider: {type: embedded}
available_node_types:
  head: {resources: {CPU: 1}}
  worker: {resources: {CPU: 2}, min_workers: 0, max_workers: 2}
head_node_type: head
"""

PROGRAM = """
import pathlib, sys, time, ray
ray.init(log_to_driver=False)

@ray.remote(num_cpus=2, max_retries=-1)
def wait(path):
    while pathlib.Path(path).exists():
        time.sleep(0.1)

print("waiting for workers", flush=True)
ray.get(wait.remote(sys.argv[1]))
print("finished", flush=True)
"""


async def test_the_page_shows_the_life_of_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browsers.require()
    file, program, blocker = tmp_path / "live.yaml", tmp_path / "program.py", tmp_path / "blocker"
    file.write_text(YAML)
    program.write_text(PROGRAM)
    blocker.touch()
    with temporary_home() as home:
        opened, opener = tmp_path / "opened", tmp_path / "opener"
        opener.write_text(f'#!/bin/sh\necho "$1" > {opened}.new && mv {opened}.new {opened}\n')
        opener.chmod(0o755)
        monkeypatch.setenv("BROWSER", str(opener))
        ui = home.start("ui", "--no-open")
        assert ui.stdout is not None
        try:
            url = re.sub(r"^.* at ", "", ui.stdout.readline()).strip()
            async with browsers.browser() as chromium:
                page = await chromium.new_page()
                page.set_default_timeout(180_000)
                errors: list[str] = []
                page.on("pageerror", lambda error: errors.append(str(error)))
                await page.goto(url)
                await page.get_by_text("No cluster is known").wait_for()

                # It comes up.
                up = home.start("up", str(file), "--yes")
                card = page.locator("article[data-cluster=live]")
                await card.locator(".state", has_text="starting").wait_for()
                await card.locator(".state.up").wait_for()
                assert up.wait(120) == 0

                # It grows for a job.
                await card.get_by_role("link", name="live").click()
                job = f"python {program} {blocker}"
                submitted = home.shoal("job", "submit", "live", "--detach", "--", *job.split())
                assert submitted.returncode == 0, submitted.stderr
                row = page.locator("tr", has=page.locator("b", has_text="worker-1"))
                await row.get_by_text("ready").wait_for()
                await page.locator(".chip.action.launch").first.wait_for()
                assert await page.locator(".noderow").count() == 2

                # It loses a node, and repairs it.
                (worker,) = _workers(home)
                for raylet in daemons_of(worker, "raylet"):
                    raylet.send_signal(signal.SIGKILL)
                await page.locator(".chip.action.restart").first.wait_for()
                await row.get_by_text("ready").wait_for()

                # It shrinks when the work is done.
                blocker.unlink()
                await row.wait_for(state="detached")
                await page.locator(".chip.action.drain").first.wait_for()
                timeline = page.locator(".noderow", has_text="worker-1")
                label = await timeline.get_attribute("aria-label")
                assert label is not None and "Launched because" in label
                assert "Ended because: idle" in label

                # The job and its log are there.
                await page.get_by_role("link", name="Jobs").click()
                await page.get_by_text("succeeded").wait_for()
                await page.get_by_role("button", name="Log").click()
                await page.get_by_text("finished").wait_for()
                await page.keyboard.press("Escape")

                # Limits change as with `shoal up`.
                await page.goto(f"{url.partition('#')[0]}#/clusters/live")
                await page.get_by_role("button", name="Change limits").click()
                await page.get_by_label("Most workers").fill("1")
                await page.get_by_role("button", name="Show the plan").click()
                await page.get_by_text("Done.").wait_for()
                await page.get_by_role("button", name="Close", exact=True).last.click()
                await page.get_by_text("at most 1 worker").wait_for()

                # Ray's dashboard opens in the browser of this machine.
                await page.get_by_role("button", name="Ray dashboard").click()
                await until(opened.exists, "the dashboard is opened")
                assert urllib.request.urlopen(opened.read_text().strip(), timeout=60).status == 200

                # It stops and starts again.
                await page.get_by_role("button", name="Stop").click()
                await page.get_by_role("button", name="Yes").click()
                await page.get_by_text("Done.").wait_for()
                await page.get_by_role("button", name="Close", exact=True).last.click()
                await page.locator(".chip.state", has_text="stopped").wait_for()
                await page.get_by_role("button", name="Start").click()
                await page.get_by_text("Done.").wait_for()
                await page.get_by_role("button", name="Close", exact=True).last.click()
                await page.locator(".chip.state.up").wait_for()

                # It goes down.
                await page.get_by_role("button", name="Terminate").click()
                await page.get_by_role("button", name="Yes").click()
                await page.get_by_text("Done.").wait_for()
                await page.get_by_role("button", name="Close", exact=True).last.click()
                await page.locator(".chip.state", has_text="not up").wait_for()
                assert home.instance_ids() == set()
                assert not errors
        finally:
            ui.send_signal(signal.SIGINT)
            rest, _ = ui.communicate(timeout=60)
        assert ui.returncode == 0, rest
        await until(lambda: not home.leftovers(set()), "the end of all processes")


def _workers(home: Home) -> list[str]:
    """The instance ids of the workers."""
    files = home.path.glob("e/*/instance.json")
    return [path.parent.name for path in files if '"worker"' in path.read_text()]
