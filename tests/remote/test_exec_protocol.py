"""The text that travels: what comes back is taken apart wherever the network cuts it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.remote.exec_protocol import Replies, remote_command, request
from shoal.remote.line_buffer import MAX_LINE_BYTES, LineBuffer, readable

MARK = "0123456789abcdef" * 2


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(
    lines=st.lists(st.text(alphabet="ab \té", max_size=12), max_size=5),
    last=st.text(alphabet="xy", max_size=5),
    places=st.lists(st.integers(0, 1000), max_size=6),
    code=st.integers(0, 255),
)
def test_lines_and_exit_code_are_found_however_the_stream_is_cut(
    lines: list[str], last: str, places: list[int], code: int
) -> None:
    heard: list[str] = []
    replies = Replies(MARK, lambda line, stream: heard.append(line))
    printed = "".join(f"{line}\n" for line in lines) + last
    stream = f"Welcome\nhalf a line{MARK}\n{printed}{MARK} {code}\nfrom a daemon\n".encode()
    for chunk in cut(stream, places):
        replies.feed(1, chunk)
    before_end = replies.code
    assert before_end is None, "the other stream is not at its end"
    replies.feed(2, f"{MARK}\n{MARK} {code}\n".encode())
    assert replies.code == code
    assert heard == [*lines, *([last] if last else [])]
    assert replies.chatter == ("Welcome", "half a line")


def test_what_is_said_without_a_mark_is_all_chatter() -> None:
    replies = Replies(MARK, None)
    replies.feed(2, b"Connection closed\nno end of line")
    replies.finish(2)
    assert not replies.begun
    assert replies.chatter == ("Connection closed", "no end of line")


@given(st.integers(1, 3 * MAX_LINE_BYTES), st.integers(200, 5000))
def test_a_long_line_is_cut_but_never_forgotten(length: int, chunk: int) -> None:
    buffer = LineBuffer()
    data = b"x" * length + b"\n"
    lines = [
        line for at in range(0, len(data), chunk) for line in buffer.feed(data[at : at + chunk])
    ]
    (text,) = map(readable, lines)
    if length <= MAX_LINE_BYTES:
        assert text == "x" * length
    else:
        assert text == "x" * MAX_LINE_BYTES + " …"


def test_a_progress_bar_that_never_ends_its_line_does_not_pile_up() -> None:
    buffer = LineBuffer()
    for percent in range(5_000):
        assert buffer.feed(b"\r%d of many" % percent) == []
    assert readable(buffer.rest()) == "4999 of many"


def test_the_remote_command_is_the_same_for_every_command() -> None:
    assert "secret" not in remote_command()
    assert b"secret" in request(MARK, "true", {"TOKEN": "secret"}, b"")
    # What some login shells read differently: a new line (csh), and a quote or a backslash after
    # a backslash (fish).
    assert "\n" not in remote_command()
    assert "\\'" not in remote_command()
    assert "\\\\" not in remote_command()


@pytest.mark.parametrize(("command", "env"), [("a\0b", {}), ("true", {"A": "\0"})])
def test_what_no_shell_can_hold_is_refused(command: str, env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"NUL|environment"):
        request(MARK, command, env, b"")
