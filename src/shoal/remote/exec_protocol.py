"""The protocol that runs one command over a connection: a program for the remote host, marks on
the way back.

Only constant scripts appear on command lines, local or remote. The command, its environment and
its input travel through the connection, so no process list shows a secret. The command runs while
its standard input stays open; when that closes, for any reason, the remote script ends the command
and everything that the command started.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from shoal.remote.command_output import TAIL_LINES, CommandOutput, to_text
from shoal.remote.runner import Stream
from shoal.remote.scripts import on_one_line, script_command, without_comments

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# More of what a login prints is not kept.
_MAX_BANNER_BYTES = 64 * 1024
_BASH = ("bash", "--noprofile", "--norc", "-c")
# The first line of a program: see run_command.sh for the meaning of 4 and 7.
_RESTORE_STDERR = "exec 2>&4 4>&- 7<&-\n"
# The same for an attached program: see attach_terminal.sh for the meaning of 8.
_CONFIRM_PROFILE = f"echo >&8\nexec 8>&-\n{_RESTORE_STDERR}"
# What goes around a command. It runs in a subshell, which contains its `exit` and `exec`. What
# .bash_logout and traps print when the shell exits is not the command's; and with the `set -e` of a
# dotfile, which is for the command, they would change its exit code.
_BEFORE = "SHOAL_OPTIONS=$-\nset +e\n(\ncase $SHOAL_OPTIONS in *e*) set -e ;; esac\n"
_AFTER = "\n)\nSHOAL_CODE=$?\nset +u\nexec >/dev/null 2>&1\nexit $SHOAL_CODE\n"
_PROFILE_LOADED = "loaded"
# The exit code of another shell that gets a request: a dotfile has put it in the place of ours.
REPLACED_SHELL = 97
# The exit code of an attached command that a dotfile kept from running. A command may also have it.
PROFILE_ENDED = 98


def remote_command(exec_argv: Sequence[str] = ()) -> str:
    """The command line that reads a `request`. `exec_argv` enters a container first, if any."""
    return f"exec {shlex.join([*exec_argv, *_BASH, on_one_line('run_command.sh')])}"


def exports(env: Mapping[str, str]) -> str:
    """Shell text that exports these variables with exactly these values."""
    for name, value in env.items():
        if not _VARIABLE_NAME.fullmatch(name) or "\0" in value:
            raise ValueError(f"not possible as an environment variable: {name}")
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())


def request(
    mark: str, command: str, env: Mapping[str, str], stdin: bytes, *, skip_profile: bool = False
) -> bytes:
    """The input of `remote_command`. The line breaks around the command allow for a comment at its
    end. The shell is an interactive login shell, as Ray's is, and prints the mark once it has read
    the dotfiles; with `skip_profile` it is a plain one."""
    if "\0" in command:
        raise ValueError("a command cannot contain a NUL character")
    profile, options = f"echo '{mark} {_PROFILE_LOADED}'\n", ""
    if not skip_profile:
        profile, options = without_comments("load_profile.sh") + profile, " --login -i"
    program = f"{profile}{_RESTORE_STDERR}{exports(env)}{_BEFORE}{command}{_AFTER}"
    header = f"exit {REPLACED_SHELL}\n{mark} {program.count(chr(10))} {len(stdin)}{options}\n"
    return (header + program).encode(errors="surrogateescape") + stdin


def trace_profile_command() -> str:
    """A command that prints where the user's dotfiles end, for one run with `skip_profile`."""
    profile = without_comments("load_profile.sh").replace(" 2>&1", "")  # errors count here
    return script_command("shoal.remote.scripts", "trace_profile.sh", profile)


def attached_program(command: str | None, env: Mapping[str, str]) -> bytes:
    """The program for an attached terminal: a command as above, or the user's login shell."""
    if command is None:
        program = f'{_CONFIRM_PROFILE}{exports(env)}exec "${{SHELL:-bash}}" -l\n'
    else:
        profile = without_comments("load_profile.sh")
        program = f"{profile}{_CONFIRM_PROFILE}{exports(env)}{_BEFORE}{command}{_AFTER}"
    return program.encode(errors="surrogateescape")


def attach_terminal_command(file: str) -> str:
    """The command line that runs the program in `file` on a terminal."""
    return f"exec {_script('attach_terminal.sh', file, str(PROFILE_ENDED))}"


def attach_streams_command(file: str, exec_argv: Sequence[str] = ()) -> str:
    """The command line that runs the program in `file` without a terminal. Closing the connection
    does not end it; `end_attached_command` does."""
    script = _script("attach_streams.sh", file, str(PROFILE_ENDED), exec_argv=exec_argv)
    return f"exec {script}"


