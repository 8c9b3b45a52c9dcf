"""Google's REST APIs with one authorised session: `Google`. No other file uses google-auth.

The token is GOOGLE_OAUTH_ACCESS_TOKEN if that is set, as for Terraform's provider. Else it comes from
`gcloud auth application-default login`, a key file or the metadata server. gcloud's own variables replace addresses
(CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE and so on); plain http is allowed only on this machine.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator
from functools import cached_property
from typing import Any, cast
from urllib.parse import quote, urlsplit

from maskwright.cloud.google import errors
from maskwright.core.errors import CloudError, InputError
from maskwright.core.extras import require
from maskwright.core.folder import Folder
from maskwright.core.secrets import HIDDEN

VERSIONS = {
    "aiplatform": "v1",
    "artifactregistry": "v1",
    "cloudbuild": "v1",
    "cloudresourcemanager": "v3",
    "compute": "compute/v1",
    "container": "v1",
    "file": "v1",
    "logging": "v2",
    "serviceusage": "v1",
    "storage": "storage/v1",
}
"""The APIs that are called. gcloud's variables for compute and storage include the version."""
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 90.0
TRIES = 6
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 32.0
FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.25, 10.0
TRANSIENT = {500, 502, 503, 504}
REPEATABLE = re.compile(r"[:/](batchEnable|cancel|list)$")
"""POST methods that are safe to repeat."""


