"""The command that installs Ray on a host when the cluster file does not: a plain Linux image has
Python, but often neither pip nor the venv module."""

from __future__ import annotations

import functools

from shoal.remote.scripts import script_command


def install_ray_command(version: str) -> str:
    """A command that installs this version of Ray, or any if it is empty, unless the host has a Ray
    already. The next shell finds it on the PATH."""
    requirement = f"ray[default]=={version}" if version else "ray[default]"
    return script_command("shoal.ray_runtime.scripts", "install_ray.sh", version, requirement)


@functools.cache
def local_ray_version() -> str:
    """The version of Ray in this Python, so that programs find the same one on the cluster; empty
    if there is none, or an unpublished one."""
    from importlib import metadata  # slow to import, and rarely needed

    try:
        installed = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return ""
    from packaging.version import Version  # comes with Ray

    version = Version(installed)
    return "" if version.is_devrelease or version.local else installed
