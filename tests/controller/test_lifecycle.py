from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.controller.lifecycle import DEADLINES, TRANSITIONS, Node, overdue_phase, with_phase
from shoal.core.node_phase import Phase

# `UNKNOWN` is what `status` reports for a node that it cannot ask; the controller never records it.
PHASES = [phase for phase in Phase if phase is not Phase.UNKNOWN]


def node(phase: Phase) -> Node:
    return Node("i-1", "worker-1", "worker", "worker", phase, since=100.0, created=100.0)


def test_every_phase_has_transitions_and_can_end() -> None:
    assert set(TRANSITIONS) == set(PHASES)
    for phase in set(PHASES) - {Phase.GONE}:
        assert Phase.GONE in TRANSITIONS[phase]


def test_every_transient_phase_has_a_deadline_and_a_legal_next_phase() -> None:
    transient = set(PHASES) - {Phase.READY, Phase.DRAINING, Phase.STOPPED, Phase.GONE}
    assert set(DEADLINES) == transient
    for phase, (seconds, then) in DEADLINES.items():
        assert seconds > 0
        assert then in TRANSITIONS[phase]


def test_a_phase_ends_at_its_deadline() -> None:
    seconds, then = DEADLINES[Phase.STARTING]
    assert overdue_phase(node(Phase.STARTING), 100 + seconds - 1) is None
    assert overdue_phase(node(Phase.STARTING), 100 + seconds) is then


@given(st.lists(st.sampled_from(PHASES), max_size=30))
def test_no_observation_revives_a_node_that_is_gone(observed: list[Phase]) -> None:
    current = node(Phase.GONE)
    for phase in observed:
        current = with_phase(current, phase, 200.0) or current
    assert current.phase is Phase.GONE


@given(st.sampled_from(PHASES), st.sampled_from(PHASES))
def test_the_table_decides_every_transition(before: Phase, after: Phase) -> None:
    result = with_phase(node(before), after, 200.0, "detail")
    if after is before:
        assert result is not None and result.since == 100.0
    elif after in TRANSITIONS[before]:
        assert result is not None and (result.phase, result.since) == (after, 200.0)
    else:
        assert result is None
