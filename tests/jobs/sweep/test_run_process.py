"""One process: its limits, its output, and how it ended."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import psutil
import pytest

from shoal.jobs.sweep import run_guard, run_task
from shoal.jobs.sweep.run_process import CappedOutput, Ended, exit_reason, run_process
from tests.polling import alive, until


def python(
    code: str, cwd: Path, *, limit: float | None = None, output_limit: int = 10_000
) -> Ended:
    return run_process(
        [sys.executable, "-c", code], cwd=cwd, env=os.environ, time_limit=limit,
        output_limit=output_limit,
    )  # fmt: skip


def test_the_output_of_both_streams_is_kept_in_order(tmp_path: Path) -> None:
    code = (
        "import sys\nfor i in range(4): print(i, file=(sys.stdout, sys.stderr)[i % 2], flush=True)"
    )
    ended = python(code, tmp_path)
    assert (ended.code, ended.why, ended.output) == (0, "", b"0\n1\n2\n3\n")


def test_long_output_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    code = "print('first'); [print('y' * 999) for _ in range(20_000)]; print('last')"
    ended = python(code, tmp_path, output_limit=4_000)
    assert ended.printed == 20_000_011
    assert ended.dropped == 20_000_011 - 4_000
    assert ended.output.startswith(b"first\n")
    assert ended.output.endswith(b"last\n")
    assert b"19,996,011 bytes of output were not kept" in ended.output
    assert len(ended.output) < 4_100


@pytest.mark.parametrize("chunk", [1, 3, 64, 10_000])
def test_the_memory_of_capped_output_is_bounded(chunk: int) -> None:
    output = CappedOutput(100)
    stream = bytes(n % 251 for n in range(9_000))
    for at in range(0, len(stream), chunk):
        output.add(stream[at : at + chunk])
        assert output._tail_size <= 50 + chunk
    assert output.dropped == 8_900
    assert output.content().startswith(stream[:50])
    assert output.content().endswith(stream[-50:])


def test_output_below_the_limit_is_whole() -> None:
    output = CappedOutput(100)
    for _ in range(10):
        output.add(b"0123456789")
    assert (output.content(), output.dropped) == (b"0123456789" * 10, 0)


async def test_a_process_past_its_limit_is_ended_with_its_children(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    ended = python(code, tmp_path, limit=1.0)
    assert ended.timed_out
    assert ended.why == "stopped after its time limit of 1 s"
    await until(lambda: not alive(int(ended.output)), "the child has ended")


async def test_a_process_in_the_background_does_not_hold_the_run(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid)"
    )
    ended = python(code, tmp_path, limit=60)
    assert (ended.code, ended.timed_out) == (0, False)
    await until(lambda: not alive(int(ended.output)), "the child has ended")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, ""),
        (3, "exit code 3"),
        (-11, "ended by SIGSEGV (segmentation fault)"),
        (-15, "ended by SIGTERM"),
        (137, "exit code 137: ended by SIGKILL (killed, possibly out of memory)"),
        (255, "exit code 255"),
    ],
)
def test_exit_codes_have_names(code: int, text: str) -> None:
    assert exit_reason(code) == text


def test_a_program_that_does_not_exist_is_a_failure(tmp_path: Path) -> None:
    ended = run_process(["/no/python"], cwd=tmp_path, env={}, time_limit=None, output_limit=10)
    assert ended.why == "could not start /no/python: No such file or directory"


async def test_a_killed_worker_takes_its_run_with_it(tmp_path: Path) -> None:
    """As Ray does when a node has too little memory, or a job is stopped."""
    worker = (
        "import os, sys\nfrom pathlib import Path\n"
        "from shoal.jobs.sweep.run_process import run_process\n"
        'code = \'import os, time; open("pid", "w").write(str(os.getpid())); time.sleep(600)\'\n'
        "run_process([sys.executable, '-c', code], cwd=Path.cwd(), env=os.environ,\n"
        "            time_limit=None, output_limit=10)"
    )
    process = subprocess.Popen([sys.executable, "-c", worker], cwd=tmp_path)
    await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "it runs")
    run = int((tmp_path / "pid").read_text())
    assert psutil.Process(run).parent() == psutil.Process(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    await until(lambda: not alive(run), "the run has ended")


def request(code: Path, argv: list[str]) -> dict[str, object]:
    return {
        "sweep": "s", "run": 3, "argv": argv, "code": str(code), "time_limit_s": 60,
        "output_bytes": 1000, "artifact_bytes": 1000,
    }  # fmt: skip


@pytest.mark.parametrize("group", [1, -1, -5])
def test_a_guard_refuses_groups_that_are_not_of_a_run(group: int) -> None:
    """To the shell's `kill`, these mean all processes, or other ones."""
    with pytest.raises(ValueError, match="is not the process group of a run"):
        run_guard.guard_group(group)


