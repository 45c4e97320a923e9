"""Builds the environment of a job on this node, once for all jobs with the same requirements.

    ~/.shoal/environments/NAME/      `env`, a virtual environment; `build.log`; `lock.txt`, the
                                     packages that were installed; `ready` or `failed` at the end
    ~/.shoal/environments/NAME.lock  held by the process that builds it

The environment holds only what the Python of the node's Ray lacks, or has in another version; the
rest, Ray included, it imports from there.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BUILD_SECONDS = 3600.0
_POLL_S = 0.1
_LAST_LINES = 20
# A worker that failed is started again by Ray: it must not build again at once.
_RETRY_SECONDS = 30.0
_MAX_LOCK = 6000
_PIN = re.compile(r"^ \+ ([^\s=]+)==(\S+?)(?: \(from (.+)\))?$")
_OPTION = re.compile(r"(-[\w-]+)[\s=]*(.*)")
_INDEX_OPTIONS = (
    "-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--no-index", "--no-binary",
    "--only-binary",
)  # fmt: skip


class BuildError(Exception):
    """The environment cannot be built; the message has the last lines of the installer."""


@dataclass(frozen=True)
class Built:
    """An environment that is ready. `lock` are its packages, compressed, for other nodes."""

    directory: Path
    lock: str

    @property
    def python(self) -> str:
        return str(self.directory / "env" / "bin" / "python")

    @property
    def packages(self) -> list[str]:
        """All packages that a program in it can import, as `name==version`."""
        return (self.directory / "packages.txt").read_text().split()

    def env(self, env: dict[str, str]) -> dict[str, str]:
        root = self.directory / "env"
        return {
            "VIRTUAL_ENV": str(root),
            "PATH": f"{root / 'bin'}:{env.get('PATH', os.defpath)}",
        }


def read_job(support: Path) -> dict[str, Any]:
    job = json.loads((support / "job.json").read_text())
    assert isinstance(job, dict)
    return job


def job_env(job: dict[str, Any], support: Path) -> dict[str, str]:
    """The environment variables of a program of the job."""
    env = dict(os.environ)
    if job["shadowed"]:
        first = str(support / "site")
        others = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p and p != first]
        env["PYTHONPATH"] = os.pathsep.join([first, *others])
        env["SHOAL_CODE_DIRECTORY"] = str(support.parent)
        env["SHOAL_SHADOWED"] = ",".join(job["shadowed"])
    return env


def ensure(
    spec: dict[str, Any],
    support: Path,
    lock: str = "",
    *,
    progress: Callable[[str], None] | None = None,
    again: bool = False,
) -> Built:
    """Return when the environment is ready: build it, or wait until another process has. With
    `again`, an earlier failure does not count."""
    root = Path(os.environ.get("SHOAL_ENVIRONMENTS") or "~/.shoal/environments").expanduser()
    base = hashlib.sha256(f"{sys.executable} {sys.version}".encode()).hexdigest()[:8]
    target = root / f"{spec['digest']}-{base}"
    if not (target / "ready").exists():
        root.mkdir(parents=True, exist_ok=True)
        _build_or_wait(spec, support, target, lock, progress, again)
    return Built(target, _packed((target / "lock.txt").read_text()))


def _build_or_wait(
    spec: dict[str, Any],
    support: Path,
    target: Path,
    lock: str,
    progress: Callable[[str], None] | None,
    again: bool,
) -> None:
    deadline = time.monotonic() + _BUILD_SECONDS
    began = time.time()
    printed = 0
    has_built = False
    failed = target / "failed"
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            is_new = failed.stat().st_mtime > began - (0 if again else _RETRY_SECONDS)
            if is_new and (has_built or not again):
                raise BuildError(_failure(spec, target))
        with target.with_name(f"{target.name}.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                has_built = True  # by another process
            else:
                if (target / "ready").exists():
                    _show(target, printed, progress)
                    return
                if has_built and failed.exists():
                    raise BuildError(_failure(spec, target))
                # A process of its own, which holds the lock: Ray ends a worker that takes longer
                # than a minute to start, and the next one waits for the same build.
                has_built, printed = True, 0
                shutil.rmtree(target, ignore_errors=True)
                target.mkdir(parents=True)
                if progress:
                    progress(f"shoal: building the environment of {spec['source']}")
                with (target / "build.log").open("ab") as log:
                    command = [sys.executable, "-I", __file__, str(support), str(target), lock]
                    subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                        start_new_session=True, pass_fds=[file.fileno()],
                    )  # fmt: skip
        printed = _show(target, printed, progress)
        time.sleep(_POLL_S)
    raise BuildError(f"the environment was not ready after {_BUILD_SECONDS:g} s")


def _show(target: Path, printed: int, progress: Callable[[str], None] | None) -> int:
    """Report the lines of the build that are new; returns how much is reported now."""
    if progress is None:
        return printed
    with contextlib.suppress(OSError):
        text = (target / "build.log").read_text(errors="replace")
        end = text.rfind("\n") + 1
        for line in text[printed:end].splitlines():
            progress(line)
        return max(printed, end)
    return printed


def _failure(spec: dict[str, Any], target: Path) -> str:
    try:
        lines = (target / "build.log").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    text = f"could not build the environment of {spec['source']} on {os.uname().nodename}"
    return "\n  ".join([text, *lines[-_LAST_LINES:]])


def report_to_driver(error: BuildError, arguments: Sequence[str]) -> None:
    """Print an error in the log of the job, where a worker has no output yet."""
    options = dict(a.lstrip("-").split("=", 1) for a in arguments if "=" in a)
    try:
        from ray import JobID
        from ray._private.utils import publish_error_to_driver
        from ray._raylet import GcsClient  # type: ignore[attr-defined]

        client = GcsClient(address=options["gcs-address"])
        job = JobID.from_hex(os.environ["RAY_JOB_ID"])
        publish_error_to_driver("environment", str(error), gcs_client=client, job_id=job)
    except Exception as failure:  # the job still has it in the node's own log
        print(f"shoal: could not report it: {failure!r}", file=sys.stderr)


# --- the process that builds ---


def build(support: Path, target: Path, lock: str) -> None:
    spec = read_job(support)["environment"]
    files = support / "environment"
    env = target / "env"
    uv = _find_uv()
    _run([uv, "venv", "--quiet", "--python", sys.executable, str(env)] if uv else
         [sys.executable, "-m", "venv", "--without-pip", str(env)])  # fmt: skip
    python = str(env / "bin" / "python")
    site = _output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    shared = _shared_directories()
    Path(site, "_shoal_shared.pth").write_text(
        "".join(f"import site; site.addsitedir({each!r})\n" for each in shared)
    )
    constraints = target / "constraints.txt"
    constraints.write_text(_unpacked(lock))
    main = files / spec["main"]
    pins = (_install_by_uv(uv, python, main, constraints, target) if uv else
            _install_by_pip(python, main, constraints))  # fmt: skip
    (target / "lock.txt").write_text("".join(f"{pin}\n" for pin in pins))
    (target / "packages.txt").write_text(_output([python, "-c", _LIST_PACKAGES]) + "\n")
    (target / "ready").touch()


_LIST_PACKAGES = """
from importlib.metadata import distributions
names = {}
for each in distributions():
    names.setdefault((each.metadata["Name"] or "").lower(), each.version)
