"""Prices of instances and volumes: from AWS's price list and spot price history, else from the
catalog shipped with Shoal. List prices, not a bill.

Prices are cached in a file for a day, so most commands need no request. The file may be lost at
any time: a missing price costs one request.
"""

from __future__ import annotations

import asyncio
import json
import logging
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
from shoal.core.logs import suppress_and_log
from shoal.providers.aws.aws_client import AwsClient

_log = logging.getLogger(__name__)

_MAX_AGE_SECONDS = 86_400.0
_SPOT_MAX_AGE_SECONDS = 900.0
# Commands wait at most this long for a price, and do not ask a service again for a while after it
# failed to answer.
_REQUEST_SECONDS = 3.0
_UNAVAILABLE_SECONDS = 3600.0

# US dollars for a public IPv4 address, in every region since 2024.
PUBLIC_ADDRESS_PER_HOUR = 0.005
_PRICE_LIST, _SPOT_PRICES = "the price list", "spot prices"

_Entries = dict[str, tuple[Any, float]]


class Prices:
    """The prices of one region. Only the `refresh` methods make requests; all others answer from
    the cache. Entries are (value, time) by subject (market, "volume", "unavailable") and name."""

    def __init__(self, aws: AwsClient, directory: Path) -> None:
        self._aws = aws
        self._file = directory / "prices.json"
        self._cache: dict[str, _Entries] = {}
        with suppress_and_log(
            _log, "read cached prices", OSError, ValueError, TypeError, AttributeError
        ):
            stored = json.loads(self._file.read_text())
            self._cache = {
                subject: {name: (value, float(at)) for name, (value, at) in entries.items()}
                for subject, entries in stored.items()
            }

    async def refresh(self, on_demand: Collection[str], spot: Collection[str] = ()) -> None:
        """Fetch the current prices of these instance types on each market. Without a timely
        response the catalog's prices apply."""
        requests = [
            self._attempt(_PRICE_LIST, self._fetch_instance_type(name))
            for name in on_demand
            if not self._is_fresh("on-demand", name)
        ]
        stale_spot = [
            name for name in spot if not self._is_fresh("spot", name, _SPOT_MAX_AGE_SECONDS)
        ]
        if stale_spot:
            requests.append(self._attempt(_SPOT_PRICES, self._fetch_spot(stale_spot)))
        await self._fetch(requests)

    async def refresh_volumes(self, volume_types: Collection[str]) -> None:
        """The same for EBS volume types."""
        stale = [name for name in volume_types if not self._is_fresh("volume", name)]
        await self._fetch([self._attempt(_PRICE_LIST, self._fetch_volume(name)) for name in stale])

    def per_hour(self, instance_type: str, market: str, zone: str = "") -> float | None:
        """US dollars per hour; None if unknown. Without a zone, the highest spot price: a plan must
        not promise less than what is paid."""
        price = self._fresh_value(_subject(market), instance_type)
        if price is None:
            return catalog_price(self._aws.region, instance_type, market)
        if market != "spot":
            return float(price)
        return float(price.get(zone) or max(price.values()))

    def volume_prices(self, volume_type: str) -> Mapping[str, float] | None:
        """AWS's list prices in US dollars per month, by unit; None if unknown."""
        prices: Mapping[str, float] | None = self._fresh_value("volume", volume_type)
        return prices

    def source(self, instance_types: Collection[tuple[str, str]]) -> str:
        """Where the prices of these instance types and markets come from, as text."""
        subjects = {(_subject(market), name) for name, market in instance_types}
        fresh = [(subject, name) for subject, name in subjects if self._is_fresh(subject, name)]
        parts = []
        if fresh:
            latest = max(self._cache[subject][name][1] for subject, name in fresh)
            day = datetime.fromtimestamp(latest, timezone.utc).date()
            parts.append(f"AWS's price list of {day}")
        if len(fresh) < len(subjects) or not fresh:
            parts.append(f"the catalog of {load_price_table('aws').dated}")
        return " and ".join(parts)

    async def _fetch(self, requests: list[Coroutine[Any, Any, None]]) -> None:
        if requests:
            await run_all(requests)
            self._save()

    async def _attempt(self, service: str, request: Coroutine[Any, Any, None]) -> None:
        if self._is_fresh("unavailable", service, _UNAVAILABLE_SECONDS):
            request.close()
            return
        try:
            await asyncio.wait_for(request, _REQUEST_SECONDS)
        except (ShoalError, asyncio.TimeoutError) as error:
            _log.info("could not fetch %s, using the catalog: %s", service, error or "timeout")
            self._store("unavailable", service, True)

    async def _fetch_instance_type(self, instance_type: str) -> None:
        query = source.instance_price_query(self._aws.region, instanceType=instance_type)
        for product in await self._products(query):
            for name, price in source.instance_prices(product):
                self._store("on-demand", name, price)

    async def _fetch_volume(self, volume_type: str) -> None:
        products = await self._products(source.volume_price_query(self._aws.region, volume_type))
        prices = {unit: p for product in products for unit, p in source.volume_prices(product)}
        if "gib" in prices:
            self._store("volume", volume_type, prices)

    async def _fetch_spot(self, names: Collection[str]) -> None:
        now = datetime.fromtimestamp(self._aws.clock.now(), timezone.utc)
        entries = await self._aws.paginate(
            "ec2",
            "describe_spot_price_history",
            "SpotPriceHistory",
            **source.spot_price_query(names, now),
        )
        by_type: dict[str, dict[str, float]] = {}
        # In order of time, so that the latest price of a zone remains.
        for entry in sorted(entries, key=lambda entry: entry["Timestamp"]):
            zones = by_type.setdefault(entry["InstanceType"], {})
            zones[entry["AvailabilityZone"]] = float(entry["SpotPrice"])
        for name, zones in by_type.items():
            self._store("spot", name, zones)

    async def _products(self, query: Mapping[str, Any]) -> list[str]:
        price_list = self._aws.in_region(source.PRICE_LIST_REGION)
        return await price_list.paginate("pricing", "get_products", "PriceList", **query)

    def _store(self, subject: str, name: str, value: Any) -> None:
        self._cache.setdefault(subject, {})[name] = (value, self._aws.clock.now())

    def _fresh_value(self, subject: str, name: str) -> Any:
        return self._cache[subject][name][0] if self._is_fresh(subject, name) else None

    def _is_fresh(self, subject: str, name: str, max_age: float = _MAX_AGE_SECONDS) -> bool:
        _, at = self._cache.get(subject, {}).get(name, (None, 0.0))
        return self._aws.clock.now() - at < max_age

    def _save(self) -> None:
        with suppress_and_log(_log, "cache prices", OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(self._file, json.dumps(self._cache))


def _subject(market: str) -> str:
    return "spot" if market == "spot" else "on-demand"


@cache
def catalog_price(region: str, instance_type: str, market: str) -> float | None:
    """US dollars per hour by the catalog shipped with Shoal; None if it has no price."""
    listing = load_price_table("aws").find(instance_type)
    if listing is None:
        return None
    price = listing.price(region)
    return price.spot if market == "spot" else price.on_demand
