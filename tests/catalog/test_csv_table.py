"""Prices from third-party CSV tables."""

from __future__ import annotations

from shoal.catalog import Price
from shoal.catalog.sources.csv_table import read

HEADER = (
    "instance_type,region,vcpus,memory_gib,accelerator,accelerator_count,arch,"
    "on_demand_usd_hour,lowest_spot_usd_hour"
)


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