print("\\n".join(sorted(f"{name}=={version}" for name, version in names.items() if name)))
"""


# The dependencies and indexes of a pyproject.toml as requirements. pip brings a parser for the
# Python that has none.
_READ_PROJECT = """
import sys
try:
    import tomllib
except ImportError:
    from pip._vendor import tomli as tomllib
with open(sys.argv[1], "rb") as file:
    content = tomllib.load(file)
for index in content.get("tool", {}).get("uv", {}).get("index", []):
    print("--index-url" if index.get("default") else "--extra-index-url", index["url"])
print(*content.get("project", {}).get("dependencies", []), sep="\\n")
"""


def _install_by_uv(uv: str, python: str, main: Path, constraints: Path, target: Path) -> list[str]:
    """Install what is missing, and return it. uv does not look for packages outside of an
    environment; so it is asked first what the Python of Ray lacks."""
    flags = list(_uv_flags(main.parent))
    options = ["-r", str(main), "--break-system-packages", *flags]
    if constraints.read_text():
        options += ["-c", str(constraints)]
    resolved = _run(
        [uv, "pip", "install", "--dry-run", "--python", sys.executable, *options], cwd=main.parent
    )
    pins = []
    for name, version, url in (m.groups() for m in map(_PIN.match, resolved) if m):
        _check_ray(name, version)
        pins.append(f"{name} @ {url}" if url else f"{name}=={version}")
    if pins:
        pinned = target / "pinned.txt"
        indexes = [" ".join(option) for option in _options(main.parent, _INDEX_OPTIONS)]
        pinned.write_text("".join(f"{line}\n" for line in (*indexes, *pins)))
        _run(
            [uv, "pip", "install", "--python", python, "--no-deps", "-r", str(pinned), *flags],
            cwd=main.parent,
        )
    return pins


def _install_by_pip(python: str, main: Path, constraints: Path) -> list[str]:
    """pip sees the packages of Ray's Python, and installs the others. It may be one of them."""
    if _status([python, "-c", "import pip"]) != 0:
        _run([python, "-m", "ensurepip", "--default-pip"])
    requirements = main
    if main.suffix == ".toml":
        requirements = constraints.with_name("requirements.txt")
        requirements.write_text(_output([python, "-c", _READ_PROJECT, str(main)]) + "\n")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    ray = f"ray=={version}\n" if (version := _ray_version()) else ""
    constraints.write_text(constraints.read_text() + ray)
    _run([*pip, "install", "-r", str(requirements), "-c", str(constraints)], cwd=main.parent)
    frozen = _output([*pip, "list", "--local", "--format=freeze"]).split()
    return [line for line in frozen if not line.startswith(("pip==", "setuptools=="))]


