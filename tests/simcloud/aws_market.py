"""What moto lacks: the price list, spot prices, quotas, and a short list of enabled regions. Prices
are those of the ledger, so that estimates can be compared with the bill."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from tests.simcloud.calls import ApiError, Call
from tests.simcloud.ledger import hourly_price

REGIONS = ("us-west-2", "us-east-1", "eu-central-1")
DISABLED_REGIONS = ("me-south-1",)
ZONES = "abcd"
# US dollars per GiB and month.
VOLUMES = {"gp2": 0.10, "gp3": 0.08, "io1": 0.125, "st1": 0.045}
_DEFAULT_QUOTA = 10_000.0

Response = tuple[int, dict[str, str], bytes]


class Market:
    """Fixed prices, and quotas that tests set and callers may raise."""

    def __init__(self) -> None:
        self.quotas: dict[str, float] = {}
        """vCPUs by quota code; others have a large default."""
        self.spot_factors: dict[str, float] = {}
        """By zone, how much more a spot instance costs there than elsewhere."""

    def respond(self, call: Call, body: bytes) -> Response | ApiError | None:
        """Return the response to a call, or None for calls that moto handles."""
        if call.action == "DescribeSpotPriceHistory":
            return xml_response(call.action, self._spot_history(call))
        if call.action == "DescribeRegions":
            return xml_response(call.action, _regions(call))
        if call.service == "pricing" and call.action == "GetProducts":
            return _json({"FormatVersion": "aws_v1", "PriceList": _products(json.loads(body))})
        if call.service == "servicequotas":
            return _json(self._quota(call.action, json.loads(body)))
        return None

    def _spot_history(self, call: Call) -> str:
        names = [value for key, value in call.params.items() if key.startswith("InstanceType.")]
        at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        items = "".join(
            f"<item><instanceType>{name}</instanceType><productDescription>Linux/UNIX"
            f"</productDescription><spotPrice>{self._spot_price(name, zone):.10f}</spotPrice>"
            f"<timestamp>{at}</timestamp><availabilityZone>{zone}</availabilityZone></item>"
            for name in names
            for zone in (f"{call.region}{letter}" for letter in ZONES)
        )
        return f"<spotPriceHistorySet>{items}</spotPriceHistorySet>"

    def _spot_price(self, name: str, zone: str) -> float:
        return hourly_price(name, "spot") * self.spot_factors.get(zone, 1.0)

    def _quota(self, action: str, request: Mapping[str, Any]) -> dict[str, Any]:
        code = request["QuotaCode"]
        if action == "RequestServiceQuotaIncrease":
            self.quotas[code] = request["DesiredValue"]
            return {"RequestedQuota": {"QuotaCode": code, "Status": "CASE_CLOSED"}}
        value = self.quotas.get(code, _DEFAULT_QUOTA)
        return {"Quota": {"ServiceCode": "ec2", "QuotaCode": code, "Value": value}}


def xml_response(action: str, content: str) -> Response:
    """Return a response in EC2's format."""
    text = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<{action}Response '
        'xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>1</requestId>'
        f"{content}</{action}Response>"
    )
    return 200, {"Content-Type": "text/xml"}, text.encode()


def _json(document: dict[str, Any]) -> Response:
    return 200, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(document).encode()


def _products(request: Mapping[str, Any]) -> list[str]:
    attributes = {entry["Field"]: entry["Value"] for entry in request["Filters"]}
    if "volumeApiName" in attributes:
        price = VOLUMES.get(attributes["volumeApiName"])
        return [] if price is None else [_product(attributes, "GB-Mo", price)]
    price = hourly_price(attributes["instanceType"], "on-demand")
    return [_product(attributes, "Hrs", price)]


def _product(attributes: Mapping[str, str], unit: str, price: float) -> str:
    dimension = {"unit": unit, "beginRange": "0", "pricePerUnit": {"USD": f"{price:.10f}"}}
    terms = {"OnDemand": {"term": {"priceDimensions": {"dimension": dimension}}}}
    return json.dumps({"product": {"attributes": dict(attributes)}, "terms": terms})


def _regions(call: Call) -> str:
    shown = dict.fromkeys(REGIONS, "opt-in-not-required")
    if call.params.get("AllRegions") == "true":
        shown.update(dict.fromkeys(DISABLED_REGIONS, "not-opted-in"))
    named = [value for key, value in call.params.items() if key.startswith("RegionName.")]
    items = "".join(
        f"<item><regionName>{name}</regionName><optInStatus>{status}</optInStatus>"
        f"<regionEndpoint>ec2.{name}.amazonaws.com</regionEndpoint></item>"
        for name, status in shown.items()
        if not named or name in named
    )
    return f"<regionInfo>{items}</regionInfo>"
