"""Host keys of simulated instances, known before the first connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import UnreachableError
from shoal.providers.gcp import host_keys, names
from shoal.providers.gcp.gcp_client import GcpClient
from shoal.providers.gcp.instances import read_instance
from shoal.remote.known_hosts import read
from tests.polling import until
from tests.providers.gcp.gcp_bed import Account, node_config, roles
from tests.simcloud.cloud import SimCloud
from tests.simcloud.test_gce import ZONE, body

pytestmark = pytest.mark.simcloud


async def test_the_published_key_of_an_instance_is_pinned(cloud: SimCloud, tmp_path: Path) -> None:
    clock = SystemClock()
    gcp = GcpClient("sim-project", clock)
    metadata = {"items": names.metadata_items(host_keys.METADATA)}
    path = f"zones/{ZONE}/instances"
    await gcp.perform("POST", path, body("one", metadata=metadata))
    await gcp.perform("POST", path, body("silent"))
    one = read_instance(await gcp.compute("GET", f"{path}/one"), "ubuntu")
    silent = read_instance(await gcp.compute("GET", f"{path}/silent"), "ubuntu")
    file = tmp_path / "one"
    await host_keys.pin_published_keys(gcp, one, file, clock.monotonic() + 30)
    own = await cloud.gce.host("one").run("cat /etc/ssh/ssh_host_ed25519_key.pub")
    assert [key.split()[:2] for key in read(file)["one"]] == [own.stdout.split()[:2]]

    with pytest.raises(UnreachableError, match="has not published its host keys"):
        await host_keys.pin_published_keys(gcp, silent, tmp_path / "silent", clock.monotonic())


async def test_the_key_is_read_from_the_serial_console_where_policy_forbids_guest_attributes(
    account: Account,
) -> None:
    cloud = account.cloud
    cloud.gce.calls.guest_attributes_allowed = False
    own = "#!/bin/sh\necho hello from the file > /tmp/of-the-file\n"
    items = [{"key": "startup-script", "value": own}]
    account.worker(node_config=node_config(metadata={"items": items}))
    (worker,) = roles(await account.launch(workers=1))["worker"]
    clock = SystemClock()
    gcp = GcpClient("sim-project", clock)
    file = account.directory / "pinned"
    await host_keys.pin_published_keys(gcp, worker, file, clock.monotonic() + 30)
    host = cloud.gce.host(worker.id)
    public = await host.run("cat /etc/ssh/ssh_host_ed25519_key.pub")
    assert public.stdout.split()[:2] in [key.split()[:2] for key in read(file)[worker.id]]
    written = host.root() / "tmp/of-the-file"
    await until(written.exists, "the startup script of the file runs too")
