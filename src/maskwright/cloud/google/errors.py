"""Google's refusals as a `CloudError` that names the permission, quota, API or zone, and the fix.

Services report an error in several ways (a status, a reason in `details`, a sentence), and the reason matters more than
the code: 403 is a missing permission, a disabled API, a used-up quota or too many requests; 429 is a quota, a rate or a
zone without machines. https://cloud.google.com/apis/design/errors
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from maskwright.core.errors import CloudError

RATE = "rate"
"""Per-minute rate limit: retried, never reported as a `CloudError` reason."""
LOGIN = "run gcloud auth application-default login, or set GOOGLE_OAUTH_ACCESS_TOKEN (valid for an hour) again"
ROLES = (  # of calls here, which add least to that permission; https://cloud.google.com/iam/docs/roles-permissions
    ("storage.objects", "roles/storage.objectUser"),
    ("storage.", "roles/storage.admin"),
    ("compute.disks", "roles/compute.storageAdmin"),
    ("compute.", "roles/compute.viewer"),
    ("container.", "roles/container.admin"),
    ("file.", "roles/file.editor"),
    ("aiplatform.", "roles/aiplatform.user"),
    ("cloudbuild.", "roles/cloudbuild.builds.editor"),
    ("artifactregistry.dockerimages", "roles/artifactregistry.reader"),
    ("artifactregistry.", "roles/artifactregistry.admin"),
    ("iam.serviceAccounts.actAs", "roles/iam.serviceAccountUser"),
    ("resourcemanager.projects", "roles/browser"),
    ("serviceusage.services.use", "roles/serviceusage.serviceUsageConsumer"),
    ("serviceusage.", "roles/serviceusage.serviceUsageAdmin"),
    ("logging.", "roles/logging.viewer"),
)
PARTS = r"(?:\.\w{1,60}+){2,9}+"
PERMISSION = re.compile(
    rf"(?:permission|access)[^\w']*'?([a-z]\w{{0,60}}+{PARTS})|\b([a-z]\w{{0,60}}+{PARTS})'? permission"
    rf"|\b(storage{PARTS}) access",
    re.IGNORECASE,
)
CAPACITY = re.compile(
    r"RESOURCE_POOL_EXHAUSTED|STOCKOUT|insufficientCapacity|insufficient (?:reserved )?capacity|no more capacity"
    r"|RESERVATION_CAPACITY|not have (?:enough|available) resources|resources are insufficient"
    r"|resource_availability|is currently unavailable in the",
    re.IGNORECASE,
)
HARD = re.compile(r"has been exceeded\. Limit|per[ _]?day", re.IGNORECASE)
"""A quota of resources, or of a day. Waiting a minute does not help, with any reason next to the sentence."""
PER_TIME = re.compile(r"per[ _](?:minute|second|\d+ seconds)|rate limit", re.IGNORECASE)
QUOTA = re.compile(r"quota", re.IGNORECASE)
QUOTA_NAME = re.compile(
    r"quota(?: limit| metric)? '([^']+)'|quota limits?:? ([\w./-]+[\w])|\"?quota_limit\"?: \"([^\"]+)", re.IGNORECASE
)
OFF = re.compile(r"SERVICE_DISABLED|accessNotConfigured|it is disabled|API \S+ is not enabled|is not enabled on", re.I)
BILLING = re.compile(
    r"BILLING_DISABLED|BILLING_NOT_FOUND|accountDisabled|billingNotEnabled|billing must be enabled"
    r"|billing account .{0,80}(?:disabled|absent|not found|closed)|absent billing account",
    re.IGNORECASE,
)
"""Each service has its own words; serviceusage and storage give no reason."""
ABSENT_PROJECT = re.compile(r"CONSUMER_INVALID|not found or deleted", re.IGNORECASE)
CODES = {3: 400, 5: 404, 6: 409, 7: 403, 8: 429, 9: 400, 10: 409, 13: 500, 14: 503, 16: 401}
"""google.rpc.Code, the error codes of long-running operations, as HTTP statuses of the same meaning."""


def unsure(error: CloudError) -> bool:
    """Whether the answer is open, because none came or Google's service failed. A later try may be answered."""
    return error.reason in ("unreached", "failed")


@dataclass(frozen=True)
class Refusal:
    """One of Google's errors, from an answer or an operation."""

    code: int
    """HTTP status."""
    message: str
    words: str = ""
    """All other text of the error, to be searched."""
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """One of `CloudError`'s reasons, or `RATE`."""
        text = f"{self.message} {self.words}"
        if CAPACITY.search(text):
            return "capacity"
        if self.code in (403, 400, 404) and (OFF.search(text) or BILLING.search(text)):
            return "disabled"
        if self.code in (403, 429):
            # Google adds "rateLimitExceeded" to every RESOURCE_EXHAUSTED, so the sentence decides first.
            limited = PER_TIME.search(self.message) or "RATE_LIMIT_EXCEEDED" in self.words
            if limited and not HARD.search(self.message):
                return RATE
            if (QUOTA.search(self.message) and "quota project" not in self.message) or QUOTA.search(self.words):
                return "quota"
            return RATE if self.code == 429 or "ateLimitExceeded" in self.words else "permission"
        if self.code == 409 and "not empty" not in text and "ABORTED" not in text:
            return "exists"
        return {401: "credentials", 404: "missing"}.get(self.code, "failed" if self.code >= 500 else "other")