async def test_a_killed_worker_leaves_no_directory(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    started = tmp_path / "started"
    (code / "run.py").write_text(
        f"import os, time\nopen({str(started)!r}, 'w').write(os.getcwd())\ntime.sleep(600)"
    )
    worker = f"from shoal.jobs.sweep import run_task\nrun_task.execute({request(code, ['run.py'])})"
    env = {**os.environ, "TMPDIR": str(tmp_path / "a b")}
    (tmp_path / "a b").mkdir()
    process = subprocess.Popen([sys.executable, "-c", worker], env=env)
    await until(lambda: started.exists() and started.read_text(), "it runs")
    assert Path(started.read_text()).is_relative_to(tmp_path / "a b")
    process.kill()
    process.wait(10)
    await until(lambda: not list((tmp_path / "a b").iterdir()), "its directory is removed")


def test_a_run_leaves_no_directory(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("import os; os.mkdir('a'); print(os.getcwd())")
    for _ in range(3):
        result = run_task.execute(request(tmp_path, ["run.py"]))
        directory = Path(result["output"].decode().strip())
        run_guard.wait_for_removals()
        assert not directory.exists()
        assert directory.parent.exists()
    directory.parent.rmdir()  # as a cleaner of temporary files does
    assert run_task.execute(request(tmp_path, ["run.py"]))["status"] == "ok"


def test_what_a_run_writes_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.txt").write_text("old")
    (tmp_path / "helper.py").write_text("VALUE = 5")
    (tmp_path / "train.py").write_text(
        "import helper, os\nopen('out/new.txt', 'w').write(open('out/old.txt').read())\n"
        "print({'a': 1}); print('{\"value\": %d}' % helper.VALUE, os.environ['SHOAL_RUN'])\n"
        "print('{\"value\": %d}' % helper.VALUE)"
    )
    result = run_task.execute(request(tmp_path, ["train.py"]))
    assert (result["status"], result["metrics"]) == ("ok", {"value": 5})
    with zipfile.ZipFile(io.BytesIO(result["archive"])) as files:
        assert files.namelist() == ["out/new.txt"]
        assert files.read("out/new.txt") == b"old"
    assert not (tmp_path / "out" / "new.txt").exists()


def test_files_beyond_the_limit_are_left_out_and_named(tmp_path: Path) -> None:
    script = "open('small', 'w').write('x'); open('large', 'w').write('x' * 2000)"
    (tmp_path / "train.py").write_text(script)
    result = run_task.execute(request(tmp_path, ["train.py"]))
    with zipfile.ZipFile(io.BytesIO(result["archive"])) as files:
        assert files.namelist() == ["small"]
    (note,) = result["notes"]
    assert note.startswith("large (2,000 bytes) was not collected")


def test_large_archives_are_stored_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_task, "CHUNK", 100)
    (tmp_path / "train.py").write_text("import os; open('f', 'wb').write(os.urandom(900))")
    stored: list[bytes] = []
    result = run_task.execute(request(tmp_path, ["train.py"]), stored.append)
    assert len(result["chunks"]) == len(stored) == -(-len(b"".join(stored)) // 100)
    with zipfile.ZipFile(io.BytesIO(b"".join(stored))) as files:
        assert len(files.read("f")) == 900


def test_a_failed_run_has_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("for i in range(50): print(i)\nraise SystemExit('no data')")
    result = run_task.execute(request(tmp_path, ["train.py"]))
    assert (result["status"], result["why"]) == ("failed", "exit code 1")
    assert result["tail"][-2:] == ["49", "no data"]
    assert len(result["tail"]) == 20


def test_a_gigabyte_of_output_takes_little_memory(tmp_path: Path) -> None:
    code = "import os\nfor _ in range(1024): os.write(1, (b'y' * 1023 + b'\\n') * 1024)"
    tracemalloc.start()
    try:
        ended = python(code, tmp_path, output_limit=2**20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ended.printed == 2**30
    assert len(ended.output) < 2**20 + 100
    assert peak < 8 * 2**20
