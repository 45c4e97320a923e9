"""Commands over SSH: what they see, what they print, and that none outlives its caller."""

from __future__ import annotations

import asyncio
import pickle
import sys
import textwrap

import pytest

from shoal.remote.line_buffer import MAX_LINE_BYTES
from shoal.remote.ssh_runner import SshRunner
from tests.polling import until
from tests.remote.sshd import Sshd, command_lines, running

AWKWARD = 'it\'s "$(touch pwned)" `id` \\ \n\n end é \t!'


async def test_a_command_runs_at_home_in_an_interactive_login_shell(
    runner: SshRunner, server: Sshd
) -> None:
    done = await runner.run('pwd; shopt -q login_shell && echo login; [[ $- == *i* ]] && echo "$-"')
    assert done.code == 0
    assert done.tail[:2] == (str(server.home), "login")
    assert "i" in done.tail[2]


async def test_a_command_sees_the_dotfiles_as_the_command_before_left_them(
    runner: SshRunner,
) -> None:
    await runner.run("echo 'export A=from-profile' >> ~/.profile")
    await runner.run("echo 'export B=from-bashrc' >> ~/.bashrc")
    assert (await runner.run('echo "$A $B"')).tail == ("from-profile from-bashrc",)


async def test_a_plain_command_does_not_wait_for_dotfiles(runner: SshRunner, server: Sshd) -> None:
    (server.home / ".profile").write_text("echo x >> reads\n")
    assert (await runner.run('echo "$V"', env={"V": "a b"}, skip_profile=True)).tail == ("a b",)
    assert not (server.home / "reads").exists()


