"""Files over SSH: where they are copied, what is excluded, and unusual names."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError, SetupError
from shoal.remote.rsync import NoRsyncError, failure_cause, is_complete
from shoal.remote.runner import Completed, Filters
from shoal.remote.ssh_runner import SshRunner
from shoal.remote.ssh_target import SshTarget
from tests.remote.sshd import Sshd

UNUSUAL_NAMES = [
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
    """Every file of a directory with its content; a link with its target."""
    return {
        str(path.relative_to(root)): f"-> {path.readlink()}"
        if path.is_symlink()
        else path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def write_files(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


async def test_the_content_of_a_directory_is_copied_and_parents_are_created(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    files = {"a": "1", "deep/b": "2", "deep/er/c": "3", ".hidden": "4"}
    source = write_files(tmp_path / "source", files)
    await runner.put(source, "~/far/away")
    assert tree(server.home / "far/away") == files


@pytest.mark.parametrize("target", ["~/t", "~/t/", "t", "t/", "./t", "{home}/t", "{home}/t/"])
async def test_every_spelling_of_a_target_directory_means_the_same(
    runner: SshRunner, server: Sshd, tmp_path: Path, target: str
) -> None:
    source = write_files(tmp_path / "source", {"a": "1"})
    for _ in range(2):  # it makes no difference whether it exists
        await runner.put(source, target.format(home=server.home))
        assert tree(server.home) == {"t/a": "1"}


async def test_an_existing_directory_keeps_its_mode(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    source = write_files(tmp_path / "source", {"a": "1", "deep/b": "2"})
    source.chmod(0o777)
    (source / "deep").chmod(0o750)
    shared = server.home / "shared"
    shared.mkdir()
    shared.chmod(0o1730)
    await runner.put(source, "shared")
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1730
    assert stat.S_IMODE((shared / "deep").stat().st_mode) == 0o750


@pytest.mark.parametrize("is_file_missing", [False, True])
def test_the_mode_of_another_users_directory_is_not_a_missing_file(is_file_missing: bool) -> None:
    mode = 'rsync: [generator] failed to set permissions on "/tmp/.": Operation not permitted (1)'
    missing = 'rsync: [receiver] mkstemp "/tmp/.a.X1" failed: Permission denied (13)'
    last = "rsync error: some files/attrs were not transferred (code 23) at main.c(1338)"
    result = Completed(23, (mode, missing, last) if is_file_missing else (mode, last))
    assert is_complete(result) is not is_file_missing


async def test_a_file_becomes_the_target_or_goes_into_a_directory(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    source = write_files(tmp_path, {"mine": "x"}) / "mine"
    await runner.put(source, "~/new/dir/yours")
    await runner.put(source, "~/other/dir/")
    assert tree(server.home) == {"new/dir/yours": "x", "other/dir/mine": "x"}


async def test_a_file_changed_within_the_same_second_is_sent_again(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    source = write_files(tmp_path / "source", {"a": "1"})
    os.utime(source / "a", ns=(10**18, 10**18 + 1))
    await runner.put(source, "there")
    (source / "a").write_text("2")
    os.utime(source / "a", ns=(10**18, 10**18 + 2))
    await runner.put(source, "there")
    assert tree(server.home / "there") == {"a": "2"}


async def test_other_files_in_the_target_stay(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    write_files(server.home / "t", {"theirs": "kept", "a": "older"})
    await runner.put(write_files(tmp_path / "source", {"a": "new"}), "t")
    assert tree(server.home / "t") == {"a": "new", "theirs": "kept"}


async def test_modes_links_and_empty_directories_are_copied(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    source = write_files(tmp_path / "source", {"script": "#!/bin/sh\n", "secret": "x"})
    (source / "script").chmod(0o755)
    (source / "secret").chmod(0o600)
    (source / "empty").mkdir()
    (source / "link").symlink_to("script")
    (source / "dangling").symlink_to("nowhere")
    await runner.put(source, "t")
    target = server.home / "t"
    assert stat.S_IMODE((target / "script").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "secret").stat().st_mode) == 0o600
    assert (target / "empty").is_dir()
    assert (target / "link").readlink() == Path("script")
    assert (target / "dangling").readlink() == Path("nowhere")


async def test_an_empty_directory_is_copied_both_ways(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    await runner.put(tmp_path / "empty", "deep/empty")
    assert (server.home / "deep/empty").is_dir()
    await runner.get("deep/empty", tmp_path / "back/empty")
    assert (tmp_path / "back/empty").is_dir()


async def test_a_link_that_is_the_source_stands_for_its_target(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    write_files(tmp_path, {"real": "x", "dir/a": "1"})
    (tmp_path / "to-file").symlink_to("real")
    (tmp_path / "to-dir").symlink_to("dir")
    await runner.put(tmp_path / "to-file", "file")
    await runner.put(tmp_path / "to-dir", "dir")
    assert tree(server.home) == {"dir/a": "1", "file": "x"}
    (server.home / "far-link").symlink_to("file")
    await runner.get("far-link", tmp_path / "back")
    assert not (tmp_path / "back").is_symlink()
    assert (tmp_path / "back").read_text() == "x"


@pytest.mark.parametrize("name", UNUSUAL_NAMES)
async def test_any_name_is_copied_as_it_is(
    runner: SshRunner, server: Sshd, tmp_path: Path, name: str
) -> None:
    source = write_files(tmp_path / name, {name: "x"})
    await runner.put(source, f"~/{name}")
    await runner.put(source / name, f"{name}/file/{name}")
    assert tree(server.home) == {f"{name}/{name}": "x", f"{name}/file/{name}": "x"}
    await runner.get(f"{server.home}/{name}", tmp_path / "back" / name)
    assert tree(tmp_path / "back") == tree(server.home)


async def test_excludes_and_filter_files_apply_both_ways(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    names = [".git/HEAD", "a.py", "a.pyc", "data/big", "sub/b.log", "sub/b.py", "sub/data/x"]
    source = write_files(tmp_path / "source", dict.fromkeys(names, "x"))
    write_files(source, {".gitignore": "/data\n", "sub/.gitignore": "*.log\n"})
    filters = Filters(exclude=(".git", "**/*.pyc"), filter_files=(".gitignore",))
    expected = {".gitignore", "a.py", "sub/.gitignore", "sub/b.py", "sub/data/x"}
    await runner.put(source, "t", filters)
    assert set(tree(server.home / "t")) == expected
    write_files(server.home / "all", tree(source))
    await runner.get("all", tmp_path / "back", filters)
    assert set(tree(tmp_path / "back")) == expected


async def test_a_directory_and_a_file_are_copied_from_the_host(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    write_files(server.home / "far", {"a": "1", "deep/b": "2"})
    await runner.get("~/far", tmp_path / "new/tree")
    await runner.get("~/far/", tmp_path / "new/tree")
    await runner.get("far/a", tmp_path / "new/file")
    assert tree(tmp_path / "new") == {"file": "1", "tree/a": "1", "tree/deep/b": "2"}


async def test_unchanged_files_are_not_sent_again(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    source = write_files(tmp_path / "source", {"a": "1", "b": "2"})
    await runner.put(source, "t")
    before = (server.home / "t/a").stat()
    (source / "b").write_text("changed")
    await runner.put(source, "t")
    after = (server.home / "t/a").stat()
    assert (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns)
    assert (server.home / "t/b").read_text() == "changed"


async def test_a_missing_source_is_an_error_both_ways(runner: SshRunner, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/none does not exist"):
        await runner.put(tmp_path / "none", "t")
    with pytest.raises(SetupError, match="No such file or directory"):
        await runner.get("none", tmp_path / "t")


async def test_a_target_that_cannot_be_written_is_in_the_error(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    source = write_files(tmp_path / "source", {"a": "1"})
    (server.home / "file").touch()
    with pytest.raises(SetupError) as failure:
        await runner.put(source, "file/below")
    assert "file" in failure.value.why


async def test_the_cause_is_in_the_error_whatever_a_dotfile_prints_first(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    source = write_files(tmp_path / "source", {"a": "1"})
    (server.home / ".bashrc").write_text("echo 'tput: No value for $TERM' >&2\n")
    (server.home / "t" / "a").mkdir(parents=True)
    (server.home / "t" / "a" / "kept").touch()
    with pytest.raises(SetupError) as failure:
        await runner.put(source, "t")
    # Two lines of rsync, of which either may come first.
    causes = ("non-empty directory: a", "could not make way for new regular file: a")
    assert any(cause in failure.value.why for cause in causes)


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (
            [
                "rsync: [sender] write error: Broken pipe (32)",
                'rsync: [receiver] write failed on "/t/a": No space left on device (28)',
                "rsync error: error in file IO (code 11) at receiver.c(380) [receiver=3.2.7]",
            ],
            "No space left on device",
        ),
        (
            [
                'rsync: [generator] failed to set permissions on "/tmp/.": Not permitted (1)',
                'rsync: [receiver] mkstemp "/tmp/.a.X1" failed: Permission denied (13)',
                "rsync error: some files/attrs were not transferred (code 23) at main.c(1338)",
            ],
            "Permission denied",
        ),
        (
            [
                "bash: warning: setlocale: LC_ALL: cannot change locale (en_US.UTF-8)",
                "mkdir: cannot create directory '/data': Read-only file system",
                "rsync: connection unexpectedly closed (0 bytes received so far) [sender]",
                "rsync error: error in rsync protocol data stream (code 12) at io.c(231)",
            ],
            "Read-only file system",
        ),
        (["rsync error: unexplained error (code 255) at io.c(231)"], "unexplained error"),
        ([], ""),
    ],
)
def test_the_cause_of_a_failure_is_not_a_line_that_follows_from_it(
    lines: list[str], cause: str
) -> None:
    assert cause in failure_cause(lines)


async def test_a_login_that_prints_text_is_an_error_with_a_fix(
    runner: SshRunner, server: Sshd, tmp_path: Path
) -> None:
    (server.home / ".bashrc").write_text("echo Welcome\n")
    with pytest.raises(SetupError, match="prints text at every login") as failure:
        await runner.put(write_files(tmp_path / "source", {"a": "1"}), "t")
    (server.home / ".bashrc").write_text(f"{failure.value.fix.partition(': ')[2]}\necho Welcome\n")
    await runner.put(tmp_path / "source", "t")
    assert tree(server.home / "t") == {"a": "1"}


async def test_the_users_rsync_settings_do_not_interfere(
    runner: SshRunner, server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSYNC_PROTECT_ARGS", "1")
    monkeypatch.setenv("RSYNC_RSH", "false")
    await runner.put(write_files(tmp_path / "source", {"a": "1"}), "a b")
    assert tree(server.home) == {"a b/a": "1"}


async def test_a_dead_connection_is_replaced_for_files_too(
    new_server: Callable[..., tuple[Sshd, SshTarget]], tmp_path: Path
) -> None:
    server, target = new_server()
    server.start()
    runner = SshRunner("node-1", target)
    await runner.connect(timeout=60)
    server.stop()
    server.start()
    await runner.put(write_files(tmp_path / "source", {"a": "1"}), "t")
    assert tree(server.home) == {"t/a": "1"}


def tools(directory: Path, *names: str) -> Path:
    """A directory with links to these programs and no others."""
    directory.mkdir()
    for name in names:
        program = shutil.which(name)
        assert program is not None
        (directory / name).symlink_to(program)
    return directory


async def test_a_host_without_rsync_is_an_error_that_says_to_install_it(
    new_server: Callable[..., tuple[Sshd, SshTarget]], tmp_path: Path
) -> None:
    shell = tmp_path / "shell-without-rsync"
    programs = tools(tmp_path / "bin", "bash", "dirname", "mkdir")
    shell.write_text(f'#!/bin/sh\nPATH={programs} exec bash "$@"\n')
    shell.chmod(0o755)
    server, target = new_server(shell=str(shell))
    server.start()
    runner = SshRunner("node-1", target)
    source = write_files(tmp_path / "source", {"a": "1"})
    for transfer in (runner.put(source, "t"), runner.get("t", tmp_path / "back")):
        with pytest.raises(NoRsyncError) as failure:
            await transfer
        assert "install" in failure.value.fix


async def test_a_laptop_without_rsync_is_an_error_that_says_to_install_it(
    runner: SshRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tools(tmp_path / "bin", "ssh", "sh")))
    with pytest.raises(ConfigError, match="this machine has no rsync"):
        await runner.put(write_files(tmp_path / "source", {"a": "1"}), "t")


@pytest.mark.parametrize(("changes", "succeeds"), [(2, True), (9, False)])
async def test_a_file_that_changes_while_it_is_sent_is_sent_again(
    runner: SshRunner,
    server: Sshd,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: int,
    succeeds: bool,
) -> None:
    source = write_files(tmp_path / "source", {"a": "1"})
    # A file that grows all the time makes rsync fail only sometimes.
    shim = tmp_path / "bin/rsync"
    shim.parent.mkdir()
    shim.write_text(
        f"""#!/bin/sh
case "$*" in *--version*) exec {shutil.which("rsync")} "$@" ;; esac
echo >> {tmp_path}/tries
[ $(wc -l < {tmp_path}/tries) -gt {changes} ] && exec {shutil.which("rsync")} "$@"
echo "ERROR: a failed verification -- update discarded." >&2
exit 23
"""
    )
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shim.parent}:{os.environ['PATH']}")
    if succeeds:
        await runner.put(source, "t")
        assert tree(server.home) == {"t/a": "1"}
    else:
        with pytest.raises(SetupError, match="could not copy all files of t"):
            await runner.put(source, "t")
