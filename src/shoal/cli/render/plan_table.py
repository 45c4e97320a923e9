"""A scaling plan as a table, for a terminal or a log."""

from __future__ import annotations

from collections import Counter

from shoal.cli.formatting import columns
from shoal.scaling import Plan

HEADER = ("action", "what", "count", "$/h", "why")
Row = tuple[str, str, str, str, str]


def plan_table(plan: Plan) -> str:
    """The plan in aligned columns, one line per action."""
    rows = plan_rows(plan)
    return "\n".join(columns(HEADER, rows) if rows else ["nothing to do"])


def plan_rows(plan: Plan) -> list[Row]:
    """Launches, then cancellations and drains with equal ones in one row, then unmet demand."""
    rows: list[Row] = []
    for launch in plan.launches:
        what = f"{launch.node_type} ({launch.market}{f', {launch.zone}' if launch.zone else ''})"
        price = launch.price_per_hour
        cost = f"{price * launch.count:.2f}" if price is not None else "?"
        rows.append(("launch", what, str(launch.count), cost, launch.reason.text))
    for action, removals in (("cancel", plan.cancels), ("drain", plan.drains)):
        counts = Counter((removal.node_type, removal.reason.text) for removal in removals)
        rows += [(action, name, str(n), "", why) for (name, why), n in sorted(counts.items())]
    for unmet in plan.unmet:
        why = f"{unmet.reason.text}; {unmet.fix}" if unmet.fix else unmet.reason.text
        rows.append(("wait", unmet.subject, f"{unmet.count:,}", "", why))
    return rows
