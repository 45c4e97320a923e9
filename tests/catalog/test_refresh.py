"""Collecting prices from the clouds, with stubbed responses.

botocore validates the AWS responses against its service models; the GCP responses are shortened
from the documented resources. No test calls a real API.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber

from shoal.catalog import Price
from shoal.catalog.price_table import PriceTable
from shoal.catalog.refresh import main
from shoal.catalog.sources import aws, gcp

NOW = datetime(2026, 8, 1, tzinfo=timezone.utc)


def product(name: str, dollars: str) -> str:
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": dollars}}
    return json.dumps(
        {
            "product": {"attributes": {"instanceType": name, "vcpu": "4"}},
            "terms": {"OnDemand": {"X.Y": {"priceDimensions": {"X.Y.Z": dimension}}}},
        }
    )


def client(service: str) -> Any:
    return boto3.client(
        service, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    )


def test_aws_prices_are_from_the_price_list_and_the_cheapest_zone() -> None:
    pricing, ec2 = client("pricing"), client("ec2")
    with Stubber(pricing) as pricing_stub, Stubber(ec2) as ec2_stub:
        pricing_stub.add_response(
            "get_products",
            {"PriceList": [product("m5.large", "0.0960000000")], "NextToken": "more"},
            {"ServiceCode": "AmazonEC2", "Filters": ANY},
        )
        pricing_stub.add_response(
            "get_products",
            {"PriceList": [product("g4dn.xlarge", "0.526"), product("free", "0.0")]},
            {"ServiceCode": "AmazonEC2", "Filters": ANY, "NextToken": "more"},
        )
        ec2_stub.add_response(
            "describe_spot_price_history",
            {
                "SpotPriceHistory": [
                    {"InstanceType": "m5.large", "SpotPrice": "0.041", "AvailabilityZone": "a"},
                    {"InstanceType": "m5.large", "SpotPrice": "0.035", "AvailabilityZone": "b"},
                ]
            },
            {"StartTime": NOW, "ProductDescriptions": ["Linux/UNIX"]},
        )
        ec2_stub.add_response(
            "describe_instance_types",
            {
                "InstanceTypes": [
                    {
                        "InstanceType": "m5.large",
                        "VCpuInfo": {"DefaultVCpus": 2},
                        "MemoryInfo": {"SizeInMiB": 8192},
                    },
                    {
                        "InstanceType": "g4dn.xlarge",
                        "VCpuInfo": {"DefaultVCpus": 4},
                        "MemoryInfo": {"SizeInMiB": 16384},
                        "GpuInfo": {"Gpus": [{"Name": "T4", "Count": 1}]},
                    },
                    {
                        "InstanceType": "not.sold",
                        "VCpuInfo": {"DefaultVCpus": 1},
                        "MemoryInfo": {"SizeInMiB": 1024},
                    },
                ]
            },
        )
        instance_types = aws.collect(aws.Clients(pricing, lambda region: ec2), ["us-east-1"], NOW)
    gpu, plain = instance_types
    assert plain.prices == {"us-east-1": Price(0.096, 0.035)}
    assert gpu.prices == {"us-east-1": Price(0.526, None)}
    assert (gpu.name, gpu.gpus, gpu.memory_gib) == ("g4dn.xlarge", 1, 16)


def sku(description: str, usage: str, nanos: int) -> dict[str, Any]:
    rate = {"startUsageAmount": 0, "unitPrice": {"units": "0", "nanos": nanos}}
    return {
        "description": description,
        "category": {"usageType": usage, "resourceFamily": "Compute"},
        "serviceRegions": ["us-central1"],
        "pricingInfo": [{"pricingExpression": {"usageUnit": "h", "tieredRates": [rate]}}],
    }


PARTS = [
    sku("N2 Instance Core running in Iowa", "OnDemand", 30_000_000),
    sku("N2 Instance Ram running in Iowa", "OnDemand", 4_000_000),
    sku("Spot Preemptible N2 Instance Core running in Iowa", "Preemptible", 7_000_000),
    sku("Spot Preemptible N2 Instance Ram running in Iowa", "Preemptible", 1_000_000),
    sku("N2 Instance Core running in Iowa", "Commit1Yr", 1_000_000),
    sku("G2 Instance Core running in Iowa", "OnDemand", 25_000_000),
    sku("G2 Instance Ram running in Iowa", "OnDemand", 3_000_000),
    sku("Nvidia L4 GPU running in Iowa", "OnDemand", 560_000_000),
    sku("Storage PD Capacity", "OnDemand", 40_000_000),
]


def gcp_api(url: str, query: Mapping[str, str]) -> Mapping[str, Any]:
    if url.endswith("/skus"):
        assert query["currencyCode"] == "USD"
        half = len(PARTS) // 2
        if query.get("pageToken"):
            return {"skus": PARTS[half:]}
        return {"skus": PARTS[:half], "nextPageToken": "2"}
    assert url.endswith("/projects/mine/aggregated/machineTypes")
    gpu = {"guestAcceleratorType": "nvidia-l4", "guestAcceleratorCount": 1}
    return {
        "items": {
            "zones/us-central1-a": {
                "machineTypes": [
                    {"name": "n2-standard-4", "guestCpus": 4, "memoryMb": 16384},
                    {"name": "c9-unpriced-4", "guestCpus": 4, "memoryMb": 16384},
                    {
                        "name": "g2-standard-4",
                        "guestCpus": 4,
                        "memoryMb": 16384,
                        "accelerators": [gpu],
                    },
                ]
            },
            "zones/europe-west9-a": {
                "machineTypes": [{"name": "n2-standard-8", "guestCpus": 8, "memoryMb": 32768}]
            },
            "zones/us-central1-b": {"warning": {"code": "NO_RESULTS_ON_PAGE"}},
        }
    }


def test_gcp_prices_are_the_sum_of_vcpus_memory_and_gpus() -> None:
    gpu, plain = gcp.collect(gcp_api, "mine", ["us-central1"])
    assert plain.name == "n2-standard-4"
    assert plain.prices == {"us-central1": Price(0.184, 0.044)}
    assert (gpu.accelerator, gpu.gpus, gpu.partial) == ("L4", 1, False)
    # Without a spot price of the GPU, the machine type has none.
    assert gpu.prices is not None
    price = gpu.prices["us-central1"]
    assert price.on_demand == pytest.approx(0.708)
    assert price.spot is None


def test_refresh_from_a_csv_table_writes_the_price_table(tmp_path: Any) -> None:
    table = tmp_path / "aws.csv"
    table.write_text(
        "instance_type,region,vcpus,memory_gib,accelerator,accelerator_count,arch,"
        "on_demand_usd_hour,lowest_spot_usd_hour\nm5.large,us-east-1,2,8.0,,,,0.096,\n"
    )
    target = tmp_path / "aws.tsv"
    main(["aws", "--table", str(table), "--to", str(target), "--dated", "2026-08"])
    (only,) = PriceTable(target.read_text())
    assert only.price("us-east-1") == Price(0.096, None)
