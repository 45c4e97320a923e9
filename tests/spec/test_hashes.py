from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError
from shoal.spec import FilesSpec, files_hash, from_json, launch_hash, to_json

from .conftest import loaded

CLUSTER = """
    provider: {type: aws, region: us-west-2}
    available_node_types:
      ray.head.default: {node_config: {InstanceType: m5.large}}
      gpu: {node_config: {InstanceType: p3.2xlarge}, max_workers: 1}
    setup_commands: [pip install this]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "code.py").write_text("print(1)")
    (root / "notes.log").write_text("noise")
    (root / "link").symlink_to("pkg")
    return root


def hash_of(root: Path, exclude: tuple[str, ...] = (), filters: tuple[str, ...] = ()) -> str:
    return files_hash(
        FilesSpec({"/remote": str(root)}, rsync_exclude=exclude, rsync_filter=filters)
    )


def test_changed_content_changes_the_hash(project: Path) -> None:
    before = hash_of(project)
    (project / "pkg" / "code.py").write_text("print(2)")
    assert hash_of(project) != before


def test_a_touched_file_does_not_change_the_hash(project: Path) -> None:
    before = hash_of(project)
    os.utime(project / "pkg" / "code.py", (1, 1))
    assert hash_of(project) == before


def test_a_new_mode_and_a_new_link_target_change_the_hash(project: Path) -> None:
    first = hash_of(project)
    (project / "pkg" / "code.py").chmod(0o755)
    second = hash_of(project)
    (project / "link").unlink()
    (project / "link").symlink_to("elsewhere")
    assert len({first, second, hash_of(project)}) == 3


def test_an_excluded_file_does_not_change_the_hash(project: Path) -> None:
    before = hash_of(project, exclude=("*.log",))
    (project / "notes.log").write_text("more noise")
    assert hash_of(project, exclude=("*.log",)) == before
    assert hash_of(project) != before


def test_a_file_that_gitignore_names_does_not_change_the_hash(project: Path) -> None:
    (project / "pkg" / ".gitignore").write_text("*.tmp\n")
    before = hash_of(project, filters=(".gitignore",))
    (project / "pkg" / "x.tmp").write_text("scratch")
    assert hash_of(project, filters=(".gitignore",)) == before
    (project / "x.tmp").write_text("not under that filter")
    assert hash_of(project, filters=(".gitignore",)) != before


def test_the_same_tree_in_another_place_has_the_same_hash(project: Path, tmp_path: Path) -> None:
    before = hash_of(project)
    assert hash_of(project.rename(tmp_path / "elsewhere")) == before


def test_the_order_of_mounts_does_not_matter_but_their_places_do(project: Path) -> None:
    one, two = {"/a": str(project)}, {"/b": str(project / "pkg")}
    assert files_hash(FilesSpec({**one, **two})) == files_hash(FilesSpec({**two, **one}))
    assert files_hash(FilesSpec(one)) != files_hash(FilesSpec({"/c": str(project)}))


def test_a_fifo_is_not_waited_for(project: Path) -> None:
    os.mkfifo(project / "pipe")
    assert hash_of(project) == hash_of(project)


def test_a_single_file_can_be_mounted_and_excluded(project: Path) -> None:
    file = project / "notes.log"
    kept, left_out = hash_of(file), hash_of(file, exclude=("*.log",))
    file.write_text("changed")
    assert hash_of(file) != kept
    assert hash_of(file, exclude=("*.log",)) == left_out


def test_a_mount_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        hash_of(tmp_path / "nowhere")


def test_another_instance_type_only_changes_the_launch_hash_of_its_node_type() -> None:
    before, after = loaded(CLUSTER).spec, loaded(CLUSTER.replace("p3.2xlarge", "p4d")).spec
    assert launch_hash(before, "gpu") != launch_hash(after, "gpu")
    assert launch_hash(before, "ray.head.default") == launch_hash(after, "ray.head.default")


def test_scaling_limits_and_commands_do_not_change_the_launch_hash() -> None:
    before = loaded(CLUSTER).spec
    after = loaded(CLUSTER.replace("max_workers: 1", "max_workers: 2").replace("this", "that")).spec
    assert launch_hash(before, "gpu") == launch_hash(after, "gpu")


def test_the_head_computes_the_same_launch_hash_from_the_spec_it_receives() -> None:
    """Otherwise `up` would replace what the controller has launched."""
    spec = loaded(CLUSTER + "    shoal: {volumes: {/data: {size: 9}}}\n").spec
    received = from_json(json.loads(json.dumps(to_json(spec))))
    for name in spec.node_types:
        assert launch_hash(received, name) == launch_hash(spec, name)


def test_the_launch_hash_is_the_same_in_every_version() -> None:
    """Otherwise a new version would replace every instance that an older one has launched."""
    spec = loaded(CLUSTER).spec
    assert launch_hash(spec, "gpu") == "edur6a5cvbhoebyhcpyo5jjedogd5b2o"
