"""Uploads Shoal itself to a head: this package, zipped, and unpacked there next to other versions.

What runs on the head needs only what `ray[default]` brings, so neither an installer nor a package
index is involved.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
import logging
import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from shoal.core.errors import SetupError
from shoal.providers.provider_code import ProviderCode
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.runner import Runner, quote
from shoal.remote.scripts import script_command

_log = logging.getLogger(__name__)

_SECONDS = 120.0
_EXCLUDED = {"__pycache__"}
# The page is for the laptop.
_LAPTOP_ONLY = "ui"
_NO_CODE = ProviderCode()


@dataclass(frozen=True)
class PackageArchive:
    """The package as bytes. `directory` is where it is unpacked, relative to the home directory;
    it is named by content, so that versions do not collide."""

    content: bytes
    directory: str

    @property
    def python_path(self) -> str:
        """Shell text that lets Python import it."""
        return f'export PYTHONPATH="$HOME/{self.directory}"'


@functools.cache
def package_archive(provider_code: ProviderCode = _NO_CODE) -> PackageArchive:
    """The running Shoal: its modules and all of its package data (scripts, price tables) but the
    page, and the code of a provider that is not Shoal's."""
    root = Path(str(resources.files("shoal")))
    files = sorted(
        path
        for path in root.rglob("*")
        if path.is_file()
        and not _EXCLUDED & set(path.parts)
        and path.relative_to(root).parts[0] != _LAPTOP_ONLY
    )
    contents = [(str(Path("shoal", path.relative_to(root))), path.read_bytes()) for path in files]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file_content in (*contents, *provider_code.files()):
            # Without dates, so that equal content makes an equal archive.
            archive.writestr(zipfile.ZipInfo(name), file_content, zipfile.ZIP_DEFLATED)
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()[:16]
    return PackageArchive(content, f".shoal/lib/{digest}")


async def upload_package(
    runner: Runner, start: RayStart, provider_code: ProviderCode = _NO_CODE
) -> PackageArchive:
    """Upload this Shoal to a head whose Ray was started like this, unless it is there already."""
    archive = await asyncio.to_thread(package_archive, provider_code)  # takes a while
    exists = await runner.run(
        quote(["test", "-d", archive.directory]), timeout=_SECONDS, skip_profile=True
    )
    if exists.ok:
        _log.debug("%s is up to date", archive.directory)
        return archive
    _log.info("uploading Shoal to %s (%d bytes)", archive.directory, len(archive.content))
    unpack = script_command("shoal.bootstrap.scripts", "unpack_package.sh", archive.directory)
    done = await runner.run(
        start.with_python(f"{unpack} {start.python}"),
        stdin=archive.content,
        timeout=_SECONDS,
        skip_profile=True,
    )
    if not done.ok:
        raise SetupError("could not upload Shoal to the head", output=done.tail)
    return archive
