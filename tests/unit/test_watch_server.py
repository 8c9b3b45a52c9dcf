"""The server of `maskwright watch --web`, asked without a socket: who may ask, and what it answers."""

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from urllib.parse import urlencode

import pytest
from browser.made_runs import MadeRun
from command_line import COMMAND

from maskwright.core.errors import ConfigError, InputError
from maskwright.monitor.watch import guard, server
from maskwright.monitor.watch.server import RunIndex, application
from maskwright.run.directory import RunDirectory

for _package in ("starlette", "uvicorn", "plotly"):
    pytest.importorskip(_package, reason="needs the extra web")

TOKEN = "a-token-of-the-tests-alone"
BEARER = {"authorization": f"Bearer {TOKEN}"}


class Asked:
    """An application, asked as by a browser that has its address."""

    def __init__(self, folder, *, host="127.0.0.1", stop_seconds=60.0):
        self.index = RunIndex([str(folder)], stop_seconds=stop_seconds)
        self._app = application(self.index, token=TOKEN, host=host)

    def __call__(self, path, *how, **query):
        """(status, JSON or bytes). What is sent is in `headers` afterwards."""
        return asyncio.run(self.answer(path, *how, **query))

    async def answer(self, path, method="GET", headers=BEARER, **query):
        sent = []

        async def receive():
            await asyncio.sleep(60)

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "scheme": "http",
            "method": method,
            "path": path,
            "root_path": "",
            "query_string": urlencode(query, doseq=True).encode(),
            "headers": [(key.encode(), value.encode()) for key, value in {"host": "127.0.0.1:8484", **headers}.items()],
        }
        await self._app(scope, receive, send)
        self.headers = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
        content = b"".join(message.get("body", b"") for message in sent[1:])
        is_json = self.headers.get("content-type") == "application/json"
        return sent[0]["status"], json.loads(content) if is_json else content


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    place = tmp_path_factory.mktemp("served")
    log = ["step 10  loss 3.2", "saved it", *(f"step {step}  loss 2" for step in range(20, 60)), "Saved again <b>"]
    log += ["get https://me:hunter2@host/a"]
    config = {"data.store": "https://me:hunter2@host/store"}
    spiked = ({"step": 1_200, "event": "spiked", "loss": 9.1}, {"step": 1_300, "event": "started", "attempt": 2})
    MadeRun(place / "one", ranks=4, log=tuple(log), config=config, events=spiked).write()
    MadeRun(place / "two", step=10_000, phase="done", seed=3, age=60.0).write()
    return place


@pytest.fixture(scope="module")
def ask(root):
    return Asked(root)


@pytest.fixture(scope="module")
def one(ask):
    runs = ask("/api/runs")[1]["runs"]
    assert [run["name"] for run in runs] == ["one", "two"]
    return str(runs[0]["id"])


# ---- answers -------------------------------------------------------------------------------------------------------


def test_a_run_and_what_is_told_of_it(ask, one):
    status, found = ask(f"/api/runs/{one}")
    assert status == 200 and found["state"] == "running" and found["id"] == one
    assert found["config"]["data.store"] == "https://***@host/store" and "hunter2" not in json.dumps(found)
    saved = [(one["state"], one["bytes"]) for one in found["checkpoints"]]
    assert saved == [("whole", 74_000_000), ("whole", 74_000_000), ("partial", 1000)]
    assert [incident["event"] for incident in found["incidents"]] == ["started", "spiked", "gone", "started"]
    assert [(rank["rank"], rank["verdict"]) for rank in found["ranks"]] == [(n, "fine") for n in range(4)]
    assert {"loss", "valid_loss", "learning_rate", "tokens", "time"} <= set(found["metrics"]) - {"step"}
    assert "step" not in found["metrics"]
    assert ask.headers["cache-control"] == "no-store"
    _, end = ask(f"/api/runs/{one}/log", lines=3)
    assert len(end["lines"]) == 3 and end["start"] == end["lines"][0]["at"] > 0
    assert "https://***@host" in end["lines"][2]["text"] and "hunter2" not in json.dumps(end)
    assert ask(f"/api/runs/{one}/log", search="hunter")[1]["lines"] == []  # a secret is not found either
    assert len(ask(f"/api/runs/{one}/log", search="SAVED")[1]["lines"]) == 2


def test_a_name_that_is_not_utf8_does_not_take_the_page_down(tmp_path):
    MadeRun(tmp_path / os.fsdecode(b"caf\xe9"), phase="done", age=60.0).write()
    asked = Asked(tmp_path)
    status, found = asked("/api/runs")
    (run,) = found["runs"]
    assert (status, os.fsencode(run["name"])) == (200, b"caf\xe9")
    assert asked(f"/api/runs/{run['id']}")[0] == 200


