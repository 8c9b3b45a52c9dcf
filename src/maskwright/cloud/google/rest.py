"""Google's REST APIs with one authorised session: `Google`. The one file that knows google-auth.

The token is GOOGLE_OAUTH_ACCESS_TOKEN where that is set (as Terraform's provider takes it), else what
`gcloud auth application-default login`, a key file or the metadata server gives. Addresses can be replaced by gcloud's
own variables, CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE and so on; without TLS only on this machine.
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
"""The APIs that are called. Of compute and storage, gcloud's variables hold the version as well."""
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 90.0
TRIES = 6
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 32.0
FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.25, 10.0
PASSING = {500, 502, 503, 504}
REPEATABLE = re.compile(r"(/listManagedInstances|/listErrors|:testIamPermissions|:getIamPolicy|:cancel)$")
"""These are sent by POST, and sent twice they do no more than once."""


def new_request_id() -> str:
    """For `requestId`: Google does a request that it has seen under the same one only once."""
    return str(uuid.uuid4())


class Google:
    """One project's. Raises `CloudError` for what Google refuses and `InputError` for a bad address override."""

    def __init__(self, project: str) -> None:
        self.project = project
        self._session: Any = None
        require("gcsfs", "Google Cloud")  # which needs google-auth itself
        _let_files_use_the_token()

    def call(self, api: str, verb: str, path: str, body: dict[str, Any] | None = None, **query: Any) -> dict[str, Any]:
        """`path` without version, as in "projects/p/zones/z/disks". What passes (too many requests, 5xx, a lost
        connection) is tried again where repeating is safe: reads, PUT, DELETE, and what has a `requestId`."""
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
                return {}  # the answer to the first one was lost, not its effect
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

    def pages(self, api: str, path: str, key: str, *, verb: str = "GET", **query: Any) -> Iterator[dict[str, Any]]:
        """What all pages hold under `key`. Of aggregated lists ({"zones/z": {"disks": […]}}), what is in all places."""
        token = None
        while True:
            answer = self.call(api, verb, path, pageToken=token, **query)
            found = answer.get(key) or []
            if isinstance(found, dict):
                found = [
                    one for place in found.values() for part in place.values() if isinstance(part, list) for one in part
                ]
            yield from found
            token = answer.get("nextPageToken")
            if not token:
                return

    def wait(self, api: str, operation: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        """Until it is over: compute's operation, or what google.longrunning's made ("response"; {} for nothing).
        `call` gives {} for a DELETE that was done before: that is over."""
        if not operation:
            return {}
        path, until, pause = operation_path(operation), time.monotonic() + seconds, FIRST_POLL_SECONDS
        while True:
            if operation.get("done") or operation.get("status") == "DONE":
                refusal = errors.of_operation(operation)
                if refusal:
                    raise self._refused(refusal, api, target_of(operation) or path)
                return operation if "status" in operation else cast(dict[str, Any], operation.get("response") or {})
            left = until - time.monotonic()
            if left <= 0:
                what = f"is not done after {seconds:.0f} s; Google goes on with it"
                fix = "run this again: what is done by then is not done twice"
                raise CloudError(what, reason="other", where=target_of(operation) or path, fix=fix)
            time.sleep(min(pause, left))
            pause = min(pause * 1.6, LONGEST_POLL_SECONDS)
            operation = self.call(api, "GET", path)

    def address(self, api: str, path: str = "") -> str:
        """Where the API is, with its version. Vertex AI's is in the location that the path names."""
        version = VERSIONS[api]
        variable = f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api.upper()}"
        override = os.environ.get(variable)
        if not override:
            place = re.match(r"projects/[^/]+/locations/([^/]+)", path) if api == "aiplatform" else None
            return f"https://{place[1] + '-' if place else ''}{api}.googleapis.com/{version}"
        parts = urlsplit(override)
        if parts.scheme != "https" and not (
            parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
        ):
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
        wanted = {key: _text(value) for key, value in query.items() if value is not None}
        try:
            return self._session.request(
                verb,
                address,
                params=wanted,
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
        content = _json(answer)
        if not isinstance(content, dict):
            fix = "check proxies between here and Google"
            raise CloudError("answered with what is not JSON", reason="failed", where=f"{api} {path}", fix=fix)
        return content

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
    """Unix time of Google's UTC timestamps, to the second; None for what is none."""
    try:
        return float(calendar.timegm(time.strptime(timestamp[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


def operation_path(operation: dict[str, Any]) -> str:
    """Of compute's operations the path is in the link to itself; the others' name is one."""
    link = str(operation.get("selfLink", ""))
    return link[link.index("projects/") :] if "projects/" in link else str(operation.get("name", ""))


def target_of(operation: dict[str, Any]) -> str:
    link = str(operation.get("targetLink", ""))
    return (
        link[link.index("projects/") :]
        if "projects/" in link
        else str((operation.get("metadata") or {}).get("target", ""))
    )


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
    """gcsfs knows nothing of the variable, and would go on without credentials. Given the token as text it would send
    it to Google's tokeninfo, in an address."""
    if not (token := os.environ.get("GOOGLE_OAUTH_ACCESS_TOKEN")):
        return
    import fsspec
    from google.oauth2.credentials import Credentials

    for protocol in ("gs", "gcs"):
        settings = fsspec.config.conf.setdefault(protocol, {})
        if getattr(settings.get("token"), "token", None) != token:
            settings["token"] = Credentials(token=token)


def _no_credentials(error: Exception) -> CloudError:
    fix = "gcloud auth application-default login, or a fresh token in GOOGLE_OAUTH_ACCESS_TOKEN (they last an hour)"
    what = f"no usable Google credentials: {' '.join(str(error).split())[:200].rstrip('.')}"
    return CloudError(what, reason="credentials", fix=fix)


def _pause(attempt: int, asked: str | None) -> float:
    """Seconds: what Google asks for, else 1, 2, 4, … with up to half of it more, so that hosts do not come together."""
    if asked and asked.isdigit():
        return min(float(asked), LONGEST_PAUSE_SECONDS)
    return min(FIRST_PAUSE_SECONDS * 2**attempt, LONGEST_PAUSE_SECONDS) * (1 + random.random() / 2)


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _json(answer: Any) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None
