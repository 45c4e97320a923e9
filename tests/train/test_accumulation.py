"""What accumulators hold on each worker."""

from __future__ import annotations

from shoal.train.worker.accumulation import Accumulation


def test_totals_are_the_sum_of_what_all_workers_added() -> None:
    accumulation = Accumulation()
    accumulation.add(1, "a", "loss", 2.0)
    accumulation.add(1, "a", "loss", 3.0)
    added = accumulation.added_before(2)
    assert added == {"a": {"loss": 5.0}}
    accumulation.merge_from_all([added, {"a": {"loss": 10.0, "count": 1}}], before=2)
    assert accumulation.totals == {"a": {"loss": 15.0, "count": 1}}
    assert accumulation.added_before(9) == {}


def test_an_open_step_is_not_sent() -> None:
    accumulation = Accumulation()
    accumulation.add(1, "a", "count", 1)
    accumulation.add(2, "a", "count", 10)
    assert accumulation.added_before(2) == {"a": {"count": 1}}


def test_a_dropped_step_is_taken_out_and_can_be_put_back() -> None:
    accumulation = Accumulation()
    accumulation.add(1, "a", "count", 1)
    accumulation.add(2, "a", "count", 10)
    undone = accumulation.undo(2)
    assert accumulation.added_before(9) == {"a": {"count": 1}}
    accumulation.put_back(undone)
    assert accumulation.added_before(9) == {"a": {"count": 11}}


def test_what_the_adopted_totals_hold_is_not_added_again() -> None:
    accumulation = Accumulation()
    for tick, value in ((1, 1), (2, 10), (3, 100)):
        accumulation.add(tick, "a", "count", value)
    accumulation.adopt({"a": {"count": 1000}}, merged_ticks=2, kept_ticks=3)
    assert accumulation.totals == {"a": {"count": 1000}}
    assert accumulation.added_before(9) == {"a": {"count": 10}}
