"""The archive of Shoal that is sent to heads."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import shoal
from shoal.bootstrap.package_upload import package_archive


def test_archive_holds_every_module_and_script_but_the_page() -> None:
    root = Path(shoal.__file__).parent
    expected = {
        str(Path("shoal", path.relative_to(root)))
        for suffix in ("py", "sh")
        for path in root.rglob(f"*.{suffix}")
        if path.relative_to(root).parts[0] != "ui"
    }
    with zipfile.ZipFile(io.BytesIO(package_archive().content)) as archive:
        names = set(archive.namelist())
    assert expected <= names
    assert "shoal/bootstrap/scripts/lease_agent.sh" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith("shoal/ui/")]
