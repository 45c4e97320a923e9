"""A snapshot as the package that Ray unpacks on every node before work of the job runs there.
Beside the code it holds the programs that start the driver and the workers of the job."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import stat
import zipfile
from dataclasses import dataclass

from shoal.core.errors import ConfigError
from shoal.jobs.code import SUPPORT_DIRECTORY, Snapshot
from shoal.jobs.environment import Environment
from shoal.remote.runner import quote
from shoal.remote.scripts import read_script

_SCRIPTS = "shoal.jobs.scripts"
_PROGRAMS = ("job_driver.py", "node_environment.py", "worker.py")
# A directory of its own, because it is on the path of every Python program of the job.
_SITE = ("sitecustomize.py",)
_ENVIRONMENT_DIRECTORY = "environment"
_FILE_MODE = stat.S_IFREG | 0o644
_EXECUTABLE_MODE = stat.S_IFREG | 0o755
_LAUNCH = f"sh {SUPPORT_DIRECTORY}/launch.sh"


@dataclass(frozen=True)
class Package:
    """What Ray gets. `uri` is its name in the GCS, which depends on the content only."""

    snapshot: Snapshot
    environment: Environment | None = None

    @functools.cached_property
    def support_files(self) -> dict[str, bytes]:
        """The files of Shoal by path."""
        code, environment = self.snapshot, self.environment
        described = {
            "digest": code.digest,
            "commit": code.git.commit,
            "branch": code.git.branch,
            "dirty": code.git.dirty,
            "diff": code.git.diff,
            "shadowed": code.shadowed,
            "environment": None
            if environment is None
            else {
                "digest": environment.digest,
                "main": environment.main,
                "source": environment.source,
            },
        }
        files = {name: read_script(_SCRIPTS, name).encode() for name in _PROGRAMS}
        files["launch.sh"] = _launch_script()
        files |= {f"site/{name}": read_script(_SCRIPTS, name).encode() for name in _SITE}
        files["job.json"] = json.dumps(described, sort_keys=True).encode()
        files["manifest.json"] = json.dumps(code.manifest(), sort_keys=True).encode()
        for name, content in (environment.files if environment else {}).items():
            files[f"{_ENVIRONMENT_DIRECTORY}/{name}"] = content
        return {f"{SUPPORT_DIRECTORY}/{name}": content for name, content in files.items()}

    @functools.cached_property
    def name(self) -> str:
        total = hashlib.sha256(self.snapshot.digest.encode())
        for path, content in sorted(self.support_files.items()):
            total.update(path.encode() + b"\0" + hashlib.sha256(content).digest())
        return f"_ray_pkg_{total.hexdigest()[:24]}.zip"

    @property
    def uri(self) -> str:
        return f"gcs://{self.name}"

    def archive(self) -> bytes:
        """The package itself. Equal content makes an equal archive."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for file in self.snapshot.files:
                mode = _EXECUTABLE_MODE if file.executable else _FILE_MODE
                content = file.content.read_bytes()
                if hashlib.sha256(content).hexdigest() != file.sha256:
                    raise ConfigError(f"{file.path} changed while it was read", fix="try again")
                _add(archive, file.path, content, mode)
            for path, content in sorted(self.support_files.items()):
                _add(archive, path, content, _FILE_MODE)
        return buffer.getvalue()

    def entrypoint(self, command: str) -> str:
        """The shell command of the driver: it records the run, makes the environment ready, and
        runs `command` in it."""
        return f"{_LAUNCH} job_driver.py {quote([command])}"

    def runtime_env(self) -> dict[str, object]:
        """The runtime environment of the job. The driver adds the environment for its workers."""
        settings: dict[str, object] = {"working_dir": self.uri}
        if self.snapshot.shadowed:
            settings["py_executable"] = f"{_LAUNCH} worker.py --no-environment"
        return settings


def _launch_script() -> bytes:
    library = read_script("shoal.ray_runtime.scripts", "worker_command.sh")
    return (library + read_script(_SCRIPTS, "launch.sh")).encode()


def _add(archive: zipfile.ZipFile, path: str, content: bytes, mode: int) -> None:
    info = zipfile.ZipInfo(path)  # without a date
    info.external_attr = mode << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, content)
