"""Files over SSH: what arrives where, what stays behind, and names that only look like commands."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError, SetupError
from shoal.remote.rsync import NoRsyncError, is_complete
from shoal.remote.runner import Completed, Filters
from shoal.remote.ssh_runner import SshRunner
from shoal.remote.ssh_target import SshTarget
from tests.remote.sshd import Sshd

AWKWARD = [
    "a b",
    "it's",
    '"double"',
    "$(touch pwned)",
    "`touch pwned`",
    "new\nline",
    "ends in new line\n",
    "ünïcödé ☃",
    "back\\slash\\\\",
    "-rf",
    "*?[a]",
    "a:b",
    "#!&;|<>",
    "~tilde",
    "%h",
]


def tree(root: Path) -> dict[str, str]:
    """Every file of a tree with its content; a link with where it leads."""
    return {
        str(path.relative_to(root)): f"-> {path.readlink()}"
        if path.is_symlink()
        else path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


async def test_a_trees_content_comes_to_the_target_and_parents_are_made(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    files = {"a": "1", "deep/b": "2", "deep/er/c": "3", ".hidden": "4"}
    source = plant(tmp_path / "source", files)
    await runner.put(source, "~/far/away")
    assert tree(server.home / "far/away") == files


@pytest.mark.parametrize("target", ["~/t", "~/t/", "t", "t/", "./t", "{home}/t", "{home}/t/"])
async def test_every_way_to_write_a_directory_means_its_content(
    runner: SshRunner, server: Sshd, tmp_path: Path, target: str
) -> None:
    source = plant(tmp_path / "source", {"a": "1"})
    for _ in range(2):  # whether it is there already makes no difference
        await runner.put(source, target.format(home=server.home))
        assert tree(server.home) == {"t/a": "1"}


async def test_a_directory_that_was_there_keeps_its_mode(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    source = plant(tmp_path / "source", {"a": "1", "deep/b": "2"})
    source.chmod(0o777)
    (source / "deep").chmod(0o750)
    shared = server.home / "shared"
    shared.mkdir()
    shared.chmod(0o1730)
    await runner.put(source, "shared")
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1730
    assert stat.S_IMODE((shared / "deep").stat().st_mode) == 0o750


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_mode_of_somebody_elses_directory_is_not_a_file_that_is_missing(is_lost: bool) -> None:
    mode = 'rsync: [generator] failed to set permissions on "/tmp/.": Operation not permitted (1)'
    lost = 'rsync: [receiver] mkstemp "/tmp/.a.X1" failed: Permission denied (13)'
    last = "rsync error: some files/attrs were not transferred (code 23) at main.c(1338)"
    done = Completed(23, (mode, lost, last) if is_lost else (mode, last))
    assert is_complete(done) is not is_lost


async def test_a_file_comes_under_the_targets_name_or_into_a_directory(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    source = plant(tmp_path, {"mine": "x"}) / "mine"
    await runner.put(source, "~/new/dir/yours")
    await runner.put(source, "~/other/dir/")
    assert tree(server.home) == {"new/dir/yours": "x", "other/dir/mine": "x"}


async def test_a_file_changed_within_the_same_second_is_sent_again(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    source = plant(tmp_path / "source", {"a": "1"})
    os.utime(source / "a", ns=(10**18, 10**18 + 1))
    await runner.put(source, "there")
    (source / "a").write_text("2")
    os.utime(source / "a", ns=(10**18, 10**18 + 2))
    await runner.put(source, "there")
    assert tree(server.home / "there") == {"a": "2"}


async def test_what_else_is_there_stays(runner: SshRunner, server: Sshd, tmp_path: Path) -> None:
    plant(server.home / "t", {"theirs": "kept", "a": "older"})
    await runner.put(plant(tmp_path / "source", {"a": "new"}), "t")
    assert tree(server.home / "t") == {"a": "new", "theirs": "kept"}


async def test_modes_links_and_empty_directories_arrive(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    source = plant(tmp_path / "source", {"script": "#!/bin/sh\n", "secret": "x"})
    (source / "script").chmod(0o755)
    (source / "secret").chmod(0o600)
    (source / "empty").mkdir()
    (source / "link").symlink_to("script")
    (source / "dangling").symlink_to("nowhere")
    await runner.put(source, "t")
    there = server.home / "t"
    assert stat.S_IMODE((there / "script").stat().st_mode) == 0o755
    assert stat.S_IMODE((there / "secret").stat().st_mode) == 0o600
    assert (there / "empty").is_dir()
    assert (there / "link").readlink() == Path("script")
    assert (there / "dangling").readlink() == Path("nowhere")


async def test_an_empty_directory_can_be_put_and_got(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    await runner.put(tmp_path / "empty", "deep/empty")
    assert (server.home / "deep/empty").is_dir()
    await runner.get("deep/empty", tmp_path / "back/empty")
    assert (tmp_path / "back/empty").is_dir()


async def test_a_link_asked_for_by_name_stands_for_what_it_leads_to(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    plant(tmp_path, {"real": "x", "dir/a": "1"})
    (tmp_path / "to-file").symlink_to("real")
    (tmp_path / "to-dir").symlink_to("dir")
    await runner.put(tmp_path / "to-file", "file")
    await runner.put(tmp_path / "to-dir", "dir")
    assert tree(server.home) == {"dir/a": "1", "file": "x"}
    (server.home / "far-link").symlink_to("file")
    await runner.get("far-link", tmp_path / "back")
    assert not (tmp_path / "back").is_symlink()
    assert (tmp_path / "back").read_text() == "x"


@pytest.mark.parametrize("name", AWKWARD)
async def test_a_name_arrives_literally_whatever_it_looks_like(
    runner: SshRunner, server: Sshd, tmp_path: Path, name: str
) -> None:
    source = plant(tmp_path / name, {name: "x"})
    await runner.put(source, f"~/{name}")
    await runner.put(source / name, f"{name}/file/{name}")
    assert tree(server.home) == {f"{name}/{name}": "x", f"{name}/file/{name}": "x"}
    await runner.get(f"{server.home}/{name}", tmp_path / "back" / name)
    assert tree(tmp_path / "back") == tree(server.home)


async def test_excludes_and_ignore_files_leave_things_behind(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    names = [".git/HEAD", "a.py", "a.pyc", "data/big", "sub/b.log", "sub/b.py", "sub/data/x"]
    source = plant(tmp_path / "source", dict.fromkeys(names, "x"))
    plant(source, {".gitignore": "/data\n", "sub/.gitignore": "*.log\n"})
    filters = Filters(exclude=(".git", "**/*.pyc"), filter_files=(".gitignore",))
    wanted = {".gitignore", "a.py", "sub/.gitignore", "sub/b.py", "sub/data/x"}
    await runner.put(source, "t", filters)
    assert set(tree(server.home / "t")) == wanted
    plant(server.home / "all", tree(source))
    await runner.get("all", tmp_path / "back", filters)
    assert set(tree(tmp_path / "back")) == wanted


async def test_a_tree_and_a_file_can_be_got(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    plant(server.home / "far", {"a": "1", "deep/b": "2"})
    await runner.get("~/far", tmp_path / "new/tree")
    await runner.get("~/far/", tmp_path / "new/tree")
    await runner.get("far/a", tmp_path / "new/file")
    assert tree(tmp_path / "new") == {"file": "1", "tree/a": "1", "tree/deep/b": "2"}


async def test_what_is_unchanged_is_not_sent_again(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    source = plant(tmp_path / "source", {"a": "1", "b": "2"})
    await runner.put(source, "t")
    before = (server.home / "t/a").stat()
    (source / "b").write_text("changed")
    await runner.put(source, "t")
    after = (server.home / "t/a").stat()
    assert (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns)
    assert (server.home / "t/b").read_text() == "changed"


async def test_a_source_that_is_missing_here_or_there_is_named(
    runner: SshRunner, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"/none does not exist"):
        await runner.put(tmp_path / "none", "t")
    with pytest.raises(SetupError, match="No such file or directory"):
        await runner.get("none", tmp_path / "t")


async def test_a_place_where_one_may_not_write_is_named(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    source = plant(tmp_path / "source", {"a": "1"})
    (server.home / "file").touch()
    with pytest.raises(SetupError) as failure:
        await runner.put(source, "file/below")
    assert "file" in failure.value.why


async def test_a_login_that_always_prints_is_told_from_a_broken_transfer(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    (server.home / ".bashrc").write_text("echo Welcome\n")
    with pytest.raises(SetupError, match="prints text at every login") as failure:
        await runner.put(plant(tmp_path / "source", {"a": "1"}), "t")
    (server.home / ".bashrc").write_text(f"{failure.value.fix.partition(': ')[2]}\necho Welcome\n")
    await runner.put(tmp_path / "source", "t")
    assert tree(server.home / "t") == {"a": "1"}


async def test_the_users_rsync_settings_do_not_interfere(
    runner: SshRunner, server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSYNC_PROTECT_ARGS", "1")
    monkeypatch.setenv("RSYNC_RSH", "false")
    await runner.put(plant(tmp_path / "source", {"a": "1"}), "a b")
    assert tree(server.home) == {"a b/a": "1"}


async def test_a_connection_that_went_stale_is_renewed_for_files_too(
    new_server: Callable[..., tuple[Sshd, SshTarget]], tmp_path: Path
) -> None:
    server, target = new_server()
    server.start()
    runner = SshRunner("node-1", target)
    await runner.connect(timeout=60)
    server.stop()
    server.start()
    await runner.put(plant(tmp_path / "source", {"a": "1"}), "t")
    assert tree(server.home) == {"t/a": "1"}


def tools(directory: Path, *names: str) -> Path:
    """A directory with these programs of this machine and no others."""
    directory.mkdir()
    for name in names:
        program = shutil.which(name)
        assert program is not None
        (directory / name).symlink_to(program)
    return directory


async def test_a_machine_without_rsync_is_told_from_one_that_fails(
    new_server: Callable[..., tuple[Sshd, SshTarget]], tmp_path: Path
) -> None:
    poor = tmp_path / "poor-shell"
    programs = tools(tmp_path / "bin", "bash", "dirname", "mkdir")
    poor.write_text(f'#!/bin/sh\nPATH={programs} exec bash "$@"\n')
    poor.chmod(0o755)
    server, target = new_server(shell=str(poor))
    server.start()
    runner = SshRunner("node-1", target)
    source = plant(tmp_path / "source", {"a": "1"})
    for transfer in (runner.put(source, "t"), runner.get("t", tmp_path / "back")):
        with pytest.raises(NoRsyncError) as failure:
            await transfer
        assert "install" in failure.value.fix


async def test_a_laptop_without_rsync_is_told_what_to_install(
    runner: SshRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tools(tmp_path / "bin", "ssh", "sh")))
    with pytest.raises(ConfigError, match="this machine has no rsync"):
        await runner.put(plant(tmp_path / "source", {"a": "1"}), "t")
