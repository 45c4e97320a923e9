"""What the planner is to know of a file's machines: what AWS says that they have, which is true
for types that no catalog of ours has heard of, too."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.concurrency import run_all
from shoal.providers.aws import launch_config, launch_request
from shoal.providers.aws.client import AwsClient
from shoal.providers.aws.pricing import Prices
from shoal.scaling.inputs import Offering
from shoal.spec.cluster_spec import ClusterSpec


async def offers(aws: AwsClient, prices: Prices, spec: ClusterSpec) -> Sequence[Offering]:
    """One offer for each node type whose machine the region has."""
    configs = await launch_config.merged_node_configs(aws, spec, sorted(spec.node_types))
    wanted = {name: launch_request.instance_type(config) for name, config in configs.items()}
    markets = {name: launch_request.market(config) for name, config in configs.items()}
    full = {kind for name, kind in wanted.items() if markets[name] != "spot"}
    spot = {kind for name, kind in wanted.items() if markets[name] == "spot"}
    known, _ = await run_all([launch_config.machines(aws, spec, configs), prices.learn(full, spot)])
    return [
        Offering(
            node_type=name,
            market=markets[name],
            price_per_hour=prices.per_hour(kind, markets[name]),
            resources=known[kind].resources,
        )
        for name, kind in wanted.items()
        if known is not None and kind in known
    ]
