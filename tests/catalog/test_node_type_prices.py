"""Catalog prices of a cluster's node types."""

from __future__ import annotations

from shoal.catalog import offerings_for
from shoal.spec import YamlText, load


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
