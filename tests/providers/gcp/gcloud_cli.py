"""The gcloud commands that fixes contain, run against the simulated project as an administrator."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from tests.simcloud.gce import Gce
from tests.simcloud.gce_store import PROJECT

ME = "user:me@example.com"


def run(command: str, gce: Gce, directory: Path) -> None:
    """Run a command; one that is not known here fails the test."""
    words = shlex.split(command.replace('"user:$(gcloud config get-value account)"', ME))
    options = {
        word.removeprefix("--"): words[index + 1]
        for index, word in enumerate(words[:-1])
        if word.startswith("--") and not words[index + 1].startswith("--")
    }
    if options.get("project", PROJECT) != PROJECT:
        raise AssertionError(f"another project: {command}")
    if command.startswith("gcloud services enable "):
        gce.disabled_apis.discard(words[3].partition(".")[0])
    elif command.startswith("gcloud compute firewall-rules create "):
        _create_rule(words[4], options, gce)
    elif command.startswith("gcloud iam roles create "):
        role = json.loads((directory / options["file"]).read_text())
        gce.iam.roles[words[4]] = role
    elif command.startswith("gcloud projects add-iam-policy-binding "):
        role = gce.iam.roles[options["role"].rpartition("/")[2]]
        assert options["member"] == ME
        gce.denied -= set(role["includedPermissions"])
    elif command.startswith("gcloud iam service-accounts add-iam-policy-binding "):
        binding = {"role": options["role"], "members": [options["member"]]}
        policy = gce.iam.account_policies.setdefault(words[4], {"bindings": []})
        policy["bindings"].append(binding)
    elif command.startswith("gcloud resource-manager org-policies disable-enforce "):
        gce.store.constraints.discard(f"constraints/{words[4]}")
    elif command.startswith("gcloud beta quotas preferences create "):
        assert options["service"] == "compute.googleapis.com"
        region = options.get("dimensions", "region=").partition("=")[2] or None
        suffix = "-per-project-region" if region else "-per-project"
        metric = options["quota-id"].removesuffix(suffix).replace("-", "_")
        assert (region, metric) in gce.calls.launcher.quotas, command
        gce.calls.launcher.quotas[region, metric] = float(options["preferred-value"])
    elif command.startswith("gcloud compute routers create "):
        network = f"global/networks/{options['network']}"
        created: dict[str, Any] = {"name": words[4], "network": network}
        gce.store.routers.setdefault(options["region"], []).append(created)
    elif command.startswith("gcloud compute routers nats create "):
        (router,) = [
            r for r in gce.store.routers[options["region"]] if r["name"] == options["router"]
        ]
        router["nats"] = [{"name": words[5]}]
    else:
        raise AssertionError(f"unknown command: {command}")


def _create_rule(name: str, options: dict[str, str], gce: Gce) -> None:
    protocol, _, port = options["allow"].partition(":")
    allowed = {"IPProtocol": protocol, **({"ports": [port]} if port else {})}
    rule: dict[str, Any] = {
        "name": name,
        "network": f"global/networks/{options['network']}",
        "allowed": [allowed],
        "targetTags": [options["target-tags"]],
    }
    if "source-ranges" in options:
        rule["sourceRanges"] = options["source-ranges"].split(",")
    if "source-tags" in options:
        rule["sourceTags"] = options["source-tags"].split(",")
    gce.store.firewalls[name] = rule
