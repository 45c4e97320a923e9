"""`shoal prices`"""

from __future__ import annotations

import json

from click.testing import CliRunner

from shoal.cli.prices import command


def test_it_shows_the_cheapest_instance_types_first() -> None:
    result = CliRunner().invoke(
        command, ["--gpus", "1", "--cloud", "aws", "--json", "--limit", "3"]
    )
    assert result.exit_code == 0
    lines = json.loads(result.output)
    assert len(lines) == 3
    prices = [line["on_demand"] for line in lines]
    assert prices == sorted(prices)
    assert all(line["accelerators"] >= 1 for line in lines), "an eighth of a GPU is not one"


def test_it_marks_partial_prices() -> None:
    result = CliRunner().invoke(command, ["a2-highgpu-1g"])
    assert "> 0.7395" in result.output
    assert "without accelerators" in result.output


def test_it_lists_the_known_regions() -> None:
    result = CliRunner().invoke(command, ["--region", "mars-1"])
    assert result.exit_code == 3
    assert "us-west-2" in result.output
