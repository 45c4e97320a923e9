"""How events and errors read, one line or a few each, for both renderers that a person sees."""

from __future__ import annotations

import shlex

import click

from shoal.core.errors import ShoalError
from shoal.core.events import (
    ClusterGone,
    ClusterReady,
    ClusterScaledDown,
    ClusterStopped,
    CommandDetached,
    DashboardOpened,
    Event,
    FilesCopied,
    LaunchAttempted,
    PlanStep,
    PreflightFinding,
    PriceEstimated,
    PriceItem,
    RayInstalled,
    ResourcesDeleted,
    Stage,
    Unchanged,
    Warned,
)

_SIGNS = {
    "create": "+", "use": "+", "start": ">", "restart": "~", "update": "~", "stop": "-",
    "terminate": "-", "remove": "-",
}  # fmt: skip
_COLOURS = {
    "create": "green",
    "use": "green",
    "start": "green",
    "stop": "red",
    "terminate": "red",
    "remove": "red",
}


def lines(event: Event) -> list[str]:
    """What a person reads of an event, styled; nothing for those that are drawn elsewhere."""
    if isinstance(event, Stage):
        return [click.style(event.text, dim=True)]
    if isinstance(event, Warned):
        return block("warning", "yellow", event.what, event.why, event.fix)
    if isinstance(event, PreflightFinding):
        return finding(event)
    if isinstance(event, PlanStep):
        sign = click.style(
            f"{_SIGNS[event.action]} {event.action:<9}", fg=_COLOURS.get(event.action, "yellow")
        )
        return [f"  {sign} {event.subject:<24} {click.style(event.reason, dim=True)}"]
    if isinstance(event, PriceEstimated):
        return _price(event)
    if isinstance(event, LaunchAttempted):
        return [_launch(event)]
    if isinstance(event, Unchanged):
        return [f"{click.style(event.cluster, bold=True)}: {event.why}, nothing was done"]
    if isinstance(event, ClusterReady):
        return _ready(event)
    if isinstance(event, ClusterGone):
        name = click.style(event.cluster, bold=True)
        return [f"{name} is gone: {_nodes(event.nodes)} ended in {event.seconds:.1f} s"]
    return _of_everyday(event)


def _of_everyday(event: Event) -> list[str]:
    """The events of commands that use a cluster rather than make it."""
    if isinstance(event, ClusterScaledDown):
        name = click.style(event.cluster, bold=True)
        return [
            f"{name}: {_nodes(event.terminated)} terminated in {event.seconds:.1f} s, "
            f"{event.remaining} kept"
        ]
    if isinstance(event, ClusterStopped):
        name = click.style(event.cluster, bold=True)
        how = click.style(f"shoal start {shlex.quote(event.cluster)}", fg="cyan")
        return [
            f"{name}: Ray has stopped on {_nodes(event.nodes)} in {event.seconds:.1f} s",
            *(f"  {'still costs':<20} {cost}" for cost in event.ongoing_costs),
            f"  {'bring it back':<20} {how}",
        ]
    if isinstance(event, ResourcesDeleted):
        if not event.resources:
            return ["nothing was left behind"]
        return [f"{len(event.resources)} things are gone: {', '.join(event.resources)}"]
    if isinstance(event, RayInstalled):
        name = click.style(event.cluster, bold=True)
        took = f"{_nodes(event.nodes)} in {event.seconds:.1f} s"
        return [f"{name}: Ray {event.version} is installed on {took}"]
    if isinstance(event, FilesCopied):
        return [f"{event.node}: {event.source} -> {event.target}"]
    if isinstance(event, CommandDetached):
        how = click.style(event.attach, fg="cyan")
        return [f"{event.node}: runs in {event.multiplexer}", f"  {'look at it':<20} {how}"]
    if isinstance(event, DashboardOpened):
        return [f"dashboard of {event.cluster}: {click.style(event.url, fg='cyan')}"]
    return []


def _price(event: PriceEstimated) -> list[str]:
    total = click.style(f"${event.per_hour:.2f} an hour", bold=True)
    more = "" if event.complete else ", and what has no price here"
    title = f"{event.cluster} then costs {total}{more}, by {event.source}"
    return [title, *(f"  {_item(item)}" for item in event.items)]


def _item(item: PriceItem) -> str:
    kind = " ".join(filter(None, (item.instance_type, item.market)))
    price = "price unknown" if item.price is None else f"${item.price:.4g} each"
    return f"{item.count} x {item.node_type} ({kind}): {price}"


def _launch(event: LaunchAttempted) -> str:
    where = f"{event.instance_type} {event.market} in {event.zone}"
    if event.error:
        verdict = click.style(f"refused: {event.error}", fg="yellow")
        return f"  {event.node_type}: {where} {verdict}"
    price = f", ${event.price:g} an hour each" if event.price is not None else ""
    return f"  {event.node_type}: {event.launched} of {event.requested} x {where}{price}"


def finding(event: PreflightFinding) -> list[str]:
    """Something that was found before anything was done, with its line in the file."""
    what = f"{event.location}: {event.what}" if event.location else event.what
    colour = "red" if event.severity == "error" else "yellow"
    return block(event.severity, colour, what, event.why, event.fix)


def error_lines(error: ShoalError) -> list[str]:
    """An error: what, why, the last lines the node printed, and the fix last."""
    what = f"{error.node}: {error.what}" if error.node else error.what
    mistakes = what.splitlines()
    if len(mistakes) > 1:
        title = f"{len(mistakes)} mistakes, and nothing was done"
        told = [*block("error", "red", title, error.why, ""), *mistakes]
    else:
        told = block("error", "red", what, error.why, "")
    told += [click.style(f"  | {line}", dim=True) for line in error.output]
    return told + _fix(error.fix)


def _ready(event: ClusterReady) -> list[str]:
    name = click.style(event.cluster, bold=True)
    found = [
        f"{name} is {click.style('ready', fg='green')}: "
        f"{_nodes(event.nodes)} in {event.seconds:.1f} s, Ray at {event.address}"
    ]
    if event.dashboard:
        found.append(f"  {'dashboard':<20} {event.dashboard}")
    found += [f"  {what:<20} {click.style(how, fg='cyan')}" for what, how in event.next_steps]
    return found


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def block(label: str, colour: str, what: str, why: str, fix: str) -> list[str]:
    """Something to be told with its reason and what to do about it."""
    told = [f"{click.style(label, fg=colour, bold=True)}: {what}"]
    if why:
        told.append(f"  why: {why}")
    return told + _fix(fix)


def _fix(fix: str) -> list[str]:
    labels = ["  fix:", *[" then:"] * fix.count("\n")]
    return [
        f"{label} {click.style(line, fg='cyan')}"
        for label, line in zip(labels, fix.splitlines(), strict=False)
    ]
