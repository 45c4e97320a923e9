"""A plan as rows of text, for a terminal, a page or a log."""

from __future__ import annotations

from collections import Counter

from shoal.scaling.scaling_plan import Plan

HEADER = ("action", "what", "count", "$/h", "why")
Row = tuple[str, str, str, str, str]


def rows(plan: Plan) -> list[Row]:
    """Launches, then cancellations and drains with equal ones in one row, then what waits."""
    result: list[Row] = []
    for launch in plan.launches:
        what = f"{launch.node_type} ({launch.market}{f', {launch.zone}' if launch.zone else ''})"
        price = launch.price_per_hour
        cost = f"{price * launch.count:.2f}" if price is not None else "?"
        result.append(("launch", what, str(launch.count), cost, launch.reason.text))
    for action, ended in (("cancel", plan.cancels), ("drain", plan.drains)):
        alike = Counter((end.node_type, end.reason.text) for end in ended)
        result += [(action, name, str(n), "", why) for (name, why), n in sorted(alike.items())]
    for unmet in plan.unmet:
        why = f"{unmet.reason.text}; {unmet.fix}" if unmet.fix else unmet.reason.text
        result.append(("wait", unmet.subject, f"{unmet.count:,}", "", why))
    return result


def text(plan: Plan) -> str:
    """The rows in aligned columns."""
    table = [HEADER, *rows(plan)]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADER) - 1)]
    lines = [
        "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in table
    ]
    return "\n".join(lines if len(table) > 1 else ["nothing to do"])
