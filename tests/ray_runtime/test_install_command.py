"""Ray on a machine that has none: the command is run as it is, on a machine made of a few stubs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shoal.ray_runtime.install_command import install_ray_command

# A Python without virtual environments, as Debian and Ubuntu have it, until apt brings them.
PYTHON = """#!/bin/sh
case "$*" in
  *ensurepip*) exec test -e {bed}/has-venv;;
  "-m venv"*) test -e {bed}/has-venv || exit 1;;
esac
shift 2
mkdir -p "$1/bin"
cp {bed}/pip "$1/bin/pip"
"""
# Installs whatever it is asked for.
PIP = """#!/bin/sh
place=$(dirname "$(dirname "$0")")
echo "$@" >> {bed}/installed
for last; do :; done
mkdir -p "$place/lib/python3.10/site-packages/ray-${{last#*==}}.dist-info"
printf '#!/bin/sh\\n' > "$place/bin/ray"
chmod +x "$place/bin/ray"
"""
# The machine is still busy with itself when it is first asked.
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
    """A machine with stubs for all that would change it."""
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
    """Run a command there as a login shell would, and return what it prints."""
    env = {"HOME": str(bed), "PATH": f"{bed}/programs:/usr/bin:/bin"}
    script = f"[ ! -e ~/.bashrc ] || . ~/.bashrc\n{command}"
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_bare_machine_gets_the_wanted_ray_and_the_next_shell_finds_it(bed: Path) -> None:
    run(bed, install_ray_command("2.60.0"))
    assert (bed / "installed").read_text().split()[-1] == "ray[default]==2.60.0"
    assert run(bed, "command -v ray") == f"{bed}/.shoal/ray/bin/ray"
    assert "python3-venv" in (bed / "apt").read_text()


def test_a_second_time_does_nothing(bed: Path) -> None:
    for _ in range(2):
        run(bed, install_ray_command("2.60.0"))
    assert len((bed / "installed").read_text().splitlines()) == 1
    assert (bed / ".bashrc").read_text().count("export PATH") == 1


def test_another_version_takes_the_place_of_ours(bed: Path) -> None:
    (bed / "has-venv").touch()
    for version in ("2.59.0", "2.60.0"):
        run(bed, install_ray_command(version))
    assert (bed / "installed").read_text().split()[-1] == "ray[default]==2.60.0"
    assert not (bed / "apt").exists()


def test_a_ray_that_is_not_ours_stays_as_it_is(bed: Path) -> None:
    _program(bed / "programs" / "ray", "#!/bin/sh\n")
    run(bed, install_ray_command("2.60.0"))
    assert not (bed / "installed").exists()


def test_a_failed_install_is_a_failure(bed: Path) -> None:
    (bed / "has-venv").touch()
    _program(bed / "pip", "#!/bin/sh\nexit 1\n")
    with pytest.raises(AssertionError):
        run(bed, install_ray_command("2.60.0"))
    assert not (bed / ".bashrc").exists()
