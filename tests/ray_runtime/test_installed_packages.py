"""Packages that are installed or removed while a process runs are noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shoal.ray_runtime.installed_packages import InstalledPackages


def test_an_installed_package_and_a_removed_environment_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site_packages = tmp_path / "lib" / "site-packages"
    site_packages.mkdir(parents=True)
    monkeypatch.setattr("sys.path", [str(tmp_path), str(site_packages)])
    packages = InstalledPackages()
    (tmp_path / "a file of the user").touch()
    assert not packages.have_changed()
    (site_packages / "ray-9.9.9.dist-info").mkdir()
    assert packages.have_changed()
    packages = InstalledPackages()
    shutil.rmtree(site_packages)
    assert packages.have_changed()
