"""The listing of a project with `ls --all-regions`, and `gc`, which deletes orphans."""

from __future__ import annotations

import pytest

from shoal.core.clock import SystemClock
from shoal.core.events import PlanStep, ResourcesDeleted, Warned
from shoal.ops.cloud_account import collect_garbage, list_clusters
from shoal.ops.context import Context, always_yes
from tests.providers.gcp.gcp_bed import CLUSTER, Account, roles
from tests.simcloud.gce_store import PROJECT

pytestmark = pytest.mark.simcloud


class Later(SystemClock):
    """An hour ahead, so that nothing counts as new."""

    def now(self) -> float:
        return super().now() + 3600


@pytest.fixture(autouse=True)
def only_google(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def context(account: Account, *, later: bool = True) -> Context:
    clock = Later() if later else SystemClock()
    return Context(account.events.append, always_yes, account.directory / "home", clock)


async def test_a_cluster_is_listed_with_its_region_also_without_credentials_for_aws(
    account: Account,
) -> None:
    account.file(cluster_name="My_Run.1")
    await account.launch()
    (listing,) = await list_clusters(context(account))
    assert (listing.cluster, listing.provider, listing.made_by, listing.nodes, listing.state) == (
        "My_Run.1",
        "gcp sim-project us-west1",
        "shoal",
        3,
        "up",
    )
    assert listing.price_per_hour > 0
    assert listing.complete
    warnings = [e.what for e in account.events if isinstance(e, Warned)]
    assert len(warnings) == 1, "one for AWS, whose credentials are missing"


async def test_gc_deletes_workers_without_a_head_disks_rules_and_accounts(
    account: Account,
) -> None:
    by_role = roles(await account.launch())
    provider = account.provider()
    await provider.terminate(account.spec, by_role["head"])
    await provider.stop(account.spec, by_role["worker"][:1])
    account.cloud.gce.store.add_disk("us-west1-b", "lost", labels={"shoal-cluster": CLUSTER})

    await collect_garbage(context(account, later=False))
    assert len(account.cloud.gce.store.vms) == 2, "an up may still be running"
    assert any("is not deleted" in e.what for e in account.events if isinstance(e, Warned))

    await collect_garbage(context(account))
    planned = {e.subject.partition(" ")[0] for e in account.events if isinstance(e, PlanStep)}
    assert planned >= {"instance", "disk", "firewall", "service"}
    assert isinstance(account.events[-1], ResourcesDeleted)
    await account.cloud.assert_nothing_left()


async def test_gc_leaves_a_cluster_with_a_head_alone(account: Account) -> None:
    await account.launch()
    await collect_garbage(context(account))
    assert account.events[-1] == ResourcesDeleted(())
    assert len(account.cloud.gce.store.vms) == 3
    await account.down()
