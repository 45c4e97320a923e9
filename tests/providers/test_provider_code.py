"""How the code of a provider that is not Shoal's reaches the head."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from shoal import providers
from shoal.bootstrap.package_upload import package_archive
from shoal.core.errors import ConfigError
from shoal.providers.provider_code import code_of
from shoal.spec.cluster_spec import ProviderSpec
from tests.specs import cluster


def write_distribution(directory: Path, name: str, source: Mapping[str, object] | None) -> None:
    (directory / name).mkdir()
    (directory / name / "__init__.py").write_text("class Cloud:\n    pass\n")
    info = directory / f"{name}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "top_level.txt").write_text(f"{name}\n")
    if source is not None:
        (info / "direct_url.json").write_text(json.dumps(source))


@pytest.mark.parametrize(
    ("source", "requirement"),
    [
        (None, "pkg_a==1.2"),
        (
            {"url": "https://x/y.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pkg_a @ git+https://x/y.git@abc",
        ),
        ({"url": "https://x/y.whl", "archive_info": {}}, "pkg_a @ https://x/y.whl"),
    ],
)
def test_an_installed_package_goes_by_name_and_version(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: dict[str, object] | None,
    requirement: str,
) -> None:
    write_distribution(tmp_path, "pkg_a", source)
    monkeypatch.syspath_prepend(str(tmp_path))
    code = code_of("pkg_a.sub")
    assert (code.requirements, code.modules) == ((requirement,), ())


def test_an_editable_package_and_a_plain_module_go_as_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"url": f"file://{tmp_path}", "dir_info": {"editable": True}}
    write_distribution(tmp_path, "pkg_b", source)
    (tmp_path / "alone.py").write_text("x = 1\n")
    (tmp_path / "pkg_b" / "__pycache__").mkdir()
    (tmp_path / "pkg_b" / "__pycache__" / "old.pyc").write_bytes(b"")
    (tmp_path / "pkg_b" / "data.txt").write_text("data")
    monkeypatch.setattr(sys, "path", [*sys.path])
    code = code_of("pkg_b", str(tmp_path))
    assert code.requirements == ()
    assert dict(code.files()).keys() == {"pkg_b/__init__.py", "pkg_b/data.txt"}
    assert dict(code_of("alone", str(tmp_path)).files()) == {"alone.py": b"x = 1\n"}
    with pytest.raises(ConfigError, match="cannot find the Python module nowhere"):
        code_of("nowhere")


def test_a_head_finds_a_provider_type_that_was_registered_on_the_laptop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unpacked as on a head, in a new process."""
    laptop, head = tmp_path / "laptop", tmp_path / "head"
    laptop.mkdir()
    (laptop / "cirrus.py").write_text(
        "def Cirrus(spec, home, clock, emit, *, on_head):\n    return 'made'\n"
    )
    monkeypatch.syspath_prepend(str(laptop))
    cirrus: ModuleType = __import__("cirrus")
    providers.register_provider("cirrus", cirrus.Cirrus)
    spec = cluster()
    spec = type(spec)(**{**vars(spec), "provider": ProviderSpec("cirrus", {})})
    archive = package_archive(providers.code_for_head(spec))
    assert archive.directory != package_archive().directory
    with zipfile.ZipFile(io.BytesIO(archive.content)) as content:
        content.extractall(head)
    program = (
        "from shoal.providers import factory_for; import shoal; print(shoal.__file__);"
        "print(factory_for('cirrus')(None, None, None, None, on_head=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(head)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [str(head / "shoal" / "__init__.py"), "made"]


def test_shoals_own_providers_need_no_other_code() -> None:
    assert list(providers.code_for_head(cluster()).files()) == []
