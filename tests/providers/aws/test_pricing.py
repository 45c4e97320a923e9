"""Price estimates and recorded costs, compared with the bill of the simulated account."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shoal.catalog.price_table import load_price_table
from shoal.providers.aws.pricing import Prices
from tests.providers.aws.aws_bed import CLUSTER, Bed, cluster_file, events_of
from tests.providers.aws.provider_account import Account
from tests.simcloud.aws_market import VOLUMES
from tests.simcloud.calls import ApiError

pytestmark = pytest.mark.simcloud

DAY = 86_400
SPOT = {"InstanceType": "c5.large", "InstanceMarketOptions": {"MarketType": "spot"}}


def mixed() -> dict[str, Any]:
    """An on-demand head and two spot workers."""
    types: dict[str, Any] = cluster_file()["available_node_types"]
    types["worker"]["node_config"] = SPOT
    return types


def price_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    (price,) = [event for event in events if event["event"] == "price"]
    return price


async def test_the_price_of_a_plan_equals_the_bill_of_a_day(bed: Bed) -> None:
    await bed.write(available_node_types=mixed())
    planned = price_of(events_of(await bed.shoal("plan c.yaml --json")))
    assert planned["complete"]
    assert planned["source"].startswith("AWS's price list of ")
    launched = price_of(await bed.up())
    assert launched["per_hour"] == planned["per_hour"]

    rentals = bed.cloud.ledger.rentals.values()
    assert sorted(rental.market for rental in rentals) == ["on-demand", "spot", "spot"]
    bill = sum(rental.cost(rental.began + DAY) for rental in rentals)
    volumes = 3 * 100 * VOLUMES["gp3"] / 730 * 24  # AWS counts 730 hours a month
    addresses = 3 * 0.005 * 24
    assert round(24 * planned["per_hour"], 2) == round(bill + volumes + addresses, 2)
    assert {item["disks"] for item in planned["items"]} == {"100 GiB gp3 + a public IPv4 address"}
    # The catalog has another price.
    listing = load_price_table("aws").find("c5.large")
    assert listing is not None
    assert listing.price("us-west-2").spot != pytest.approx(0.3 * 0.085)
    await _costs_are_reported(bed)


async def _costs_are_reported(bed: Bed) -> None:
    """`shoal cost` works while the cluster runs and after it is gone."""
    running = await cost_report(bed, "c.yaml")
    extras = 100 * VOLUMES["gp3"] / 730 + 0.005
    assert running["per_hour"] == pytest.approx(0.096 + 2 * 0.3 * 0.085 + 3 * extras)
    assert rows(running) == {("head", "on-demand"): 1, ("worker", "spot"): 2}
    await bed.down()
    ended = await cost_report(bed, CLUSTER)
    assert ended["per_hour"] == 0
    assert ended["complete"]
    assert rows(ended) == rows(running)
    hours = sum(row["hours"] for row in ended["rows"])
    assert ended["cost"] == pytest.approx(bed.cloud.ledger.cost() + hours * extras, abs=0.005)
    assert "mine has cost $0.0" in (await bed.shoal(f"cost {CLUSTER}")).stdout


async def cost_report(bed: Bed, cluster: str) -> dict[str, Any]:
    done = await bed.shoal(f"cost {cluster} --json")
    assert done.code == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def rows(cost: dict[str, Any]) -> dict[tuple[str, str], int]:
    return {(row["node_type"], row["market"]): row["instances"] for row in cost["rows"]}


async def test_the_catalog_is_used_and_named_if_the_price_list_is_denied(account: Account) -> None:
    denied = ApiError("AccessDeniedException", "you may not", 403)
    account.cloud.faults.fail_call("GetProducts", error=denied, times=99)
    provider = account.provider()
    offers = {offer.node_type: offer for offer in await provider.offerings(account.spec)}
    assert offers["head"].price_per_hour == 0.096
    price_source = provider.capabilities.price_source
    assert price_source is not None
    assert price_source(account.spec) == f"the catalog of {load_price_table('aws').dated}"
    again = account.provider()
    await again.offerings(account.spec)
    assert account.cloud.ledger.calls()["GetProducts"] == 1, (
        "a denied service is not asked again soon"
    )


async def test_prices_are_fetched_once_a_day(account: Account) -> None:
    for _ in range(2):
        provider = account.provider()
        await provider.offerings(account.spec)
    # One for the instance type, and one for the volume type.
    assert account.cloud.ledger.calls()["GetProducts"] == 2
    price_source = provider.capabilities.price_source
    assert price_source is not None
    assert price_source(account.spec).startswith("AWS's price list of ")


async def test_the_spot_price_is_the_zones_or_without_a_zone_the_highest(
    account: Account,
) -> None:
    provider: Any = account.provider()
    prices: Prices = provider._prices
    await prices.refresh((), ["c5.large"])
    assert account.cloud.ledger.calls()["DescribeSpotPriceHistory"] == 1
    assert prices.per_hour("c5.large", "spot", "us-west-2b") == pytest.approx(0.3 * 0.085)
    prices._store("spot", "c5.large", {"us-west-2a": 0.02, "us-west-2b": 0.03})
    assert prices.per_hour("c5.large", "spot", "us-west-2a") == 0.02
    assert prices.per_hour("c5.large", "spot") == 0.03
