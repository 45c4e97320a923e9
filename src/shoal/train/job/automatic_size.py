"""Changes the number of workers of a running job by its measured goodput."""

from __future__ import annotations

from dataclasses import asdict

from shoal.train.job.sizing import SIZE, SizeGoodput, decide
from shoal.train.job.state import State
from shoal.train.messages import GoodputReport

# A size that was released is not tried again for so long.
_AVOID_S = 600.0
_DEFAULT_RESCALE_S = {False: 0.5, True: 20.0}


class AutomaticSize:
    """Decides when a report shows how the current workers do, and no change is under way."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._released: dict[int, float] = {}
        self._last_reason = ""
        self._changed_at: float | None = None

    def report(self, report: GoodputReport, now: float) -> None:
        state = self._state
        running = state.running
        is_settled = running is not None and state.pending is None
        if state.is_size_fixed or not is_settled or running is None:
            return
        current = len(running.members)
        if report.replicas != current or current != state.target:
            return
        sizes = [
            SizeGoodput(int(workers), int(nodes), throughput, goodput, int(batch_size))
            for workers, nodes, throughput, goodput, batch_size in report.sizes
        ]
        self._released = {n: at for n, at in self._released.items() if now - at < _AVOID_S}
        decision = decide(
            sizes,
            current,
            minimum=state.settings.min_workers,
            maximum=state.share_limit or state.settings.max_workers,
            objective=state.settings.objective,
            prices=state.settings.prices,
            rescale_s=state.rescale_s or _DEFAULT_RESCALE_S[state.settings.restarts],
            avoided=tuple(self._released),
        )
        if decision.target < current:
            self._released[decision.target + 1] = now
        if decision.target != current or decision.reason != self._last_reason:
            state.record(
                "decision",
                decision.reason if decision.target != current else "",
                target=decision.target,
                current=current,
                why=decision.reason,
                objective=state.settings.objective,
                prices=asdict(state.settings.prices),
                rescale_s=round(state.rescale_s or 0.0, 3),
                sizes=[asdict(size) for size in decision.alternatives],
                model=report.model(),
            )
        self._last_reason = decision.reason
        state.requested = decision.target


def starts_with(max_workers: int, min_workers: int, objective: str) -> int:
    """How many workers a job requests at first."""
    return max_workers if objective == SIZE else max(1, min(min_workers, max_workers))
