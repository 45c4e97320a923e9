"""One launch: records it locally, builds user data and tags, and calls RunInstances with fallback.

The way of a launch: aws_provider -> launcher -> launch_fallback -> launch_request -> aws_client.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import ShoalError
from shoal.core.events import Emit
from shoal.providers.aws import (
    amis,
    iam_roles,
    key_pairs,
    launch_request,
    old_state,
    security_group,
    tags,
    user_data,
)
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.aws.instances import state_of
from shoal.providers.aws.launch_config import LaunchConfig
from shoal.providers.aws.launch_request import LaunchResources
from shoal.providers.aws.pricing import Prices
from shoal.providers.model import LaunchRequest
from shoal.providers.vm import boot_watchdog, host_keys
from shoal.providers.vm.launch_fallback import LaunchOutcome, Record, launch_with_fallback
from shoal.providers.vm.launch_options import (
    LaunchOption,
    UnavailableOfferings,
    launch_options,
    order_zones,
)
from shoal.providers.vm.launch_records import LaunchRecords
from shoal.providers.vm.waiters import TERMINAL_STATES
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.hashes import launch_hash

_log = logging.getLogger(__name__)

# The error code for a ClientToken that was used with other parameters.
_OTHER_PARAMETERS = "IdempotentParameterMismatch"


@dataclass(frozen=True)
class Launcher:
    """Launches instances in one account and region, with the state that this machine keeps."""

    aws: AwsClient
    records: LaunchRecords
    unavailable: UnavailableOfferings
    prices: Prices
    emit: Emit

    async def launch(
        self,
        spec: ClusterSpec,
        launch: LaunchRequest,
        config: LaunchConfig,
        resources: LaunchResources,
        authorized_keys: Sequence[str] = (),
    ) -> LaunchOutcome:
        """Launch the instances of one request, with fallback over zones, types and markets.
        `authorized_keys` are public keys that may log in, in addition to the key pair's."""
        host_key = await self._host_key(launch.token)
        labels = tags.instance_tags(
            spec.cluster_name,
            launch.node_type,
            launch.role,
            launch.token,
            launch_hash(spec, launch.node_type),
        )
        role_resources = resources if launch.role == "head" else resources.worker_resources

        def encode_user_data(image: str) -> str | bytes:
            # The head gets the watchdog even without `autostop`: until it is a node it holds no
            # work.
            text = host_keys.user_data(
                host_key,
                str(config.config.get("UserData") or ""),
                old_state.script(spec.auth.ssh_user, config.image_keys.get(image, "")),
                boot_watchdog.script(spec.auth.ssh_user, spec.shoal.lease),
                authorized_keys=authorized_keys,
            )
            return user_data.encode(text)

        async def run_instances(option: LaunchOption, count: int) -> Sequence[Record]:
            *baked, base = config.images_for(option.instance_type)
            for image in baked:
                try:
                    return await run(option, count, image)
                except ShoalError as error:
                    if not any(code in error.why for code in amis.UNKNOWN):
                        raise
                    _log.info("%s is no longer there: launching from %s", image, base)
            return await run(option, count, base)

        async def run(option: LaunchOption, count: int, image: str) -> Sequence[Record]:
            request = launch_request.build_request(
                config.config,
                option,
                role_resources,
                labels=labels,
                image=image,
                user_data=encode_user_data(image),
                count=count,
                token=launch_request.client_token(launch.token, option),
                root_volume=config.root_volumes.get(image),
                own_tags=spec.shoal.tags,
            )
            response = await self.aws.call(
                "ec2",
                "run_instances",
                ignore_codes=(_OTHER_PARAMETERS,),
                retry_codes=_propagation_codes(config.config),
                **request,
            )
            records: list[Record] = response.get("Instances", [])
            if not response:
                # An earlier attempt used this token with another count: what it launched is ours.
                records = await self._launched_with(request["ClientToken"])
            self.records.record_instances(launch.token, [r["InstanceId"] for r in records])
            return records

        options = launch_options(
            config.instance_types,
            launch.market or launch_request.market(config.config),
            config.subnets,
            on_demand_fallback=spec.shoal.on_demand_fallback,
        )
        price = _equal_price if config.orders_zones else self._price
        options = order_zones(options, launch.zone, price)

        self.records.record_intent(launch.token, host_key.public, host_key.private)
        outcome = await launch_with_fallback(
            launch,
            options,
            run_instances,
            self.unavailable,
            self.emit,
            self._price,
        )
        if not outcome.records and outcome.error is None:
            self.records.delete(launch.token)
        return outcome

    async def _launched_with(self, client_token: str) -> list[Record]:
        """The instances that exist from an earlier call with this ClientToken."""
        filters = [{"Name": "client-token", "Values": [client_token]}]
        reservations = await self.aws.paginate(
            "ec2", "describe_instances", "Reservations", Filters=filters
        )
        records = [r for reservation in reservations for r in reservation["Instances"]]
        return [r for r in records if state_of(r) not in TERMINAL_STATES]

    async def _host_key(self, token: str) -> host_keys.OneTimeKey:
        """The one-time key of this launch from before an interruption, or a new one."""
        record = self.records.read(token)
        if record is not None and record.private_key:
            return host_keys.OneTimeKey(record.private_key, record.host_key)
        return await host_keys.generate_key()

    def _price(self, option: LaunchOption) -> float | None:
        return self.prices.per_hour(option.instance_type, option.market, option.subnet.zone)


def _equal_price(option: LaunchOption) -> float:
    return 0.0


def _propagation_codes(config: Mapping[str, Any]) -> list[str]:
    """The errors that mean a resource was just created for this launch and has not propagated yet.
    For resources that the file names, the same errors mean that they do not exist."""
    return [
        *([] if config.get("IamInstanceProfile") else [iam_roles.NOT_PROPAGATED]),
        *([] if config.get("KeyName") else [key_pairs.NOT_PROPAGATED]),
        *([] if launch_request.security_group_ids(config) else [security_group.NOT_PROPAGATED]),
    ]
