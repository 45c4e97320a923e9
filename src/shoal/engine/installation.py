"""A Ray of the cluster's own, in a directory on each of its machines: where its parts lie, and
the shell text that puts it there. Runs nothing.

    DIRECTORY/ray              a link to the environment in use
    DIRECTORY/ray-envs/NAME    one for each installation, since an environment cannot be moved
    DIRECTORY/ray-wheels       the packages, fetched by the head for all, while they are needed
    DIRECTORY/ray-given        a wheel that came from the laptop, likewise
    DIRECTORY/worker_code      the user's modules
    DIRECTORY/setup-env.sh     what a shell needs to use all of it
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from shoal.engine.credentials import TOKEN_PATH
from shoal.remote.base import quote

# Lines by which a script answers, among those that are for a person.
PYTHON_MARK = "python version: "
RAY_MARK = "ray version: "

# The directory may start at the home of a user whom only the machine knows. $0 is it, $1 the name
# of the environment.
_PLACES = r"""
set -e
case $0 in "~") dir=$HOME;; "~/"*) dir=$HOME/${0#"~/"};; *) dir=$0;; esac
env=$dir/ray-envs/$1
pip() { "$env/bin/python" -m pip --disable-pip-version-check --no-input "$@"; }
"""

_PREPARE = rf"""{_PLACES}
command -v python3 > /dev/null || {{ echo "python3 is not installed" >&2; exit 1; }}
rm -rf "$env"
mkdir -p "$dir/ray-envs"
# Debian keeps the module that makes environments in a package of its own.
if ! python3 -m venv "$env"; then
  sudo -n apt-get update -q && sudo -n apt-get install -q -y python3-venv
  python3 -m venv --clear "$env"
fi
"$env/bin/python" -c 'import sys; print("{PYTHON_MARK}%d.%d" % sys.version_info[:2])'
"""

# $2 is the requirement; if it is a file, its path starts at the directory.
_FETCH = rf"""{_PLACES}
cd "$dir"
rm -rf ray-wheels
pip wheel --progress-bar off --wheel-dir ray-wheels "$2"
rm -rf ray-given
cd ray-wheels
for wheel in ray-*.whl; do
  wheel=${{wheel#ray-}}
  echo "{RAY_MARK}${{wheel%%-*}}"
done
"""

# $2 is the version.
_INSTALL = rf"""{_PLACES}
pip install --no-index --find-links "$dir/ray-wheels" --progress-bar off "ray[default]==$2"
"""

# Moves to the environment, and forgets all others but the one before, from which Ray may run. $2
# is what setup-env.sh says.
_SWITCH = rf"""{_PLACES}
before=$(readlink "$dir/ray" || true)
quoted=$(printf %s "$dir" | sed "s/'/'\\\\''/g")
printf '%s\n' "RAY_HOME='$quoted'" "$2" > "$dir/setup-env.sh.new"
mkdir -p "$dir/worker_code"
ln -sfn "ray-envs/$1" "$dir/ray.new"
"$env/bin/python" -c 'import os, sys; os.replace(*sys.argv[1:])' "$dir/ray.new" "$dir/ray"
mv "$dir/setup-env.sh.new" "$dir/setup-env.sh"
rm -rf "$dir/ray-wheels"
for other in "$dir/ray-envs"/*; do
  case ray-envs/${{other##*/}} in "ray-envs/$1"|"$before") ;; *) rm -rf "$other";; esac
done
"""

# Drops an environment that was not moved to.
_DROP = rf"""{_PLACES}
rm -rf "$env" "$dir/ray-wheels"
"""

_VERSION = rf"""{_PLACES}
for info in "$dir"/ray/lib/python*/site-packages/ray-*.dist-info; do
  [ -d "$info" ] || continue
  info=${{info##*/ray-}}
  echo "{RAY_MARK}${{info%.dist-info}}"
done
"""

_SETUP_ENV = f"""\
export RAY_HOME
export PATH="$RAY_HOME/ray/bin:$PATH"
export PYTHONPATH="$RAY_HOME/worker_code${{PYTHONPATH:+:$PYTHONPATH}}"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$HOME/{TOKEN_PATH}\""""


@dataclass(frozen=True)
class Installation:
    """A directory on every machine that holds Ray. It may start with `~/`."""

    directory: str

    def inside(self, name: str) -> str:
        return str(PurePosixPath(self.directory) / name)

    @property
    def given(self) -> str:
        return self.inside("ray-given")

    @property
    def wheels(self) -> str:
        return self.inside("ray-wheels")

    @property
    def worker_code(self) -> str:
        return self.inside("worker_code")

    @property
    def setup_env(self) -> str:
        return self.inside("setup-env.sh")

    def prepare(self, name: str) -> str:
        """Makes an empty environment, and prints its Python's version."""
        return self._script(_PREPARE, name)

    def fetch(self, name: str, requirement: str) -> str:
        """Fetches, or builds, all packages that the requirement needs, and prints the version of
        the Ray among them."""
        return self._script(_FETCH, name, requirement)

    def install(self, name: str, version: str) -> str:
        """Puts the fetched packages into the environment."""
        return self._script(_INSTALL, name, version)

    def switch(self, name: str) -> str:
        """Makes the environment the one in use."""
        return self._script(_SWITCH, name, _SETUP_ENV)

    def drop(self, name: str) -> str:
        """Takes an environment away again."""
        return self._script(_DROP, name)

    def version(self) -> str:
        """Prints the version of the Ray in use, if there is one."""
        return self._script(_VERSION)

    def _script(self, text: str, *arguments: str) -> str:
        return quote(["sh", "-c", text, self.directory, *arguments])


def sourced(path: str) -> str:
    """Shell text that reads a file of settings, which may lie below the home directory."""
    if path.startswith("~/"):
        return f'. "$HOME"/{quote([path[2:]])}'
    return f". {quote([path])}"
