"""The fake cloud's HTTP side: which API a path belongs to, uploads, errors as Google words them, the journal."""

from __future__ import annotations

import json
import re
import sys
import threading
import traceback
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import loopback
from google_cloud import services, storage
from google_cloud.judge import Api, Refused, Request, api

if TYPE_CHECKING:
    from google_cloud.fake import Cloud

Answer = tuple[int, dict[str, str], bytes]


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever is interrupted hangs up, which is no error of the server's to be told on stderr."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def serve(cloud: Cloud) -> Server:
    server = Server(("127.0.0.1", 0), type("Handler", (Handler,), {"cloud": cloud}))
    server.daemon_threads = True
    cloud.url = cloud.url or f"http://127.0.0.1:{server.server_port}"
    # shutdown() waits for a round of polling, by default half a second.
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server


class Handler(loopback.Handler):
    cloud: Cloud
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self) -> None:
        from google_cloud.fake import Dropped

        raw = self.read_body()
        url = urlsplit(self.path)
        record: dict[str, Any] = {"verb": self.command, "path": url.path, "query": url.query}
        record["agent"] = self.headers.get("User-Agent", "")[:80]
        try:
            with self.cloud.lock:
                code, headers, content = self.route(self.command, url.path, url.query, raw, record)
        except Dropped:
            self.cloud.journal.append(record | {"code": 0})
            self.close_connection = True
            return
        except Refused as error:
            code, content = error.code, json.dumps(error.body()).encode()
            # Clients wait as long as they are told to, or some seconds.
            headers = {"Retry-After": "0"} if code in (429, 500, 502, 503) else {}
            record["error"] = str(error)
        except Exception as error:
            # A fault of the fake: loud, and with a code that no client tries again: gcloud repeats 5xx for 30 seconds.
            traceback.print_exc(file=sys.stderr)
            code, headers = 400, {}
            content = json.dumps(Refused(f"FAULT OF THE FAKE: {error!r}").body()).encode()
            record["error"] = f"FAULT OF THE FAKE: {error!r}"
        self.cloud.journal.append(record | {"code": code})
        self.send(code, headers, content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = answer

    def send(self, code: int, headers: dict[str, str], content: bytes) -> None:
        try:
            self.send_response(code)
            for name, text in ({"Content-Type": "application/json; charset=UTF-8"} | headers).items():
                self.send_header(name, text)
            if code != 204:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)
        except ConnectionError:
            self.close_connection = True

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def route(self, verb: str, path: str, query: str, raw: bytes, record: dict[str, Any]) -> Answer:
        lists = parse_qs(query, keep_blank_values=True)
        if path == "/__terraform":
            return self.terraform(raw, lists, record)
        if "upload_id" in lists:
            return storage.next_piece(self.cloud, lists["upload_id"][0], self.headers["Content-Range"], raw)
        document, path, plain = self.document(path)
        if document is None and plain:
            record["method"] = "storage.xml"
            self.authorised(optional=True)
            return storage.read_plain(self.cloud, verb, *plain)
        if document is None:
            raise Refused(f"The requested URL {path} was not found on this server.", 404)
        self.authorised(optional=document.name == "storage")
        method, names, media = document.match(verb, path)
        record["method"] = method["id"]
        names = {name: unquote(value) for name, value in names.items()}
        name = re.sub(r"^v\d+\w*/", "", unquote(path)[1:].removeprefix(document.prefix))
        flat = {key: values[-1] for key, values in lists.items()}
        request = Request(document, method, name, names, flat, lists, {}, self.cloud.url)
        content = b""
        if media:
            request.body, content = storage.take_apart(self.headers.get("Content-Type", ""), flat, raw)
        elif raw:
            request.body = _json(raw)
        record["body"] = request.body
        self.cloud.allow(method["id"], request.name)
        document.check_request(method, names, lists, request.body)
        lost = self.cloud.trip(method["id"], request.body.get("name", "") if media else request.name)
        if media:
            result = storage.upload(self.cloud, request, content)
        else:
            result = self.cloud.call(request)
        if lost:
            lost.answer()
        if result is None:
            return 204, {}, b""
        if not isinstance(result, dict):
            return result
        body = public(result)
        document.check_response(method, body)
        return 200, {}, json.dumps(body).encode()

    def document(self, path: str) -> tuple[Api | None, str, tuple[str, str] | None]:
        """The API, the path as its document has it, and (bucket, object) of what may be a read by storage's XML API."""
        for lead in ("/download/storage/v1/", "/storage/v1/", "/upload/storage/v1/"):
            if path.startswith(lead):
                return api("storage", "v1"), path.replace("/download/", "/", 1), None
        if path.startswith("/compute/v1/"):
            return api("compute", "v1"), path, None
        first, _, rest = path[1:].partition("/")
        version = rest.split("/")[0].split(":")[0]
        if re.fullmatch(r"v\d+\w*", version) and re.fullmatch(r"[a-z]+", first):
            return api(first, version), "/" + rest, None
        return None, path, (unquote(first), unquote(rest)) if first and rest else None

    def authorised(self, *, optional: bool) -> None:
        """gcsfs sends no token to an emulator of storage."""
        from google_cloud.fake import TOKEN

        given = self.headers.get("Authorization")
        if given is None and optional:
            return
        if given != f"Bearer {TOKEN}":
            message = "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or "
            raise Refused(message + "other valid authentication credential.", 401)

    def terraform(self, raw: bytes, lists: dict[str, list[str]], record: dict[str, Any]) -> Answer:
        """`{op, type, id, state}` is a change; GET with type and id -> `{"state": …}`, or 404."""
        if self.command == "GET":
            kind, ident = lists["type"][0], lists["id"][0]
            if (state := services.read_state(self.cloud, kind, ident)) is None:
                raise Refused(f"{kind} {ident} does not exist", 404)
            return 200, {}, json.dumps({"state": state}).encode()
        change = _json(raw)
        record |= {"method": f"terraform.{change['type']}.{change['op']}", "body": change}
        self.cloud.trip(record["method"])
        services.change_state(self.cloud, change["op"], change["type"], change["id"], change["state"] or {})
        return 200, {}, b"{}"


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        raise Refused("Invalid JSON payload received. Unexpected token.") from None


def public(value: Any) -> Any:
    """Without what the fake keeps for itself, under names that begin with _."""
    if isinstance(value, dict):
        return {name: public(one) for name, one in value.items() if not name.startswith("_")}
    return [public(one) for one in value] if isinstance(value, list) else value
