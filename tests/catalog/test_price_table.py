"""The shipped price tables, their file format, and `shoal prices`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from shoal.catalog import (
    CLOUDS,
    Cloud,
    InstanceType,
    Price,
    PriceTable,
    load_price_table,
    offerings_for,
)
from shoal.catalog.price_table import to_text
from shoal.catalog.sources.csv_table import read
from shoal.cli.prices import command
from shoal.spec import YamlText, load

HEADER = (
    "instance_type,region,vcpus,memory_gib,accelerator,accelerator_count,arch,"
    "on_demand_usd_hour,lowest_spot_usd_hour"
)


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


def test_errors_in_csv_tables_are_corrected() -> None:
    rows = [
        HEADER,
        ",us-east1,,,H100,1,,0.35,0.144",
        "a4-highgpu-8g,us-east1,224,3968.0,,,,0.0,0.0",
        "g2-standard-24,us-east1,24,96.0,,,,0.88,0.5",
        "n1-standard-4,us-east1,4,15.0,,,,0.19,0.191",
    ]
    by_name = {entry.name: entry for entry in read("gcp", rows)}
    assert set(by_name) == {"a4-highgpu-8g", "g2-standard-24", "n1-standard-4"}
    assert by_name["a4-highgpu-8g"].prices == {}
    assert (by_name["g2-standard-24"].accelerator, by_name["g2-standard-24"].gpus) == ("L4", 2)
    assert by_name["g2-standard-24"].partial
    assert by_name["n1-standard-4"].price("us-east1") == Price(0.19, 0.19)


def test_a_part_of_a_gpu_is_one_gpu_and_an_fpga_is_none() -> None:
    assert InstanceType("g6f.large", 2, 8, "L4", 0.125).gpus == 1
    assert InstanceType("f2", 24, 256, "Virtex UltraScale+ (VU47P)", 1).gpus == 0
    assert InstanceType("inf2.xlarge", 4, 16, "Inferentia2", 1).resources()["neuron_cores"] == 2


def test_offerings_have_the_prices_of_their_region_and_market() -> None:
    text = """
    cluster_name: test
    provider: {type: aws, region: us-west-2}
    head_node_type: head
    available_node_types:
      head: {node_config: {InstanceType: m5.large}, max_workers: 0}
      gpu:
        max_workers: 4
        node_config:
          InstanceType: g4dn.xlarge
          InstanceMarketOptions: {MarketType: spot}
    """
    offerings = {o.node_type: o for o in offerings_for(load(YamlText("test", text)).spec)}
    assert (offerings["gpu"].market, offerings["gpu"].price_per_hour) == ("spot", 0.0976)
    assert offerings["gpu"].resources["GPU"] == 1
    assert offerings["head"].market == "on-demand"


def test_a_lookup_does_not_read_the_other_clouds_table() -> None:
    code = (
        "import sys; from shoal.catalog import load_price_table;"
        "load_price_table('gcp').find('n1-standard-4');"
        "print(load_price_table.cache_info().currsize, 'yaml' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["1", "False"]


def test_the_command_shows_the_cheapest_instance_types_first() -> None:
    result = CliRunner().invoke(
        command, ["--gpus", "1", "--cloud", "aws", "--json", "--limit", "3"]
    )
    assert result.exit_code == 0
    lines = json.loads(result.output)
    assert len(lines) == 3
    prices = [line["on_demand"] for line in lines]
    assert prices == sorted(prices)
    assert all(line["accelerators"] > 0 for line in lines)


def test_the_command_marks_partial_prices() -> None:
    result = CliRunner().invoke(command, ["a2-highgpu-1g"])
    assert "> 0.7395" in result.output
    assert "without the accelerators" in result.output


def test_the_command_lists_the_known_regions() -> None:
    result = CliRunner().invoke(command, ["--region", "mars-1"])
    assert result.exit_code == 3
    assert "us-west-2" in result.output
