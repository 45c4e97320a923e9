"""What a job releases while other training jobs wait."""

from __future__ import annotations

from shoal.train.job.fair_share import FairShare, JobUse


def _after(seconds: float, own: JobUse, other: JobUse, *, minimum: int = 1) -> int | None:
    share = FairShare()
    share.update(own, {"b": other}, minimum, 0.0)
    share.update(own, {"b": other}, minimum, seconds)
    return share.limit


def test_a_job_gives_back_what_another_one_waits_for() -> None:
    assert _after(20, JobUse(4, 0), JobUse(0, 1)) == 3


def test_it_keeps_an_equal_share() -> None:
    assert _after(20, JobUse(4, 0), JobUse(0, 4)) == 2
    assert _after(20, JobUse(2, 0), JobUse(2, 2)) is None


def test_it_keeps_its_minimum() -> None:
    assert _after(20, JobUse(4, 0), JobUse(0, 4), minimum=3) == 3


def test_the_cluster_gets_time_to_grow_first() -> None:
    assert _after(5, JobUse(4, 0), JobUse(0, 1)) is None


def test_a_job_with_one_worker_keeps_it() -> None:
    assert _after(20, JobUse(1, 0), JobUse(0, 2)) is None


def test_the_limit_ends_when_no_job_has_waited_for_a_minute() -> None:
    share = FairShare()
    for now in (0.0, 20.0):
        share.update(JobUse(4, 0), {"b": JobUse(0, 2)}, 1, now)
    assert share.limit == 2
    share.update(JobUse(2, 0), {"b": JobUse(2, 0)}, 1, 40.0)
    assert share.limit == 2
    assert share.update(JobUse(2, 0), {}, 1, 90.0)
    assert share.limit is None
