"""Real container runtimes on simulated hosts, each host with its own, and images for them.

The runtimes are Debian's, configured without what a simulated host cannot have: a bridge, packet
filters and control groups. An image is created quickly by `import` of a few directories; its
programs are the host's own, mounted in.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import sys
import tarfile
from typing import Any, Literal

import pytest

from tests.simcloud.host_image import PROJECT, SYSTEM_PATH
from tests.simcloud.hosts import Host

Runtime = Literal["docker", "podman"]

NEEDS = {
    "docker": ("dockerd", "docker", "crun"),
    "podman": ("podman", "conmon", "crun", "newuidmap"),
}
# On the first host that a cloud boots.
REGISTRY = "10.20.0.1:5000"
HOME = "/home/ray"
USER_ID = 1234

# How commands run in every image, as instructions of a Dockerfile.
SETTINGS = {
    "ENV": f"PATH={SYSTEM_PATH}",
    "WORKDIR": "/",
}

# Mounts what the images lack: the host's programs, and the virtual environment that has Ray.
OPTIONS = [
    "-v /usr:/usr:ro",
    *(
        f"-v {shlex.quote(f'{path}:{path}:ro')}"
        for path in sorted({str(PROJECT), sys.prefix, sys.base_prefix})
    ),
]

_DOCKER = {
    "data-root": "/home/docker",  # not on the overlay that is the host's root
    "bridge": "none",
    "iptables": False,
    "ip6tables": False,
    "default-runtime": "crun",
    "runtimes": {"crun": {"path": "/usr/bin/crun", "runtimeArgs": ["--cgroup-manager=disabled"]}},
}

# The runtimes look for control groups even if configured not to use them.
_CONTROL_GROUPS = r"""
set -e
controllers=$(awk '!/^#/ && $2 > 0 { print $1 }' /proc/cgroups)
if ! mountpoint -q /sys/fs/cgroup; then
  if [ -z "$controllers" ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
  else
    mount -t tmpfs cgroups /sys/fs/cgroup
    for name in $controllers; do
      mkdir "/sys/fs/cgroup/$name"
      mount -t cgroup -o "$name" cgroup "/sys/fs/cgroup/$name"
    done
  fi
fi
"""

_START_DOCKER = r"""
set -e
mkdir -p /etc/docker /home/docker
cat > /etc/docker/daemon.json
setsid dockerd > /var/log/dockerd.log 2>&1 < /dev/null &
for _ in $(seq 900); do
  docker ps > /dev/null 2>&1 && exit 0
  sleep 0.1
done
tail -n 3 /var/log/dockerd.log
exit 1
"""

_STOP_DOCKER = r"""
kill "$(cat /run/docker.pid)"
for _ in $(seq 900); do [ -e /run/docker.pid ] || exit 0; sleep 0.1; done
exit 1
"""

# $1 is the project, $2 the interpreter, $3 the registry's address, $4 the login it requires. Its
# certificate is for that address.
_START_REGISTRY = r"""
set -e
cd "$1"
trusted=/etc/docker/certs.d/$3/ca.crt
if [ ! -e "$trusted" ]; then
  mkdir -p "${trusted%/*}"
  case $3 in *[a-z]*) kind=DNS ;; *) kind=IP ;; esac
  openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=images \
    -addext "subjectAltName=$kind:${3%:*}" -keyout /etc/registry.key -out "$trusted" 2> /dev/null
  cat /etc/registry.key "$trusted" > /etc/registry.pem
fi
[ ! -e /run/registry.pid ] || kill "$(cat /run/registry.pid)"
setsid "$2" -m tests.bootstrap.containers.image_registry "${3#*:}" /etc/registry.pem "$4" \
  > /var/log/registry.log 2>&1 < /dev/null &
echo $! > /run/registry.pid
for _ in $(seq 900); do
  curl -sk --resolve "$3:127.0.0.1" "https://$3/v2/" > /dev/null && exit 0
  sleep 0.1
done
exit 1
"""

_PREPARE_PODMAN = r"""
set -e
for file in /etc/subuid /etc/subgid; do echo "$1:100000:65536" > $file; done
mount --make-shared /
mkdir -p /etc/containers
cat > /etc/containers/containers.conf <<END
[containers]
cgroups = "disabled"
[engine]
runtime = "crun"
cgroup_manager = "cgroupfs"
events_logger = "file"
END
printf '[storage]\ndriver = "overlay"\ngraphroot = "/home/podman"\nrunroot = "/run/podman"\n' \
  > /etc/containers/storage.conf
