"""The first process of a simulated machine: mounts, users, network, sshd, and reaping.

It also plays the part of systemd where programs lean on it: `shutdown`, `poweroff`, `halt` and
`reboot` are on the path and end or restart the machine.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tests.simcloud import kernel, user_data

_POWER_OFF, _REBOOT = signal.SIGUSR1, signal.SIGUSR2
_REBOOT_STATUS = 7
_GRACE_S = 0.2
_SSHD_DEADLINE_S = 60

_DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}

_SHUTDOWN = f"""#!/bin/sh
# Stands in for systemd's shutdown, poweroff, halt and reboot.
signal={_POWER_OFF.value}
delay=0
[ "${{0##*/}}" = reboot ] && signal={_REBOOT.value}
for word in "$@"; do
    case "$word" in
        -r|--reboot) signal={_REBOOT.value} ;;
        +[0-9]*) delay=$((${{word#+}} * 60)) ;;
    esac
done
[ "$(id -u)" = 0 ] || {{ echo "Access denied" >&2; exit 1; }}
if [ "$delay" = 0 ]; then exec kill -"$signal" 1; fi
(sleep "$delay"; kill -"$signal" 1) >/dev/null 2>&1 &
"""


_BOOT_DONE = Path("/run/boot-done")
_CLOUD_INIT = f"""#!/bin/sh
# Stands in for cloud-init: `cloud-init status --wait`.
until [ -e {_BOOT_DONE} ]; do sleep 0.05; done
echo "status: done"
"""


def meaning_of(status: int) -> str:
    """Say in a word how the machine went down, from init's wait status."""
    if os.WIFSIGNALED(status):
        return "killed"
    return "reboot" if os.WEXITSTATUS(status) == _REBOOT_STATUS else "poweroff"


def run(machine: dict[str, Any], first: bool, told: int) -> NoReturn:
    """Bring the machine up, close `told` when sshd listens, and stay until the end.

    When it cannot come up, the reason is written to `told`.
    """
    kernel.die_with_parent(0)  # seen from inside, the parent is outside: pid 0
    signal.signal(_POWER_OFF, _go_down)
    signal.signal(_REBOOT, _go_down)
    try:
        os.setsid()
        kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
        _mount()
        _let_go_of_the_owner()
        if first:
            _furnish(machine)
            _configure_network(machine)
        Path("/run/sshd").mkdir(mode=0o755)
        environment = {"PATH": machine["path"]}
        _run_boothooks(machine, environment)
        if first:
            _authorize_keys(machine["users"])
        subprocess.Popen(["/usr/sbin/sshd", "-D", "-e"], env=environment, close_fds=True)
        _wait_for_sshd()
        if Path("/usr/sbin/cron").exists():
            subprocess.Popen(["/usr/sbin/cron", "-f"], env=environment, close_fds=True)
        os.close(told)
        if machine["user_data"] and (first or machine["user_data_every_boot"]):
            _run_user_data(machine["user_data"], environment)
        _finish_boot(machine["first_boot_s"] if first else 0.0)
    except BaseException as error:
        os.write(told, str(error).encode() or b"no reason given")
        os._exit(1)
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            signal.pause()  # no sshd, no anything: still a machine that is switched on


def _mount() -> None:
    safe = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("proc", "/proc", "proc", safe)
    kernel.mount("sysfs", "/sys", "sysfs", safe | kernel.MS_RDONLY)
    kernel.mount("run", "/run", "tmpfs", safe, "mode=755")
    kernel.mount("dev", "/dev", "tmpfs", kernel.MS_NOSUID, "mode=755")
    old_umask = os.umask(0)
    for name, (major, minor) in _DEVICES.items():
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(major, minor))
    os.umask(old_umask)
    for name in ("pts", "shm"):
        Path("/dev", name).mkdir()
    kernel.mount("shm", "/dev/shm", "tmpfs", safe, "mode=1777")
    terminals = "newinstance,ptmxmode=0666,mode=620,gid=5"
    kernel.mount("devpts", "/dev/pts", "devpts", kernel.MS_NOSUID, terminals)
    for name, target in {
        "ptmx": "pts/ptmx",
        "fd": "/proc/self/fd",
        "stdin": "/proc/self/fd/0",
        "stdout": "/proc/self/fd/1",
        "stderr": "/proc/self/fd/2",
    }.items():
        Path("/dev", name).symlink_to(target)


def _let_go_of_the_owner() -> None:
    """Turn the owner's pipes into a console file, so that no process here can hold them open."""
    console = os.open("/var/log/console.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(console, 1)
    os.dup2(console, 2)
    os.close(nothing)
    os.close(console)


def _furnish(machine: dict[str, Any]) -> None:
    """Write the files that make the shared root this machine's own."""
    _write_users(machine["users"], machine["owned"])
    names = " ".join([machine["name"], *machine["aliases"]])
    for name, text in {
        "hostname": machine["name"] + "\n",
        "hosts": f"127.0.0.1 localhost\n{machine['address']} {names}\n",
        "resolv.conf": "",  # so that a lookup fails at once instead of after a timeout
        "environment": "".join(f"{k}={v}\n" for k, v in machine["environment"].items()),
        "profile.d/simcloud.sh": f'PATH="{machine["path"]}"\n',
        "ssh/sshd_config": _sshd_config(machine),
    }.items():
        path = Path("/etc", name)
        path.unlink(missing_ok=True)  # a link would lead the write astray
        path.write_text(text)
    for old in Path("/etc/ssh").glob("ssh_host_*"):
        old.unlink()
    key = Path("/etc/ssh/ssh_host_ed25519_key")
    key.write_text(machine["host_key"])
    key.chmod(0o600)
    Path(f"{key}.pub").write_text(machine["host_key_public"] + "\n")
    stand_ins = dict.fromkeys(
        ("sbin/shutdown", "sbin/poweroff", "sbin/halt", "sbin/reboot"), _SHUTDOWN
    )
    for command, text in {**stand_ins, "bin/cloud-init": _CLOUD_INIT}.items():
        stand_in = Path("/usr", command)
        stand_in.unlink(missing_ok=True)
        stand_in.write_text(text)
        stand_in.chmod(0o755)


def _write_users(users: list[dict[str, Any]], owned: list[str]) -> None:
    """Keep the system's accounts, replace the people by those of this machine."""
    system = [
        line
        for line in Path("/etc/passwd").read_text().splitlines()
        if int(line.split(":")[2]) < 1000 or line.startswith("nobody:")
    ]
    groups = [
        line
        for line in Path("/etc/group").read_text().splitlines()
        if int(line.split(":")[2]) < 1000 or line.startswith("nogroup:")
    ]
    shadow = [line.split(":")[0] + ":*:1::::::" for line in system]
    for user in users:
        name, uid, home = user["name"], user["uid"], user["home"]
        if uid:
            system.append(f"{name}:x:{uid}:{uid}::{home}:/bin/bash")
            groups.append(f"{name}:x:{uid}:")
            shadow.append(f"{name}:*:1::::::")
    Path("/etc/passwd").write_text("\n".join(system) + "\n")
    Path("/etc/group").write_text("\n".join(groups) + "\n")
    Path("/etc/shadow").write_text("\n".join(shadow) + "\n")
    for user in users:
        _make_home(Path(user["home"]), user["uid"])
        for directory in owned:
            os.chown(directory, user["uid"], user["uid"])
    sudoers = Path("/etc/sudoers.d/simcloud")
    sudoers.parent.mkdir(exist_ok=True)
    lines = [f"{user['name']} ALL=(ALL) NOPASSWD:ALL\n" for user in users if user["uid"]]
    sudoers.write_text("".join(lines))
    sudoers.chmod(0o440)


def _make_home(home: Path, uid: int) -> None:
    home.mkdir(parents=True, exist_ok=True)
    skeleton = Path("/etc/skel")
    if uid and skeleton.is_dir():
        for template in skeleton.iterdir():
            if template.is_file():
                copy = home / template.name
                if copy.exists():  # an image has the user's own
                    continue
                copy.write_bytes(template.read_bytes())
                os.chown(copy, uid, uid)
    os.chown(home, uid, uid)


def _authorize_keys(users: list[dict[str, Any]]) -> None:
    """Add keys the way cloud-init does: after boothooks, to those that the image has."""
    for user in users:
        ssh = Path(user["home"], ".ssh")
        ssh.mkdir(mode=0o700, exist_ok=True)
        keys = ssh / "authorized_keys"
        old = keys.read_text().splitlines() if keys.exists() else []
        new = [key.strip() for key in user["authorized_keys"] if key.strip() not in old]
        keys.write_text("".join(f"{line}\n" for line in [*old, *new]))
        keys.chmod(0o600)
        for path in (ssh, keys):
            os.chown(path, user["uid"], user["uid"])


def _sshd_config(machine: dict[str, Any]) -> str:
    # Without PAM a session costs less, and its environment is what is written here.
    environment = {"PATH": machine["path"], **machine["environment"]}
    settings = " ".join(f'"{name}={value}"' for name, value in environment.items())
    return (
        "HostKey /etc/ssh/ssh_host_ed25519_key\n"
        "UsePAM no\n"
        "UseDNS no\n"
        "PasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\n"
        "PermitRootLogin prohibit-password\n"
        "AcceptEnv LANG LC_*\n"
        "Subsystem sftp internal-sftp\n"
        f"SetEnv {settings}\n"
    )


def _configure_network(machine: dict[str, Any]) -> None:
    commands = (
        "link set lo up\n"
        f"addr add {machine['address']}/32 dev eth0\n"
        "link set eth0 up\n"
        f"route add default via {machine['gateway']} dev eth0 onlink\n"
        f"addr add {machine['ipv6_address']}/128 dev eth0 nodad\n"
        f"route add default via {machine['ipv6_gateway']} dev eth0 onlink\n"
    )
    subprocess.run(["ip", "-batch", "-"], input=commands, text=True, check=True)


def _wait_for_sshd() -> None:
    deadline = time.monotonic() + _SSHD_DEADLINE_S
    while time.monotonic() < deadline:
        rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
        for row in rows:
            local, _, state = row.split()[1:4]
            if local.endswith(":0016") and state == "0A":
                return
        time.sleep(0.02)  # as many as boot at once: looking is not what keeps them waiting
    raise TimeoutError(f"sshd does not listen after {_SSHD_DEADLINE_S} s")


def _run_boothooks(machine: dict[str, Any], environment: dict[str, str]) -> None:
    """Run boothooks the way cloud-init does: as root, at every boot, before sshd."""
    for part in user_data.parts(machine["user_data"]):
        if part.startswith("#cloud-boothook"):
            script = part.partition("\n")[2]
            known = {**environment, "INSTANCE_ID": machine["name"]}
            subprocess.run(["/bin/sh", "-c", script], env=known, check=False)


def _run_user_data(text: str, environment: dict[str, str]) -> None:
    """Run a shell script the way cloud-init does: as root, after the machine is up."""
    folder = Path("/var/lib/cloud/instance")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "user-data.txt").write_text(text)
    for number, part in enumerate(user_data.parts(text), start=1):
        if not part.startswith("#!"):
            continue
        # A file each: a shell may still read the one before.
        script = folder / f"part-{number:03}"
        script.write_text(part)
        script.chmod(0o700)
        how = os.O_CREAT | os.O_APPEND | os.O_WRONLY
        log = os.open("/var/log/cloud-init-output.log", how, 0o644)
        subprocess.Popen(
            [str(script)],
            env={**environment, "HOME": "/root"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        os.close(log)


def _finish_boot(seconds: float) -> None:
    """Play cloud-init and apt's first update: both go on for a while after sshd answers, and hold
    the locks of apt."""
    if not seconds:
        _BOOT_DONE.touch()
        return
    if os.fork():
        return
    locks = [Path(path) for path in ("/var/lib/dpkg/lock-frontend", "/var/lib/apt/lists/lock")]
    files = []
    for lock in locks:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
        fcntl.lockf(file, fcntl.LOCK_EX)
        files.append(file)
    time.sleep(seconds)
    _BOOT_DONE.touch()
    time.sleep(seconds / 2)  # unattended upgrades follow
    os._exit(0)


def _go_down(number: int, _: FrameType | None) -> NoReturn:
    try:
        os.kill(-1, signal.SIGTERM)
        time.sleep(_GRACE_S)
    except ProcessLookupError:
        pass
    os._exit(_REBOOT_STATUS if number == _REBOOT else 0)
