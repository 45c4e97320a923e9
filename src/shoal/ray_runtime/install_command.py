"""The command that puts Ray on a machine whose file does not say how: a plain Linux image has a
Python, but often neither pip nor virtual environments."""

from __future__ import annotations

import functools

# Below the home directory of whoever logs in, so that it needs no root and goes with the machine.
_PLACE = "$HOME/.shoal/ray"

# A Ray that is not of our making stays as it is. A machine that has just booted may still be
# installing things of its own, so the package manager is asked more than once.
_SCRIPT = r"""(
case "$(command -v ray)" in ""|"{place}"/*) ;; *) exit 0;; esac
[ ! -d "{place}"/lib/python3.*/site-packages/ray-{version}.dist-info ] || exit 0
apt="$(command -v sudo) env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300"
python3 -c "import ensurepip" 2> /dev/null || for try in 1 2 3 4 5 6; do
  $apt update && $apt install python3-venv && break || sleep 5
done
python3 -m venv "{place}" && "{place}/bin/pip" install -q -U "{requirement}" || exit
grep -qsF '{place}/bin' ~/.bashrc || echo 'export PATH="{place}/bin:$PATH"' >> ~/.bashrc
)"""


def install_ray(version: str) -> str:
    """A command that has this version of Ray on the machine, or any when it is empty; it does
    nothing where there is one already. The next shell finds it."""
    requirement = f"ray[default]=={version}" if version else "ray[default]"
    return _SCRIPT.format(place=_PLACE, version=version or "*", requirement=requirement)


@functools.cache
def ray_here() -> str:
    """The version of Ray in this Python; empty when there is none, or one that nobody published.
    Programs that are tried here and run there should find the same."""
    from importlib import metadata  # slow to import and rarely needed

    try:
        installed = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return ""
    from packaging.version import Version  # comes with Ray

    version = Version(installed)
    return "" if version.is_devrelease or version.local else installed