"""


def unavailable_reason(runtime: Runtime) -> str | None:
    """Why this runtime cannot be used here, or None if it can."""
    missing = [name for name in NEEDS[runtime] if shutil.which(name) is None]
    return f"no {runtime} here: {', '.join(missing)} is missing" if missing else None


def require(runtime: Runtime) -> None:
    """Skip if the runtime is not installed; fail if tests must not be skipped."""
    if reason := unavailable_reason(runtime):
        skip_or_fail(reason)


def skip_or_fail(reason: str) -> None:
    if os.environ.get("SHOAL_REQUIRE_SIMCLOUD"):
        pytest.fail(reason)
    pytest.skip(reason)


async def start(host: Host, runtime: Runtime = "docker") -> None:
    """Start the runtime on a host, for root and for the host's user."""
    require(runtime)
    (await host.run(_CONTROL_GROUPS)).require("mounting the control groups")
    if runtime == "podman":
        prepare = ["bash", "-c", _PREPARE_PODMAN, "bash", host.machine.user]
        (await host.run(prepare)).require("setting up podman")
        return
    (await host.run(f"usermod -aG docker {host.machine.user}")).require("joining the group")
    started = await host.run(_START_DOCKER, stdin=json.dumps(_DOCKER))
    if started.code != 0:
        skip_or_fail(f"dockerd does not start here: {started.stdout}{started.stderr}")


async def stop_docker(host: Host) -> None:
    """End the daemon, and with it all containers."""
    (await host.run(_STOP_DOCKER)).require("stopping dockerd")


async def start_registry(host: Host, login: str = "", address: str = REGISTRY) -> str:
    """Start a registry on the host, in place of any other, and return its certificate. With a
    `login`, it is private."""
    arguments = [str(PROJECT), sys.executable, address, login]
    done = await host.run(["bash", "-c", _START_REGISTRY, "registry", *arguments])
    done.require("starting a registry")
    return (host.root() / f"etc/docker/certs.d/{address}/ca.crt").read_text()


def start_script() -> str:
    """A script that starts docker on a host, for a cluster file that must start it as root."""
    settings = shlex.quote(json.dumps(_DOCKER))
    return f"set -e\n({_CONTROL_GROUPS})\necho {settings} | bash -c {shlex.quote(_START_DOCKER)}\n"


async def make_image(
    host: Host,
    name: str,
    *,
    runtime: Runtime = "docker",
    user: str = "root",
    login: str = "root",
    **changes: str,
) -> None:
    """Import an image whose commands run as `user`: root or ray. `changes` are instructions of a
    Dockerfile; `login` is the user that owns the runtime's storage."""
    settings = {**SETTINGS, "USER": user, **changes}
    argv = [runtime, "import", *(f"--change={key} {value}" for key, value in settings.items())]
    (host.root() / "tmp/image.tar").write_bytes(root_directory())
    result = await host.run([*argv, "/tmp/image.tar", name], user=login)
    result.require(f"importing {name}")


def root_directory() -> bytes:
    """An almost empty root directory, as a tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        # Other users, too, run an interpreter that is mounted below /root.
        for path, mode in (("tmp", 0o1777), ("root", 0o711), ("etc", 0o755), ("usr", 0o755)):
            _add(tar, path, type=tarfile.DIRTYPE, mode=mode)
        _add(tar, "home", type=tarfile.DIRTYPE, mode=0o755)
        _add(tar, "home/ray", type=tarfile.DIRTYPE, mode=0o755, uid=USER_ID, gid=USER_ID)
        for name in ("bin", "sbin", "lib", "lib64"):
            _add(tar, name, type=tarfile.SYMTYPE, linkname=f"usr/{name}")
        users = f"root:x:0:0::/root:/bin/bash\nray:x:{USER_ID}:{USER_ID}::{HOME}:/bin/bash\n"
        _add(tar, "etc/passwd", users.encode())
        _add(tar, "etc/group", f"root:x:0:\nray:x:{USER_ID}:\n".encode())
        profile = f'PATH="{sys.prefix}/bin:{SYSTEM_PATH}"\n'
        _add(tar, "etc/profile", profile.encode())
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, path: str, content: bytes = b"", **attributes: Any) -> None:
    entry = tarfile.TarInfo(path)
    entry.mode = 0o644
    entry.size = len(content)
    for name, value in attributes.items():
        setattr(entry, name, value)
    tar.addfile(entry, io.BytesIO(content))
