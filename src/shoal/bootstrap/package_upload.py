"""Shoal itself, as a parcel for a head: its own package, zipped, and unpacked there beside others.

What runs on the head needs nothing that `ray[default]` does not bring, so no installer and no
package index is involved; decision 0042 says why.
"""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from shoal.core.errors import SetupError
from shoal.remote.runner import Runner, quote

_SECONDS = 120.0
_LEFT_OUT = {"__pycache__"}

# Unpacks what arrives on standard input, whole or not at all. $0 is the directory.
_UNPACK = r"""
set -e
mkdir -p "${0%/*}"
rm -rf "$0.new" "$0.zip"
cat > "$0.zip"
"$1" -m zipfile -e "$0.zip" "$0.new"
rm -f "$0.zip"
mv "$0.new" "$0"
"""


@dataclass(frozen=True)
class PackageArchive:
    """The package as bytes. `directory` is where it is unpacked, below the head's home; it is
    named for its content, so that another version lies beside it."""

    content: bytes
    directory: str

    @property
    def python_path(self) -> str:
        """Shell text that lets Python find it."""
        return f'export PYTHONPATH="$HOME/{self.directory}"'


@functools.cache
def package_archive() -> PackageArchive:
    """This very Shoal."""
    root = Path(str(resources.files("shoal")))
    files = sorted(
        path for path in root.rglob("*") if path.is_file() and not _LEFT_OUT & set(path.parts)
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            # Without dates: equal content makes an equal parcel.
            info = zipfile.ZipInfo(str(Path("shoal", path.relative_to(root))))
            archive.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED)
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()[:16]
    return PackageArchive(content, f".shoal/lib/{digest}")


async def upload_package(runner: Runner, python: str) -> PackageArchive:
    """Have this Shoal on a machine; what is there already is not sent again. `python` is shell
    text that names an interpreter."""
    sent = package_archive()
    there = await runner.run(quote(["test", "-d", sent.directory]), timeout=_SECONDS)
    if not there.ok:
        unpack = f"{quote(['sh', '-c', _UNPACK, sent.directory])} {python}"
        done = await runner.run(unpack, stdin=sent.content, timeout=_SECONDS)
        if not done.ok:
            raise SetupError("Shoal could not be brought to the head", output=done.tail)
    return sent
