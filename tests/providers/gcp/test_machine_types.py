"""Resources and prices of machine types: of the catalog, custom, and with GPUs."""

from __future__ import annotations

import pytest

from shoal.catalog import offerings_for
from shoal.catalog.gcp_machine_types import gcp_machine_type, gpu_name
from shoal.providers.gcp import disk_prices, machine_types
from tests.providers.gcp.gcp_bed import Account, node_config

REGION = "us-west1"
SPOT = {"provisioningModel": "SPOT"}


def test_a_machine_type_costs_what_the_catalog_says_on_each_market() -> None:
    url = {"machineType": "zones/us-west1-a/machineTypes/n1-standard-2"}
    assert machine_types.price_per_hour(url, REGION) == 0.095
    assert machine_types.price_per_hour({**url, "scheduling": [SPOT]}, REGION) == 0.04459
    assert machine_types.price_per_hour(url, "mars-north1") is None
    assert machine_types.price_per_hour({"machineType": "x9-new-1"}, REGION) is None


def test_a_custom_type_costs_its_parts_and_a_premium() -> None:
    """One of the size of a predefined type costs 5% more than that."""
    same = machine_types.price_per_hour({"machineType": "n2-custom-2-8192"}, REGION)
    assert same is not None
    assert same == pytest.approx(1.05 * 0.09712)
    larger = machine_types.price_per_hour({"machineType": "n2-custom-4-16384"}, REGION)
    assert larger == pytest.approx(2 * same)
    no_premium = machine_types.price_per_hour({"machineType": "e2-custom-2-8192"}, REGION)
    assert no_premium == pytest.approx(0.06701, rel=0.01)
    assert machine_types.price_per_hour({"machineType": "n2-custom-2-32768-ext"}, REGION) is None
    custom = gcp_machine_type({"machineType": "custom-4-5120"})
    assert custom is not None
    assert (custom.vcpus, custom.memory_gib) == (4, 5)


def test_with_attached_gpus_the_price_is_unknown_and_ray_finds_the_gpus() -> None:
    gpus = [{"acceleratorType": "zones/z/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 2}]
    config = {"machineType": "n1-standard-2", "guestAccelerators": gpus}
    assert machine_types.price_per_hour(config, REGION) is None
    found = gcp_machine_type(config)
    assert found is not None
    assert found.resources()["GPU"] == 2
    assert [gpu_name(n) for n in ("nvidia-tesla-t4", "nvidia-a100-80gb", "nvidia-l4")] == [
        "T4",
        "A100",
        "L4",
    ]


def test_disks_are_priced_by_type_and_size() -> None:
    assert disk_prices.describe(node_config()) == "50 GB pd-standard"
    assert disk_prices.per_hour(node_config()) == pytest.approx(50 * 0.04 / 730)
    extreme = {"disks": [{"initializeParams": {"diskType": "pd-extreme", "diskSizeGb": 500}}]}
    assert disk_prices.describe(extreme) == ""
    existing = {"disks": [{"source": "zones/us-west1-a/disks/data"}, {"type": "SCRATCH"}]}
    assert disk_prices.new_disks(existing) == []


@pytest.mark.simcloud
async def test_offerings_have_googles_resources_and_the_catalogs_prices(account: Account) -> None:
    gpus = [{"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 1}]
    config = node_config("n2-custom-4-8192", scheduling=SPOT)
    account.worker(node_config=config, resources={})
    head, worker = sorted(
        await account.provider().offerings(account.spec), key=lambda o: o.node_type
    )
    assert (head.price_per_hour, head.resources["CPU"]) == (0.095, 2)
    assert head.disks == "50 GB pd-standard"
    assert head.disks_per_hour == pytest.approx(0.00274, 0.01)
    assert (worker.market, worker.resources["CPU"]) == ("spot", 4)
    assert worker.price_per_hour == pytest.approx(0.0966, 0.01)
    by_catalog = {o.node_type: o for o in offerings_for(account.spec)}
    assert by_catalog["worker"].price_per_hour == worker.price_per_hour
    account.worker(node_config=node_config(guestAccelerators=gpus), resources={})
    _, worker = sorted(await account.provider().offerings(account.spec), key=lambda o: o.node_type)
    assert worker.resources["GPU"] == 1
    assert worker.resources["accelerator_type:T4"] == 1
    assert worker.price_per_hour is None, "an unknown price is not zero"


@pytest.mark.simcloud
async def test_listed_instances_have_their_price(account: Account) -> None:
    await account.launch(workers=1)
    listed = await account.provider().list_instances(account.spec.cluster_name)
    assert {i.price_per_hour for i in listed} == {0.095}
    await account.down()
