"""A Ray of the cluster's own, in a directory on each of its machines: where its parts lie, and
the shell text that puts it there. Runs nothing.

    DIRECTORY/ray              a link to the environment in use
    DIRECTORY/ray-envs/NAME    one for each installation, since an environment cannot be moved
    DIRECTORY/ray-given        a wheel that came from the laptop, while it is needed
    DIRECTORY/worker_code      the user's modules: each state of them in a place of its own, since
                               what was left out since could still be imported, and a link to it
    DIRECTORY/setup-env.sh     what a shell needs to use all of it
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from shoal.ray_runtime.cluster_secrets import TOKEN_PATH
from shoal.remote.runner import quote

# Lines by which a script answers, among those that are for a person.
PYTHON_MARK = "python version: "
RAY_MARK = "ray version: "

# The directory may start at the home of a user whom only the machine knows. $0 is it, $1 the name
# of the environment. The last line of `ray_is_there` tells by its failure what is missing, on a
# machine that got Ray from another one.
_PLACES = rf"""
set -e
case $0 in "~") dir=$HOME;; "~/"*) dir=$HOME/${{0#"~/"}};; /*) dir=$0;; *) dir=$PWD/$0;; esac
env=$dir/ray-envs/$1
ray_version() {{
  for info in "$1"/lib/python*/site-packages/ray-*.dist-info; do
    [ -d "$info" ] || continue
    info=${{info##*/ray-}}
    echo "{RAY_MARK}${{info%.dist-info}}"
  done
}}
ray_is_there() {{
  ray_version "$env"
  "$env/bin/python" -c 'import ray'
}}
"""

_PYTHON = rf"""
command -v python3 > /dev/null || {{ echo "python3 is not installed" >&2; exit 1; }}
exec python3 -c 'import platform as p, sys
print("{PYTHON_MARK}%d.%d for %s %s" % (*sys.version_info[:2], p.system(), p.machine()))'
"""

# $2 is the requirement; if it is a file, its path starts at the directory.
_MAKE = rf"""{_PLACES}
mkdir -p "$dir/ray-envs"
# Debian keeps the module that makes environments in a package of its own.
if ! python3 -m venv "$env"; then
  sudo -n apt-get update -q && sudo -n apt-get install -q -y python3-venv
  python3 -m venv --clear "$env"
fi
cd "$dir"
"$env/bin/python" -m pip --disable-pip-version-check --no-input install --progress-bar off "$2"
rm -rf ray-given
printf %s "$env" > "$env/made-at"
ray_is_there
"""

# The interpreter, and perhaps the directory, is elsewhere here than where the environment was made.
_ADOPT = rf"""{_PLACES}
rm -f "$env"/bin/python*
python3 -m venv --without-pip "$env"
"$env/bin/python" -c 'import pathlib, sys
here = sys.argv[1].encode()
there = pathlib.Path(sys.argv[1], "made-at").read_bytes()
for file in pathlib.Path(sys.argv[1], "bin").iterdir():
    if here != there and not file.is_symlink() and file.read_bytes().startswith(b"#!"):
        file.write_bytes(file.read_bytes().replace(there, here))' "$env"
ray_is_there
"""

# Moves to the environment, and forgets all others but the one before and those from which a Ray
# still runs. $2 is what setup-env.sh says.
_SWITCH = rf"""{_PLACES}
before=$(readlink "$dir/ray" || true)
quoted=$(printf %s "$dir" | sed "s/'/'\\\\''/g")
printf '%s\n' "RAY_HOME='$quoted'" "$2" > "$dir/setup-env.sh.new"
ln -sfn "ray-envs/$1" "$dir/ray.new"
"$env/bin/python" -c 'import os, sys; os.replace(*sys.argv[1:])' "$dir/ray.new" "$dir/ray"
mv "$dir/setup-env.sh.new" "$dir/setup-env.sh"
is_in_use() {{ readlink /proc/[0-9]*/exe 2>/dev/null | grep -qF "$(cd "$1" && pwd -P)/"; }}
for other in "$dir/ray-envs"/*; do
  case ray-envs/${{other##*/}} in "ray-envs/$1"|"$before") continue;; esac
  is_in_use "$other" || rm -rf "$other"
done
"""

# Has the workers import one state of the user's modules, and forgets all others. $1 is its name.
_USE_CODE = rf"""{_PLACES}
cd "$dir/worker_code"
ln -sfn "code-$1" current
for other in code-*; do
  [ "$other" = "code-$1" ] || rm -rf "$other"
done
"""

# Drops an environment that was not moved to.
_DROP = rf"""{_PLACES}
rm -rf "$env"
"""

_VERSION = rf"""{_PLACES}
ray_version "$dir/ray"
"""

_SETUP_ENV = f"""\
export RAY_HOME
export PATH="$RAY_HOME/ray/bin:$PATH"
export PYTHONPATH="$RAY_HOME/worker_code/current${{PYTHONPATH:+:$PYTHONPATH}}"
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

    def worker_code(self, name: str) -> str:
        """Where one state of the user's modules lies."""
        return self.inside(f"worker_code/code-{name}")

    @property
    def setup_env(self) -> str:
        return self.inside("setup-env.sh")

    def environment(self, name: str) -> str:
        """Where the environment of one installation lies."""
        return self.inside(f"ray-envs/{name}")

    def python(self) -> str:
        """Prints which Python the machine has, and for what kind of machine."""
        return self._script(_PYTHON)

    def make(self, name: str, requirement: str) -> str:
        """Makes an environment with Ray in it, and prints that Ray's version."""
        return self._script(_MAKE, name, requirement)

    def adopt(self, name: str) -> str:
        """Makes an environment usable that was made on another machine of the same kind, and
        prints the version of its Ray."""
        return self._script(_ADOPT, name)

    def switch(self, name: str) -> str:
        """Makes the environment the one in use."""
        return self._script(_SWITCH, name, _SETUP_ENV)

    def drop(self, name: str) -> str:
        """Takes an environment away again."""
        return self._script(_DROP, name)

    def use_code(self, name: str) -> str:
        """Has workers that start from now on import this state of the user's modules."""
        return self._script(_USE_CODE, name)

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
