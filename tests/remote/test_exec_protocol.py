"""The protocol that runs a command: the reply is parsed however the network splits it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.remote.command_output import MAX_LINE_BYTES, CommandOutput, LineBuffer, to_text
from shoal.remote.exec_protocol import (
    ExecReply,
    attach_streams_command,
    attach_terminal_command,
    remote_command,
    request,
)

MARK = "0123456789abcdef" * 2


def split(data: bytes, positions: list[int]) -> list[bytes]:
    edges = [0, *sorted(position % (len(data) + 1) for position in positions), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(
    lines=st.lists(st.text(alphabet="ab \té", max_size=12), max_size=5),
    last=st.text(alphabet="xy", max_size=5),
    positions=st.lists(st.integers(0, 1000), max_size=6),
    code=st.integers(0, 255),
)
def test_lines_and_exit_code_are_parsed_however_the_stream_is_split(
    lines: list[str], last: str, positions: list[int], code: int
) -> None:
    received: list[str] = []
    raw: list[bytes] = []
    output = CommandOutput(
        on_line=lambda line, stream: received.append(line),
        on_bytes=lambda chunk, stream: raw.append(chunk),
    )
    reply = ExecReply(MARK, output)
    printed = "".join(f"{line}\n" for line in lines) + last
    stream = f"Welcome\nhalf a line{MARK}\n{printed}{MARK} {code}\nfrom a daemon\n".encode()
    for chunk in split(stream, positions):
        reply.feed(1, chunk)
    before_end = reply.code
    assert before_end is None, "the other stream has not ended"
    reply.feed(2, f"{MARK}\n{MARK} {code}\n".encode())
    assert reply.code == code
    assert received == [*lines, *([last] if last else [])]
    assert b"".join(raw) == printed.encode()
    assert reply.login_banner == ("Welcome", "half a line")


def test_output_without_a_mark_is_the_login_banner() -> None:
    reply = ExecReply(MARK, CommandOutput())
    reply.feed(2, b"Connection closed\nno end of line")
    reply.finish(2)
    assert not reply.has_started
    assert reply.login_banner == ("Connection closed", "no end of line")


@given(st.integers(1, 3 * MAX_LINE_BYTES), st.integers(200, 5000))
def test_a_long_line_is_cut_and_not_dropped(length: int, chunk: int) -> None:
    buffer = LineBuffer()
    data = b"x" * length + b"\n"
    lines = [
        line for at in range(0, len(data), chunk) for line in buffer.feed(data[at : at + chunk])
    ]
    (text,) = map(to_text, lines)
    if length <= MAX_LINE_BYTES:
        assert text == "x" * length
    else:
        assert text == "x" * MAX_LINE_BYTES + " …"


def test_a_progress_bar_without_line_breaks_does_not_fill_memory() -> None:
    buffer = LineBuffer()
    for percent in range(5_000):
        assert buffer.feed(b"\r%d of many" % percent) == []
    assert to_text(buffer.rest()) == "4999 of many"


def test_the_remote_command_line_is_the_same_for_every_command() -> None:
    assert "secret" not in remote_command()
    assert b"secret" in request(MARK, "true", {"TOKEN": "secret"}, b"")


@pytest.mark.parametrize(
    "command_line",
    [
        remote_command(),
        remote_command(["docker", "exec", "-i", "box"]),
        attach_terminal_command("/tmp/x"),
        attach_streams_command("/tmp/x"),
    ],
)
def test_a_command_line_means_the_same_to_every_login_shell(command_line: str) -> None:
    # A line break is special to csh, and a quote or a backslash after a backslash to fish.
    assert "\n" not in command_line
    assert "\\'" not in command_line
    assert "\\\\" not in command_line


@pytest.mark.parametrize(("command", "env"), [("a\0b", {}), ("true", {"A": "\0"})])
def test_nul_characters_are_rejected(command: str, env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"NUL|environment"):
        request(MARK, command, env, b"")