def test_series(ask, one, root):
    status, found = ask("/api/series", run=[one, "gone"], metric=["loss", "nothing"], points=50)
    (line,) = found["series"]
    lines = [json.loads(line) for line in (root / "one" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line][:8]
    assert (status, line["run"], line["metric"], len(line["value"]), line["step"][-1]) == (200, one, "loss", 50, 4_000)
    assert line["value"][0] == pytest.approx(sum(losses) / 8)
    assert (line["low"][0], line["high"][0]) == (min(losses), max(losses))
    found = ask("/api/series", run=one, metric="loss", **{"from": 1_000, "to": 1_090})[1]
    assert found["series"][0]["step"] == list(range(1_000, 1_091, 10))


def test_nobody_writes_the_rest_of_a_line_of_a_run_that_has_ended(tmp_path):
    for phase, shown in (("training", []), ("failed", ["half of a"])):
        made = MadeRun(tmp_path / phase / "run", lines=40, log=("one", "two"), phase=phase).write()
        ask = Asked(tmp_path / phase)
        with (made.folder / "log.txt").open("a") as file:
            file.write("half of a")
        found = ask(f"/api/runs/{ask('/api/runs')[1]['runs'][0]['id']}/log")[1]
        assert [line["text"] for line in found["lines"]][2:] == shown


def test_the_page_and_what_it_loads(ask):
    status, page = ask("/")
    assert status == 200 and b"<html" in page and ask.headers["content-type"] == "text/html; charset=utf-8"
    policy = ask.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe-eval" not in policy and "http" not in policy
    for name in sorted(os.listdir(server.PAGE)):
        if name != "index.html":
            assert ask(f"/{name}")[0] == 200 and ask.headers["x-content-type-options"] == "nosniff", name
    status, library = ask("/plotly.js")
    assert status == 200 and b"plotly" in library[:2_000] and "max-age" in ask.headers["cache-control"]


# ---- who may ask, and for what -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "query", "code"),
    [
        ("/api/runs/nothing", {}, 404),
        ("/api/runs/nothing/log", {}, 404),
        ("/api/runs/..%2f..%2fetc", {}, 404),
        ("/../status.json", {}, 404),
        ("/server.py", {}, 404),
        ("/api/series", {"run": ["a"] * 101, "metric": ["b"] * 10}, 400),
        ("/api/series", {"run": "a", "metric": "loss", "points": "many"}, 400),
        ("/api/series", {"run": "/etc", "metric": "../../loss"}, 200),
    ],
)
def test_ids_and_never_paths(ask, path, query, code):
    status, found = ask(path, **query)
    assert status == code
    assert found == {"series": []} if code == 200 else found["error"].keys() == {"what", "where", "fix"}


@pytest.mark.parametrize(
    ("host", "headers", "get", "post"),
    [
        ("127.0.0.1", {}, 401, 401),
        ("127.0.0.1", {"authorization": TOKEN}, 401, 401),
        ("127.0.0.1", {"authorization": "Bearer \xe9"}, 401, 401),
        ("127.0.0.1", BEARER, 200, 409),
        ("127.0.0.1", {"host": "localhost:9000"}, 401, 401),  # through a tunnel
        ("127.0.0.1", {"host": "[::1]:9000", "origin": "http://[::1]:9000", **BEARER}, 200, 409),
        ("127.0.0.1", {"host": "evil.example:8484", **BEARER}, 403, 403),
        ("127.0.0.1", {"host": "10.0.0.1:8484", **BEARER}, 403, 403),
        ("127.0.0.1", {"host": "[broken", **BEARER}, 403, 403),
        ("127.0.0.1", {"origin": "http://evil.example", **BEARER}, 200, 403),
        ("127.0.0.1", {"origin": "null", **BEARER}, 200, 403),
        ("127.0.0.1", {"origin": "http://127.0.0.1:8485", **BEARER}, 200, 403),
        ("127.0.0.1", {"origin": "http://127.0.0.1:8484", **BEARER}, 200, 409),
        ("0.0.0.0", {"host": "10.0.0.1:8484"}, 401, 401),
        ("0.0.0.0", {"host": "10.0.0.1:8484", **BEARER}, 200, 409),
        ("0.0.0.0", {"host": "evil.example:8484", **BEARER}, 403, 403),
        ("lab.example", {"host": "LAB.example:8484", **BEARER}, 200, 409),
    ],
)
def test_the_token_the_host_and_the_origin(root, host, headers, get, post):
    ask = Asked(root, host=host)
    assert ask("/api/runs", headers=headers)[0] == get
    id_ = next(run["id"] for run in ask("/api/runs", headers=BEARER)[1]["runs"] if run["name"] == "two")
    status, found = ask(f"/api/runs/{id_}/stop", "POST", headers=headers)
    assert status == post and found["error"]["fix"]
    assert not (root / "two" / "request.json").exists()


