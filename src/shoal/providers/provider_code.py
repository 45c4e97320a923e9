"""The code of a provider that is not Shoal's own, as its head needs it: an installed package goes
by name and version, code that is only on this machine goes as files."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from shoal.core.errors import ConfigError
from shoal.spec.provider_types import ENTRY_POINT_GROUP

# These are on every head.
_ON_EVERY_HEAD = frozenset({"shoal", "ray"})
_EXCLUDED_DIRECTORIES = frozenset({"__pycache__", ".git", ".venv"})
_MAX_BYTES = 20 * 1024 * 1024


@dataclass(frozen=True)
class ProviderCode:
    """`requirements` are packages to install, pinned. `modules` are files and directories of this
    machine that the head imports under their own names. `entry_points` are lines of the entry point
    group by which the head finds a provider type."""

    requirements: tuple[str, ...] = ()
    modules: tuple[Path, ...] = ()
    entry_points: tuple[str, ...] = ()

    def with_entry_point(self, name: str, value: str) -> ProviderCode:
        """The same code, found under a provider type."""
        return replace(self, entry_points=(*self.entry_points, f"{name} = {value}"))

    def files(self) -> Iterator[tuple[str, bytes]]:
        """What to unpack where the head imports from: paths and contents."""
        size = 0
        for module in self.modules:
            for path in _files_of(module):
                content = path.read_bytes()
                size += len(content)
                if size > _MAX_BYTES:
                    raise ConfigError(
                        f"the provider's code in {module} is too large to send to the head",
                        why=f"it has more than {_MAX_BYTES // 1024 // 1024} MiB of files",
                        fix="keep only the provider's own code in that directory, or install it "
                        "as a package",
                    )
                yield str(path.relative_to(module.parent)), content
        if self.entry_points:
            lines = "\n".join((f"[{ENTRY_POINT_GROUP}]", *self.entry_points, ""))
            directory = "shoal_provider-0.dist-info"
            yield (
                f"{directory}/METADATA",
                b"Metadata-Version: 2.1\nName: shoal-provider\nVersion: 0\n",
            )
            yield f"{directory}/entry_points.txt", lines.encode()


def code_of(module: str, search_path: str = "") -> ProviderCode:
    """The code that provides a module. `search_path` is a directory to import from too."""
    top = module.partition(".")[0]
    if top in _ON_EVERY_HEAD:
        return ProviderCode()
    for name in metadata.packages_distributions().get(top, ()):
        if requirement := _requirement(metadata.distribution(name)):
            return ProviderCode(requirements=(requirement,))
    return ProviderCode(modules=(_location(top, search_path),))


def add_to_path(search_path: str) -> None:
    """Let this process import from a directory too."""
    if search_path and search_path not in sys.path:
        sys.path.insert(0, search_path)


def _requirement(distribution: metadata.Distribution) -> str | None:
    """How pip installs the same package elsewhere; None if it was installed from a directory or
    file of this machine."""
    name, source = distribution.metadata["Name"], distribution.read_text("direct_url.json")
    if source is None:
        return f"{name}=={distribution.version}"
    direct = json.loads(source)
    if vcs := direct.get("vcs_info"):
        return f"{name} @ {vcs['vcs']}+{direct['url']}@{vcs['commit_id']}"
    url = str(direct.get("url", ""))
    return None if url.startswith("file:") else f"{name} @ {url}"


def _location(top: str, search_path: str) -> Path:
    add_to_path(search_path)
    found = importlib.util.find_spec(top)
    if found is not None and found.submodule_search_locations:
        return Path(next(iter(found.submodule_search_locations)))
    if found is not None and found.origin:
        return Path(found.origin)
    raise ConfigError(
        f"cannot find the Python module {top}",
        why="it is not installed, and not in a directory that Python imports from",
        fix="install its package, or name its directory in the file: "
        "shoal: {provider_path: DIRECTORY}",
    )


def _files_of(module: Path) -> list[Path]:
    if module.is_file():
        return [module]
    return sorted(
        path
        for path in module.rglob("*")
        if path.is_file() and not _EXCLUDED_DIRECTORIES & set(path.parts)
    )