def _check_ray(name: str, version: str) -> None:
    if name.lower() == "ray" and version != (has := _ray_version()):
        _fail(
            f"the requirements need ray=={version}, but the cluster runs ray=={has}: "
            "remove ray from them, or install that version on the cluster"
        )


def _ray_version() -> str:
    code = "import importlib.metadata as m; print(m.version('ray'))"
    try:
        return _output([sys.executable, "-c", code])
    except subprocess.CalledProcessError:
        return ""


def _shared_directories() -> list[str]:
    """The directories from which the Python of Ray imports packages."""
    code = "import sys; print('\\n'.join(p for p in sys.path if p.endswith('-packages')))"
    return _output([sys.executable, "-c", code]).split("\n")


def _options(directory: Path, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options with these names in requirements files, and their values."""
    for file in sorted(directory.glob("*.txt")):
        for line in file.read_text().splitlines():
            match = _OPTION.match(line.split(" #")[0].strip())
            if match and match[1] in names:
                yield match[1], match[2]


def _uv_flags(directory: Path) -> Iterator[str]:
    """The flags of uv for what it does not read from a requirements file."""
    for _ in _options(directory, ["--pre"]):
        yield from ("--prerelease", "allow")
    for _, host in _options(directory, ["--trusted-host"]):
        yield from ("--allow-insecure-host", host)


def _find_uv() -> str | None:
    home = Path.home()
    directories = [
        str(Path(sys.executable).parent), *os.environ.get("PATH", os.defpath).split(os.pathsep),
        str(home / ".local/bin"), str(home / ".cargo/bin"),
    ]  # fmt: skip
    return shutil.which("uv", path=os.pathsep.join(directories))


def _run(command: Sequence[str], cwd: Path | None = None) -> list[str]:
    """Run a command with its output in the log of the build, and return its lines."""
    process = subprocess.Popen(
        command, cwd=cwd, env=_clean_env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        print(line, end="", flush=True)
    if process.wait() != 0:
        _fail(f"{' '.join(command[:3])} failed with status {process.returncode}")
    return lines


def _status(command: Sequence[str]) -> int:
    return subprocess.run(command, env=_clean_env(), capture_output=True).returncode


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, env=_clean_env(), check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _clean_env() -> dict[str, str]:
    """Without the job's code on the path, and without another environment."""
    unset = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")
    env = {name: value for name, value in os.environ.items() if name not in unset}
    return {**env, "NO_COLOR": "1", "UV_NO_PROGRESS": "1", "PIP_PROGRESS_BAR": "off"}


def _fail(message: str) -> Any:
    print(message, flush=True)
    sys.exit(1)


def _packed(text: str) -> str:
    packed = base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode() if text else ""
    return packed if len(packed) <= _MAX_LOCK else ""


def _unpacked(lock: str) -> str:
    return zlib.decompress(base64.urlsafe_b64decode(lock)).decode() if lock else ""


if __name__ == "__main__":
    target = Path(sys.argv[2])
    try:
        build(Path(sys.argv[1]), target, sys.argv[3])
    except BaseException as error:
        if not isinstance(error, SystemExit):
            print(f"{error!r}", flush=True)
        (target / "failed").touch()
        raise
