"""Commands on this machine: their environment, their output, and that none outlives its caller."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from shoal.core.errors import UnreachableError
from shoal.remote.local_runner import LocalRunner
from shoal.remote.runner import capture
from tests.polling import alive, until


@pytest.fixture
def runner(tmp_path: Path) -> LocalRunner:
    return LocalRunner(tmp_path, {"WHO": "the node"})


async def test_a_command_runs_in_the_nodes_directory_with_its_environment(
    runner: LocalRunner, tmp_path: Path
) -> None:
    result = await runner.run('pwd; echo "$WHO, $EXTRA"', env={"EXTRA": "it's $(me)"})
    assert result.code == 0
    assert result.tail == (str(tmp_path), "the node, it's $(me)")


async def test_lines_of_both_streams_are_delivered_with_the_name_of_the_stream(
    runner: LocalRunner,
) -> None:
    lines: list[tuple[str, str]] = []
    await runner.run(
        "echo out; echo err >&2; printf unended", on_line=lambda *line: lines.append(line)
    )
    assert sorted(lines) == [("err", "stderr"), ("out", "stdout"), ("unended", "stdout")]


async def test_a_failing_command_is_a_result_with_its_last_lines(runner: LocalRunner) -> None:
    result = await runner.run("seq 1 50; exit 7")
    assert result.code == 7
    assert result.tail[-1] == "50"
    assert len(result.tail) == 20


async def test_a_command_killed_by_a_signal_has_the_exit_code_of_a_shell(
    runner: LocalRunner,
) -> None:
    assert (await runner.run("kill -9 $$")).code == 137


async def test_bytes_that_are_not_utf_8_are_replaced(runner: LocalRunner) -> None:
    result = await runner.run(r"printf 'a\377b\n'")
    assert result.tail == ("a\ufffdb",)


async def test_standard_input_reaches_the_command_even_when_it_does_not_read_it(
    runner: LocalRunner,
) -> None:
    assert (await runner.run("cat", stdin=b"hello")).tail == ("hello",)
    assert (await runner.run("true", stdin=b"x" * 1_000_000)).code == 0


async def test_a_daemon_does_not_delay_the_command_that_started_it(runner: LocalRunner) -> None:
    result = await runner.run("sleep 600 & echo $!", timeout=60)
    psutil.Process(int(result.tail[0])).kill()
    assert result.code == 0


async def test_a_command_past_its_deadline_is_ended_with_its_children(
    runner: LocalRunner, tmp_path: Path
) -> None:
    child = tmp_path / "child"
    for seconds in (0.5, 5, 25):  # until it is long enough for the command to start
        with pytest.raises(TimeoutError):
            await runner.run("sleep 600 & echo $! > child; wait", timeout=seconds)
        if child.exists() and child.read_text():
            break
    await until(lambda: not alive(int(child.read_text())))


async def test_cancelling_ends_the_command(runner: LocalRunner, tmp_path: Path) -> None:
    task = asyncio.ensure_future(runner.run("echo $$ > pid; exec sleep 60"))
    pid = tmp_path / "pid"
    await until(lambda: pid.exists() and pid.read_text().strip() != "")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not alive(int(pid.read_text())))


async def test_an_attached_command_runs_in_the_current_directory(
    runner: LocalRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert await runner.attach("touch here; exit 3", tty=False) == 3
    assert [path.name for path in elsewhere.iterdir()] == ["here"]


async def test_a_node_that_was_removed_is_unreachable(tmp_path: Path) -> None:
    gone = LocalRunner(tmp_path / "gone", {})
    with pytest.raises(UnreachableError, match="no longer exists"):
        await gone.run("true")
    with pytest.raises(UnreachableError):
        await gone.connect(timeout=1)


async def test_captured_lines_are_complete(runner: LocalRunner) -> None:
    _, lines = await capture(runner, "printf '%020000d\\n\\nlast' 1; echo other >&2")
    assert lines == ["1".zfill(20_000), "", "last"]
