from __future__ import annotations

from pathlib import Path

import pytest

from shoal.train.job.worker_output import OutputFile


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "w1.log"
    path.touch()
    return path


def test_a_line_is_returned_once_and_when_it_is_complete(log: Path) -> None:
    output = OutputFile(log)
    log.write_text("one\ntw")
    assert output.new_lines() == ("one",)
    assert output.new_lines() == ()
    log.write_text("one\ntwo\n")
    assert output.new_lines() == ("two",)


def test_an_unfinished_line_is_returned_at_the_end(log: Path) -> None:
    output = OutputFile(log)
    log.write_text("one\ntwo")
    assert output.new_lines(at_end=True) == ("one", "two")
    assert output.new_lines(at_end=True) == ()


def test_empty_lines_and_broken_characters_are_kept(log: Path) -> None:
    log.write_bytes(b"a\n\n\xff\n")
    assert OutputFile(log).new_lines() == ("a", "", "�")


def test_what_was_printed_before_can_be_skipped(log: Path) -> None:
    output = OutputFile(log)
    log.write_text("old\n")
    output.skip()
    log.write_text("old\nnew\n")
    assert output.new_lines() == ("new",)


def test_more_than_one_read_is_returned_whole(log: Path) -> None:
    log.write_text("x" * 60 + "\n" * 1)
    text = ("y" * 99 + "\n") * 30_000
    log.write_text(text)
    assert len(OutputFile(log).new_lines()) == 30_000


def test_the_last_lines_are_those_at_the_end(log: Path) -> None:
    log.write_text("\n".join(map(str, range(100))))
    assert OutputFile(log).last_lines()[-1] == "99"
    assert len(OutputFile(log).last_lines()) == 20
    assert OutputFile(log.with_name("missing")).last_lines() == ()
