"""One launch, from the wish to AWS's answer: intent on record, a host key handed over, and every
offer asked with a token of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.events import Emit
from shoal.providers.aws import (
    boot_watchdog,
    host_keys,
    iam_roles,
    key_pairs,
    launch_request,
    network,
    tags,
)
from shoal.providers.aws.client import AwsClient
from shoal.providers.aws.launch_config import LaunchConfig
from shoal.providers.aws.launch_fallback import LaunchOutcome, Record, launch_with_fallback
from shoal.providers.aws.launch_options import LaunchOption, UnavailableOfferings, launch_options
from shoal.providers.aws.launch_records import Journal
from shoal.providers.aws.launch_request import LaunchResources
from shoal.providers.aws.pricing import Prices
from shoal.providers.model import LaunchRequest
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.hashes import launch_hash


@dataclass(frozen=True)
class Launcher:
    """Where orders are placed: the account, and what is written down on this machine."""

    aws: AwsClient
    journal: Journal
    refusals: UnavailableOfferings
    prices: Prices
    emit: Emit

    async def place(
        self,
        spec: ClusterSpec,
        wish: LaunchRequest,
        site: LaunchConfig,
        ground: LaunchResources,
        lets_in: Sequence[str] = (),
    ) -> LaunchOutcome:
        """Ask for one launch's machines, wherever they are to be had. `lets_in` are public keys
        whose owners may log in, beside that of the key pair."""
        key = await self._host_key(wish.token)
        labels = tags.instance_tags(
            spec.cluster_name,
            wish.node_type,
            wish.role,
            wish.token,
            launch_hash(spec, wish.node_type),
        )
        own = str(site.config.get("UserData") or "")
        # A head that never was one has nothing to lose, so it needs no `autostop` to be guarded.
        alone = boot_watchdog.script(spec.auth.ssh_user, spec.shoal.lease)
        data = host_keys.user_data(key, own, alone, lets_in=lets_in)
        stands_on = ground if wish.role == "head" else ground.for_workers

        async def ask(offer: LaunchOption, count: int) -> Sequence[Record]:
            request = launch_request.request(
                site.config,
                offer,
                stands_on,
                labels=labels,
                image=site.images[offer.instance_type],
                user_data=data,
                count=count,
                token=launch_request.client_token(wish.token, offer),
            )
            answer = await self.aws.call(
                "ec2", "run_instances", not_yet=_not_yet(site.config), **request
            )
            records: list[Record] = answer["Instances"]
            self.journal.answered(wish.token, [record["InstanceId"] for record in records])
            return records

        self.journal.intend(wish.token, key.public, key.private)
        result = await launch_with_fallback(
            wish,
            launch_options(
                site.instance_types,
                wish.market or launch_request.market(site.config),
                sorted(site.subnets, key=lambda subnet: subnet.zone != wish.zone),
                on_demand_too=spec.shoal.on_demand_fallback,
            ),
            ask,
            self.refusals,
            self.emit,
            self._price,
        )
        if not result.records and result.error is None:
            self.journal.drop(wish.token)
        return result

    async def _host_key(self, token: str) -> host_keys.OneTimeKey:
        """The key that was made for this launch before it was interrupted, or a new one."""
        known = self.journal.read(token)
        if known is not None and known.private_key:
            return host_keys.OneTimeKey(known.private_key, known.host_key)
        return await host_keys.new_key()

    def _price(self, offer: LaunchOption) -> float | None:
        return self.prices.per_hour(offer.instance_type, offer.market, offer.subnet.zone)


def _not_yet(config: Mapping[str, Any]) -> list[str]:
    """What AWS says of things that were made for this launch and that it does not know everywhere
    yet. Of what the file names, the same words mean that it is not there."""
    return [
        *([] if config.get("IamInstanceProfile") else [iam_roles.NOT_KNOWN_YET]),
        *([] if config.get("KeyName") else [key_pairs.NOT_KNOWN_YET]),
        *([] if launch_request.own_groups(config) else [network.NOT_KNOWN_YET]),
    ]
