"""What a simulated machine is built from."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simcloud.keys import SshKey
from tests.simcloud.network import GATEWAY, GATEWAY6, ipv6_of

PROJECT = Path(__file__).resolve().parents[2]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_USER_ID = 1000


@dataclass(frozen=True)
class Machine:
    """A machine's fixed properties; they do not change while it exists."""

    name: str
    address: str
    host_key: SshKey
    user: str = "ubuntu"
    user_keys: Sequence[str] = ()
    root_keys: Sequence[str] = ()
    aliases: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    image: Path | None = None
    """A directory laid over the computer's own root: what this machine has and others have not."""
    disk_mib: int = 2048
    user_data: str = ""
    user_data_every_boot: bool = False
    """Whether the scripts of the user data run at every boot, as Google's startup scripts do."""
    first_boot_s: float = 0.0
    """How long cloud-init runs, and apt is locked, after sshd answers for the first time."""
    ray_on_path: bool = True
    console_user: str = "root"
    """Who commands run as when a test does not say."""

    @property
    def home(self) -> str:
        return f"/home/{self.user}"

    @property
    def path(self) -> str:
        """PATH on the machine. The virtualenv that runs the tests is its preinstalled Python."""
        return f"{Path(sys.prefix) / 'bin'}:{SYSTEM_PATH}" if self.ray_on_path else SYSTEM_PATH

    def describe(self) -> dict[str, Any]:
        """Return what `machine.py` needs to know to build it."""
        return {
            "owner": os.getpid(),
            "name": self.name,
            "aliases": list(self.aliases),
            "address": self.address,
            "gateway": GATEWAY,
            "ipv6_address": ipv6_of(self.address),
            "ipv6_gateway": GATEWAY6,
            "disk_mib": self.disk_mib,
            "image": str(self.image.resolve()) if self.image else None,
            "visible": sorted({str(PROJECT), sys.prefix, sys.base_prefix}),
            "path": self.path,
            "owned": _python_directories(),
            "environment": dict(self.environment),
            "host_key": self.host_key.private,
            "host_key_public": self.host_key.public,
            "user_data": self.user_data,
            "user_data_every_boot": self.user_data_every_boot,
            "first_boot_s": self.first_boot_s,
            "users": [
                {"name": "root", "uid": 0, "home": "/root", "authorized_keys": [*self.root_keys]},
                {
                    "name": self.user,
                    "uid": _USER_ID,
                    "home": self.home,
                    "authorized_keys": [*self.user_keys],
                },
            ],
        }


def _python_directories() -> list[str]:
    """Return where pip puts things: the user of a real image owns its Python, too."""
    if sys.prefix == sys.base_prefix:
        return []  # the computer's own Python belongs to root on any machine
    return [sysconfig.get_path(name) for name in ("scripts", "purelib")]
