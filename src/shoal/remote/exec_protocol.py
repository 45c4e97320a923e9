"""What travels over a connection to run one command: text for the far end, marks on the way back.

Only a constant program stands on a command line, here or there. The command, its environment
and its input come through the connection, so no secret shows in a list of processes. As long as
the input stays open the command may run; when it closes, for whatever reason, the far end ends
the command and everything that the command started.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from shoal.remote.line_buffer import TAIL_LINES, LineBuffer, readable
from shoal.remote.runner import OnLine, Stream

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# The shell that runs a program, which it gets on 7. An interactive shell without a terminal
# complains about that before it reads a word, so its errors go nowhere until the program has it
# speak on 4, where they belong.
_LOGIN_SHELL = 'bash --noprofile --norc --login -i -c "eval \\"\\$(cat <&7)\\"" 4>&2 2>/dev/null'
_SPEAK = "exec 2>&4 4>&- 7<&-\n"

# Runs under whatever login shell the user has, so it must mean the same to all of them: one
# line, no single quotes, and no backslash before another or before such a quote.
#
# It reads "mark lines bytes", then that many lines of program and bytes of input, and says the
# mark on both streams: what was printed before is the login shell's own chatter. If our input is
# at its end by now, nobody waits for the command any more and it does not begin. The program
# runs as a job with a process group of its own. A second job waits for the end of our input and
# then ends the first; having begun, it no longer lets itself be stopped. Last come the marks
# again, with the exit code: what a daemon prints later is not the command's.
_SUPERVISOR = " ".join(
    (
        "cd 2>/dev/null; set -m;",
        'nl=$(printf "\\012x"); nl=${nl%x};',
        "read -r mark lines bytes || exit 1;",
        'while [ "$lines" -gt 0 ]; do',
        "IFS= read -r line || exit 1; program=$program$line$nl; lines=$((lines-1));",
        "done;",
        'echo "$mark"; echo "$mark" >&2;',
        "exec 5<&0;",
        'if [ "$bytes" = 0 ]; then exec 3</dev/null; else',
        "spool=$(mktemp) || exit 1;",
        'exec 6>"$spool" 3<"$spool"; rm -f "$spool"; head -c "$bytes" >&6 || exit 1; exec 6>&-;',
        "fi;",
        "read -t 0 -u 5 && exit 1;",
        f'{_LOGIN_SHELL} 7<<<"$program" <&3 3<&- 5<&- &',
        "job=$!;",
        "{ cat <&5 >/dev/null;",
        'trap "" TERM;',
        "kill -HUP -- -$job; kill -TERM -- -$job;",
        "n=0; while [ $n -lt 30 ] && kill -0 -- -$job; do sleep 0.1; n=$((n+1)); done;",
        "kill -KILL -- -$job;",
        "} 2>/dev/null & guard=$!;",
        "wait $job 2>/dev/null; code=$?;",
        "kill -TERM -- -$guard 2>/dev/null; wait $guard 2>/dev/null;",
        'echo "$mark $code"; echo "$mark $code" >&2;',
        "exit $code",
    )
)

_BASH = ("bash", "--noprofile", "--norc", "-c")


def remote_command(enter: Sequence[str] = ()) -> str:
    """The command line that waits for a `request`. `enter` has the words that lead from the
    login to where the command is to run, if that is further in."""
    return f"exec {shlex.join([*enter, *_BASH, _SUPERVISOR])}"


# What a login shell reads, in the order in which it reads it, and then .bashrc, as Ray does it,
# so that lines meant for terminals count too. The usual profile already reads .bashrc: once is
# enough then, since tools such as conda make it slow. There is no terminal, and dotfiles like to
# complain about that: what they print is not the command's.
_LOGIN = r"""
{
if [ -r /etc/profile ]; then . /etc/profile; fi
if [ -r ~/.bash_profile ]; then SHOAL_PROFILE=~/.bash_profile
elif [ -r ~/.bash_login ]; then SHOAL_PROFILE=~/.bash_login
else SHOAL_PROFILE=~/.profile; fi
if [ -r "$SHOAL_PROFILE" ]; then . "$SHOAL_PROFILE"; fi
SHOAL_USUAL='(^|
)[[:blank:]]*if \[ -f (~|"\$HOME)/\.bashrc"? \]; then[[:space:]]+(\.|source) '
if [[ -r ~/.bashrc && ! "$(cat "$SHOAL_PROFILE")" =~ $SHOAL_USUAL ]]; then . ~/.bashrc; fi
unset SHOAL_PROFILE SHOAL_USUAL
} </dev/null >/dev/null 2>&1
"""


def exports(env: Mapping[str, str]) -> str:
    """Shell text that puts these variables into the environment, to the letter."""
    for name, value in env.items():
        if not _NAME.fullmatch(name) or "\0" in value:
            raise ValueError(f"not possible as an environment variable: {name}")
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())


def request(
    mark: str, command: str, env: Mapping[str, str], stdin: bytes, *, skip_profile: bool = False
) -> bytes:
    """What `remote_command` is to read. The command's own `exit` and `exec` stay in a subshell;
    the new lines around it leave room for a comment at its end."""
    if "\0" in command:
        raise ValueError("a command cannot hold a NUL character")
    login = "" if skip_profile else _LOGIN
    program = f"{login}{_SPEAK}{exports(env)}(\n{command}\n)\n"
    header = f"{mark} {program.count(chr(10))} {len(stdin)}\n"
    return (header + program).encode(errors="surrogateescape") + stdin


def attached_program(command: str | None, env: Mapping[str, str]) -> bytes:
    """What an attached terminal is to run: a command as above, or the user's own shell."""
    if command is None:
        program = f'{_SPEAK}{exports(env)}exec "${{SHELL:-bash}}" -l\n'
    else:
        program = f"{_LOGIN}{_SPEAK}{exports(env)}(\n{command}\n)\n"
    return program.encode(errors="surrogateescape")


