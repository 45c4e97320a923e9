"""Lets Ray import the standard library where a module of the job has the name of one of its
modules, such as code.py. It runs at the start of every Python program of such a job.

While `ray` is imported, the job's modules are out of sight. Afterwards they are found again, under
the names of the standard library too: as without Ray, the job's own code gets its own modules.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # without the module of that name
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# pathlib is not loaded yet, and may be the job's.
_here = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
_directory = os.environ.get("SHOAL_CODE_DIRECTORY", "")
_shadowed = [name for name in os.environ.get("SHOAL_SHADOWED", "").split(",") if name]


def _is_code(path: str) -> bool:
    path = os.path.realpath(path or ".")
    inside = path == _directory or path.startswith(_directory + os.sep)
    return inside and not path.startswith(_here)


def _take(names: list[str]) -> dict[str, ModuleType]:
    """Remove modules and what is below them from the loaded ones, and return them."""
    prefixes = tuple(f"{name}." for name in names)
    taken = [name for name in sys.modules if name in names or name.startswith(prefixes)]
    return {name: sys.modules.pop(name) for name in taken}


class _RayLoader:
    """Loads Ray as its own loader does, and then calls `restore`."""

    def __init__(self, loader: Any, restore: Callable[[], None]) -> None:
        self._loader, self._restore = loader, restore

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        try:
            self._loader.exec_module(module)
        finally:
            self._restore()


class _RayFinder:
    def __init__(self, path: list[str] | None) -> None:
        self._path = path  # the path from the first import of Ray on, if it differs from now

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "ray":
            return None
        sys.meta_path.remove(self)
        job_path = self._path or sys.path[:]
        job_modules = _take([n for n in _shadowed if _is_loaded_from_code(n)])

        def restore() -> None:
            _take(_shadowed)
            sys.modules.update(job_modules)
            sys.path[:] = job_path

        sys.path[:] = [entry for entry in job_path if not _is_code(entry)]
        import importlib.util

        spec = importlib.util.find_spec("ray")
        if spec is None:
            restore()
        else:
            spec.loader = _RayLoader(spec.loader, restore)  # type: ignore[assignment]
        return spec


def _is_loaded_from_code(name: str) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(file, str) and _is_code(file)


def _install() -> None:
    path: list[str] | None = None
    # A worker of Ray imports Ray before all else.
    if os.environ.pop("SHOAL_RAY_FIRST", ""):
        path = sys.path[:]
        sys.path[:] = [entry for entry in path if not _is_code(entry)]
    sys.meta_path.insert(0, _RayFinder(path))


if _directory and _shadowed:
    _install()
