"""Preflight checks of access to the project: credentials, permissions, service accounts, and
policies of the organisation. Pure: records in, findings out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from shoal.core.errors import AuthError, ShoalError
from shoal.providers.gcp import iam_permissions, service_accounts
from shoal.providers.model import Finding
from shoal.spec.cluster_spec import ClusterSpec

_MEMBER = '"user:$(gcloud config get-value account)"'

# Constraints of organisations that matter here.
OS_LOGIN = "constraints/compute.requireOsLogin"
NO_PUBLIC_ADDRESS = "constraints/compute.vmExternalIpAccess"
NO_NEW_ACCOUNTS = "constraints/iam.disableServiceAccountCreation"
CONSTRAINTS = (OS_LOGIN, NO_PUBLIC_ADDRESS, NO_NEW_ACCOUNTS)


def check_project(error: ShoalError, project: str, default: str) -> list[Finding]:
    """The finding for a project that cannot be read. `default` is that of this machine's gcloud."""
    if isinstance(error, AuthError):
        return [Finding("error", error.what, error.why, error.fix)]
    fix = "gcloud projects list"
    if default and default != project:
        fix = f"provider: {{project_id: {default}}}"
    return [
        Finding(
            "error",
            f"there is no project {project}, or you may not use it",
            error.why,
            fix=fix,
            at=("provider", "settings", "project_id"),
        )
    ]


def needed_permissions(spec: ClusterSpec) -> list[str]:
    """The permissions that `up` needs in the project, except those for firewall rules, which may
    exist, and for service accounts that the file names."""
    needed = {*iam_permissions.LAUNCH}
    if service_accounts.creates_account(spec):
        needed |= {*iam_permissions.SERVICE_ACCOUNTS, *iam_permissions.ACT_AS}
    return sorted(needed)


def check_permissions(
    missing: Sequence[str], project: str, *, can_name_account: bool
) -> list[Finding]:
    """The permissions that the caller lacks."""
    if not missing:
        return []
    role = iam_permissions.CALLER_ROLE
    fix = (
        "shoal iam-policy --cloud gcp > shoal-role.json\n"
        f"gcloud iam roles create {role} --project {project} --file shoal-role.json\n"
        f"gcloud projects add-iam-policy-binding {project} --member {_MEMBER} --role "
        f"projects/{project}/roles/{role}, or have an administrator of the project run these"
    )
    of_accounts = {*iam_permissions.SERVICE_ACCOUNTS, *iam_permissions.ACT_AS}
    if can_name_account and set(missing) <= of_accounts:
        fix += "\nor use an existing service account: provider: {service_account: EMAIL}"
    shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
    what = f"you lack the permission {shown}" if len(missing) == 1 else f"you lack {shown}"
    return [Finding("error", what, f"your roles in {project} do not include it", fix)]


def check_named_accounts(
    spec: ClusterSpec, missing: Collection[str], unusable: Collection[str], project: str
) -> list[Finding]:
    """Whether the service accounts that the file names exist, and the caller may use them."""
    findings = []
    for email, at in named_accounts(spec).items():
        if email in missing:
            key = "service_account" if at[0] == "provider" else "serviceAccounts"
            what, why = f"there is no service account {email}", "the project does not have it"
            fix = f"remove {key} to have one created"
            findings.append(Finding("error", what, why, fix, at))
        elif email in unusable:
            findings.append(
                Finding(
                    "error",
                    f"you may not use the service account {email}",
                    why="you lack iam.serviceAccounts.actAs on it",
                    fix=f"gcloud iam service-accounts add-iam-policy-binding {email} --project "
                    f"{project} --member {_MEMBER} --role roles/iam.serviceAccountUser, or have an "
                    "administrator of the project run it",
                    at=at,
                )
            )
    return findings


def named_accounts(spec: ClusterSpec) -> dict[str, tuple[str, ...]]:
    """The service accounts that the file names, with their places."""
    found: dict[str, tuple[str, ...]] = {}
    if email := service_accounts.named_account(spec):
        found[email] = ("provider", "settings", "service_account")
    for name, node_type in spec.node_types.items():
        for account in node_type.node_config.get("serviceAccounts") or ():
            place = ("node_types", name, "node_config", "serviceAccounts")
            found.setdefault(str(account.get("email", "")), place)
    return {email: at for email, at in found.items() if email not in ("", "default")}


def check_policies(
    policies: Mapping[str, bool], spec: ClusterSpec, project: str, *, public: Sequence[str]
) -> list[Finding]:
    """The policies of the organisation that are enforced and keep the cluster from coming up.
    `public` are the node types whose instances get public addresses."""
    findings = []
    if policies.get(OS_LOGIN):
        findings.append(
            _policy_finding(
                OS_LOGIN,
                "the organisation requires OS Login",
                "instances then ignore the SSH keys in their metadata, which nodes are reached "
                "with",
                project,
            )
        )
    if policies.get(NO_PUBLIC_ADDRESS) and public:
        finding = _policy_finding(
            NO_PUBLIC_ADDRESS,
            "the organisation forbids public addresses",
            f"instances of {', '.join(public)} would get one",
            project,
        )
        fix = "provider: {use_internal_ips: true}, or " + finding.fix
        findings.append(Finding("error", finding.what, finding.why, fix))
    if policies.get(NO_NEW_ACCOUNTS) and service_accounts.creates_account(spec):
        finding = _policy_finding(
            NO_NEW_ACCOUNTS,
            "the organisation forbids new service accounts",
            "the head needs one to launch and delete workers",
            project,
        )
        fix = f"use an existing one: provider: {{service_account: EMAIL}}\nor {finding.fix}"
        findings.append(Finding("error", finding.what, finding.why, fix))
    return findings


def _policy_finding(constraint: str, what: str, why: str, project: str) -> Finding:
    name = constraint.removeprefix("constraints/")
    fix = f"gcloud resource-manager org-policies disable-enforce {name} --project {project}, or "
    fix += "have an administrator of the organisation run it"
    return Finding("error", what, f"{name} is enforced: {why}", fix)
