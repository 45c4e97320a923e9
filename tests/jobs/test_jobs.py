"""Jobs on a real cluster: their code, their environment, their output and their end."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import temporary_home
from tests.cli.shoal_command import SHOAL, Home
from tests.jobs.repository import git, repository, wheel

pytestmark = pytest.mark.ray

_RESULT = "result: "


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    """A home with one cluster, whose worker joins when a job needs it."""
    with temporary_home() as home:
        done = home.shoal("up", "--yes", "--min-workers", "0", "--max-workers", "1")
        assert done.returncode == 0, done.stderr
        yield home


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return repository(tmp_path / "code", helper__py="VALUE = 1\n", __gitignore="out\n")


def script(directory: Path, text: str, name: str = "train.py") -> None:
    (directory / name).write_text(textwrap.dedent(text))


def submit(home: Home, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return home.shoal("job", "submit", *arguments, cwd=cwd)


def result(done: subprocess.CompletedProcess[str]) -> object:
    lines = [line for line in done.stdout.splitlines() if line.startswith(_RESULT)]
    assert lines, done.stdout + done.stderr
    return json.loads(lines[-1].removeprefix(_RESULT))


def tree(directory: Path, without: tuple[str, ...] = ()) -> dict[str, object]:
    """What a directory has below it: the target of each link, and the mode and content of each
    file."""
    found: dict[str, object] = {}
    for path in directory.rglob("*"):
        name = path.relative_to(directory)
        if name.parts[0] in without:
            continue
        if path.is_symlink():
            found[str(name)] = str(path.readlink())
        elif path.is_file():
            found[str(name)] = (os.access(path, os.X_OK), path.read_bytes())
    return found


def newest_job(home: Home) -> str:
    return str(home.json("job", "list")[-1]["id"])


def test_a_dirty_tree_with_an_untracked_module_runs_on_workers_and_can_be_restored(
    home: Home, code: Path, tmp_path: Path
) -> None:
    (code / "run.sh").write_text("#!/bin/sh\n")
    (code / "old.py").write_text("VALUE = 0\n")
    git(code, "add", "-A")
    git(code, "commit", "-qm", "two")
    (code / "helper.py").write_text("VALUE = 2\n")
    (code / "new.py").write_text("VALUE = 3\n")
    (code / "link.py").symlink_to("new.py")
    (code / "old.py").unlink()
    (code / "run.sh").chmod(0o755)
    (code / "data" / "deep").mkdir(parents=True)
    (code / "data" / "deep" / "weights.bin").write_bytes(bytes(range(256)) * 40)
    (code / "data" / "n\u00e4me with space.txt").write_text("\r\n")
    (code / "data" / "empty").touch()
    (code / "latest").symlink_to("data/deep")
    (code / "broken").symlink_to("nowhere")
    (code / "out").mkdir()
    (code / "out" / "ignored").touch()
    script(
        code,
        """
        import json, ray, sys
        ray.init(logging_level="ERROR")
        @ray.remote
        def values():
            import helper, link, new
            return [helper.VALUE, new.VALUE, link.VALUE]
        print("result:", json.dumps([*ray.get(values.remote()), *sys.argv[1:]]))
        """,
    )
    done = submit(home, "--code", ".", "--", "python", "train.py", "a b", "$HOME", cwd=code)
    assert done.returncode == 0, done.stderr
    assert result(done) == [2, 3, 3, "a b", "$HOME"]
    before = tree(code, without=(".git", "out"))
    (code / "helper.py").write_text("VALUE = 4\n")
    shown = home.json("job", "code", newest_job(home), str(tmp_path / "restored"))
    assert shown["commit"] == git(code, "rev-parse", "HEAD")
    assert (shown["branch"], shown["dirty"]) == ("main", True)
    assert "+VALUE = 2" in shown["diff"]
    assert tree(tmp_path / "restored") == before


def test_a_module_that_hides_one_of_the_standard_library_works(home: Home, code: Path) -> None:
    (code / "code.py").write_text("VALUE = 5\n")
    script(
        code,
        """
        import json, ray, code, pdb
        ray.init(logging_level="ERROR")
        @ray.remote
        def values():
            import code, pdb
            return [code.VALUE, hasattr(pdb.code, "InteractiveConsole")]
        here = [code.VALUE, hasattr(pdb.code, "InteractiveConsole")]
        print("result:", json.dumps([here, ray.get(values.remote())]))
        """,
    )
    done = submit(home, "--code", ".", "--", "python", "train.py", cwd=code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "code.py hides a module" in done.stderr
    assert result(done) == [[5, True], [5, True]]


def test_the_exit_code_and_the_bytes_are_the_jobs(home: Home, tmp_path: Path) -> None:
    command = ["job", "submit", "--", "printf 'a\\377b\\nno line break'; exit 7"]
    done = subprocess.run(
        [SHOAL, *command], env=home.env, cwd=tmp_path, capture_output=True, timeout=150
    )
    assert done.returncode == 7
    assert done.stdout.count(b"a\xffb\nno line break") == 1


def test_a_detached_job_is_listed_followed_and_stopped(home: Home, tmp_path: Path) -> None:
    done = submit(
        home, "--detach", "--id", "long", "--", "echo begun; exec sleep 600", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert submit(home, "--id", "long", "--", "true", cwd=tmp_path).returncode == 2
    stopped = home.shoal("job", "stop", "long")
    assert stopped.returncode == 0, stopped.stderr
    listed = {job["id"]: job for job in home.json("job", "list")}
    assert listed["long"]["status"] == "STOPPED"
    assert listed["long"]["entrypoint"] == "echo begun; exec sleep 600"
    followed = home.shoal("job", "logs", "-f", "long")
    assert followed.returncode != 0
    assert home.shoal("job", "logs", "missing").returncode == 3


def test_an_environment_is_built_once_and_used_by_the_driver_and_by_a_worker_that_joins_later(
    home: Home, code: Path
) -> None:
    packages = wheel(code / "out")
    (code / "requirements.txt").write_text(
        f"--no-index\n--find-links {packages.parent}\nshoaltest\n"
    )
    script(
        code,
        """
        import json, ray, shoaltest, sys
        from ray.util.placement_group import placement_group
        ray.init(logging_level="ERROR")
        both = placement_group([{"CPU": 0.1}] * 2, strategy="STRICT_SPREAD")
        ray.get(both.ready())
        @ray.remote(num_cpus=0.1)
        def values():
            import helper, shoaltest
            node = ray.get_runtime_context().get_node_id()
            return node, [shoaltest.VALUE, helper.VALUE, sys.executable]
        nodes = ray.get([
            values.options(placement_group=both, placement_group_bundle_index=n).remote()
            for n in range(2)
        ])
        assert nodes[0][0] != nodes[1][0]
        expected = [shoaltest.VALUE, 1, sys.executable]
        print("result:", json.dumps([found == expected for _, found in nodes]))
        """,
    )
    arguments = ("--code", ".", "--requirements", "requirements.txt", "--", "python", "train.py")
    first = submit(home, *arguments, cwd=code)
    assert first.returncode == 0, first.stdout + first.stderr
    assert result(first) == [True, True]
    assert "building the environment" in first.stdout
    again = submit(home, *arguments, cwd=code)
    assert result(again) == [True, True]
    assert "building the environment" not in again.stdout
    record = home.json("job", "code", newest_job(home), str(code.parent / "restored"))
    assert "shoaltest==1.0" in record["packages"]


def test_exec_and_submit_run_in_the_code_that_their_workers_have(home: Home, code: Path) -> None:
    script(
        code,
        """
        import json, os, ray, sys
        ray.init(logging_level="ERROR")
        @ray.remote
        def value():
            import helper
            return helper.VALUE
        in_copy = os.getcwd() != sys.argv[1]
        print("result:", json.dumps([ray.get(value.remote()), in_copy]))
        """,
    )
    command = f"python train.py {code}"
    assert result(home.shoal("exec", command, "--code", ".", cwd=code)) == [1, True]
    submitted = home.shoal("submit", "train.py", "--code", ".", "--", str(code), cwd=code)
    assert result(submitted) == [1, True]


def test_an_environment_that_cannot_be_built_ends_the_job_with_the_reason(
    home: Home, code: Path
) -> None:
    (code / "requirements.txt").write_text("--no-index\nno-such-package==1.0\n")
    done = submit(home, "--code", ".", "--requirements", "requirements.txt", "--", "true", cwd=code)
    assert done.returncode == 1
    assert "could not build the environment of requirements.txt" in done.stdout
    assert "no-such-package" in done.stdout
