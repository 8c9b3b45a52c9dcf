"""Google's REST APIs with one authorised session: `Google`. No other file knows google-auth.

GOOGLE_OAUTH_ACCESS_TOKEN gives the token where it is set, as it does for Terraform's provider; else
`gcloud auth application-default login`, a key file or the metadata server does. gcloud's own variables replace
addresses (CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE and so on), without TLS only on this machine.
"""

from __future__ import annotations

import calendar
import os
import random
import re
import time
import uuid
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import quote, urlsplit

from maskwright.cloud.google import errors
from maskwright.core.errors import CloudError, InputError
from maskwright.core.extras import require
from maskwright.core.secrets import HIDDEN

VERSIONS = {
    "aiplatform": "v1",
    "artifactregistry": "v1",
    "cloudbuild": "v1",
    "cloudresourcemanager": "v3",
    "compute": "compute/v1",
    "file": "v1",
    "iam": "v1",
    "logging": "v2",
    "serviceusage": "v1",
    "storage": "storage/v1",
    "tpu": "v2",
}
"""The APIs that are called. gcloud's variables for compute and storage hold the version as well."""
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 90.0
TRIES = 6
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 32.0
FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.25, 10.0
PASSING = {500, 502, 503, 504}
REPEATABLE = re.compile(r"(/listManagedInstances|/listErrors|[:/]testIamPermissions|:getIamPolicy|:cancel)$")
"""These go by POST, and do no more when they are sent twice."""


def new_request_id() -> str:
    """A new `requestId`. Google does what it is asked under the same one only once."""
    return str(uuid.uuid4())


class Google:
    """The APIs for one project. Raises `CloudError` for what Google refuses and `InputError` for a bad address."""

    def __init__(self, project: str) -> None:
        self.project = project
        self._session: Any = None
        require("gcsfs", "Google Cloud")  # which needs google-auth itself
        _let_files_use_the_token()

    def call(self, api: str, verb: str, path: str, body: dict[str, Any] | None = None, **query: Any) -> dict[str, Any]:
        """`path` has no version, as in "projects/p/zones/z/disks". What passes (too many requests, 5xx, a lost
        connection) is tried again where repeating is safe: for reads, PUT, DELETE, and what has a `requestId`."""
        repeatable = verb in ("GET", "PUT", "DELETE") or bool(query.get("requestId") or REPEATABLE.search(path))
        address = f"{self.address(api, path)}/{quote(path, safe='/:%@-._~')}"
        begun = False
        for attempt in range(TRIES):
            last = attempt == TRIES - 1
            try:
                answer = self._send(verb, address, body, query)
            except ConnectionError as error:
                begun = True
                if not repeatable or last:
                    raise self._lost(api, path, error, repeatable) from None
                time.sleep(_pause(attempt, None))
                continue
            if answer.status_code < 300:
                return self._content(answer, api, path)
            if answer.status_code == 404 and verb == "DELETE" and begun:
                return {}  # only the answer to the first try was lost
            refusal = errors.of_answer(answer.status_code, _json(answer), answer.text)
            passing = answer.status_code in PASSING and refusal.reason == "failed"
            begun = begun or passing
            # A rate limit refuses before anything is done, so even a POST may be repeated.
            if last or not (refusal.reason == errors.RATE or (passing and repeatable)):
                raise self._refused(refusal, api, path)
            time.sleep(_pause(attempt, answer.headers.get("Retry-After")))
        raise AssertionError("the last attempt returns or raises")

    def find(self, api: str, path: str, **query: Any) -> dict[str, Any] | None:
        """None when there is none."""
        try:
            return self.call(api, "GET", path, **query)
        except CloudError as error:
            if error.reason == "missing":
                return None
            raise

    def delete(self, api: str, path: str, *, seconds: float, **query: Any) -> bool:
        """Waits until it is gone. False when there was none."""
        try:
            self.wait(api, self.call(api, "DELETE", path, **query), seconds=seconds)
        except CloudError as error:
            if error.reason == "missing":
                return False
            raise
        return True

    def pages(
        self, api: str, path: str, key: str, *, verb: str = "GET", missed: list[str] | None = None, **query: Any
    ) -> Iterator[dict[str, Any]]:
        """Everything under `key`, from all pages, and from all places of an aggregated list ({"zones/z": {"disks":
        […]}}). Places that did not answer Google are added to `missed`."""
        missed = [] if missed is None else missed
        token = None
        while True:
            answer = self.call(api, verb, path, pageToken=token, **query)
            missed += [str(place).rpartition("/")[2] for place in answer.get("unreachable") or ()]
            found = answer.get(key) or []
            if not isinstance(found, dict):
                found = {"some places": {"warning": answer.get("warning"), key: found}}
            for place, content in found.items():
                if (content.get("warning") or {}).get("code") == "UNREACHABLE":
                    missed.append(place)
                yield from (one for part in content.values() if isinstance(part, list) for one in part)
            token = answer.get("nextPageToken")
            if not token:
                return

    def wait(self, api: str, operation: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        """Waits until an operation is over. Returns compute's operation, or the "response" of google.longrunning's,
        which may be {}. `call` gives {} for a DELETE that was done before, which is over too."""
        if not operation:
            return {}
        path, until, pause = _path(operation, "selfLink", "name"), time.monotonic() + seconds, FIRST_POLL_SECONDS
        target = _path(operation, "targetLink") or str((operation.get("metadata") or {}).get("target", "")) or path
        while True:
            if operation.get("done") or operation.get("status") == "DONE":
                if refusal := errors.of_operation(operation):
                    raise self._refused(refusal, api, target)
                return operation if "status" in operation else cast(dict[str, Any], operation.get("response") or {})
            left = until - time.monotonic()
            if left <= 0:
                what = f"is not done after {seconds:.0f} s; Google goes on with it"
                fix = "run this again: what is done by then is not done twice"
                raise CloudError(what, reason="other", where=target, fix=fix)
            time.sleep(min(pause, left))
            pause = min(pause * 1.6, LONGEST_POLL_SECONDS)
            operation = self.call(api, "GET", path)

    def address(self, api: str, path: str = "") -> str:
        """Address of the API with its version. Vertex AI has one in each location, which the path names."""
        version = VERSIONS[api]
        variable = f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api.upper()}"
        override = os.environ.get(variable)
        if not override:
            place = re.match(r"projects/[^/]+/locations/([^/]+)", path) if api == "aiplatform" else None
            return f"https://{place[1] + '-' if place else ''}{api}.googleapis.com/{version}"
        parts = urlsplit(override)
        loopback = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
        if parts.scheme != "https" and not loopback:
            fix = "write https://…, or http:// with 127.0.0.1"
            raise InputError("would send your credentials in the clear", where=variable, fix=fix)
        root = override.rstrip("/")
        return root if "/" in version else f"{root}/{version}"

    # ---- one request -------------------------------------------------------------------------------------------------

    def _send(self, verb: str, address: str, body: dict[str, Any] | None, query: dict[str, Any]) -> Any:
        """Raises `ConnectionError` when no answer came."""
        import requests
        from google.auth.exceptions import GoogleAuthError, TransportError

        if self._session is None:
            self._session = _session()
        given = {key: value for key, value in query.items() if value is not None}
        params = {key: str(value).lower() if isinstance(value, bool) else value for key, value in given.items()}
        try:
            return self._session.request(
                verb,
                address,
                params=params,
                json=body,
                timeout=(CONNECT_SECONDS, ANSWER_SECONDS),
                max_allowed_time=None,
                allow_redirects=False,
            )
        except (requests.RequestException, TransportError) as error:
            raise ConnectionError(" ".join(str(error).split())[:300]) from None
        except GoogleAuthError as error:
            raise _no_credentials(error) from None

    def _content(self, answer: Any, api: str, path: str) -> dict[str, Any]:
        if answer.status_code == 204 or not answer.content:
            return {}
        if isinstance(content := _json(answer), dict):
            return content
        fix = "check proxies between here and Google"
        raise CloudError("answered with what is not JSON", reason="failed", where=f"{api} {path}", fix=fix)

    def _refused(self, refusal: errors.Refusal, api: str, path: str) -> CloudError:
        error = errors.cloud_error(refusal, project=self.project, api=api, where=path)
        token = getattr(getattr(self._session, "credentials", None), "token", None)
        if token:
            error.what = error.what.replace(token, HIDDEN)
        return error

    def _lost(self, api: str, path: str, error: Exception, repeatable: bool) -> CloudError:
        if repeatable:
            what, fix = f"cannot be reached after {TRIES} tries: {error}", "check the network and proxies"
        else:
            what = f"gave no answer, so it may or may not be done: {error}"
            fix = "run this again: it looks for what exists first"
        return CloudError(what, reason="unreached", where=f"{self.address(api, path)}/{path}", fix=fix)