def test_what_links_in_a_run_lead_to_needs_the_token_on_loopback_too(tmp_path):
    made = MadeRun(tmp_path / "run", lines=40).write()
    (tmp_path / "private").write_text("of somebody else\n")
    (made.folder / "log.txt").unlink()
    (made.folder / "log.txt").symlink_to(tmp_path / "private")
    ask = Asked(tmp_path)
    id_ = ask("/api/runs")[1]["runs"][0]["id"]
    paths = ("/api/runs", f"/api/runs/{id_}", f"/api/runs/{id_}/log", "/api/series", "/api/nothing")
    assert [ask(path, headers={})[0] for path in paths] == [401] * len(paths)
    assert ask(f"/api/runs/{id_}/log")[1]["lines"] == [{"at": 0, "text": "of somebody else"}]
    assert ask("/", headers={})[0] == ask("/plotly.js", headers={})[0] == 200


def test_the_token_of_the_environment(monkeypatch):
    monkeypatch.delenv(guard.TOKEN_VARIABLE, raising=False)
    assert guard.given_token() is None and len(guard.new_token()) >= 32 and guard.new_token() != guard.new_token()
    monkeypatch.setenv(guard.TOKEN_VARIABLE, TOKEN)
    assert guard.given_token() == TOKEN
    for weak in ("", "short", "é" * 20):
        monkeypatch.setenv(guard.TOKEN_VARIABLE, weak)
        with pytest.raises(InputError, match="too short"):
            guard.given_token()


# ---- the buttons ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", ["stop", "checkpoint"])
def test_a_run_is_asked_and_the_server_answers_others_meanwhile(tmp_path, request_):
    made = MadeRun(tmp_path / "run", lines=40).write()
    ask, directory = Asked(tmp_path), RunDirectory(str(made.folder))
    path = f"/api/runs/{ask('/api/runs')[1]['runs'][0]['id']}/{request_}"

    async def press():
        pressed = asyncio.create_task(ask.answer(path, "POST", BEARER))
        while not (made.folder / "request.json").exists():
            await asyncio.sleep(0.01)
        assert (await ask.answer("/api/runs"))[0] == 200 and not pressed.done()
        status, again = await ask.answer(path, "POST", BEARER)
        assert status == 409 and again["error"]["what"] == "is already being asked"
        assert directory.take_request() == request_  # as the run does after its step
        if request_ == "stop":
            made.phase, made.exit = "stopped", 75
        else:
            saved = made.folder / "checkpoints" / "step-00009000"
            saved.mkdir()
            (saved / "MANIFEST.json").write_text("{}")
        made.grow(1)
        return await pressed

    status, found = asyncio.run(press())
    assert status == 200
    assert ("stopped at step" if request_ == "stop" else "saved step 9,000, and continues") in found["said"]


def test_a_run_that_does_not_answer(tmp_path):
    made = MadeRun(tmp_path / "run", lines=40).write()
    ask = Asked(tmp_path, stop_seconds=0.3)
    id_ = ask("/api/runs")[1]["runs"][0]["id"]
    for _ in range(2):
        status, found = ask(f"/api/runs/{id_}/stop", "POST", BEARER)
        assert status == 409 and "did not answer within" in found["error"]["what"]
        assert found["error"]["fix"].startswith("wait, since the request stays until the run's next step")
    assert RunDirectory(str(made.folder)).take_request() == "stop"


# ---- the process ---------------------------------------------------------------------------------------------------


def test_ctrl_c_ends_the_server_quietly_and_takes_back_what_was_asked_of_a_run(tmp_path):
    made = MadeRun(tmp_path / "run", lines=40).write()
    command = [*COMMAND, "watch", str(tmp_path), "--web", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout
            address, mark, token = started.stdout.readline().strip().partition("#token=")
            assert mark and len(token) >= 32 and address.startswith("http://127.0.0.1:")
            headers = {"Authorization": f"Bearer {token}"}
            asked = urllib.request.Request(f"{address}api/runs", headers=headers)
            with urllib.request.urlopen(asked, timeout=240) as answer:
                id_ = json.load(answer)["runs"][0]["id"]
            stop = urllib.request.Request(f"{address}api/runs/{id_}/stop", method="POST", headers=headers)

            def press():
                with suppress(OSError, HTTPException):
                    urllib.request.urlopen(stop, timeout=240)

            pressed = threading.Thread(target=press)
            pressed.start()
            while not (made.folder / "request.json").exists():
                assert pressed.is_alive()
                time.sleep(0.01)
            started.send_signal(signal.SIGINT)
            out, said = started.communicate(timeout=240.0)
            pressed.join()
            assert (started.returncode, out, said) == (130, "", "")
            assert not (made.folder / "request.json").exists()
        finally:
            started.kill()


def test_what_is_not_there(root, monkeypatch):
    with pytest.raises(InputError, match="cannot listen there"):
        server.serve([str(root)], "203.0.113.7", 0)
    monkeypatch.setattr(server, "NEEDED", ("starlette", "plotly", "uvicorn"))
    monkeypatch.setattr("maskwright.core.extras.installed", lambda package: package != "uvicorn")
    with pytest.raises(ConfigError, match="uvicorn is not installed") as caught:
        server.serve([str(root)], "127.0.0.1", 0)
    assert "scripts/install --web" in str(caught.value)
