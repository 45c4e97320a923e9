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
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from shoal.remote.line_buffer import TAIL_LINES, LineBuffer, to_text
from shoal.remote.runner import OnLine, Stream
from shoal.remote.scripts import on_one_line, script_command, without_comments

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BASH = ("bash", "--noprofile", "--norc", "-c")
# The first line of a program: see run_command.sh for the meaning of 4 and 7.
_RESTORE_STDERR = "exec 2>&4 4>&- 7<&-\n"
_PROFILE_LOADED = "loaded"
# The exit code of another shell that gets a request: a dotfile has put it in the place of ours.
REPLACED_SHELL = 97


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
    """The input of `remote_command`. The command runs in a subshell, which contains its `exit` and
    `exec`; the line breaks around it allow for a comment at its end. The shell is an interactive
    login shell, as Ray's is, and prints the mark once it has read the dotfiles; with
    `skip_profile` it is a plain one."""
    if "\0" in command:
        raise ValueError("a command cannot contain a NUL character")
    profile, options = f"echo '{mark} {_PROFILE_LOADED}'\n", ""
    if not skip_profile:
        profile, options = without_comments("load_profile.sh") + profile, " --login -i"
    program = f"{profile}{_RESTORE_STDERR}{exports(env)}(\n{command}\n)\n"
    header = f"exit {REPLACED_SHELL}\n{mark} {program.count(chr(10))} {len(stdin)}{options}\n"
    return (header + program).encode(errors="surrogateescape") + stdin


def trace_profile_command() -> str:
    """A command that prints where the user's dotfiles end, for one run with `skip_profile`."""
    profile = without_comments("load_profile.sh").replace(" 2>&1", "")  # errors count here
    return script_command("shoal.remote.scripts", "trace_profile.sh", profile)


def attached_program(command: str | None, env: Mapping[str, str]) -> bytes:
    """The program for an attached terminal: a command as above, or the user's login shell."""
    if command is None:
        program = f'{_RESTORE_STDERR}{exports(env)}exec "${{SHELL:-bash}}" -l\n'
    else:
        profile = without_comments("load_profile.sh")
        program = f"{profile}{_RESTORE_STDERR}{exports(env)}(\n{command}\n)\n"
    return program.encode(errors="surrogateescape")


def attach_terminal_command(file: str) -> str:
    """The command line that runs the program in `file` on a terminal."""
    return f"exec {_script('attach_terminal.sh', file)}"


def attach_streams_command(file: str, exec_argv: Sequence[str] = ()) -> str:
    """The command line that runs the program in `file` without a terminal. Closing the connection
    does not end it; `end_attached_command` does."""
    return f"exec {_script('attach_streams.sh', file, exec_argv=exec_argv)}"


def attach_in_container_command(
    file: str, exec_argv: Sequence[str], end_exec_argv: Sequence[str]
) -> str:
    """The command line that runs the program in `file` on a terminal in a container, and ends it
    when the terminal closes. `end_exec_argv` enters the container without a terminal."""
    run = _script("attach_in_container.sh", file, exec_argv=exec_argv)
    end = end_attached_command(file, end_exec_argv)
    return f"exec {_script('attach_from_host.sh', run, end)}"


def end_attached_command(file: str, exec_argv: Sequence[str] = ()) -> str:
    """A command that ends what `attach_streams_command` runs."""
    return _script("end_attached.sh", file, exec_argv=exec_argv)


def _script(name: str, *arguments: str, exec_argv: Sequence[str] = ()) -> str:
    return shlex.join([*exec_argv, *_BASH, on_one_line(name), name, *arguments])


class ExecReply:
    """What comes back on both streams: the output of the login, the mark, the lines of the command,
    the mark with the exit code. What follows is not the command's, and is dropped."""

    def __init__(self, mark: str, on_line: OnLine | None) -> None:
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._streams = {
            1: _StreamReply(mark.encode(), lambda line: self._deliver(line, "stdout")),
            2: _StreamReply(mark.encode(), lambda line: self._deliver(line, "stderr")),
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
        """The exit code of the command, once every line that it printed has arrived."""
        codes = [stream.code for stream in self._streams.values()]
        return None if None in codes else codes[0]

    @property
    def is_profile_loaded(self) -> bool:
        """Whether the shell has read the dotfiles, and goes on to the command."""
        return self._streams[1].is_profile_loaded

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines of the command, both streams mixed."""
        return tuple(self._tail)

    @property
    def login_banner(self) -> tuple[str, ...]:
        """What was printed before the mark, by ssh or by a login shell's dotfiles."""
        return tuple(line for stream in self._streams.values() for line in stream.login_banner)

    def _deliver(self, line: str, stream: Stream) -> None:
        self._tail.append(line)
        if self._on_line is not None:
            self._on_line(line, stream)


class _StreamReply:
    def __init__(self, mark: bytes, on_line: Callable[[str], None]) -> None:
        self._mark = mark
        self._on_line = on_line
        self._buffer = LineBuffer(keep=len(mark) + 8)
        self.has_started = False
        self.is_profile_loaded = False
        self.code: int | None = None
        self.login_banner: deque[str] = deque(maxlen=TAIL_LINES)

    def feed(self, chunk: bytes) -> None:
        for line in self._buffer.feed(chunk):
            if self.code is None:
                self._parse(line)

    def finish(self) -> None:
        rest = self._buffer.rest()
        if rest and self.code is None:
            self._parse(rest)

    def _parse(self, line: bytes) -> None:
        before, mark, after = line.partition(self._mark)
        if not self.has_started:
            self.has_started = bool(mark)
            if before.strip():
                self.login_banner.append(to_text(before))
        elif mark and after.strip() == _PROFILE_LOADED.encode():
            self.is_profile_loaded = True
        elif mark:
            if before:
                self._on_line(to_text(before))
            self.code = int(after)
        else:
            self._on_line(to_text(line))
