"""How clusters are listed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.ls import price
from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import AuthError
from shoal.core.events import Event, Warned
from shoal.ops import known_clusters
from shoal.ops.context import Context
from shoal.ops.ls import ls
from shoal.providers.model import Instance
from shoal.providers.protocol import Capabilities
from shoal.spec.cluster_spec import ClusterSpec, ProviderSpec
from tests import specs


async def test_a_cluster_that_cannot_be_queried_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, because its cloud's credentials have expired."""

    class ExpiredCredentials:
        capabilities = Capabilities()

        async def list_instances(self, *_: object) -> list[Instance]:
            raise AuthError("there are no usable AWS credentials", fix="aws sso login")

    class NoInstances:
        capabilities = Capabilities()

        async def list_instances(self, *_: object) -> list[Instance]:
            return []

    def handle_of(ctx: Context, spec: ClusterSpec) -> ClusterHandle:
        is_aws = spec.provider.type == "aws"
        provider: Any = ExpiredCredentials() if is_aws else NoInstances()
        return ClusterHandle(provider, spec)

    monkeypatch.setattr(ClusterHandle, "of", handle_of)
    events: list[Event] = []
    ctx = Context(events.append, home=tmp_path)
    local = specs.cluster(name="local")
    known_clusters.record(ctx, local)
    aws = replace(local, cluster_name="aws", provider=ProviderSpec("aws", {"region": "us-west-2"}))
    known_clusters.record(ctx, aws)
    summaries = {summary.cluster: summary for summary in await ls(ctx)}
    assert not summaries["local"].problem
    assert summaries["aws"].problem == "there are no usable AWS credentials"
    (warning,) = events
    assert isinstance(warning, Warned)
    assert warning.fix == "aws sso login"


@pytest.mark.parametrize(
    ("per_hour", "complete", "text"),
    [
        (1.5, True, "$1.50/h"),
        (0.0, True, ""),
        (1.5, False, "at least $1.50/h"),
        (0.0, False, "price unknown"),
    ],
)
def test_an_incomplete_price_is_marked(per_hour: float, complete: bool, text: str) -> None:
    assert price(per_hour, complete=complete) == text


async def test_a_cluster_without_instances_says_what_may_be_left_and_how_to_delete_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After autostop: a head may not delete its own role and security group."""

    class NoInstances:
        capabilities = Capabilities()

        async def list_instances(self, *_: object) -> list[Instance]:
            return []

    provider: Any = NoInstances()
    monkeypatch.setattr(ClusterHandle, "of", lambda ctx, spec: ClusterHandle(provider, spec))
    ctx = Context(lambda event: None, home=tmp_path)
    known_clusters.record(ctx, specs.cluster(name="over"))
    (summary,) = await ls(ctx)
    assert "shoal down over" in summary.hint