def of_answer(code: int, body: Any, text: str) -> Refusal:
    """The refusal in an unsuccessful response. `body` is its JSON, or None."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return Refusal(code, f"status {code}: {' '.join(text.split())[:200] or 'no text'}")
    words, facts = [str(error.get("status", ""))], {}
    for detail in [*(error.get("errors") or []), *(error.get("details") or [])]:
        words.append(str(detail.get("reason", "")))
        facts.update({key: str(value) for key, value in (detail.get("metadata") or {}).items()})
    return Refusal(code, str(error.get("message", "")) or f"status {code}", " ".join(words), facts)


def of_operation(operation: dict[str, Any]) -> Refusal | None:
    """None if the operation did not fail."""
    if not (error := operation.get("error")):
        return None
    return Refusal(CODES.get(int(error.get("code", 2)), 500), str(error.get("message", "")), str(error.get("details")))


def cloud_error(refusal: Refusal, *, project: str, api: str, where: str) -> CloudError:
    reason = refusal.reason
    what, fix = _explain(refusal, reason, project, api)
    return CloudError(what, reason="quota" if reason == RATE else reason, where=where, fix=fix)


def _explain(refusal: Refusal, reason: str, project: str, api: str) -> tuple[str, str]:
    """(error, fix)."""
    message = refusal.message.rstrip(". ")
    match reason:
        case "credentials":
            return f"Google does not accept the credentials: {message}", LOGIN
        case "permission":
            return _permission(refusal, project, api)
        case "disabled" if BILLING.search(f"{message} {refusal.words}"):
            fix = f"link one with gcloud billing projects link {project} --billing-account=ACCOUNT"
            return f"project {project} has no billing account ({message})", fix
        case "disabled":
            service = refusal.facts.get("service", f"{api}.googleapis.com")
            fix = f"run gcloud services enable {service} --project={project}, wait a minute, and run this again"
            return f"the API {service} is not enabled in project {project}", fix
        case "quota":
            facts = refusal.facts
            name = facts.get("quota_limit") or facts.get("quota_metric") or _first(QUOTA_NAME, refusal.message)
            page = f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
            fix = f"request more at {page}" + (f" (filter for {name})" if name else "") + ", or use less"
            return f"quota {name or 'of the project'} is exceeded: {message}", fix
        case "rate":
            return f"too many requests, even after waiting: {message}", "run this again in a few minutes"
        case "capacity":
            fix = "try again later, or use another zone or provisioning model (slice.fallbacks tries several in turn)"
            return f"Google has no such machines available there now: {message}", fix
        case "missing":
            fix = "check project, zone and name; `maskwright env status` shows what exists"
            return f"does not exist: {message}", fix
        case "exists":
            return f"exists already: {message}", "use it, choose another name, or delete it first"
        case "failed":
            return f"Google's service fails (status {refusal.code}): {message}", "run this again in a few minutes"
    return f"refused (status {refusal.code}): {message}", "correct what the message names"


def _permission(refusal: Refusal, project: str, api: str) -> tuple[str, str]:
    message = refusal.message.rstrip(". ")
    if "authentication scopes" in message:
        fix = "run gcloud auth application-default login; a machine's own credentials need the scope cloud-platform"
        return f"the credentials lack the scope for this: {message}", fix
    if ABSENT_PROJECT.search(f"{message} {refusal.words}"):
        fix = "check `project:` in the YAML (the ID, not the name), or ask its owner for roles/browser"
        return f"project {project} does not exist, or you may not see it: {message}", fix
    if "quota project" in message:
        return message, f"run gcloud auth application-default set-quota-project {project}"
    permission = refusal.facts.get("permission") or _first(PERMISSION, refusal.message)
    if permission is None:
        fix = f"ask an owner of project {project} for the roles in docs/google-cloud-access.md"
        return f"permission denied on {api}.googleapis.com: {message}", fix
    role = next((role for start, role in ROLES if permission.startswith(start)), "roles/editor")
    fix = "ask an owner to run: gcloud projects add-iam-policy-binding "
    fix += f"{project} --member=user:YOU --role={role} --condition=None"
    return f"permission {permission} is missing in project {project}", fix


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    """The group of `pattern` that matched."""
    match = pattern.search(text)
    return next((name for name in match.groups() if name), None) if match else None
