"""Nodes files: lists of host addresses in place of a cluster file."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.spec import ClusterSpec, Overrides, SpecError, load
from shoal.spec.nodes_file import NodesFile


def loaded(path: Path, text: str, **login: str) -> ClusterSpec:
    path.write_text(text)
    return load(NodesFile(str(path), **login)).launchable()


def test_the_first_address_is_the_head_and_the_cluster_is_named_after_the_file(
    tmp_path: Path,
) -> None:
    spec = loaded(tmp_path / "lab.txt", "10.0.0.4\n10.0.0.5\nnode-7.lab\n")
    assert spec.cluster_name == "lab"
    assert spec.provider.type == "local"
    assert spec.provider.settings["head_ip"] == "10.0.0.4"
    assert spec.provider.settings["worker_ips"] == ["10.0.0.5", "node-7.lab"]
    assert spec.scaling.max_workers == 2


def test_comments_blank_lines_and_crlf_are_ignored(tmp_path: Path) -> None:
    text = "# the lab\r\n\r\n  10.0.0.4  # head\r\n\t10.0.0.5\r\n"
    spec = loaded(tmp_path / "n.txt", text)
    assert spec.provider.settings["head_ip"] == "10.0.0.4"
    assert spec.provider.settings["worker_ips"] == ["10.0.0.5"]


def test_a_single_host_is_a_cluster(tmp_path: Path) -> None:
    assert loaded(tmp_path / "n.txt", "fd00::1\n").provider.settings["worker_ips"] == []


def test_the_login_comes_from_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key.pem").touch()
    for key_file in ("~/key.pem", "key.pem"):
        auth = loaded(tmp_path / "n.txt", "10.0.0.4\n", key_file=key_file, username="me").auth
        assert (auth.ssh_user, auth.ssh_private_key) == ("me", str(tmp_path / "key.pem"))


def test_a_missing_key_file_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"--key-file  no\.pem: no such file"):
        loaded(tmp_path / "n.txt", "10.0.0.4\n", key_file="no.pem")


def test_invalid_addresses_are_reported_with_their_lines(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        loaded(tmp_path / "n.txt", "10.0.0.4\n12.34.56.789\nubuntu@host\n10.0.0.5 10.0.0.6\n")
    assert [problem.line for problem in caught.value.problems] == [2, 3, 4]
    assert "'12.34.56.789' is not an address" in str(caught.value)


def test_duplicate_addresses_are_reported_with_their_lines(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        loaded(tmp_path / "n.txt", "10.0.0.4\n# again\n10.0.0.5\n10.0.0.4\n10.0.0.5\n")
    assert [problem.line for problem in caught.value.problems] == [4, 5]


def test_a_file_without_addresses_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="contains no addresses"):
        loaded(tmp_path / "n.txt", "# empty\n\n")


@pytest.mark.parametrize(
    ("file", "name"), [("my nodes (2).txt", "my-nodes-2"), ("ü.txt", "nodes"), (".hosts", "hosts")]
)
def test_invalid_characters_of_the_file_name_are_replaced(
    tmp_path: Path, file: str, name: str
) -> None:
    assert loaded(tmp_path / file, "10.0.0.4\n").cluster_name == name


def test_the_cluster_name_can_be_overridden(tmp_path: Path) -> None:
    (tmp_path / "n.txt").write_text("10.0.0.4\n")
    overrides = Overrides(cluster_name="other")
    assert load(NodesFile(str(tmp_path / "n.txt")), overrides).spec.cluster_name == "other"
