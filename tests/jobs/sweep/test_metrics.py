"""What is read from a run's output and files."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from shoal.jobs.sweep.metrics import collect, from_output, from_sacred
from shoal.jobs.sweep.run_task import written_files
from shoal.jobs.sweep.tensorboard import last_scalars


@pytest.mark.parametrize(
    ("output", "metrics"),
    [
        ('x\n{"loss": 1}\n{"loss": 0.5, "acc": 1, "name": "a"}\ndone', {"loss": 0.5, "acc": 1}),
        ('{"eval": {"loss": 2}, "ok": true}', {"eval.loss": 2}),
        ('{"loss": 1}\n{"note": "no number"}\n{broken}\n[1]', {"loss": 1}),
        ('{"loss": NaN, "acc": 2}', {"acc": 2}),
        ("nothing", {}),
    ],
)
def test_the_last_json_line_counts(output: str, metrics: dict[str, float]) -> None:
    assert from_output(output) == metrics


def test_sacreds_metrics_and_result(tmp_path: Path) -> None:
    run = tmp_path / "sacred_runs" / "1"
    run.mkdir(parents=True)
    series = {"loss": {"steps": [0, 1], "values": [2, 1]}, "empty": {"values": []}}
    series["numpy"] = {"steps": [0], "values": [{"dtype": "float64", "value": 3.5}]}
    (run / "metrics.json").write_text(json.dumps(series))
    (run / "run.json").write_text('{"result": 0.25}')
    assert from_sacred(written_files(tmp_path)) == {"loss": 1, "numpy": 3.5, "result": 0.25}
    (run / "run.json").write_text('{"result": {"f1": 0.5}')  # cut off
    assert from_sacred(written_files(tmp_path)) == {"loss": 1, "numpy": 3.5}


def test_what_the_script_prints_counts_before_its_files(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"result": 7}')
    assert collect(written_files(tmp_path), '{"result": 1}') == {"result": 1}


def record(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + b"crc_" + data + b"crc_"


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def event(step: int, tag: str, value: bytes) -> bytes:
    summary = field(1, field(1, tag.encode()) + value)
    return record(b"\x09" + struct.pack("<d", 1.5) + bytes([0x10, step]) + field(5, summary))


def simple(value: float) -> bytes:
    return b"\x15" + struct.pack("<f", value)


def tensor(value: float) -> bytes:
    return field(8, b"\x08\x01" + field(4, struct.pack("<f", value)))


def test_tensorboard_files_have_the_last_value_of_each_scalar(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    first = record(b"\x09" + struct.pack("<d", 1.0) + field(3, b"brain.Event:2"))
    first += event(1, "loss", simple(4)) + event(9, "loss", simple(0.5))
    first += event(3, "acc", tensor(0.25))
    (tmp_path / "logs" / "events.out.tfevents.1.host").write_bytes(first)
    (tmp_path / "events.out.tfevents.2.host").write_bytes(event(5, "loss", simple(2)))
    assert last_scalars(written_files(tmp_path)) == {"loss": 0.5, "acc": 0.25}


def test_a_damaged_tensorboard_file_keeps_what_came_before(tmp_path: Path) -> None:
    whole = event(1, "loss", simple(4))
    for damaged in (whole[:-9], b"\xff" * 40, record(b"\x2a\x7f")):
        (tmp_path / "events.out.tfevents.1").write_bytes(whole + damaged)
        assert last_scalars(written_files(tmp_path)) == {"loss": 4}


def test_files_of_a_real_writer_are_read(tmp_path: Path) -> None:
    writer = pytest.importorskip("tensorboard.summary", reason="tensorboard is not installed")
    with writer.Writer(str(tmp_path)) as real:
        real.add_scalar("loss", 0.75, 3)
    assert last_scalars(written_files(tmp_path)) == {"loss": 0.75}