async def test_lines_after_a_guard_for_interactive_shells_count(
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


async def test_a_profile_of_bashs_own_goes_before_the_common_one(
    runner: SshRunner, server: Sshd
) -> None:
    (server.home / ".bash_profile").write_text("export WHICH=bash\n")
    (server.home / ".profile").write_text("export WHICH=common\n")
    assert (await runner.run("echo $WHICH")).tail == ("bash",)


async def test_what_dotfiles_print_read_or_complain_about_is_not_the_commands(
    runner: SshRunner, server: Sshd
) -> None:
    greeting = "echo Welcome; printf half; stty -echo; [[ $- == *i* ]] && read -r answer\n"
    (server.home / ".bashrc").write_text(greeting)
    assert (await runner.run("cat", stdin=b"mine")).tail == ("mine",)


async def test_environment_values_arrive_literally(runner: SshRunner, server: Sshd) -> None:
    done = await runner.run('printf %s "$V" > v; declare -p V > /dev/null', env={"V": AWKWARD})
    assert done.ok
    assert (server.home / "v").read_text() == AWKWARD
    assert not (server.home / "pwned").exists()


async def test_the_environment_given_wins_over_the_dotfiles(
    runner: SshRunner, server: Sshd
) -> None:
    (server.home / ".profile").write_text("export V=dotfile\n")
    assert (await runner.run("echo $V", env={"V": "given"})).tail == ("given",)


@pytest.mark.parametrize("name", ["A B", "A;id", "", "1A"])
async def test_a_name_that_is_no_variable_is_refused(runner: SshRunner, name: str) -> None:
    with pytest.raises(ValueError, match="environment variable"):
        await runner.run("true", env={name: "x"})


async def test_neither_command_nor_secret_is_on_any_command_line(
    runner: SshRunner, server: Sshd
) -> None:
    task = asyncio.ensure_future(
        runner.run(
            "touch begun; while [ ! -e go-on ]; do sleep 0.05; done; : a-telling-comment",
            env={"TOKEN": "s3cr3t-t0k3n"},
            stdin=b"s3cr3t-input",
        )
    )
    await until((server.home / "begun").exists)
    lines = list(command_lines())
    (server.home / "go-on").touch()
    assert (await task).ok
    assert any("read -r mark lines bytes" in line for line in lines), (
        "the command's shell should be among them"
    )
    assert not [line for line in lines if "s3cr3t" in line or "a-telling" in line]


async def test_a_failing_command_is_a_result_with_its_last_lines(runner: SshRunner) -> None:
    done = await runner.run("seq 1 50; exit 7")
    assert done.code == 7
    assert done.tail == tuple(str(n) for n in range(31, 51))


async def test_a_command_that_is_no_shell_text_says_so(runner: SshRunner) -> None:
    done = await runner.run("echo 'unclosed")
    assert done.code != 0
    assert "unexpected EOF" in done.tail[0]


async def test_a_command_killed_by_a_signal_has_a_shells_exit_code(runner: SshRunner) -> None:
    assert (await runner.run("sh -c 'kill -9 $$'")).code == 137
    assert (await runner.run("kill -9 $$")).code == 137


async def test_many_lines_here_documents_and_a_comment_at_the_end_are_fine(
    runner: SshRunner,
) -> None:
    done = await runner.run("cat <<'END'\n$(id) 'x'\n\n  y\nEND\necho z # the last one")
    assert done.tail == ("$(id) 'x'", "", "  y", "z")


async def test_a_command_may_be_longer_than_a_command_line(runner: SshRunner, server: Sshd) -> None:
    text = "x" * 300_000
    assert (await runner.run(f"printf %s {text} > long", timeout=60)).ok
    assert (server.home / "long").read_text() == text


async def test_both_streams_arrive_while_the_command_runs(runner: SshRunner, server: Sshd) -> None:
    lines: list[tuple[str, str]] = []

    def take(line: str, stream: str) -> None:
        lines.append((line, stream))
        (server.home / line).touch()

    waits = "until [ -e {0} ]; do sleep 0.02; done; "
    command = f"echo out; {waits.format('out')} echo err >&2; {waits.format('err')} printf last"
    assert (await runner.run(command, on_line=take, timeout=60)).ok
    assert lines == [("out", "stdout"), ("err", "stderr"), ("last", "stdout")]


async def test_a_listener_that_fails_ends_the_command(runner: SshRunner) -> None:
    def fail(line: str, stream: str) -> None:
        raise KeyError(line)

    with pytest.raises(KeyError, match="first"):
        await runner.run("echo first; sleep 7301", on_line=fail)
    await until(lambda: not running("7301"))


async def test_whatever_is_printed_becomes_lines_one_can_read(runner: SshRunner) -> None:
    done = await runner.run(r"printf '1%%\r50%%\r100%%\r\n'; printf 'a\377b\n'")
    assert done.tail == ("100%", "a\ufffdb")


async def test_a_line_without_end_is_cut_and_the_exit_code_still_found(
    runner: SshRunner,
) -> None:
    done = await runner.run("head -c 1000000 /dev/zero | tr '\\0' x; exit 3", timeout=60)
    assert done.code == 3
    assert done.tail == ("x" * MAX_LINE_BYTES + " …",)


async def test_input_reaches_the_command_even_when_it_does_not_read_it(
    runner: SshRunner, server: Sshd
) -> None:
    data = bytes(range(256)) * 4000
    assert (await runner.run("cat > copy", stdin=data)).ok
    assert (server.home / "copy").read_bytes() == data
    assert (await runner.run("true", stdin=data)).ok
    assert (await runner.run("cat")).tail == ()


async def test_a_daemon_left_behind_does_not_hold_up_its_starter(runner: SshRunner) -> None:
    done = await runner.run("sleep 7302 & echo started", timeout=60)
    assert done.tail == ("started",)
    await until(lambda: running("7302"))
    await runner.run("pkill -f 'sleep 730[2]'")


async def test_a_command_past_its_deadline_is_ended_with_all_it_started(
    runner: SshRunner, server: Sshd
) -> None:
    command = "trap '' HUP; sleep 7303 & touch begun; sleep 7304; touch went-on"
    begun = server.home / "begun"
    for seconds in (1, 5, 25):  # until it is long enough to begin
        with pytest.raises(TimeoutError, match="did not end within"):
            await runner.run(command, timeout=seconds)
        if begun.exists():
            break
    assert begun.exists()
    await until(lambda: not running("7303") and not running("7304"))
    assert not (server.home / "went-on").exists()


async def test_cancelling_ends_even_what_ignores_polite_signals(
    runner: SshRunner, server: Sshd
) -> None:
    stubborn = "trap '' HUP TERM INT; touch begun; while :; do sleep 7305; done"
    task = asyncio.ensure_future(runner.run(f"bash -c {stubborn!r} stubborn-7305"))
    await until((server.home / "begun").exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not running("stubborn-7305"))


async def test_a_command_ends_when_the_program_that_ran_it_is_killed(
    runner: SshRunner, server: Sshd
) -> None:
    await runner.connect(timeout=60)
    program = textwrap.dedent(
        """
        import asyncio, pickle, sys
        from shoal.remote.ssh_runner import SshRunner
        target = pickle.load(sys.stdin.buffer)
        asyncio.run(SshRunner("node-1", target).run("touch begun; sleep 7306"))
        """
    )
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stdin=asyncio.subprocess.PIPE
    )
    assert child.stdin is not None
    child.stdin.write(pickle.dumps(runner.target))
    child.stdin.write_eof()
    await until((server.home / "begun").exists)
    child.kill()
    await child.wait()
    await until(lambda: not running("7306"))


async def test_more_commands_at_once_than_a_connection_carries_all_run(
    runner: SshRunner,
) -> None:
    other = SshRunner("node-1", runner.target)
    commands = [r.run(f"sleep 0.1; echo {n}") for n in range(9) for r in (runner, other)]
    assert [done.tail for done in await asyncio.gather(*commands)] == [
        (str(n),) for n in range(9) for _ in range(2)
    ]
