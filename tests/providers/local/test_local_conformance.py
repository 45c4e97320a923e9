"""The conformance suite on listed hosts, by its command, as the author of a provider runs it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest

from shoal.bootstrap import claims
from shoal.providers.conformance.environment import Environment
from shoal.providers.model import Instance
from shoal.providers.protocol import Provider
from shoal.spec.cluster_spec import ClusterSpec
from tests.providers.local.ssh_bed import Bed
from tests.simcloud.host_image import PROJECT

pytestmark = pytest.mark.simcloud


class Claims(Environment):
    """Claims hosts and gives them back, as bootstrap does."""

    async def join(
        self, provider: Provider, spec: ClusterSpec, instances: Sequence[Instance]
    ) -> None:
        for instance in instances:
            claim = provider.capabilities.claim_of(instance)
            assert claim is not None
            command = claims.claim_command(claim, force=False)
            assert (await provider.runner(spec, instance).run(command, timeout=30)).ok

    async def leave(
        self, provider: Provider, spec: ClusterSpec, instances: Sequence[Instance]
    ) -> None:
        for instance in instances:
            claim = provider.capabilities.claim_of(instance)
            assert claim is not None
            command = claims.release_command(claim.owner)
            assert (await provider.runner(spec, instance).run(command, timeout=30)).ok


async def test_listed_hosts_conform(bed: Bed) -> None:
    done = await bed.laptop.run(
        f"PYTHONPATH={shlex.quote(str(PROJECT))} python -m shoal.providers.conformance "
        f"local c.yaml --environment {__name__}:Claims",
        timeout=200,
    )
    assert done.code == 0, done.stdout + done.stderr
    assert "passed  a terminated instance is gone, and can be terminated again" in done.stdout
    assert " 0 failed" in done.stdout.splitlines()[-1]