def attach_in_container_command(
    file: str, exec_argv: Sequence[str], end_exec_argv: Sequence[str]
) -> str:
    """The command line that runs the program in `file` on a terminal in a container, and ends it
    when the terminal closes. `end_exec_argv` enters the container without a terminal."""
    run = _script("attach_in_container.sh", file, str(PROFILE_ENDED), exec_argv=exec_argv)
    end = end_attached_command(file, end_exec_argv)
    return f"exec {_script('attach_from_host.sh', run, end)}"


def end_attached_command(file: str, exec_argv: Sequence[str] = ()) -> str:
    """A command that ends what `attach_streams_command` runs."""
    return _script("end_attached.sh", file, exec_argv=exec_argv)


def _script(name: str, *arguments: str, exec_argv: Sequence[str] = ()) -> str:
    return shlex.join([*exec_argv, *_BASH, on_one_line(name), name, *arguments])


class ExecReply:
    """What comes back on both streams: the output of the login, the mark, the output of the
    command, the mark with the exit code. What follows is not the command's, and is dropped."""

    def __init__(self, mark: str, output: CommandOutput) -> None:
        self._streams = {
            1: _StreamReply(mark.encode(), output, "stdout"),
            2: _StreamReply(mark.encode(), output, "stderr"),
        }

    def feed(self, fd: int, chunk: bytes) -> None:
        self._streams[fd].feed(chunk)

    def finish(self, fd: int) -> None:
        """The stream is closed: an incomplete line counts as a line."""
        self._streams[fd].finish()

    @property
    def has_started(self) -> bool:
        """Whether the remote script is about to run the command, or did."""
        return any(stream.has_started for stream in self._streams.values())

    @property
    def code(self) -> int | None:
        """The exit code of the command, once everything that it printed has arrived."""
        codes = [stream.code for stream in self._streams.values()]
        return None if None in codes else codes[0]

    @property
    def is_profile_loaded(self) -> bool:
        """Whether the shell has read the dotfiles, and goes on to the command."""
        return self._streams[1].is_profile_loaded

    @property
    def login_banner(self) -> tuple[str, ...]:
        """What was printed before the mark, by ssh or by a login shell's dotfiles."""
        return tuple(line for stream in self._streams.values() for line in stream.login_banner)


class _StreamReply:
    """One stream of a reply. `_pending` is what has arrived and is not delivered yet."""

    def __init__(self, mark: bytes, output: CommandOutput, stream: Stream) -> None:
        self._mark = mark
        self._output = output
        self._stream = stream
        self._pending = b""
        self.has_started = False
        self.is_profile_loaded = False
        self.code: int | None = None
        self.login_banner: tuple[str, ...] = ()

    def feed(self, chunk: bytes) -> None:
        if self.code is not None:
            return
        self._pending += chunk
        if not self.has_started:
            self._find_start()
        if self.has_started:
            self._find_end()

    def finish(self) -> None:
        if self.code is not None:
            return
        rest, self._pending = self._pending, b""
        if self.has_started:
            self._output.feed(rest.partition(self._mark)[0], self._stream)
            self._output.finish(self._stream)
        else:
            self._set_login_banner(rest)

    def _find_start(self) -> None:
        before, mark, after = self._pending.partition(self._mark + b"\n")
        if mark:
            self.has_started = True
            self._set_login_banner(before)
            self._pending = after
        else:
            self._pending = self._pending[-_MAX_BANNER_BYTES:]

    def _find_end(self) -> None:
        before, mark, after = self._pending.partition(self._mark)
        line, line_break, rest = after.partition(b"\n")
        if not mark:
            # All that cannot be the beginning of the mark is the command's.
            end = len(before) - _overlap(before, self._mark)
            before, self._pending = before[:end], before[end:]
        elif not line_break:
            self._pending = mark + after
        elif line.strip() == _PROFILE_LOADED.encode():
            self.is_profile_loaded = True
        else:
            self.code = int(line)
        if before:
            self._output.feed(before, self._stream)
        if self.code is not None:
            self._output.finish(self._stream)
        elif line_break:
            self._pending = rest
            self._find_end()

    def _set_login_banner(self, printed: bytes) -> None:
        lines = [to_text(line) for line in printed.split(b"\n") if line.strip()]
        self.login_banner = tuple(lines[-TAIL_LINES:])


def _overlap(data: bytes, mark: bytes) -> int:
    """How many bytes at the end of `data` are the beginning of `mark`."""
    return next((n for n in range(len(mark) - 1, 0, -1) if data.endswith(mark[:n])), 0)
