"""A Hugging Face Hub of its own on loopback, as far as `huggingface_hub` uses it for models, and for the files of data
sets (`datasets/OWNER/NAME`): repositories with branches and commits, private and gated ones, files with the headers
that a download reads, the check of a card's metadata, and commits with files of git and of LFS."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml
from loopback import Handler, serving

TOKEN = "hf_only-this-one-may-do-it"


@dataclass
class Repository:
    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files of each commit, by its digest; the last one is the newest."""
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes]) -> str:
        """On `main`."""
        digest = hashlib.sha1(repr((len(self.commits), sorted(files.items()))).encode()).hexdigest()
        self.commits[digest] = files
        self.branches["main"] = digest
        return digest

    def find(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.branches.get(revision)


class FakeHub:
    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        """Large files by sha256."""
        self.requests: list[str] = []
        """METHOD PATH of each."""
        self.broken: list[str] = []
        """Beginnings of METHOD PATH that are answered with 500."""
        self.url = ""

    def add(self, name: str, folder: str | Path, **keys: Any) -> str:
        """Commits the files of a folder, to a repository that may be new. Returns the commit."""
        repository = self.repositories.setdefault(name, Repository())
        vars(repository).update(keys)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return repository.commit({path.relative_to(folder).as_posix(): path.read_bytes() for path in files})

    def downloaded(self) -> set[str]:
        """Names of the files whose content was asked for."""
        resolved = [line.partition("/resolve/")[2] for line in self.requests if line.startswith("GET ")]
        return {name.partition("/")[2] for name in resolved if name}


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()
    with serving(type("OfStore", (_Handler,), {"hub": hub})) as hub.url:
        yield hub


class _Refused(Exception):
    """(status, X-Error-Code, X-Error-Message)"""

    commit = ""


class _Handler(Handler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        self.sent = self.body()
        path = unquote(urlsplit(self.path).path)
        line = f"{self.command} {path}"
        self.hub.requests.append(line)
        try:
            if self.headers.get("Authorization") not in (None, f"Bearer {TOKEN}"):
                raise _Refused(401, "", "Invalid credentials in Authorization header")
            if any(line.startswith(beginning) for beginning in self.hub.broken):
                raise _Refused(500, "", "the disk is full")
            self._route(path.strip("/").split("/"))
        except _Refused as refused:
            code, kind, message = refused.args
            headers = {"X-Error-Code": kind, "X-Error-Message": message}
            headers |= {"X-Repo-Commit": refused.commit}
            self.reply(code, {"error": message}, {key: text for key, text in headers.items() if text})

    do_GET = do_HEAD = do_POST = do_PUT = _serve

    def _may_write(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise _Refused(401, "", "Invalid credentials in Authorization header")

    def _repository(self, name: str) -> Repository:
        found = self.hub.repositories.get(name)
        allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if found is None or (found.private and not allowed):
            # As the Hub does, which does not tell strangers what exists.
            raise _Refused(404 if allowed else 401, "RepoNotFound", "Repository not found")
        return found

    def _revision(self, repository: Repository, revision: str) -> str:
        found = repository.find(revision)
        if found is None:
            raise _Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return found

    def _route(self, parts: list[str]) -> None:
        match parts:
            case ["api", "validate-yaml"]:
                self._validate(json.loads(self.sent)["content"])
            case ["api", "repos", "create"]:
                self._create(json.loads(self.sent))
            case ["api", "models", owner, name, *rest]:
                self._model(f"{owner}/{name}", rest)
            case ["api", "datasets", owner, name, *rest]:
                self._model(f"datasets/{owner}/{name}", rest)
            case ["datasets", owner, name, "resolve", revision, *file]:
                self._resolve(f"datasets/{owner}/{name}", [revision, "/".join(file)])
            case ["lfs", digest]:
                assert hashlib.sha256(self.sent).hexdigest() == digest
                self.hub.objects[digest] = self.sent
                self.reply(200)
            case [_, name, "info", "lfs", "objects", "batch"] if name.endswith(".git"):
                self._may_write()
                wanted = json.loads(self.sent)["objects"]
                for one in wanted:
                    one["actions"] = {"upload": {"href": f"{self.hub.url}/lfs/{one['oid']}"}}
                self.reply(200, {"transfer": "basic", "objects": wanted})
            case [owner, name, "resolve", revision, *file]:
                self._resolve(f"{owner}/{name}", [revision, "/".join(file)])
            case _:
                raise _Refused(404, "", f"no such page: {self.path}")

    def _model(self, name: str, rest: list[str]) -> None:
        if rest[:1] == ["preupload"]:
            self._may_write()
            self._repository(name)
            files = [
                {"path": one["path"], "uploadMode": self._mode(one["path"]), "shouldIgnore": False}
                for one in json.loads(self.sent)["files"]
            ]
            return self.reply(200, {"files": files})
        if rest[:1] == ["commit"]:
            return self._commit(name)
        repository = self._repository(name)
        if rest[:1] == ["tree"]:
            commit = self._revision(repository, rest[1])
            return self.reply(200, json.dumps(self._tree(repository.commits[commit], rest[2:])).encode())
        commit = self._revision(repository, "/".join(rest[1:]) or "main")
        if rest[:1] == ["paths-info"]:
            return self.reply(200, json.dumps(self._paths(repository.commits[commit])).encode())
        siblings = [{"rfilename": file} for file in repository.commits[commit]]
        self.reply(200, {"id": name, "sha": commit, "private": repository.private, "siblings": siblings})

    def _tree(self, files: dict[str, bytes], below: list[str]) -> list[dict[str, Any]]:
        """The files and folders of a folder; with `recursive`, those below it too."""
        prefix = "".join(f"{folder}/" for folder in below)
        folders = {str(folder) for path in files for folder in PurePosixPath(path).parents} - {"."}
        paths = sorted(path for path in {*files} | folders if path.startswith(prefix))
        if "recursive=true" not in self.path.lower():
            paths = [path for path in paths if "/" not in path.removeprefix(prefix)]
        return [self._path(files, path) for path in paths]

    def _path(self, files: dict[str, bytes], path: str) -> dict[str, Any]:
        kind = {"type": "file", "size": len(files[path])} if path in files else {"type": "directory"}
        return kind | {"path": path, "oid": "0" * 40}

    def _paths(self, files: dict[str, bytes]) -> list[dict[str, Any]]:
        """Of the paths that are asked for, those that are there."""
        asked = parse_qs(self.sent.decode())["paths"]
        return [self._path(files, path) for path in asked if any(f"{file}/".startswith(f"{path}/") for file in files)]

    def _mode(self, path: str) -> str:
        return "lfs" if path.endswith((".safetensors", ".onnx", ".bin")) else "regular"

    def _resolve(self, name: str, rest: list[str]) -> None:
        repository = self._repository(name)
        at = -2 if rest[-2].endswith("_Pooling") else -1  # a revision may hold slashes too
        file, revision = "/".join(rest[at:]), "/".join(rest[:at])
        commit = self._revision(repository, revision)
        if repository.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise _Refused(403, "GatedRepo", "Access to this model is restricted")
        content = repository.commits[commit].get(file)
        if content is None:
            absent = _Refused(404, "EntryNotFound", "Entry not found")
            absent.commit = commit
            raise absent
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        if self._mode(file) == "lfs":
            headers |= {"X-Linked-ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
            headers |= {"X-Linked-Size": str(len(content))}
        self.reply(200, content, headers)

    def _create(self, asked: dict[str, Any]) -> None:
        self._may_write()
        name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
        url = f"{self.hub.url}/{name}"
        if name in self.hub.repositories:
            return self.reply(409, {"error": "You already created this model repo", "url": url})
        self.hub.repositories[name] = Repository(
            private=asked.get("visibility") == "private" or bool(asked.get("private"))
        )
        self.hub.repositories[name].commit({".gitattributes": b""})
        self.reply(200, {"url": url})

    def _validate(self, card: str) -> None:
        """Like the Hub, refuses values of the wrong kind and warns where there is no metadata."""
        found = yaml.safe_load(card.split("---")[1]) if card.startswith("---") else None
        if not isinstance(found, dict):
            return self.reply(200, {"warnings": [{"message": "empty or missing yaml metadata in repo card"}]})
        texts = ("license", "library_name", "pipeline_tag", "base_model")
        wrong = [f'"{key}" must be a string' for key in texts if key in found and not isinstance(found[key], str)]
        if "language" in found and not found["language"]:
            wrong.append('"language" must be a code')
        if wrong:
            return self.reply(400, {"errors": [{"message": message} for message in wrong]})
        self.reply(200, {"errors": [], "warnings": []})

    def _commit(self, name: str) -> None:
        self._may_write()
        repository = self._repository(name)
        files = dict(repository.commits[repository.branches["main"]])
        for line in map(json.loads, self.sent.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
        oid = repository.commit(files)
        url = f"{self.hub.url}/{name}/commit/{oid}"
        self.reply(200, {"success": True, "commitOid": oid, "commitUrl": url})
