"""The provider settings of a GCP cluster file: project, region, zones and credentials. Pure."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.core.errors import ConfigError
from shoal.spec.cluster_spec import ClusterSpec

# Where gcloud and Google's libraries look for a project.
_PROJECT_VARIABLES = ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")


def project_of(settings: Mapping[str, Any]) -> str:
    """The project id: the file's, or that of the environment."""
    candidates = (settings.get("project_id"), *map(os.environ.get, _PROJECT_VARIABLES))
    if project := next(filter(None, candidates), None):
        return str(project)
    raise ConfigError(
        "the file names no Google Cloud project",
        why="provider.project_id is empty",
        fix="set it in the file: provider: {project_id: my-project}\n"
        "list your projects: gcloud projects list",
    )


def environment_project() -> str:
    """The project of the environment, or that of the credentials on this machine; empty if there is
    none. May run gcloud, so it takes a moment."""
    if project := next(filter(None, map(os.environ.get, _PROJECT_VARIABLES)), None):
        return project
    if not _has_credentials():  # google-auth would look for a metadata server, for seconds
        return ""
    import google.auth
    from google.auth import exceptions

    logging.getLogger("google.auth._default").setLevel(logging.ERROR)
    try:
        _, project = google.auth.default()
    except exceptions.GoogleAuthError:
        return ""
    return str(project or "")


def _has_credentials() -> bool:
    """Whether the user has logged in with gcloud, or names a key."""
    directory = Path(os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud").expanduser()
    file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS") or (
        directory / "application_default_credentials.json"
    )
    return Path(file).is_file()


def region_of(settings: Mapping[str, Any]) -> str:
    """The region: the file's, or that of its first zone."""
    if region := settings.get("region"):
        return str(region)
    if zones := zones_of(settings):
        return zones[0].rpartition("-")[0]
    raise ConfigError(
        "the file names no region",
        why="provider.region is empty",
        fix="set it in the file: provider: {region: us-west1}",
    )


def zones_of(settings: Mapping[str, Any]) -> list[str]:
    """The zones that the file names, in its order; empty if it names none."""
    zones = settings.get("availability_zone") or ()
    entries = zones.split(",") if isinstance(zones, str) else zones
    return [zone for zone in (str(entry).strip() for entry in entries) if zone]


def uses_internal_ips(spec: ClusterSpec) -> bool:
    """Whether this machine is in the cluster's network and uses private addresses."""
    return bool(spec.provider.settings.get("use_internal_ips"))


def caches_stopped_nodes(spec: ClusterSpec) -> bool:
    """Whether idle workers are stopped instead of deleted; off by default, as in Ray on GCP."""
    return bool(spec.provider.settings.get("cache_stopped_nodes", False))
