"""The service account of a cluster's nodes. Its role may launch, stop and delete instances and
disks whose names begin with the cluster's; the controller on the head uses it, and a node that has
lost its cluster deletes itself with it.

Names are fixed by the cluster, and every step may be repeated. The project's binding is made last
and removed first: where there is one, the account is complete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from shoal.core.concurrency import run_all
from shoal.core.errors import DeniedError, TransientError
from shoal.providers.gcp import iam_permissions, names
from shoal.providers.gcp.gcp_client import GcpClient
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

_DESCRIPTION = "created by Shoal for cluster "
_ACT_AS_ROLE = "roles/iam.serviceAccountUser"
_NOT_FOUND = ("NOT_FOUND", "notFound")
_EXISTS = ("ALREADY_EXISTS", "alreadyExists")
# What Google says of an account that was created a moment ago.
_NOT_PROPAGATED = ("does not exist",)
_POLICY_VERSION = 3  # the first with conditions
_ATTEMPTS = 10

_Policy = dict[str, Any]


def named_account(spec: ClusterSpec) -> str:
    """The account that the file names for all nodes; empty if it names none."""
    return str(spec.provider.settings.get("service_account") or "")


def has_account(config: Mapping[str, Any]) -> bool:
    """Whether a `node_config` names an account itself."""
    return bool(config.get("serviceAccounts"))


def creates_account(spec: ClusterSpec) -> bool:
    """Whether `up` creates an account: only if the file names none for the head."""
    return not named_account(spec) and not has_account(
        spec.node_types[spec.head_node_type].node_config
    )


def email_for(project: str, cluster: str) -> str:
    # Projects of organisations in a domain are written as domain:project.
    domain, _, name = project.rpartition(":")
    suffix = f"{name}.{domain}" if domain else project
    return f"{names.account_id(cluster)}@{suffix}.iam.gserviceaccount.com"


async def ensure_account(gcp: GcpClient, cluster: str) -> str:
    """Create the account of a cluster if it is missing, and return its email."""
    email = email_for(gcp.project, cluster)
    binding = _binding(gcp.project, cluster, email)
    try:
        if _has_binding(await _read_policy(gcp), binding):
            return email
        await run_all([_create_account(gcp, cluster), _ensure_role(gcp)])
        await _allow_use_by_itself(gcp, email)
        await _change_policy(gcp, lambda policy: _add(policy, binding))
    except DeniedError as error:
        raise DeniedError(error.what, why=error.why, fix=_without_iam(gcp.project)) from None
    _log.info("created service account %s", email)
    return email


def _without_iam(project: str) -> str:
    return (
        "use an existing service account: provider: {service_account: NAME@"
        f"{project}.iam.gserviceaccount.com}}\n"
        "or have an administrator of the project grant you the role that this prints: "
        "shoal iam-policy --cloud gcp"
    )


async def _create_account(gcp: GcpClient, cluster: str) -> None:
    account = {"displayName": f"Shoal: {cluster}"[:100], "description": f"{_DESCRIPTION}{cluster}"}
    body = {"accountId": names.account_id(cluster), "serviceAccount": account}
    await gcp.call("iam", "POST", "/serviceAccounts", body, ignore_codes=_EXISTS)


async def _ensure_role(gcp: GcpClient) -> None:
    """Create the custom role, or bring one of an earlier version up to date."""
    needed = iam_permissions.cluster_permissions()
    path = f"/roles/{iam_permissions.CLUSTER_ROLE}"
    role = await gcp.call("iam", "GET", path, ignore_codes=_NOT_FOUND)
    if not role:
        body = {
            "roleId": iam_permissions.CLUSTER_ROLE,
            "role": iam_permissions.cluster_role(),
        }
        await gcp.call("iam", "POST", "/roles", body, ignore_codes=_EXISTS)
        return
    if role.get("deleted"):
        await gcp.call("iam", "POST", f"{path}:undelete", {})
    granted = set(role.get("includedPermissions") or ())
    if not granted.issuperset(needed):
        body = {"includedPermissions": sorted(granted | set(needed))}
        await gcp.call("iam", "PATCH", path, body, query={"updateMask": "includedPermissions"})


async def _allow_use_by_itself(gcp: GcpClient, email: str) -> None:
    """Allow a head to give its workers its own account."""
    path = f"/serviceAccounts/{email}"
    member = f"serviceAccount:{email}"
    policy = await gcp.call("iam", "POST", f"{path}:getIamPolicy", {}, retry_codes=_NOT_PROPAGATED)
    bindings = policy.setdefault("bindings", [])
    if not any(b["role"] == _ACT_AS_ROLE and member in b["members"] for b in bindings):
        bindings.append({"role": _ACT_AS_ROLE, "members": [member]})
        body = {"policy": policy}
        await gcp.call("iam", "POST", f"{path}:setIamPolicy", body, retry_codes=_NOT_PROPAGATED)


def _binding(project: str, cluster: str, email: str) -> dict[str, Any]:
    return {
        "role": f"projects/{project}/roles/{iam_permissions.CLUSTER_ROLE}",
        "members": [f"serviceAccount:{email}"],
        "condition": iam_permissions.condition(cluster),
    }


def _has_binding(policy: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return any(
        b["role"] == wanted["role"]
        and wanted["members"][0] in b["members"]
        and (b.get("condition") or {}).get("expression") == wanted["condition"]["expression"]
        for b in policy.get("bindings") or ()
    )


def _add(policy: _Policy, binding: Mapping[str, Any]) -> bool:
    """Add a binding; returns whether the policy has changed."""
    if _has_binding(policy, binding):
        return False
    policy["bindings"] = [*(policy.get("bindings") or ()), dict(binding)]
    return True


def _remove_member(policy: _Policy, email: str) -> bool:
    """Remove an account from all bindings, also one that was deleted before."""
    kept = []
    for binding in policy.get("bindings") or ():
        others = [m for m in binding["members"] if f"serviceAccount:{email}" not in m]
        if others:
            kept.append({**binding, "members": others})
    changed = kept != (policy.get("bindings") or [])
    policy["bindings"] = kept
    return changed


async def _read_policy(gcp: GcpClient) -> _Policy:
    body = {"options": {"requestedPolicyVersion": _POLICY_VERSION}}
    return await gcp.call("cloudresourcemanager", "POST", ":getIamPolicy", body)


async def _change_policy(gcp: GcpClient, change: Callable[[_Policy], bool]) -> None:
    """Change the project's policy, which others may change at the same time."""
    for attempt in range(1, _ATTEMPTS + 1):
        policy = await _read_policy(gcp)
        if not change(policy):
            return
        body = {"policy": {**policy, "version": _POLICY_VERSION}}
        try:
            await gcp.call(
                "cloudresourcemanager",
                "POST",
                ":setIamPolicy",
                body,
                retry_codes=_NOT_PROPAGATED,
            )
            return
        except TransientError as error:
            if attempt == _ATTEMPTS:
                raise
            _log.info("reading the project's policy again: %s", error.why)


