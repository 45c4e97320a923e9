"""A package index on a simulated host, for hosts without internet access."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

from tests.polling import until
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host

PORT = 8081
PAGES = "/srv/index"
LOG = "/srv/index.log"


class PackageIndex:
    """Serves wheels, and counts the downloads of each."""

    def __init__(self, host: Host) -> None:
        self.host = host

    @classmethod
    async def open(cls, cloud: SimCloud) -> PackageIndex:
        host = await cloud.boot()
        (host.root() / PAGES.lstrip("/")).mkdir(parents=True)
        serve = f'exec "$0" -u -m http.server {PORT} --directory {PAGES} > {LOG} 2>&1'
        await host.popen(["sh", "-c", serve, sys.executable], user="root")
        index = cls(host)
        await until(lambda: "Serving" in index._log())
        return index

    def add(self, *wheels: Path) -> None:
        for wheel in wheels:
            project = re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
            directory = self.host.root() / PAGES.lstrip("/") / project
            directory.mkdir(exist_ok=True)
            (directory / wheel.name).write_bytes(wheel.read_bytes())

    def remove(self, project: str, version: str) -> None:
        pages = self.host.root() / PAGES.lstrip("/")
        (pages / project / f"{project}-{version}-py3-none-any.whl").unlink(missing_ok=True)

    async def configure(self, *hosts: Host) -> None:
        """Make this the only index of pip on these hosts."""
        address = self.host.address
        for host in hosts:
            settings = f"[global]\nindex-url = http://{address}:{PORT}\ntrusted-host = {address}\n"
            pip_conf = host.root() / "home/ubuntu/.config/pip/pip.conf"
            pip_conf.parent.mkdir(parents=True, exist_ok=True)
            pip_conf.write_text(settings)

    def downloads(self) -> dict[str, int]:
        """The number of downloads of each wheel, by file name."""
        return dict(Counter(re.findall(r'"GET /[^/ ]+/([^ "/]+\.whl)', self._log())))

    def _log(self) -> str:
        path = self.host.root() / LOG.lstrip("/")
        return path.read_text() if path.exists() else ""


def make_wheel(folder: Path, project: str, version: str, *, needs: str = "") -> Path:
    """A wheel with an empty package. With `needs`, it has an extra `default` that requires that
    package, and a command."""
    info = f"{project}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n"
    if needs:
        metadata += f'Provides-Extra: default\nRequires-Dist: {needs}; extra == "default"\n'
    files = {
        f"{project}/__init__.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    if needs:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{project} = {project}:main\n"
    record = "".join(f"{name},sha256={_digest(text)},{len(text)}\n" for name, text in files.items())
    path = folder / f"{project}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path


def fetch_wheels(folder: Path, requirement: str) -> list[Path]:
    """Wheels of a real package and its dependencies."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--wheel-dir", str(folder), requirement]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return sorted(folder.glob("*.whl"))


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
