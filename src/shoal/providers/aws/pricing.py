"""What machines and disks cost: by AWS's own price list where it can be asked, and by the catalog
that is shipped where not. List prices, not a bill.

What AWS said is kept in a file for a day, so that most commands need not ask; it is a help, and
losing it costs a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Collection, Coroutine, Mapping
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

from shoal.catalog.price_table import load_price_table
from shoal.catalog.sources import aws as source
from shoal.core.atomic_write import write_atomically
from shoal.core.concurrency import run_all
from shoal.core.errors import ShoalError
from shoal.providers.aws.client import AwsClient

_DAY_SECONDS = 86_400.0
_SPOT_SECONDS = 900.0
# Nobody is to wait longer than this for a price, and one who got no answer does not ask again soon.
_ASK_SECONDS = 3.0
_SILENT_SECONDS = 3600.0

_PRICE_LIST, _SPOT_PRICES = "the price list", "spot prices"

_Heard = dict[str, tuple[Any, float]]


class Prices:
    """The prices of one region. Asking is `learn`; everything else answers from what is known."""

    def __init__(self, aws: AwsClient, directory: Path) -> None:
        self._aws = aws
        self._file = directory / "prices.json"
        self._heard: dict[str, _Heard] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            known = json.loads(self._file.read_text())
            self._heard = {
                subject: {name: (said, float(at)) for name, (said, at) in heard.items()}
                for subject, heard in known.items()
            }

    async def learn(self, machines: Collection[str], spot: Collection[str] = ()) -> None:
        """Have today's prices of these types, and of those that are to be spot machines. Without an
        answer, soon, the catalog has to do."""
        on_demand = [name for name in machines if not self._is_new("on-demand", name)]
        bids = [name for name in spot if not self._is_new("spot", name, _SPOT_SECONDS)]
        questions = [self._try(_PRICE_LIST, self._ask_machine(name)) for name in on_demand]
        if bids:
            questions.append(self._try(_SPOT_PRICES, self._ask_spot(bids)))
        await self._ask(questions)

    async def learn_volumes(self, kinds: Collection[str]) -> None:
        """The same for kinds of disks."""
        new = [kind for kind in kinds if not self._is_new("volume", kind)]
        await self._ask([self._try(_PRICE_LIST, self._ask_volume(kind)) for kind in new])

    def per_hour(self, machine: str, market: str, zone: str = "") -> float | None:
        """US dollars an hour; None where nobody knows. Where the zone of a spot machine is not
        known, the dearest: a plan must not promise less than what is paid."""
        known = self._recent(_subject(market), machine)
        if known is None:
            return listed(self._aws.region, machine, market)
        if market != "spot":
            return float(known)
        return float(known.get(zone) or max(known.values()))

    def volume(self, kind: str) -> Mapping[str, float] | None:
        """US dollars a month by unit, as AWS says them; None if it did not."""
        found: Mapping[str, float] | None = self._recent("volume", kind)
        return found

    def source(self, machines: Collection[tuple[str, str]]) -> str:
        """Where the prices of these types in these markets are from, in words."""
        subjects = {(_subject(market), name) for name, market in machines}
        heard = [one for one in subjects if self._is_new(*one)]
        parts = []
        if heard:
            latest = max(self._heard[subject][name][1] for subject, name in heard)
            day = datetime.fromtimestamp(latest, timezone.utc).date()
            parts.append(f"AWS's price list of {day}")
        if len(heard) < len(subjects) or not heard:
            parts.append(f"the catalog of {load_price_table('aws').dated}")
        return " and ".join(parts)

    async def _ask(self, questions: list[Coroutine[Any, Any, None]]) -> None:
        if questions:
            await run_all(questions)
            self._keep()

    async def _try(self, whom: str, question: Coroutine[Any, Any, None]) -> None:
        if self._is_new("silent", whom, _SILENT_SECONDS):
            question.close()
            return
        try:
            await asyncio.wait_for(question, _ASK_SECONDS)
        except (ShoalError, asyncio.TimeoutError):
            self._hear("silent", whom, True)

    async def _ask_machine(self, name: str) -> None:
        asked = source.instance_price_query(self._aws.region, instanceType=name)
        for product in await self._products(asked):
            for found, price in source.instance_prices(product):
                self._hear("on-demand", found, price)

    async def _ask_volume(self, kind: str) -> None:
        products = await self._products(source.volume_price_query(self._aws.region, kind))
        prices = {unit: p for product in products for unit, p in source.volume_prices(product)}
        if "gib" in prices:
            self._hear("volume", kind, prices)

    async def _ask_spot(self, names: Collection[str]) -> None:
        now = datetime.fromtimestamp(self._aws.clock.now(), timezone.utc)
        entries = await self._aws.pages(
            "ec2",
            "describe_spot_price_history",
            "SpotPriceHistory",
            **source.spot_price_query(names, now),
        )
        zones: dict[str, dict[str, float]] = {}
        for entry in sorted(entries, key=lambda one: one["Timestamp"]):  # the latest counts
            prices = zones.setdefault(entry["InstanceType"], {})
            prices[entry["AvailabilityZone"]] = float(entry["SpotPrice"])
        for name, prices in zones.items():
            self._hear("spot", name, prices)

    async def _products(self, asked: Mapping[str, Any]) -> list[str]:
        everywhere = self._aws.elsewhere(source.PRICE_LIST_REGION)
        return await everywhere.pages("pricing", "get_products", "PriceList", **asked)

    def _hear(self, subject: str, name: str, said: Any) -> None:
        self._heard.setdefault(subject, {})[name] = (said, self._aws.clock.now())

    def _recent(self, subject: str, name: str) -> Any:
        return self._heard[subject][name][0] if self._is_new(subject, name) else None

    def _is_new(self, subject: str, name: str, seconds: float = _DAY_SECONDS) -> bool:
        _, at = self._heard.get(subject, {}).get(name, (None, 0.0))
        return self._aws.clock.now() - at < seconds

    def _keep(self) -> None:
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(self._file, json.dumps(self._heard))


def _subject(market: str) -> str:
    return "spot" if market == "spot" else "on-demand"


@cache
def listed(region: str, instance_type: str, market: str) -> float | None:
    """US dollars an hour by the catalog that is shipped; None where it does not say."""
    listing = load_price_table("aws").find(instance_type)
    if listing is None:
        return None
    price = listing.price(region)
    return price.spot if market == "spot" else price.on_demand
