"""The command that installs Ray, run with stubs of the programs that would change the host."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from shoal.ray_runtime.install_command import install_ray_command
from shoal.remote.scripts import read_script

# Python without the venv module, as on Debian and Ubuntu, until apt installs it.
PYTHON = """#!/bin/sh
case "$*" in
  *version_info*) exit 0;;
  *ensurepip*) exec test -e {bed}/has-venv;;
  "-m venv"*) test -e {bed}/has-venv || exit 1;;
esac
shift 2
mkdir -p "$1/bin"
cp {bed}/pip "$1/bin/pip"
"""
# Installs any requirement.
PIP = """#!/bin/sh
place=$(dirname "$(dirname "$0")")
echo "$@" >> {bed}/installed
for last; do :; done
mkdir -p "$place/lib/python3.10/site-packages/ray-${{last#*==}}.dist-info"
printf '#!/bin/sh\\n' > "$place/bin/ray"
chmod +x "$place/bin/ray"
"""
# The first call fails, as on a host that still installs packages after boot.
APT = """#!/bin/sh
echo "$@" >> {bed}/apt
case "$*" in
  *update*) [ "$(grep -c update {bed}/apt)" -gt 1 ];;
  *install*) touch {bed}/has-venv;;
esac
"""
SLEEP = "#!/bin/sh\n"


@pytest.fixture
def bed(tmp_path: Path) -> Path:
    """A host with stubs of the programs that would change it."""
    programs = tmp_path / "programs"
    programs.mkdir()
    stubs = {"python3": PYTHON, "apt-get": APT, "sleep": SLEEP, "sudo": '#!/bin/sh\nexec "$@"\n'}
    for name, text in stubs.items():
        _program(programs / name, text.format(bed=tmp_path))
    _program(tmp_path / "pip", PIP.format(bed=tmp_path))
    return tmp_path


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def run(bed: Path, command: str) -> str:
    """Run a command as a login shell would, and return its output."""
    env = {"HOME": str(bed), "PATH": f"{bed}/programs:/usr/bin:/bin"}
    script = f"[ ! -e ~/.bashrc ] || . ~/.bashrc\n{command}"
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_bare_host_gets_the_requested_ray_and_the_next_shell_finds_it(bed: Path) -> None:
    run(bed, install_ray_command("2.60.0"))
    assert (bed / "installed").read_text().split()[-1] == "ray[default]==2.60.0"
    assert run(bed, "command -v ray") == f"{bed}/.shoal/ray/bin/ray"
    assert "python3-venv" in (bed / "apt").read_text()


def test_second_run_does_nothing(bed: Path) -> None:
    for _ in range(2):
        run(bed, install_ray_command("2.60.0"))
    assert len((bed / "installed").read_text().splitlines()) == 1
    assert (bed / ".bashrc").read_text().count("export PATH") == 1


def test_another_version_replaces_ours(bed: Path) -> None:
    (bed / "has-venv").touch()
    for version in ("2.59.0", "2.60.0"):
        run(bed, install_ray_command(version))
    assert (bed / "installed").read_text().split()[-1] == "ray[default]==2.60.0"
    assert not (bed / "apt").exists()


def test_ray_that_shoal_did_not_install_is_left_alone(bed: Path) -> None:
    _program(bed / "programs" / "ray", "#!/bin/sh\n")
    run(bed, install_ray_command("2.60.0"))
    assert not (bed / "installed").exists()


def test_failed_install_fails_the_command(bed: Path) -> None:
    (bed / "has-venv").touch()
    _program(bed / "pip", "#!/bin/sh\nexit 1\n")
    with pytest.raises(AssertionError):
        run(bed, install_ray_command("2.60.0"))
    assert not (bed / ".bashrc").exists()


def _stub(directory: Path, name: str, text: str) -> None:
    (directory / name).write_text(f"#!/bin/sh\n{text}\n")
    (directory / name).chmod(0o755)


def test_ray_is_installed_with_a_newer_python_where_python3_is_too_old(tmp_path: Path) -> None:
    """As on Amazon Linux 2023, which has no apt and Python 3.9 as python3."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("mkdir", "touch", "chmod", "grep", "cat", "ln", "env", "sh"):
        (commands / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    _stub(commands, "python3", "exit 1")
    venv = 'if [ "$1" = -m ]; then mkdir -p "$3/bin"; ln -s "$(command -v pip)" "$3/bin/pip"; fi'
    _stub(commands, "newer-python", venv)
    _stub(commands, "pip", 'echo "$@" >> "$HOME/installed"')
    new = f'ln -s {commands}/newer-python {commands}/python3.11; echo "$@" > "$HOME/dnf"'
    _stub(commands, "dnf", new)
    script = read_script("shoal.ray_runtime.scripts", "install_ray.sh")
    environment = {"PATH": str(commands), "HOME": str(tmp_path)}
    run = [str(commands / "sh"), "-s", "", "ray[default]"]
    done = subprocess.run(run, input=script, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert "python3.11" in (tmp_path / "dnf").read_text()
    assert "ray[default]" in (tmp_path / "installed").read_text()