class Google:
    """The APIs for one project. Raises `CloudError` for refusals and failures, `InputError` for a bad address."""

    def __init__(self, project: str) -> None:
        self.project = project
        _give_token_to_gcsfs()

    def call(self, api: str, verb: str, path: str, body: dict[str, Any] | None = None, **query: Any) -> dict[str, Any]:
        """`path` has no version, as in "projects/p/zones/z/disks". Transient failures (too many requests, 5xx, a lost
        connection) are retried if that is safe."""
        repeatable = verb == "GET" or bool(REPEATABLE.search(path))
        address = f"{self.address(api, path)}/{quote(path, safe='/:%@-._~')}"
        for attempt in range(TRIES):
            last = attempt == TRIES - 1
            try:
                answer = self._send(verb, address, body, query)
            except ConnectionError as error:
                if not repeatable or last:
                    raise self._lost(api, path, error, repeatable) from None
                time.sleep(_pause(attempt, None))
                continue
            if answer.status_code < 300:
                return self._content(answer, api, path)
            refusal = errors.of_answer(answer.status_code, _json(answer), answer.text)
            transient = answer.status_code in TRANSIENT and refusal.reason == "failed"
            # A rate limit refuses before anything is done, so even a POST may be repeated.
            if last or not (refusal.reason == errors.RATE or (transient and repeatable)):
                raise self._refused(refusal, api, path)
            time.sleep(_pause(attempt, answer.headers.get("Retry-After")))
        raise AssertionError("the last attempt returns or raises")

    def find(self, api: str, path: str, **query: Any) -> dict[str, Any] | None:
        """None if it does not exist."""
        try:
            return self.call(api, "GET", path, **query)
        except CloudError as error:
            if error.reason == "missing":
                return None
            raise

    def pages(
        self, api: str, path: str, key: str, *, body: dict[str, Any] | None = None, **query: Any
    ) -> Iterator[dict[str, Any]]:
        """The items under `key`, from all pages. With a `body`, which gets the token of the page, it is a POST."""
        token = None
        while True:
            if body is None:
                answer = self.call(api, "GET", path, pageToken=token, **query)
            else:
                answer = self.call(api, "POST", path, {**body, **({"pageToken": token} if token else {})}, **query)
            yield from answer.get(key) or ()
            if not (token := answer.get("nextPageToken")):
                return

    def wait(self, api: str, operation: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        """Wait until a google.longrunning operation is done. Returns its "response", which may be {}."""
        until, pause = time.monotonic() + seconds, FIRST_POLL_SECONDS
        target = str((operation.get("metadata") or {}).get("target", "")) or str(operation["name"])
        while not operation.get("done"):
            left = until - time.monotonic()
            if left <= 0:
                what = f"is still running after {seconds:.0f} s; Google continues it"
                fix = "run this again, which does not repeat finished parts"
                raise CloudError(what, reason="other", where=target, fix=fix)
            time.sleep(min(pause, left))
            pause = min(pause * 1.6, LONGEST_POLL_SECONDS)
            operation = self.call(api, "GET", str(operation["name"]))
        if refusal := errors.of_operation(operation):
            raise self._refused(refusal, api, target)
        return cast(dict[str, Any], operation.get("response") or {})

    @cached_property
    def _session(self) -> Any:
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
        session.auth = lambda request: request  # otherwise a `default` entry of ~/.netrc would replace the token
        return session

    def token(self) -> str:
        """An access token that is valid for the next minutes, for programs that cannot get one themselves."""
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.auth.transport.requests import Request

        credentials = self._session.credentials
        try:
            if not credentials.valid:
                credentials.refresh(Request())
        except TransportError as error:
            what = f"no answer about a token: {' '.join(str(error).split())[:200]}"
            raise CloudError(what, reason="unreached", fix="check the network and proxies") from None
        except GoogleAuthError as error:
            raise _no_credentials(error) from None
        return str(credentials.token)

    def address(self, api: str, path: str = "") -> str:
        """Address of the API with its version. Vertex AI has one for each location, which the path names."""
        version = VERSIONS[api]
        variable = f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api.upper()}"
        override = os.environ.get(variable)
        if not override:
            location = re.match(r"projects/[^/]+/locations/([^/]+)", path) if api == "aiplatform" else None
            return f"https://{location[1] + '-' if location else ''}{api}.googleapis.com/{version}"
        parts = urlsplit(override)
        loopback = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
        if parts.scheme != "https" and not loopback:
            fix = "use https://…, or http:// with 127.0.0.1"
            raise InputError("would send your credentials in the clear", where=variable, fix=fix)
        root = override.rstrip("/")
        return root if "/" in version else f"{root}/{version}"

    # ---- one request -------------------------------------------------------------------------------------------------

    def _send(self, verb: str, address: str, body: dict[str, Any] | None, query: dict[str, Any]) -> Any:
        """Raises `ConnectionError` if no answer comes."""
        import requests
        from google.auth.exceptions import GoogleAuthError, TransportError

        options = {"timeout": (CONNECT_SECONDS, ANSWER_SECONDS), "max_allowed_time": None, "allow_redirects": False}
        try:
            return self._session.request(verb, address, params=query, json=body, **options)
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
        raise CloudError("the answer is not JSON", reason="failed", where=f"{api} {path}", fix=fix)

    def _refused(self, refusal: errors.Refusal, api: str, path: str) -> CloudError:
        error = errors.cloud_error(refusal, project=self.project, api=api, where=path)
        if token := self._session.credentials.token:
            error.what = error.what.replace(token, HIDDEN)
        return error

    def _lost(self, api: str, path: str, error: Exception, repeatable: bool) -> CloudError:
        if repeatable:
            what, fix = f"cannot be reached after {TRIES} tries: {error}", "check the network and proxies"
        else:
            what = f"no answer, so it may or may not be done: {error}"
            fix = "run this again, which first checks what exists"
        return CloudError(what, reason="unreached", where=f"{self.address(api, path)}/{path}", fix=fix)


def bucket_folder(location: str, *, tries: int = 1) -> Folder:
    """A folder gs://… that a command of the cloud reads or writes with the same credentials as `Google`. `tries`: see
    `Folder`. Raises `ConfigError` if gcsfs is not installed."""
    _give_token_to_gcsfs()
    return Folder(location, tries=tries)


def _give_token_to_gcsfs() -> None:
    """Makes gcsfs use GOOGLE_OAUTH_ACCESS_TOKEN. By itself gcsfs ignores the variable and continues without
    credentials, and it sends a token that is given as text to Google's tokeninfo, in an address. Raises `ConfigError`
    if gcsfs is not installed."""
    require("gcsfs", "Google Cloud")  # brings google-auth
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
    """Seconds that Google requests, else 1, 2, 4, … plus up to half of it, so that hosts do not retry together."""
    if asked and asked.isdigit():
        return min(float(asked), LONGEST_PAUSE_SECONDS)
    return min(FIRST_PAUSE_SECONDS * 2**attempt, LONGEST_PAUSE_SECONDS) * (1 + random.random() / 2)


def _json(answer: Any) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None
