from __future__ import annotations

from pathlib import Path

from shoal.train.job.job_spec import JOURNAL_FILE, OUTPUT_LOG
from shoal.train.job.journal import Journal, last_checkpoint_host


async def test_a_follower_gets_every_entry_once_and_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.add("started", script="code.py")
    journal.add_output(("one", "two"))
    after, entries = await journal.wait(0, 1)
    assert [e["kind"] for e in entries] == ["started", "output"]
    journal.add("end", status=0)
    after, entries = await journal.wait(after, 1)
    assert [e["kind"] for e in entries] == ["end"]
    assert await journal.wait(after, 0.01) == (after, [])


async def test_a_follower_continues_with_a_restarted_controller(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.add("started")
    journal.add_output(("one",))
    after, _ = await journal.wait(0, 1)
    journal = Journal(tmp_path)
    assert [e["kind"] for e in journal.earlier] == ["started"]
    journal.add("restored")
    after, entries = await journal.wait(after, 1)
    assert [e["kind"] for e in entries] == ["restored"]
    journal.add("end")
    _, entries = await journal.wait(after, 1)
    assert [e["kind"] for e in entries] == ["end"]
    _, entries = await journal.wait(0, 1)
    assert [e["kind"] for e in entries] == ["started", "restored", "end"]


async def test_a_half_written_line_is_left_out(tmp_path: Path) -> None:
    Journal(tmp_path).add("started")
    with (tmp_path / JOURNAL_FILE).open("a") as file:
        file.write('{"kind": "progr')
    assert [e["kind"] for e in Journal(tmp_path).earlier] == ["started"]


async def test_output_goes_to_its_own_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.add_output(("one",))
    journal.add_output(("two",))
    assert (tmp_path / OUTPUT_LOG).read_text() == "one\ntwo\n"
    assert not (tmp_path / JOURNAL_FILE).exists()


async def test_a_resumed_job_begins_a_new_journal_and_keeps_the_old_one(tmp_path: Path) -> None:
    Journal(tmp_path, run=1.0).add("started", run=1.0)
    assert Journal(tmp_path, run=1.0).earlier
    assert Journal(tmp_path, run=2.0).earlier == []
    assert (tmp_path / "journal-1.jsonl").exists()


async def test_the_machine_of_the_newest_checkpoint_is_known_to_later_runs(tmp_path: Path) -> None:
    assert last_checkpoint_host(tmp_path) == ""
    first = Journal(tmp_path, run=1.0)
    first.add("started", run=1.0)
    for host in ("a", "b"):
        first.add("checkpoint", host=host)
    Journal(tmp_path, run=2.0).add("started", run=2.0)
    assert last_checkpoint_host(tmp_path) == "b"
