"""The shipped price catalog, and the file it is kept in."""

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
def test_every_listing_can_be_found_by_its_name_and_makes_sense(cloud: Cloud) -> None:
    listings = list(load_price_table(cloud))
    assert len(listings) > 400
    for listing in listings:
        assert load_price_table(cloud).find(listing.name) == listing
        assert listing.vcpus > 0
        assert listing.memory_gib > 0
        for price in (listing.prices or {}).values():
            assert price.on_demand is None or price.on_demand > 0
            if price.on_demand and price.spot:
                assert price.spot <= price.on_demand


def test_a_known_machine_has_its_known_figures() -> None:
    found = load_price_table("aws").find("g4dn.xlarge")
    assert found is not None
    assert found.price("us-west-2") == Price(0.526, 0.0976)
    assert found.resources() == {"CPU": 4, "memory": int(16 * 2**30 * 0.7), "GPU": 1}


def test_names_that_are_not_there_or_only_begin_alike_are_not_found() -> None:
    assert load_price_table("aws").find("m5.") is None
    assert load_price_table("aws").find("") is None
    assert load_price_table("aws").find("M5.LARGE") is None


def test_a_file_reads_back_as_it_was_written() -> None:
    listings = [
        InstanceType("a", 2, 0.6, prices={"r1": Price(0.1, 0.05), "r2": Price(None, 0.2)}),
        InstanceType("b", 96, 1152, "A100 80GB", 0.125, True, {"r2": Price(3.5)}),
    ]
    text = to_text(reversed(listings), "2026-08")
    assert list(PriceTable(text)) == listings
    assert PriceTable(text).dated == "2026-08"


def test_partial_prices_are_never_given_as_prices() -> None:
    found = load_price_table("gcp").find("a2-highgpu-1g")
    assert found is not None
    assert found.resources()["GPU"] == 1
    assert found.price("us-central1") == Price()


def test_collected_figures_are_taken_with_care() -> None:
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


def test_part_of_a_card_is_one_gpu_and_an_fpga_is_none() -> None:
    assert InstanceType("g6f.large", 2, 8, "L4", 0.125).gpus == 1
    assert InstanceType("f2", 24, 256, "Virtex UltraScale+ (VU47P)", 1).gpus == 0
    assert InstanceType("inf2.xlarge", 4, 16, "Inferentia2", 1).resources()["neuron_cores"] == 2


def test_a_cluster_file_gets_prices_for_its_region_and_market() -> None:
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
    offers = {o.node_type: o for o in offerings_for(load(YamlText("test", text)).spec)}
    assert (offers["gpu"].market, offers["gpu"].price_per_hour) == ("spot", 0.0976)
    assert offers["gpu"].resources["GPU"] == 1
    assert offers["head"].market == "on-demand"


def test_asking_about_one_machine_does_not_read_the_other_cloud() -> None:
    code = (
        "import sys; from shoal.catalog import load_price_table;"
        "load_price_table('gcp').find('n1-standard-4');"
        "print(load_price_table.cache_info().currsize, 'yaml' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["1", "False"]


def test_the_command_shows_the_cheapest_machine_that_would_do() -> None:
    result = CliRunner().invoke(
        command, ["--gpus", "1", "--cloud", "aws", "--json", "--limit", "3"]
    )
    assert result.exit_code == 0
    lines = json.loads(result.output)
    assert len(lines) == 3
    prices = [line["on_demand"] for line in lines]
    assert prices == sorted(prices)
    assert all(line["accelerators"] > 0 for line in lines)


def test_the_command_marks_prices_that_leave_the_gpus_out() -> None:
    result = CliRunner().invoke(command, ["a2-highgpu-1g"])
    assert "> 0.7395" in result.output
    assert "without the accelerators" in result.output


def test_the_command_names_the_regions_it_knows() -> None:
    result = CliRunner().invoke(command, ["--region", "mars-1"])
    assert result.exit_code == 3
    assert "us-west-2" in result.output
