"""Commands over SSH: their environment, their output, and that none outlives its caller."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import textwrap

import pytest

from shoal.remote import session_pool
from shoal.remote.command_output import MAX_LINE_BYTES
from shoal.remote.runner import capture
from shoal.remote.ssh_runner import SshRunner
from tests.polling import alive, until
from tests.remote.sshd import Sshd, command_lines, running

pytestmark = pytest.mark.processes

UNUSUAL_VALUE = 'it\'s "$(touch pwned)" `id` \\ \n\n end é \t!'


async def test_a_command_runs_at_home_in_an_interactive_login_shell(
    runner: SshRunner, server: Sshd
) -> None:
    result = await runner.run(
        'pwd; shopt -q login_shell && echo login; [[ $- == *i* ]] && echo "$-"'
    )
    assert result.code == 0
    assert result.tail[:2] == (str(server.home), "login")
    assert "i" in result.tail[2]


async def test_a_command_reads_the_dotfiles_that_the_command_before_has_changed(
    runner: SshRunner,
) -> None:
    await runner.run("echo 'export A=from-profile' >> ~/.profile")
    await runner.run("echo 'export B=from-bashrc' >> ~/.bashrc")
    assert (await runner.run('echo "$A $B"')).tail == ("from-profile from-bashrc",)


async def test_a_command_can_skip_the_dotfiles(runner: SshRunner, server: Sshd) -> None:
    (server.home / ".profile").write_text("echo x >> reads\n")
    assert (await runner.run('echo "$V"', env={"V": "a b"}, skip_profile=True)).tail == ("a b",)
    assert not (server.home / "reads").exists()


async def _shell_of(runner: SshRunner, *, skip_profile: bool) -> str:
    """The process on the host that runs the commands of a session."""
    (line,) = (await runner.run("echo $PPID", skip_profile=skip_profile)).tail
    return line


async def test_commands_share_a_session_as_long_as_bashrc_is_the_same(runner: SshRunner) -> None:
    first = await _shell_of(runner, skip_profile=True)
    assert await _shell_of(runner, skip_profile=False) == first
    await runner.run("echo 'export A=1' >> ~/.bashrc")
    assert await _shell_of(runner, skip_profile=True) == first
    second = await _shell_of(runner, skip_profile=False)
    assert second != first
    assert await _shell_of(runner, skip_profile=False) == second


async def test_a_bashrc_that_is_read_once_in_a_login_is_read_again_when_it_has_changed(
    runner: SshRunner, server: Sshd
) -> None:
    bashrc = server.home / ".bashrc"
    bashrc.write_text('[ -n "$LOADED" ] && return\nexport LOADED=1 A=old\n')
    assert (await runner.run("echo $A")).tail == ("old",)
    await runner.run("sed -i s/old/new/ ~/.bashrc")
    assert (await runner.run("echo $A")).tail == ("new",)


async def test_an_interactive_login_shell_is_never_shared(runner: SshRunner) -> None:
    await runner.run("SECRET=1; alias greet='echo hello'; shopt -s nullglob")
    assert (await runner.run("echo ${SECRET-unset}; type greet 2>&1 | wc -l")).tail[0] == "unset"


async def test_a_session_runs_many_short_commands(runner: SshRunner) -> None:
    async def run_in_turn() -> None:
        for number in range(25):
            result = await runner.run("cat", stdin=b"%d" % number, timeout=20, skip_profile=True)
            assert result.tail == (str(number),)

    await asyncio.gather(*(run_in_turn() for _ in range(4)))


async def test_a_session_that_was_lost_is_replaced(runner: SshRunner) -> None:
    first = await _shell_of(runner, skip_profile=True)
    os.kill(int(first), signal.SIGKILL)
    assert await _shell_of(runner, skip_profile=True) != first


async def test_a_new_login_gets_a_new_session(runner: SshRunner) -> None:
    first = await _shell_of(runner, skip_profile=True)
    await runner.relogin()
    assert await _shell_of(runner, skip_profile=True) != first


async def test_idle_sessions_end(runner: SshRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_pool, "_IDLE_SECONDS", 0.1)
    monkeypatch.setattr(session_pool, "_LAST_IDLE_SECONDS", 0.2)
    shell = int(await _shell_of(runner, skip_profile=True))
    await until(lambda: not alive(shell), "the session ends")


async def test_the_session_that_was_used_last_is_kept_for_longer(
    runner: SshRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_pool, "_IDLE_SECONDS", 0.1)
    shells = await asyncio.gather(
        *(capture(runner, "echo $PPID; sleep 0.2", skip_profile=True, timeout=20) for _ in range(3))
    )
    pids = [int(lines[0]) for _, lines in shells]
    assert len(set(pids)) == 3
    await until(lambda: sum(map(alive, pids)) == 1, "the others end")
    assert int(await _shell_of(runner, skip_profile=True)) in pids


async def test_lines_after_a_guard_for_interactive_shells_apply(
    runner: SshRunner, server: Sshd
) -> None:
    guard = 'case $- in *i*) ;; *) return;; esac\n[ -z "$PS1" ] && return\n'
    (server.home / ".bashrc").write_text(guard + "export DEEP=yes\nalias greet='echo hello'\n")
    assert (await runner.run("echo $DEEP\ngreet")).tail == ("yes", "hello")


@pytest.mark.parametrize("reads_bashrc", [True, False])
async def test_bashrc_is_read_once_whether_or_not_the_profile_reads_it(
    runner: SshRunner, server: Sshd, reads_bashrc: bool
) -> None:
    (server.home / ".bashrc").write_text('[[ $- == *i* ]] && export TIMES="${TIMES}x"\n')
    block = 'if [ -n "$BASH" ]; then\n  if [ -f ~/.bashrc ]; then\n    . ~/.bashrc\n  fi\nfi\n'
    (server.home / ".profile").write_text(block if reads_bashrc else "# nothing\n")
    assert (await runner.run("echo $TIMES")).tail == ("x",)


async def test_bash_profile_is_read_instead_of_profile(runner: SshRunner, server: Sshd) -> None:
    (server.home / ".bash_profile").write_text("export WHICH=bash\n")
    (server.home / ".profile").write_text("export WHICH=common\n")
    assert (await runner.run("echo $WHICH")).tail == ("bash",)


async def test_dotfiles_do_not_affect_the_output_or_input_of_a_command(
    runner: SshRunner, server: Sshd
) -> None:
    greeting = "echo Welcome; printf half; stty -echo; [[ $- == *i* ]] && read -r answer\n"
    (server.home / ".bashrc").write_text(greeting)
    assert (await runner.run("cat", stdin=b"mine")).tail == ("mine",)


@pytest.mark.parametrize(
    "line", ["trap 'echo bye' EXIT", "trap 'echo -n .' DEBUG", "trap 'exit 9' ERR"]
)
async def test_traps_of_dotfiles_do_not_affect_the_output_or_exit_code_of_a_command(
    runner: SshRunner, server: Sshd, line: str
) -> None:
    (server.home / ".bashrc").write_text(f"{line}\n")
    result = await runner.run("echo output; exit 3")
    assert (result.code, result.tail) == (3, ("output",))


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("exit 3", 3), ("false; true", 1)])
async def test_a_dotfile_with_set_e_applies_to_the_command_and_not_to_bash_logout(
    runner: SshRunner, server: Sshd, command: str, code: int
) -> None:
    (server.home / ".bashrc").write_text("set -euo pipefail\n")
    (server.home / ".bash_logout").write_text("false\necho $UNSET\n")
    assert (await runner.run(command)).code == code


async def test_a_dotfile_may_name_a_directory_for_temporary_files_that_does_not_exist(
    runner: SshRunner, server: Sshd
) -> None:
    (server.home / ".bashrc").write_text("export TMPDIR=/nonexistent\n")
    assert (await runner.run("cat", stdin=b"input", skip_profile=True)).tail == ("input",)
    assert await runner.attach("exit 3", tty=False) == 3


async def test_environment_values_are_passed_unchanged(runner: SshRunner, server: Sshd) -> None:
    result = await runner.run(
        'printf %s "$V" > v; declare -p V > /dev/null', env={"V": UNUSUAL_VALUE}
    )
    assert result.ok
    assert (server.home / "v").read_text() == UNUSUAL_VALUE
    assert not (server.home / "pwned").exists()


async def test_the_given_environment_overrides_the_dotfiles(
    runner: SshRunner, server: Sshd
) -> None:
    (server.home / ".profile").write_text("export V=dotfile\n")
    assert (await runner.run("echo $V", env={"V": "given"})).tail == ("given",)


@pytest.mark.parametrize("name", ["A B", "A;id", "", "1A"])
async def test_an_invalid_variable_name_is_rejected(runner: SshRunner, name: str) -> None:
    with pytest.raises(ValueError, match="environment variable"):
        await runner.run("true", env={name: "x"})


async def test_no_command_line_shows_the_command_or_a_secret(
    runner: SshRunner, server: Sshd
) -> None:
    task = asyncio.ensure_future(
        runner.run(
            "touch started; while [ ! -e continue ]; do sleep 0.05; done; : a-visible-comment",
            env={"TOKEN": "s3cr3t-t0k3n"},
            stdin=b"s3cr3t-input",
        )
    )
    await until((server.home / "started").exists)
    lines = list(command_lines())
    (server.home / "continue").touch()
    assert (await task).ok
    assert any("read -r mark lines bytes" in line for line in lines), (
        "the remote script is among them"
    )
    assert not [line for line in lines if "s3cr3t" in line or "a-visible" in line]


async def test_a_failing_command_is_a_result_with_its_last_lines(runner: SshRunner) -> None:
    result = await runner.run("seq 1 50; exit 7")
    assert result.code == 7
    assert result.tail == tuple(str(n) for n in range(31, 51))


async def test_a_syntax_error_is_in_the_output(runner: SshRunner) -> None:
    result = await runner.run("echo 'unclosed")
    assert result.code != 0
    assert "unexpected EOF" in result.tail[0]


async def test_a_command_killed_by_a_signal_has_the_exit_code_of_a_shell(runner: SshRunner) -> None:
    assert (await runner.run("sh -c 'kill -9 $$'")).code == 137
    assert (await runner.run("kill -9 $$")).code == 137


async def test_a_command_may_have_many_lines_and_end_with_a_comment(
    runner: SshRunner,
) -> None:
    result = await runner.run("cat <<'END'\n$(id) 'x'\n\n  y\nEND\necho z # the last one")
    assert result.tail == ("$(id) 'x'", "", "  y", "z")


async def test_a_command_may_be_longer_than_a_command_line(runner: SshRunner, server: Sshd) -> None:
    text = "x" * 300_000
    assert (await runner.run(f"printf %s {text} > long", timeout=60)).ok
    assert (server.home / "long").read_text() == text


async def test_lines_of_both_streams_are_delivered_while_the_command_runs(
    runner: SshRunner, server: Sshd
) -> None:
    lines: list[tuple[str, str]] = []

    def receive(line: str, stream: str) -> None:
        lines.append((line, stream))
        (server.home / line).touch()

    waits = "until [ -e {0} ]; do sleep 0.02; done; "
    command = f"echo out; {waits.format('out')} echo err >&2; {waits.format('err')} printf last"
    assert (await runner.run(command, on_line=receive, timeout=60)).ok
    assert lines == [("out", "stdout"), ("err", "stderr"), ("last", "stdout")]


async def test_an_exception_of_on_line_ends_the_command(runner: SshRunner) -> None:
    def fail(line: str, stream: str) -> None:
        raise KeyError(line)

    with pytest.raises(KeyError, match="first"):
        await runner.run("echo first; sleep 7301", on_line=fail)
    await until(lambda: not running("7301"))


async def test_any_output_becomes_readable_lines(runner: SshRunner) -> None:
    result = await runner.run(r"printf '1%%\r50%%\r100%%\r\n'; printf 'a\377b\n'")
    assert result.tail == ("100%", "a\ufffdb")


async def test_an_endless_line_is_cut_and_the_exit_code_is_still_returned(
    runner: SshRunner,
) -> None:
    result = await runner.run("head -c 1000000 /dev/zero | tr '\\0' x; exit 3", timeout=60)
    assert result.code == 3
    assert result.tail == ("x" * MAX_LINE_BYTES + " …",)


async def test_input_reaches_the_command_even_when_it_does_not_read_it(
    runner: SshRunner, server: Sshd
) -> None:
    data = bytes(range(256)) * 4000
    assert (await runner.run("cat > copy", stdin=data)).ok
    assert (server.home / "copy").read_bytes() == data
    assert (await runner.run("true", stdin=data)).ok
    assert (await runner.run("cat")).tail == ()


async def test_a_daemon_does_not_delay_the_command_that_started_it(runner: SshRunner) -> None:
    result = await runner.run("sleep 7302 & echo started", timeout=60)
    assert result.tail == ("started",)
    await until(lambda: running("7302"))
    await runner.run("pkill -f 'sleep 730[2]'")


async def test_a_command_past_its_deadline_is_ended_with_its_children(
    runner: SshRunner, server: Sshd
) -> None:
    command = "trap '' HUP; sleep 7303 & touch started; sleep 7304; touch continued"
    started = server.home / "started"
    for seconds in (1, 5, 25):  # until it is long enough for the command to start
        with pytest.raises(TimeoutError, match="did not end within"):
            await runner.run(command, timeout=seconds)
        if started.exists():
            break
    assert started.exists()
    await until(lambda: not running("7303") and not running("7304"))
    assert not (server.home / "continued").exists()


async def test_cancelling_ends_a_command_that_ignores_signals(
    runner: SshRunner, server: Sshd
) -> None:
    stubborn = "trap '' HUP TERM INT; touch started; while :; do sleep 7305; done"
    task = asyncio.ensure_future(runner.run(f"bash -c {stubborn!r} stubborn-7305"))
    await until((server.home / "started").exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not running("stubborn-7305"))


async def test_a_command_ends_when_its_caller_is_killed(runner: SshRunner, server: Sshd) -> None:
    await runner.connect(timeout=60)
    program = textwrap.dedent(
        """
        import asyncio, pickle, sys
        from shoal.remote.ssh_runner import SshRunner
        target = pickle.load(sys.stdin.buffer)
        asyncio.run(SshRunner("node-1", target).run("touch started; sleep 7306"))
        """
    )
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stdin=asyncio.subprocess.PIPE
    )
    assert child.stdin is not None
    child.stdin.write(pickle.dumps(runner.target))
    child.stdin.write_eof()
    await until((server.home / "started").exists)
    child.kill()
    await child.wait()
    await until(lambda: not running("7306"))


async def test_more_commands_than_sessions_on_a_connection_all_run(
    runner: SshRunner,
) -> None:
    other = SshRunner("node-1", runner.target)
    commands = [r.run(f"sleep 0.1; echo {n}") for n in range(9) for r in (runner, other)]
    assert [result.tail for result in await asyncio.gather(*commands)] == [
        (str(n),) for n in range(9) for _ in range(2)
    ]


_BYTES = b"\r\n".join([b"x" * 20_000, b"1%\r100%", b"\377\0", b"no line break at the end"])


async def test_output_for_programs_is_unchanged(runner: SshRunner, server: Sshd) -> None:
    (server.home / "data").write_bytes(_BYTES)
    received: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def receive(chunk: bytes, stream: str) -> None:
        received[stream] += chunk

    assert (await runner.run("cat data; cat data >&2", on_bytes=receive)).ok
    assert received == {"stdout": _BYTES, "stderr": _BYTES}


async def test_captured_lines_are_complete(runner: SshRunner) -> None:
    _, lines = await capture(runner, "printf '%020000d\\n\\nlast' 1; echo other >&2")
    assert lines == ["1".zfill(20_000), "", "last"]
