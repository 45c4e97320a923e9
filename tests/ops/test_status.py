"""When a cluster counts as ready, and how clusters are listed, from data alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.ls import price
from shoal.cli.status import status_lines
from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import AuthError
from shoal.core.events import Event, Warned
from shoal.core.node_phase import Phase
from shoal.ops import cluster_lookup
from shoal.ops.context import Context
from shoal.ops.status import ClusterStatus, NodeStatus, ls
from shoal.providers.model import Instance
from shoal.providers.protocol import Capabilities
from shoal.spec.cluster_spec import ClusterSpec, ProviderSpec
from tests import specs


def cluster(*phases: Phase) -> ClusterStatus:
    nodes = [
        NodeStatus(
            name=f"worker-{number}" if number else "head",
            node_type="t",
            role="worker" if number else "head",
            phase=phase,
            detail="",
            address="",
            age_s=None,
        )
        for number, phase in enumerate(phases)
    ]
    return ClusterStatus("c", "local", tuple(nodes))


@pytest.mark.parametrize("leaving", [Phase.DRAINING, Phase.TERMINATING])
def test_a_cluster_that_gives_a_worker_back_misses_none(leaving: Phase) -> None:
    shrinking = cluster(Phase.READY, leaving)
    assert shrinking.ready
    assert status_lines(shrinking)[0].endswith("1 of 1 nodes ready, 1 leaving")


@pytest.mark.parametrize("phase", [Phase.BOOTING, Phase.STARTING, Phase.FAILED, Phase.GONE])
def test_a_cluster_whose_worker_is_not_there_is_not_ready(phase: Phase) -> None:
    assert not cluster(Phase.READY, phase).ready


def test_a_cluster_whose_head_leaves_is_not_ready() -> None:
    assert not cluster(Phase.TERMINATING).ready
    assert not cluster(Phase.TERMINATING, Phase.READY).ready


async def test_a_cluster_that_cannot_be_asked_for_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cloud's credentials may have expired."""

    class Expired:
        capabilities = Capabilities()

        async def list_instances(self, *_: object) -> list[Instance]:
            raise AuthError("there are no usable AWS credentials", fix="aws sso login")

    class Empty:
        capabilities = Capabilities()

        async def list_instances(self, *_: object) -> list[Instance]:
            return []

    def site_of(ctx: Context, spec: ClusterSpec) -> ClusterHandle:
        provider: Any = Expired() if spec.provider.type == "aws" else Empty()
        return ClusterHandle(provider, spec)

    monkeypatch.setattr(ClusterHandle, "of", site_of)
    told: list[Event] = []
    ctx = Context(told.append, home=tmp_path)
    here = specs.cluster(name="here")
    cluster_lookup.remember(ctx, here)
    away = replace(here, cluster_name="away", provider=ProviderSpec("aws", {"region": "us-west-2"}))
    cluster_lookup.remember(ctx, away)
    found = {entry.cluster: entry for entry in await ls(ctx)}
    assert not found["here"].problem
    assert found["away"].problem == "there are no usable AWS credentials"
    (warning,) = told
    assert isinstance(warning, Warned)
    assert warning.fix == "aws sso login"


@pytest.mark.parametrize(
    ("per_hour", "complete", "words"),
    [
        (1.5, True, "$1.50 an hour"),
        (0.0, True, ""),
        (1.5, False, "at least $1.50 an hour"),
        (0.0, False, "price unknown"),
    ],
)
def test_a_price_says_whether_it_is_all(per_hour: float, complete: bool, words: str) -> None:
    assert price(per_hour, complete=complete) == words
