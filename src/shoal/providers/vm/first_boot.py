"""The command that waits for the end of an instance's first boot: it goes on after sshd answers."""

from __future__ import annotations

from shoal.remote.scripts import script_command

# User data of the file may run for long, or never end.
_CLOUD_INIT_SECONDS = 180
_APT_SECONDS = 300


def wait_command() -> str:
    """A command for the instance that returns when cloud-init is done and apt can be used."""
    script = script_command(
        "shoal.providers.vm.scripts",
        "wait_for_first_boot.sh",
        str(_CLOUD_INIT_SECONDS),
        str(_APT_SECONDS),
    )
    return f'"$(command -v sudo || echo env)" {script}'
