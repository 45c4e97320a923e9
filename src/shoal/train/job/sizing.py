"""How many workers a job should have, as pure functions of its measured goodput.

Goodput is throughput times statistical efficiency (Pollux, OSDI '21). Rank 0 predicts it for every
number of workers from the steps that it has measured. Here one of them is chosen: from the minimum
at most doubling with each decision, because predictions for sizes far beyond the measured ones are
off by 12 to 44%; then measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# What to optimize. "size" does not measure: it takes as many workers as the job may have.
TIME, COST, BALANCED, SIZE = "time", "cost", "balanced", "size"

_WORTHWHILE_GAIN = 1.05
_PAYS_WITHIN_S = 300.0


@dataclass(frozen=True)
class Prices:
    """In dollars per hour; without known prices, every worker counts as one."""

    per_worker: float = 0.0
    others: float = 0.0  # the head, and whatever does not depend on the number of workers

    def of(self, workers: int) -> float:
        if self.per_worker <= 0:
            return float(workers)
        return self.others + workers * self.per_worker

    @property
    def are_known(self) -> bool:
        return self.per_worker > 0


@dataclass(frozen=True)
class SizeGoodput:
    """What is predicted for a number of workers: samples per second, of which `goodput` count as
    much as samples at the initial batch size."""

    workers: int
    nodes: int
    throughput: float
    goodput: float
    batch_size: int


@dataclass(frozen=True)
class Decision:
    target: int
    reason: str
    alternatives: tuple[SizeGoodput, ...]


def decide(
    sizes: Sequence[SizeGoodput],
    current: int,
    *,
    minimum: int,
    maximum: int,
    objective: str = TIME,
    prices: Prices | None = None,
    rescale_s: float = 0.0,
    avoided: Sequence[int] = (),
) -> Decision:
    """The number of workers to have next. `sizes` has the current one; `rescale_s` is what a change
    of the workers costs; sizes that are `avoided`, and larger ones, were released recently."""
    prices = prices or Prices()
    ceiling = min([maximum, 2 * current, *(size - 1 for size in avoided if size > current)])
    by_workers = {size.workers: size for size in sizes if size.goodput > 0}
    allowed = {
        workers: size
        for workers, size in by_workers.items()
        if min(minimum, current) <= workers <= max(ceiling, current)
    }
    if current not in allowed:
        return Decision(current, "the goodput of the current size is not known yet", tuple(sizes))
    value = _value(objective, prices)
    best = max(allowed.values(), key=lambda size: (value(size), -size.workers))
    target = _cheapest_equivalent(allowed, best) if objective == TIME else best.workers
    now, then = allowed[current].goodput, allowed[target].goodput
    if target > current:
        if value(best) < _WORTHWHILE_GAIN * value(allowed[current]):
            target = current
        elif (then - now) * _PAYS_WITHIN_S < rescale_s * then:
            text = f"{target} workers would not pay a rescale of {rescale_s:.1f} s within 5 min"
            return Decision(current, text, tuple(sizes))
    reason = _reason(allowed[current], allowed[target], objective, prices, at_limit=maximum)
    return Decision(target, reason, tuple(sizes))


def _value(objective: str, prices: Prices) -> Callable[[SizeGoodput], float]:
    """What the objective maximizes: progress per second, per dollar, or the product of both."""
    if objective == COST:
        return lambda size: size.goodput / prices.of(size.workers)
    if objective == BALANCED:
        return lambda size: size.goodput**2 / prices.of(size.workers)
    return lambda size: size.goodput


def _cheapest_equivalent(sizes: Mapping[int, SizeGoodput], best: SizeGoodput) -> int:
    """The smallest size that is not 5% slower than the best one and saves a larger share of the
    workers than of the goodput, at least twice as large."""
    for workers in sorted(sizes):
        lost = 1 - sizes[workers].goodput / best.goodput
        saved = 1 - workers / best.workers
        if lost < 1 - 1 / _WORTHWHILE_GAIN and saved > 2 * max(lost, 0.0):
            return workers
    return best.workers


def _reason(
    current: SizeGoodput, target: SizeGoodput, objective: str, prices: Prices, *, at_limit: int
) -> str:
    if target.workers == current.workers:
        limit = " (--max-workers)" if current.workers == at_limit else ""
        return f"{_workers(current.workers)} are the best size for {_AIMS[objective]}{limit}"
    change = target.goodput / current.goodput - 1
    if target.workers > current.workers:
        text = f"{target.workers} workers are predicted to train {change:.0%} faster"
    elif -change < 1 - 1 / _WORTHWHILE_GAIN:
        spare = current.workers - target.workers
        text = f"the last {_workers(spare)} add less than 5% goodput and are released"
    else:
        text = f"{_workers(target.workers)} train {-change:.0%} slower"
    if objective != TIME:
        per_sample = prices.of(target.workers) / target.goodput
        per_sample_now = prices.of(current.workers) / current.goodput
        text += f" and cost {per_sample / per_sample_now - 1:+.0%} per sample"
        text += "" if prices.are_known else " (in worker hours: prices are not known)"
    return text


_AIMS = {
    TIME: "the least time",
    COST: "the lowest cost",
    BALANCED: "time and cost together",
    SIZE: "the most workers",
}


def _workers(count: int) -> str:
    return f"{count} worker{'s' if count != 1 else ''}"