def seconds_of(timestamp: str) -> float | None:
    """Unix time of one of Google's UTC timestamps, to the second; None for another text."""
    try:
        return float(calendar.timegm(time.strptime(timestamp[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


def _path(operation: dict[str, Any], link: str, otherwise: str = "") -> str:
    """The path in a link of compute's operations. Other operations have a name that is one."""
    found = str(operation.get(link, ""))
    return found[found.index("projects/") :] if "projects/" in found else str(operation.get(otherwise, ""))


def _session() -> Any:
    import google.auth
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession
    from google.oauth2.credentials import Credentials

    token = os.environ.get("GOOGLE_OAUTH_ACCESS_TOKEN")
    try:
        if token:
            project = os.environ.get("GOOGLE_CLOUD_QUOTA_PROJECT")
            credentials: Any = Credentials(token=token, quota_project_id=project)
        else:
            credentials, _ = google.auth.default(scopes=[SCOPE])
    except GoogleAuthError as error:
        raise _no_credentials(error) from None
    session = AuthorizedSession(credentials)
    session.auth = lambda request: request  # or a `default` entry of ~/.netrc would replace the token
    return session


def _let_files_use_the_token() -> None:
    """gcsfs does not read the variable, and would go on without credentials. It would send a token that it gets as text
    to Google's tokeninfo, in an address."""
    token = os.environ.get("GOOGLE_OAUTH_ACCESS_TOKEN")
    if not token:
        return
    import fsspec
    from google.oauth2.credentials import Credentials

    for protocol in ("gs", "gcs"):
        settings = fsspec.config.conf.setdefault(protocol, {})
        if getattr(settings.get("token"), "token", None) != token:
            settings["token"] = Credentials(token=token)


def _no_credentials(error: Exception) -> CloudError:
    what = f"no usable Google credentials: {' '.join(str(error).split())[:200].rstrip('.')}"
    return CloudError(what, reason="credentials", fix=errors.LOGIN)


def _pause(attempt: int, asked: str | None) -> float:
    """Seconds that Google asks for, else 1, 2, 4, … and up to half of it more, so that hosts do not come together."""
    if asked and asked.isdigit():
        return min(float(asked), LONGEST_PAUSE_SECONDS)
    return min(FIRST_PAUSE_SECONDS * 2**attempt, LONGEST_PAUSE_SECONDS) * (1 + random.random() / 2)


def _json(answer: Any) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None
