"""What a script reports with `st.report`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

import shoal.train as st
from shoal.train import messages
from shoal.train.worker import runtime


class _Link:
    """Keeps what would be sent."""

    worker = "w1"

    def __init__(self) -> None:
        self.sent: list[messages.WorkerMessage] = []

    def send(self, message: messages.WorkerMessage) -> None:
        self.sent.append(messages.WorkerMessage.from_json(message.to_json()))


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Link]:
    made = _Link()
    monkeypatch.setattr(runtime, "_link", made)
    monkeypatch.setattr(runtime, "_session", None)
    monkeypatch.setattr(runtime, "_reported_at", -math.inf)
    monkeypatch.delenv("RANK", raising=False)
    yield made


def test_numbers_and_tensors_of_one_value_are_sent(link: _Link) -> None:
    st.report(loss=torch.tensor(0.5), accuracy=1)
    assert link.sent == [messages.Metrics("w1", {"loss": 0.5, "accuracy": 1.0})]


def test_no_more_than_one_report_a_second_is_sent(link: _Link) -> None:
    for step in range(100):
        st.report(loss=1.0 / (step + 1))
    assert len(link.sent) == 1


def test_only_rank_0_reports(link: _Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    st.report(loss=0.5)
    assert not link.sent


def test_values_that_json_does_not_have_are_left_out(link: _Link) -> None:
    st.report(loss=float("nan"), lr=0.1)
    assert link.sent == [messages.Metrics("w1", {"lr": 0.1})]


def test_a_script_by_itself_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_link", None)
    st.report(loss=0.5)
