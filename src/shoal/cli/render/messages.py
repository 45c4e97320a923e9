"""The text of events and errors, shared by the live and the plain renderer."""

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
    ImageChosen,
    JobContinues,
    JobSubmitted,
    LaunchAttempted,
    PlanStep,
    PreflightFinding,
    PriceEstimated,
    PriceItem,
    RayInstalled,
    ResourcesDeleted,
    SettingsApplied,
    Stage,
    Unchanged,
    Warned,
)
from shoal.core.money import per_hour

_SIGNS = {
    "create": "+", "use": "+", "start": ">", "restart": "~", "update": "~", "stop": "-",
    "drain": "-", "terminate": "-", "remove": "-",
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
    """The styled lines of an event; none for events that are drawn elsewhere."""
    if isinstance(event, Stage):
        return [click.style(event.text, dim=True)]
    if isinstance(event, Warned):
        what = f"{event.node}: {event.what}" if event.node else event.what
        return block("warning", "yellow", what, event.why, event.fix)
    if isinstance(event, PreflightFinding):
        return finding_lines(event)
    if isinstance(event, PlanStep):
        sign = click.style(
            f"{_SIGNS[event.action]} {event.action:<9}", fg=_COLOURS.get(event.action, "yellow")
        )
        return [f"  {sign} {event.subject:<24} {click.style(event.reason, dim=True)}"]
    if isinstance(event, ImageChosen):
        return [_image(event)]
    if isinstance(event, PriceEstimated):
        return _price(event)
    if isinstance(event, LaunchAttempted):
        return [_launch(event)]
    if isinstance(event, Unchanged):
        return [f"{click.style(event.cluster, bold=True)}: {event.why}; nothing to do"]
    if isinstance(event, SettingsApplied):
        name = click.style(event.cluster, bold=True)
        return [f"{name} is up; applied: {'; '.join(event.changes)}"]
    if isinstance(event, ClusterReady):
        return _ready(event)
    if isinstance(event, ClusterGone):
        name = click.style(event.cluster, bold=True)
        nodes = _nodes(event.nodes)
        return [f"{name} is terminated: {nodes} in {event.seconds:.1f} s"]
    return _other_lines(event)


def _other_lines(event: Event) -> list[str]:
    """The lines of events from commands other than `up`, `plan` and `down`."""
    if isinstance(event, ClusterScaledDown):
        name = click.style(event.cluster, bold=True)
        return [
            f"{name}: {_nodes(event.terminated)} terminated in {event.seconds:.1f} s, "
            f"{event.remaining} kept"
        ]
    if isinstance(event, ClusterStopped):
        name = click.style(event.cluster, bold=True)
        command = click.style(f"shoal start {shlex.quote(event.cluster)}", fg="cyan")
        return [
            f"{name}: stopped Ray on {_nodes(event.nodes)} in {event.seconds:.1f} s",
            *(f"  {'still billed':<20} {cost}" for cost in event.ongoing_costs),
            f"  {'start it again':<20} {command}",
        ]
    if isinstance(event, ResourcesDeleted):
        if not event.resources:
            return ["nothing to delete"]
        return [f"deleted {len(event.resources)}: {', '.join(event.resources)}"]
    if isinstance(event, RayInstalled):
        name = click.style(event.cluster, bold=True)
        where = f"{_nodes(event.nodes)} in {event.seconds:.1f} s"
        return [f"{name}: installed Ray {event.version} on {where}"]
    if isinstance(event, FilesCopied):
        return [f"{event.node}: {event.source} -> {event.target}"]
    if isinstance(event, CommandDetached):
        command = click.style(event.attach, fg="cyan")
        return [
            f"{event.node}: running in {event.multiplexer}",
            f"  {'show the session':<20} {command}",
        ]
    if isinstance(event, JobSubmitted):
        return [f"job {click.style(event.job, bold=True)} submitted"]
    if isinstance(event, JobContinues):
        return [
            f"job {event.job} goes on",
            f"  {'follow it':<20} {click.style(f'shoal job logs -f {event.job}', fg='cyan')}",
            f"  {'stop it':<20} {click.style(f'shoal job stop {event.job}', fg='cyan')}",
        ]
    if isinstance(event, DashboardOpened):
        return [f"dashboard of {event.cluster}: {click.style(event.url, fg='cyan')}"]
    return []


def _image(event: ImageChosen) -> str:
    text = {
        "baked": f"baked from {event.base}; snapshots: {event.snapshots}",
        "pending": f"being baked from {event.base}, which nodes start from until it is complete",
        "to be baked": "the first node becomes an image after its setup",
        "not baked": "it has nothing to bake, or volumes of its own",
    }[event.state]
    return f"  image of {f'{event.node_type} ({event.role})':<24} {event.image}: {text}"


def _price(event: PriceEstimated) -> list[str]:
    total = click.style(per_hour(event.per_hour), bold=True)
    at_least = "" if event.complete else "at least "
    title = f"price of {event.cluster}: {at_least}{total}, from {event.source}"
    return [title, *(f"  {_item(item)}" for item in event.items)]


def _item(item: PriceItem) -> str:
    offering = " ".join(filter(None, (item.instance_type, item.market)))
    price = "price unknown" if item.price is None else f"{per_hour(item.price)} each"
    disks = f", and {per_hour(item.disks_price)} for {item.disks}" if item.disks else ""
    return f"{item.count} x {item.node_type} ({offering}): {price}{disks}"


def _launch(event: LaunchAttempted) -> str:
    where = f"{event.instance_type} {event.market} in {event.zone}"
    if event.error:
        failure = click.style(f"failed: {event.error}", fg="yellow")
        return f"  {event.node_type}: {where} {failure}"
    price = f", {per_hour(event.price)} each" if event.price is not None else ""
    return f"  {event.node_type}: {event.launched} of {event.requested} x {where}{price}"


def finding_lines(event: PreflightFinding) -> list[str]:
    """A preflight finding with its line in the file and the name of its check."""
    what = f"{event.location}: {event.what}" if event.location else event.what
    what += f" [{event.check}]" if event.check else ""
    colour = "red" if event.severity == "error" else "yellow"
    return block(event.severity, colour, what, event.why, event.fix)


def error_lines(error: ShoalError) -> list[str]:
    """An error: what, why, the last lines of output, and the fix."""
    what = f"{error.node}: {error.what}" if error.node else error.what
    problems = what.splitlines()
    if len(problems) > 1:
        title = f"{len(problems)} problems, nothing was changed"
        lines = [*block("error", "red", title, error.why, ""), *problems]
    else:
        lines = block("error", "red", what, error.why, "")
    lines += [click.style(f"  | {line}", dim=True) for line in error.output]
    return lines + _fix(error.fix)


def _ready(event: ClusterReady) -> list[str]:
    name = click.style(event.cluster, bold=True)
    lines = [
        f"{name} is {click.style('ready', fg='green')}: "
        f"{_nodes(event.nodes)} in {event.seconds:.1f} s, Ray at {event.address}"
    ]
    for purpose, command in event.next_steps:
        lines.append(f"  {purpose:<20} {click.style(command, fg='cyan')}")
    return lines


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def block(label: str, colour: str, what: str, why: str, fix: str) -> list[str]:
    """A labelled message with its reason and fix."""
    lines = [f"{click.style(label, fg=colour, bold=True)}: {what}"]
    if why:
        lines.append(f"  why: {why}")
    return lines + _fix(fix)


def _fix(fix: str) -> list[str]:
    lines = []
    for number, line in enumerate(fix.splitlines()):
        label = "   or:" if line.startswith("or ") else " then:" if number else "  fix:"
        lines.append(f"{label} {click.style(line.removeprefix('or '), fg='cyan')}")
    return lines
