"""The simulated hosts of Compute Engine's machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.simcloud.gce_store import PROJECT, GceStore, metadata_of
from tests.simcloud.host_image import Machine
from tests.simcloud.instances import Builder, Instances, _Instance
from tests.simcloud.keys import new_key


class GceHosts(Instances):
    """Sets a host up as Google's guest agent does: the user and keys of its metadata, and its
    startup script. `image` makes it trust the bed's certificate."""

    def __init__(
        self,
        builder: Builder,
        store: GceStore,
        environment: dict[str, str],
        on_ended: Callable[[str], None],
        image: Path,
    ) -> None:
        super().__init__(builder, store, environment, on_ended)
        self._vms = store
        self._image = image
        self.host_keys: dict[str, str] = {}
        """The public host keys, by the id of the machine."""
        self.published_key = ""
        """The key that Google reports for every machine, if it is not the machine's own."""

    def serial_output(self, id: str) -> str:
        """What a machine has printed to its serial console: the output of its startup script."""
        host = self.host(id)
        log = host.root() / "var/log/cloud-init-output.log" if host and host.running else None
        if log is None or not log.exists():
            return ""
        prefix = "google_metadata_script_runner[512]: startup-script: "
        return "".join(f"{prefix}{line}\n" for line in log.read_text().splitlines())

    def _plan(self, instance: _Instance) -> Machine:
        record = instance.record
        vm = self._vms.by_id(record["id"])
        assert vm is not None
        pairs = self._vms.login_keys(vm)
        user = pairs[0][0] if pairs else "ubuntu"
        host_key = new_key(record["name"])
        self.host_keys[record["id"]] = self.published_key or host_key.public
        return Machine(
            name=record["name"],
            aliases=[f"{record['name']}.{record['zone']}.c.{PROJECT}.internal"],
            address=record["private"],
            host_key=host_key,
            user=user,
            user_keys=[key for name, key in pairs if name == user],
            environment=self._environment,
            user_data=metadata_of(vm.resource).get("startup-script", ""),
            user_data_every_boot=True,
            image=self._image,
            first_boot_s=self.first_boot_s,
        )