async def delete_account(gcp: GcpClient, cluster: str) -> list[str]:
    """Delete the account that was created for a cluster; returns a description of it. A caller who
    may not read accounts has created none."""
    email = email_for(gcp.project, cluster)
    path = f"/serviceAccounts/{email}"
    try:
        account = await gcp.call("iam", "GET", path, ignore_codes=_NOT_FOUND)
    except DeniedError as error:
        _log.info("not looking for the service account of %s: %s", cluster, error.why)
        return []
    if account.get("description") != f"{_DESCRIPTION}{cluster}":
        return []
    await _change_policy(gcp, lambda policy: _remove_member(policy, email))
    await gcp.call("iam", "DELETE", path, ignore_codes=_NOT_FOUND)
    return [f"service account {email}"]


async def list_accounts(gcp: GcpClient) -> dict[str, str]:
    """The accounts that Shoal created: clusters by email."""
    page: dict[str, Any] = {"nextPageToken": ""}
    found: dict[str, str] = {}
    while "nextPageToken" in page:
        query = {"pageToken": page["nextPageToken"]} if page["nextPageToken"] else {}
        page = await gcp.call("iam", "GET", "/serviceAccounts", query=query)
        for account in page.get("accounts") or ():
            description = str(account.get("description") or "")
            if description.startswith(_DESCRIPTION):
                found[str(account["email"])] = description[len(_DESCRIPTION) :]
    return found
