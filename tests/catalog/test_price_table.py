"""The shipped price tables and their file format."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shoal.catalog import (
    CLOUDS,
    Cloud,
    InstanceType,
    Price,
    PriceTable,
    load_price_table,
)
from shoal.catalog.price_table import to_text


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_instance_type_can_be_found_and_is_plausible(cloud: Cloud) -> None:
    instance_types = list(load_price_table(cloud))
    assert len(instance_types) > 400
    for entry in instance_types:
        assert load_price_table(cloud).find(entry.name) == entry
        assert entry.vcpus > 0
        assert entry.memory_gib > 0
        for price in (entry.prices or {}).values():
            assert price.on_demand is None or price.on_demand > 0
            if price.on_demand and price.spot:
                assert price.spot <= price.on_demand


def test_price_and_resources_of_a_known_instance_type() -> None:
    instance_type = load_price_table("aws").find("g4dn.xlarge")
    assert instance_type is not None
    assert instance_type.price("us-west-2") == Price(0.526, 0.0976)
    assert instance_type.resources() == {"CPU": 4, "memory": int(16 * 2**30 * 0.7), "GPU": 1}


def test_unknown_names_and_prefixes_are_not_found() -> None:
    assert load_price_table("aws").find("m5.") is None
    assert load_price_table("aws").find("") is None
    assert load_price_table("aws").find("M5.LARGE") is None


def test_a_table_survives_the_round_trip() -> None:
    instance_types = [
        InstanceType("a", 2, 0.6, prices={"r1": Price(0.1, 0.05), "r2": Price(None, 0.2)}),
        InstanceType("b", 96, 1152, "A100 80GB", 0.125, True, {"r2": Price(3.5)}),
    ]
    text = to_text(reversed(instance_types), "2026-08")
    assert list(PriceTable(text)) == instance_types
    assert PriceTable(text).dated == "2026-08"


def test_a_partial_price_is_not_a_price() -> None:
    instance_type = load_price_table("gcp").find("a2-highgpu-1g")
    assert instance_type is not None
    assert instance_type.resources()["GPU"] == 1
    assert instance_type.price("us-central1") == Price()


def test_a_part_of_a_gpu_is_one_gpu_and_an_fpga_is_none() -> None:
    assert InstanceType("g6f.large", 2, 8, "L4", 0.125).gpus == 1
    assert InstanceType("f2", 24, 256, "Virtex UltraScale+ (VU47P)", 1).gpus == 0
    assert InstanceType("inf2.xlarge", 4, 16, "Inferentia2", 1).resources()["neuron_cores"] == 2


def test_a_lookup_does_not_read_the_other_clouds_table() -> None:
    code = (
        "import sys; from shoal.catalog import load_price_table;"
        "load_price_table('gcp').find('n1-standard-4');"
        "print(load_price_table.cache_info().currsize, 'yaml' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["1", "False"]
