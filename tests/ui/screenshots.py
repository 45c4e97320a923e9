"""Makes the pictures of the page for README and the documentation: `python -m tests.ui.screenshots
docs/images`. The clusters are examples; the page and the data layer are real."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from shoal.core.errors import UnreachableError
from shoal.core.events import ignore_events
from shoal.ops.context import Context
from shoal.ui.server import serve
from tests.ui.browser import browser
from tests.ui.heads import Heads, add_small_cluster, add_training_cluster, heads

WIDTHS = {"wide": (1280, 860), "narrow": (390, 844)}
SCHEMES = ("light", "dark")


def add_examples(made: Heads) -> None:
    """The clusters that the pictures show."""
    now = time.time()
    add_training_cluster(made, now)
    nightly = add_small_cluster(made, "nightly-eval", now, nodes=24, busy=0.8)
    nightly.publish(autostop_at=now + 1140)
    add_small_cluster(made, "demo", now, nodes=3, provider="embedded", busy=0.3)
    add_small_cluster(made, "lab-rack", now, nodes=6, provider="local")


async def keep_publishing(made: Heads) -> None:
    """As running controllers do."""
    while True:
        for head in made.by_name.values():
            if head.error is None:
                head.publish()
        await asyncio.sleep(2)


async def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="shoal-ui-") as root:
        ctx = Context(ignore_events, home=Path(root) / "home")
        with heads(ctx, Path(root)) as made:
            add_examples(made)
            async with serve(ctx, every=1.0) as url, browser() as chromium:
                publishing = asyncio.ensure_future(keep_publishing(made))
                for width, (across, down) in WIDTHS.items():
                    for scheme in SCHEMES:
                        context = await chromium.new_context(
                            viewport={"width": across, "height": down},
                            color_scheme=scheme,  # type: ignore[arg-type]
                            device_scale_factor=1,
                        )
                        page = await context.new_page()
                        await page.goto(url)
                        await _shoot(page, made, target, f"{width}-{scheme}")
                        await context.close()
                publishing.cancel()


async def _shoot(page: Any, made: Heads, target: Path, name: str) -> None:
    await page.wait_for_selector("[data-cluster=llm-finetune] .phasebar")
    await page.wait_for_selector("[data-cluster=lab-rack] .phasebar")
    lab = made.by_name["lab-rack"]
    if lab.error is None:
        why = "no route to host 192.0.2.10"
        lab.fall_silent(UnreachableError("the head does not answer", why=why, node="head"))
    await page.wait_for_selector("[data-cluster=lab-rack].stale")
    await page.screenshot(path=target / f"ui-clusters-{name}.png")
    await page.click("[data-cluster=llm-finetune] h2 a")
    await page.wait_for_selector(".noderow")
    await page.get_by_role("button", name="All").click()
    across = page.viewport_size["width"]
    await page.set_viewport_size({"width": across, "height": 1250})
    await page.wait_for_timeout(500)
    await page.screenshot(path=target / f"ui-cluster-{name}.png")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