def attached_command(file: str) -> str:
    """The command line that runs the program in `file`, which is removed before."""
    return f"exec {shlex.join(_loader(file, f'exec {_LOGIN_SHELL}'))}"


def watched_command(file: str, enter: Sequence[str] = ()) -> str:
    """The same where losing the connection would end nothing, for want of a terminal: while the
    program runs, its process group stands in `file`, for `end_watched`. It gets one of its own,
    since not everything that starts a command gives it one."""
    note = '(set -C; umask 077; echo $! >"$file")'
    job = f"set -m; {_LOGIN_SHELL} <&0 & {note}; wait $! 2>/dev/null"
    return f"exec {shlex.join([*enter, *_loader(file, _then_forget(job))])}"


def attached_inside(file: str, enter: Sequence[str], enter_to_end: Sequence[str]) -> str:
    """The same where the terminal is in a container, whose engine does not tell what runs there
    that the terminal has closed. So a shell stays on the machine that is told, and tells."""
    note = '(set -C; umask 077; echo $$ >"$file")'
    run = shlex.join([*enter, *_loader(file, _then_forget(f"{note}; {_LOGIN_SHELL}"))])
    tell = f"{shlex.join([*enter_to_end, *_BASH, end_watched(file)])} </dev/null >/dev/null 2>&1"
    # Not in the foreground: a shell that waits for a program there does not listen meanwhile.
    stay = f"trap {shlex.quote(f'{tell}; kill -9 $!; exit 129')} HUP TERM; {run} <&0 & wait $!"
    return f"exec {shlex.join([*_BASH, stay])}"


def _then_forget(run: str) -> str:
    return f'{run}; code=$?; rm -f "$file"; exit $code'


def end_watched(file: str) -> str:
    """A command that ends what `watched_command` runs: as Ctrl-C would, and then for certain. On
    one line, since it may stand on a command line of its own."""
    return (
        f'file={shlex.quote(file)}; group=$(cat "$file") || exit 0; rm -f "$file"; '
        "for sign in INT TERM KILL; do "
        'kill -$sign -- "-$group" || exit 0; '
        'n=0; while [ $n -lt 20 ] && kill -0 -- "-$group"; do sleep 0.1; n=$((n+1)); done; '
        "done 2>/dev/null"
    )


def _loader(file: str, then: str) -> list[str]:
    loader = (
        f'file={shlex.quote(file)}; exec 7<"$file" || exit 1; rm -f "$file"; cd 2>/dev/null; {then}'
    )
    return [*_BASH, loader]


class Replies:
    """What comes back on both streams: chatter, the mark, the command's lines, the mark and the
    exit code. Whatever follows that is not the command's, and is dropped."""

    def __init__(self, mark: str, on_line: OnLine | None) -> None:
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._streams = {
            1: _Reply(mark.encode(), lambda line: self._take(line, "stdout")),
            2: _Reply(mark.encode(), lambda line: self._take(line, "stderr")),
        }

    def feed(self, fd: int, chunk: bytes) -> None:
        self._streams[fd].feed(chunk)

    def finish(self, fd: int) -> None:
        """There is no more to come: whatever is there counts as a line."""
        self._streams[fd].finish()

    @property
    def begun(self) -> bool:
        """The far end is there and about to run the command."""
        return any(reply.begun for reply in self._streams.values())

    @property
    def code(self) -> int | None:
        """The command's exit code, once every line that it printed is here."""
        codes = [reply.code for reply in self._streams.values()]
        return None if None in codes else codes[0]

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines of the command, both streams mixed."""
        return tuple(self._tail)

    @property
    def chatter(self) -> tuple[str, ...]:
        """What was said before the mark: by ssh, or by a login shell's dotfiles."""
        return tuple(line for reply in self._streams.values() for line in reply.chatter)

    def _take(self, line: str, stream: Stream) -> None:
        self._tail.append(line)
        if self._on_line is not None:
            self._on_line(line, stream)


class _Reply:
    def __init__(self, mark: bytes, on_line: Callable[[str], None]) -> None:
        self._mark = mark
        self._on_line = on_line
        self._buffer = LineBuffer(keep=len(mark) + 8)
        self.begun = False
        self.code: int | None = None
        self.chatter: deque[str] = deque(maxlen=TAIL_LINES)

    def feed(self, chunk: bytes) -> None:
        for line in self._buffer.feed(chunk):
            if self.code is None:
                self._take(line)

    def finish(self) -> None:
        rest = self._buffer.rest()
        if rest and self.code is None:
            self._take(rest)

    def _take(self, line: bytes) -> None:
        before, mark, after = line.partition(self._mark)
        if not self.begun:
            self.begun = bool(mark)
            if before.strip():
                self.chatter.append(readable(before))
        elif mark:
            if before:
                self._on_line(readable(before))
            self.code = int(after)
        else:
            self._on_line(readable(line))
