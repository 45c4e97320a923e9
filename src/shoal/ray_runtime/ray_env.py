"""The cluster's own installation of Ray, in a directory on each host: the paths in it, and the
commands that manage it. Runs nothing.

    DIRECTORY/ray              a link to the environment in use
    DIRECTORY/ray-envs/NAME    a virtual environment per installation, because one cannot be moved
    DIRECTORY/ray-wheel        a wheel from the laptop, while it is being installed
    DIRECTORY/worker_code      the user's modules: a directory per version, because modules that
                               were deleted since could still be imported, and a link to it
    DIRECTORY/setup-env.sh     the environment of a shell that uses all of this
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from shoal.remote.runner import quote
from shoal.remote.scripts import read_script, script_command

_SCRIPTS = "shoal.ray_runtime.scripts"

# Prefixes of the output lines of ray_env.sh that are results.
PYTHON_VERSION_PREFIX = "python version: "
RAY_VERSION_PREFIX = "ray version: "


@dataclass(frozen=True)
class Installation:
    """A directory on every host that holds Ray. It may start with `~/`."""

    directory: str

    @property
    def wheel_directory(self) -> str:
        return self._path("ray-wheel")

    @property
    def setup_env_file(self) -> str:
        return self._path("setup-env.sh")

    def code_directory(self, name: str) -> str:
        """The directory of one version of the user's modules."""
        return self._path(f"worker_code/code-{name}")

    def env_directory(self, name: str) -> str:
        """The virtual environment of one installation."""
        return self._path(f"ray-envs/{name}")

    def python_version_command(self) -> str:
        """Prints the Python version and the platform of the host."""
        return self._command("python")

    def ray_version_command(self) -> str:
        """Prints the version of the Ray in use, if there is one."""
        return self._command("version")

    def create_command(self, name: str, requirement: str) -> str:
        """Creates an environment with Ray in it, and prints the version of Ray."""
        return self._command("create", name, requirement)

    def adopt_command(self, name: str) -> str:
        """Makes an environment usable that was copied from another host with the same Python, and
        prints the version of Ray."""
        return self._command("adopt", name)

    def switch_command(self, name: str) -> str:
        """Makes this environment the one in use."""
        return self._command("switch", name, read_script(_SCRIPTS, "setup_env.sh").rstrip("\n"))

    def delete_command(self, name: str) -> str:
        """Deletes an environment that is not in use."""
        return self._command("delete", name)

    def use_code_command(self, name: str) -> str:
        """Makes workers that start from now on import this version of the user's modules."""
        return self._command("use-code", name)

    def _path(self, name: str) -> str:
        return str(PurePosixPath(self.directory) / name)

    def _command(self, action: str, *arguments: str) -> str:
        return script_command(_SCRIPTS, "ray_env.sh", action, self.directory, *arguments)


def source_command(path: str) -> str:
    """Shell text that sources a file, which may be below the home directory."""
    if path.startswith("~/"):
        return f'. "$HOME"/{quote([path[2:]])}'
    return f". {quote([path])}"
