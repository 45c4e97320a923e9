"""Service accounts, custom roles and policies of the simulated project."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from tests.simcloud.calls import ApiError
from tests.simcloud.gce_requests import Refused
from tests.simcloud.gce_store import PROJECT, fingerprint
from tests.simcloud.ledger import Thing

_ACCOUNT_ID = re.compile(r"[a-z](?:[-a-z0-9]{4,28}[a-z0-9])")
_ROLE_ID = re.compile(r"[a-zA-Z0-9_.]{3,64}")
# What the roles of Google itself grant, of those that Ray gives its account.
_PREDEFINED = {"roles/compute.admin": "compute.", "roles/iam.serviceAccountUser": "iam.service"}
# Google knows the kind of a resource by where it is.
_KINDS = {"/instances/": "Instance", "/disks/": "Disk", "/subnetworks/": "Subnetwork"}


class GceIam:
    """Who may do what. A new service account is unknown to other services for a while."""

    def __init__(self, constraints: set[str]) -> None:
        self.accounts: dict[str, dict[str, Any]] = {}
        self.roles: dict[str, dict[str, Any]] = {}
        self.policy: dict[str, Any] = {"bindings": [], "version": 3}
        self.account_policies: dict[str, dict[str, Any]] = {}
        self.propagation_s = 0.3
        self.constraints = constraints
        self.denied: set[str] = set()
        """Permissions that the user of the laptop lacks."""
        self._known_at: dict[str, float] = {}

    def things(self) -> list[Thing]:
        """What must not be left behind. A role alone grants nothing, and its id stays taken."""
        bindings = [member for b in self.policy["bindings"] for member in b["members"]]
        return [
            *(Thing("service account", email) for email in self.accounts),
            *(Thing("binding", member) for member in bindings),
        ]

    def know(self, email: str) -> None:
        """Have every service know an account already."""
        self._known_at[email] = 0.0

    def is_usable(self, email: str) -> bool:
        return email in self.accounts and time.monotonic() >= self._known_at[email]

    def grants(self, email: str, permission: str, resource: str) -> bool:
        """Whether a service account has a permission on a resource."""
        member = f"serviceAccount:{email}"
        for binding in self.policy["bindings"]:
            if member not in binding["members"]:
                continue
            if permission.startswith(_PREDEFINED.get(str(binding["role"]), "-")):
                return True
            role = self.roles.get(str(binding["role"]).rpartition("/")[2], {})
            if permission in role.get("includedPermissions", ()) and not role.get("deleted"):
                expression = (binding.get("condition") or {}).get("expression", "")
                if not expression or _holds(expression, resource):
                    return True
        return False

    def respond(self, action: str, path: Mapping[str, str], body: Mapping[str, Any]) -> Any:
        """The reply to a call, or a refusal."""
        method = getattr(self, "_" + re.sub(r"(?<!^)(?=[A-Z])|\.", "_", action).lower(), None)
        if method is None:
            raise Refused(ApiError("UNIMPLEMENTED", f"{action} is not simulated", 501))
        return method(path, body)

    def _iam_service_accounts_create(self, path: Mapping[str, str], body: Mapping[str, Any]) -> Any:
        account_id = str(body.get("accountId", ""))
        if not _ACCOUNT_ID.fullmatch(account_id):
            message = "Account ID must be 6-30 lowercase letters, digits and dashes."
            raise Refused(ApiError("INVALID_ARGUMENT", message, 400))
        email = f"{account_id}@{PROJECT}.iam.gserviceaccount.com"
        if email in self.accounts:
            message = f"Service account {account_id} already exists within project {PROJECT}."
            raise Refused(ApiError("ALREADY_EXISTS", message, 409))
        if "constraints/iam.disableServiceAccountCreation" in self.constraints:
            message = "Service account creation is not allowed on this project."
            raise Refused(ApiError("FAILED_PRECONDITION", message, 400))
        given = dict(body.get("serviceAccount") or {})
        self.accounts[email] = {**given, "email": email, "projectId": PROJECT}
        self._known_at[email] = time.monotonic() + self.propagation_s
        return self.accounts[email]

    def _iam_service_accounts_list(self, path: Mapping[str, str], body: Mapping[str, Any]) -> Any:
        return {"accounts": list(self.accounts.values())}

    def _iam_service_accounts_get(self, path: Mapping[str, str], body: Mapping[str, Any]) -> Any:
        if path["name"] not in self.accounts:
            raise Refused(ApiError("NOT_FOUND", f"Unknown service account {path['name']}", 404))
        return self.accounts[path["name"]]

    def _iam_service_accounts_delete(self, path: Mapping[str, str], body: Mapping[str, Any]) -> Any:
        self._iam_service_accounts_get(path, body)
        del self.accounts[path["name"]]
        self.account_policies.pop(path["name"], None)
        return {}

    def _iam_service_accounts_get_iam_policy(
        self, path: Mapping[str, str], body: Mapping[str, Any]
    ) -> Any:
        self._iam_service_accounts_get(path, body)
        policy = self.account_policies.get(path["name"], {"bindings": []})
        return {**policy, "etag": fingerprint(policy["bindings"])}

    def _iam_service_accounts_set_iam_policy(
        self, path: Mapping[str, str], body: Mapping[str, Any]
    ) -> Any:
        current = self._iam_service_accounts_get_iam_policy(path, body)
        policy = self._checked(current, dict(body["policy"]))
        self.account_policies[path["name"]] = policy
        return policy

    def _iam_service_accounts_test_iam_permissions(
        self, path: Mapping[str, str], body: Mapping[str, Any]
    ) -> Any:
        """What the user of the laptop may do: by their roles in the project, or by a binding."""
        bindings = self.account_policies.get(path["name"], {}).get("bindings", ())
        granted = any("user:me@example.com" in b["members"] for b in bindings)
        asked = body["permissions"]
        return {"permissions": [p for p in asked if granted or p not in self.denied]}

    def _cloudresourcemanager_projects_test_iam_permissions(
        self, path: Mapping[str, str], body: Mapping[str, Any]
    ) -> Any:
        if len(body["permissions"]) > 100:
            message = "At most 100 permissions can be tested at once."
            raise Refused(ApiError("INVALID_ARGUMENT", message, 400))
        return {"permissions": [p for p in body["permissions"] if p not in self.denied]}

    def _cloudresourcemanager_projects_get_effective_org_policy(
        self, path: Mapping[str, str], body: Mapping[str, Any]
    ) -> Any:
        enforced = body["constraint"] in self.constraints
        if body["constraint"] == "constraints/compute.vmExternalIpAccess":
            values = "DENY" if enforced else "ALLOW"
            return {"constraint": body["constraint"], "listPolicy": {"allValues": values}}
        return {"constraint": body["constraint"], "booleanPolicy": {"enforced": enforced}}

    def _iam_roles_create(self, path: Mapping[str, str], body: Mapping[str, Any]) -> Any:
        role_id = str(body.get("roleId", ""))
        if not _ROLE_ID.fullmatch(role_id):
            raise Refused(ApiError("INVALID_ARGUMENT", f"The role ID {role_id} is invalid", 400))
        if role_id in self.roles:
            # Also when it was deleted: Google keeps it, and its id, for weeks.
            is_deleted = self.roles[role_id].get("deleted")
            code = ("FAILED_PRECONDITION", 400) if is_deleted else ("ALREADY_EXISTS", 409)
            raise Refused(ApiError(code[0], f"A role named {role_id} already exists.", code[1]))
        name = f"projects/{PROJECT}/roles/{role_id}"
        self.roles[role_id] = {**dict(body.get("role") or {}), "name": name}
        return self.roles[role_id]

    def _iam_roles_get(self, path: Mapping[str, str], body: Mapping[str, Any]) -> Any:
        if path["name"] not in self.roles:
            raise Refused(ApiError("NOT_FOUND", f"The role {path['name']} was not found", 404))
        return self.roles[path["name"]]

    def _iam_roles_patch(self, path: Mapping[str, str], body: Mapping[str, Any]) -> Any:
        self._iam_roles_get(path, body).update(body)
        return self.roles[path["name"]]

    def _iam_roles_delete(self, path: Mapping[str, str], body: Mapping[str, Any]) -> Any:
        self._iam_roles_get(path, body)["deleted"] = True
        return self.roles[path["name"]]

    def _iam_roles_undelete(self, path: Mapping[str, str], body: Mapping[str, Any]) -> Any:
        self._iam_roles_get(path, body).pop("deleted", None)
        return self.roles[path["name"]]

    def _cloudresourcemanager_projects_get(
        self, path: Mapping[str, str], body: Mapping[str, Any]
    ) -> Any:
        return {"projectId": PROJECT, "lifecycleState": "ACTIVE"}

    def _cloudresourcemanager_projects_get_iam_policy(
        self, path: Mapping[str, str], body: Mapping[str, Any]
    ) -> Any:
        return {**self.policy, "etag": fingerprint(self.policy["bindings"])}

    def _cloudresourcemanager_projects_set_iam_policy(
        self, path: Mapping[str, str], body: Mapping[str, Any]
    ) -> Any:
        current = self._cloudresourcemanager_projects_get_iam_policy(path, body)
        self.policy = self._checked(current, dict(body["policy"]))
        return self.policy

    def _checked(self, current: Mapping[str, Any], policy: dict[str, Any]) -> dict[str, Any]:
        if policy.get("etag") != current["etag"]:
            message = "There were concurrent policy changes. Please retry the whole operation."
            raise Refused(ApiError("ABORTED", message, 409))
        has_condition = any(binding.get("condition") for binding in policy.get("bindings", ()))
        if has_condition and policy.get("version") != 3:
            message = "A policy with conditions must have version 3."
            raise Refused(ApiError("INVALID_ARGUMENT", message, 400))
        before = {m for b in current["bindings"] for m in b["members"]}
        for binding in policy.get("bindings", ()):
            for member in set(binding["members"]) - before:
                kind, _, email = member.partition(":")
                if kind == "serviceAccount" and not self.is_usable(email):
                    message = f"Service account {email} does not exist."
                    raise Refused(ApiError("INVALID_ARGUMENT", message, 400))
        policy.setdefault("bindings", [])
        return policy


class _Text(str):
    """A string with the functions that conditions have."""

    def extract(self, template: str) -> _Text:
        before, _, after = template.partition("{name}")
        rest = self.partition(before)[2]
        return _Text(rest.partition(after)[0] if after else rest)

    startsWith = str.startswith


class _Resource:
    """What a condition says `resource` to."""

    def __init__(self, name: str) -> None:
        self.name = _Text(name)
        kinds = [kind for part, kind in _KINDS.items() if part in name]
        service = "compute" if kinds else "cloudresourcemanager"
        self.type = _Text(f"{service}.googleapis.com/{kinds[0] if kinds else 'Project'}")


def _holds(expression: str, resource: str) -> bool:
    """Whether a condition holds for a resource. Of Google's language, comparisons and `extract`
    mean the same in Python."""
    python = expression.replace("&&", " and ").replace("||", " or ")
    return bool(eval(python, {"__builtins__": {}}, {"resource": _Resource(resource)}))
