"""How long what failed is left alone."""

from __future__ import annotations

from shoal.core.backoff import Backoff


def test_what_keeps_failing_is_tried_less_and_less_often_but_never_given_up() -> None:
    rest, now, pauses = Backoff(5, 60), 1000.0, []
    assert not rest.goes_on(now)
    for _ in range(2000):
        rest.after_failure(now)
        began = now
        while rest.goes_on(now):
            now += 5
        pauses.append(now - began)
    assert pauses[:5] == [5, 10, 20, 40, 60]
    assert set(pauses[5:]) == {60}


def test_a_success_ends_the_rest_and_the_next_one_is_short_again() -> None:
    rest = Backoff(5, 60)
    rest.after_failure(0)
    rest.after_failure(0)
    rest.over()
    assert not rest.goes_on(0)
    rest.after_failure(0)
    assert rest.goes_on(4) and not rest.goes_on(5)
