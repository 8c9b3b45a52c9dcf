"""The page of `maskwright watch --web` in a browser, with the real server and run directories."""

import json
import re
import shutil
import threading
import time

import pytest
from browser.made_runs import MadeRun, crowd
from browser.served import TOKEN, Served, browser_path, opened, until

from maskwright.core.console import human_bytes, human_count, human_seconds

pytest.importorskip("playwright.sync_api", reason="needs playwright")
for _package in ("starlette", "uvicorn", "plotly"):
    pytest.importorskip(_package, reason="needs the extra web")
pytestmark = pytest.mark.skipif(browser_path() is None, reason="needs Chromium or Chrome on the path")

PANELS = ["loss, nats", "learning rate", "gradient norm, before clipping", "tokens/s"]
EVIL = "<img src=x onerror=alert(1)><b>bold</b>"
DRAWN = ".panel .main-svg"


@pytest.fixture(scope="module")
def served():
    server = Served()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A run of eight ranks of which one is hung, and one that is over."""
    root = tmp_path_factory.mktemp("two")
    events = (
        {"step": 1_200, "event": "spiked", "loss": 9.1},
        {"step": 2_000, "event": "started", "attempt": 2, "host": "vm", "engine": "torch"},
    )
    ended = {"step": 10_000, "event": "ended", "phase": "done", "exit": 0, "message": "trained to the end"}
    MadeRun(root / "wide", ranks=8, hung=(2,), slow=(3,), events=events).write()
    MadeRun(root / "narrow", step=10_000, phase="done", seed=3, peak=3e-3, age=600.0, events=(ended,)).write()
    return root


def seen(page, selector):
    return " ".join(page.inner_text(selector).split())


def traces(page, panel=0):
    """Name, number of points and last x of each curve with values of its own, of one panel."""
    script = """(panel) => document.querySelectorAll(".plot")[panel].data
        .filter((one) => one.name).map((one) => ({name: one.name, points: one.x.length, last: one.x.at(-1)}))"""
    return page.evaluate(script, panel)


def choose(page, name):
    page.locator(".run .name", has_text=re.compile(f"^{re.escape(name)}$")).click()


def test_a_run_is_shown(browser, served, two):
    with opened(browser, served.folder(two), ready=DRAWN) as page:
        assert page.locator("#list li").count() == 2
        assert "hung" in seen(page, "#list") and "done" in seen(page, "#list")
        assert page.title() == "(1!) maskwright watch"
        choose(page, "wide")
        until(page, "document.querySelectorAll('.panel .main-svg').length >= 4")
        assert seen(page, "#chosen-title") == "wide"
        assert page.eval_on_selector_all(".plot", "all => all.map(one => one.layout.title.text)") == PANELS
        letters = page.locator("#ranks .strip .rank").all_inner_texts()
        assert letters == ["F", "F", "H", "S", "F", "F", "F", "F"]
        assert "40 % of 10,000" in seen(page, "#glance") and "Tokens/s" not in seen(page, "#glance")  # it is hung
        assert "1 hung, 1 slow, 6 fine of 8 on 1 host" in seen(page, "#ranks")
        assert "Rank 2 on vm is hung" in seen(page, "#ranks")
        assert "4,000 ◐ partial" in seen(page, "#checkpoints") and "3,000 ✓ whole 74.0 MB" in seen(page, "#checkpoints")
        assert "step 1,200: spike: loss 9.100" in seen(page, "#happened")
        assert "optimizer.learning_rate 0.001" in seen(page, "#configuration")
        page.wait_for_selector("#stop:enabled")
        page.fill("#log-search", "step 3900")
        page.wait_for_selector("#log mark")
        assert set(page.locator("#log mark").all_inner_texts()) == {"step 3900"}
        assert "1 line with “step 3900”" in seen(page, "#log-found")


def test_a_long_log_is_shown_from_its_end_and_as_it_grows(browser, served, tmp_path, monkeypatch):
    lines = [f"line {number}" for number in range(50_000)]
    made = MadeRun(tmp_path / "long", lines=40).write()
    log = made.folder / "log.txt"
    log.write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setattr("maskwright.monitor.watch.details.READ_BYTES", 300_000)
    with opened(browser, served.folder(tmp_path), ready="#log .log-line") as page:

        def shown():
            return page.locator("#log .log-line").all_inner_texts()

        assert shown() == lines[-200:]
        page.click("#log-older")
        until(page, "document.querySelectorAll('#log .log-line').length === 400")
        assert shown() == lines[-400:]
        with log.open("a") as file:
            file.write("a new line\n")
        status = json.loads((made.folder / "status.json").read_text())
        made._json("status.json", status | {"step": status["step"] + 10, "heartbeat": time.time()})
        until(page, "document.querySelectorAll('#log .log-line').length > 400")
        assert shown() == [*lines[-400:], "a new line"]
        page.fill("#log-search", "line 31")
        until(page, "document.querySelector('#log-found').textContent.includes('not searched yet')")
        assert re.search(r"lines with “line 31”; the first [\d.]+ kB are not searched yet", seen(page, "#log-found"))
        while page.locator("#log-older").is_visible():
            before = seen(page, "#log-found")
            page.click("#log-older")
            until(page, f"document.querySelector('#log-found').textContent !== {json.dumps(before)}")
        assert shown()[0] == "line 31" and "searched" not in seen(page, "#log-found")


def test_several_ranks_that_are_lost(browser, served, tmp_path):
    MadeRun(tmp_path / "torn", ranks=8, lost=(4, 5, 6, 7)).write()
    with opened(browser, served.folder(tmp_path), ready="#ranks .strip") as page:
        assert "Ranks 4 to 7 on vm are lost: their process" in seen(page, "#ranks")
        # The age of its last sign of life goes on, although nothing else of the run changes.
        ages = page.evaluate("""() => import('/runs.js').then(({showRuns}) => [60, 7200].map((time) => {
            const run = {id: "made", name: "made", state: "lost", heartbeat: 0, step: 1, of: 2, spark: [], ranks: {}};
            showRuns({runs: [run], folders: [], time, problems: []}, new Map(), {});
            return document.querySelector("#list .eta").textContent;
        }))""")
        assert ages == ["60 s ago", "2 h ago"]
        # What was read at a URL is as old as it is said to be.
        told = page.evaluate("""() => import('/details.js').then(({showCheckpoints, showGlance}) => {
            const run = {id: "far", location: "gs://b/far", state: "only checkpoints", looked: 1, limits: []};
            showGlance([run], 41, new Map());
            showCheckpoints({checkpoints: [{step: 40, state: "whole", bytes: 9}], listed: 1}, 61);
            return ["glance", "checkpoints"].map((id) => document.getElementById(id).textContent);
        })""")
        assert told[0].startswith("gs://b/far · read 40 s ago") and told[1].endswith("Listed 60 s ago.")


def test_by_keyboard(browser, served, two):
    with opened(browser, served.folder(two), ready=DRAWN) as page:
        page.focus("#filter")
        page.keyboard.type("narrow")
        until(page, "document.querySelectorAll('#list li').length === 1")
        for _ in range(3):  # the order, the box and the name
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        until(page, "document.getElementById('chosen-title').textContent === 'narrow'")
        page.focus("#filter")
        page.keyboard.press("Control+A")
        page.keyboard.press("Delete")
        assert page.locator("#list li").count() == 2
        page.focus("#from")
        page.keyboard.type("5000")
        with page.expect_request(lambda asked: "from=5000" in asked.url):
            page.keyboard.press("Enter")
        first = "document.querySelector('.plot').data.find((one) => one.name).x[0]"
        until(page, f"{first} >= 5000")
        requests = []
        page.on("request", lambda asked: requests.append(asked.url))
        for given, said in (
            ("many", "A step is a whole number, 0 or more."),
            ("-5", "A step is a whole number, 0 or more."),
            ("1.5", "A step is a whole number, 0 or more."),
            ("9" * 30, "A step is a whole number, 0 or more."),
            ("5,000", "The last step must be after the first."),
        ):
            page.fill("#to", given)
            page.keyboard.press("Enter")
            until(page, f"document.getElementById('steps-refused').textContent === '{said}'")
            assert page.get_attribute("#to", "aria-invalid") == "true" and page.evaluate(f"{first} >= 5000")
        page.fill("#to", "6,000")
        page.keyboard.press("Enter")
        until(page, "document.querySelector('.plot').data.find((one) => one.name).x.at(-1) <= 6000")
        assert page.get_attribute("#to", "aria-invalid") == "false" and not page.is_visible("#steps-refused")
        asked = {one for one in requests if "/api/series" in one}
        assert all("from=5000&to=" in one for one in asked) and any("to=6000" in one for one in asked)
        page.fill("#from", "20000")  # beyond the last step, which is no mistake
        page.fill("#to", "")
        page.keyboard.press("Enter")
        until(page, "document.getElementById('no-curves').textContent === 'There is no log line in these steps.'")


def test_curves_are_what_is_asked_for(browser, served, two):
    with opened(browser, served.folder(two), ready=DRAWN) as page:
        choose(page, "narrow")
        until(page, "document.getElementById('chosen-title').textContent === 'narrow'")
        until(page, "document.querySelector('.plot').data.find((one) => one.name).x.at(-1) === 10000")
        box = page.locator(".plot .nsewdrag").first.bounding_box()
        with page.expect_request(lambda asked: "from=" in asked.url and "to=" in asked.url) as zoomed:
            page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 80)
            page.mouse.down()
            page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 90, steps=4)
            page.mouse.up()
        first = int(re.findall(r"from=(\d+)", zoomed.value.url)[0])
        assert 4_500 < first < 5_500
        until(page, f"document.querySelector('.plot').data.find((one) => one.name).x[0] >= {first}")
        page.click("#everything")
        until(page, "document.querySelector('.plot').data.find((one) => one.name).x[0] < 100")
        page.select_option("#x-axis", "tokens")
        until(page, "document.querySelector('.plot').data.find((one) => one.name).x.at(-1) === 40960000")
        page.select_option("#x-axis", "time")
        until(page, "document.querySelector('.plot').layout.xaxis.title.text.includes('min')")
        assert traces(page)[0]["last"] == pytest.approx(9_975 * 0.4 / 60, rel=1e-6)
        page.check("#log-scale")
        until(page, "document.querySelector('.plot').layout.yaxis.type === 'log'")
        page.fill("#smoothing", "0.9")
        until(page, "document.querySelector('.plot').data.some((one) => one.hoverinfo === 'skip')")
        page.click("#metrics summary")
        page.uncheck("#metric-list [value=grad_norm]")
        page.check("#metric-list [value=valid_accuracy]")
        until(
            page, "[...document.querySelectorAll('.plot')].some((one) => one.layout.title.text === 'held-out accuracy')"
        )
        assert page.locator(".plot").count() == 4
        page.reload()
        page.wait_for_selector(DRAWN)
        assert seen(page, "#chosen-title") == "narrow" and page.input_value("#x-axis") == "time"


def test_two_runs_over_each_other(browser, served, two):
    with opened(browser, served.folder(two), ready=DRAWN) as page:
        choose(page, "wide")
        page.check("[aria-label='Compare narrow']")
        until(page, "document.querySelector('.plot').data.filter((one) => one.name).length === 4")
        assert {one["name"].partition(",")[0] for one in traces(page)} == {"wide", "narrow"}
        colours = page.evaluate(
            "document.querySelectorAll('.plot')[1].data.filter((one) => one.name).map((one) => one.line.color)"
        )
        assert len(set(colours)) == 2
        differing = page.locator("#differs tbody th").all_inner_texts()
        assert differing == ["optimizer.learning_rate", "seed"]
        assert page.locator("#glance tbody tr").count() == 2
        page.select_option("#focus", label="narrow")
        until(page, "document.getElementById('happened').textContent.includes('trained to the end')")


def test_fine_tuning_is_judged_by_its_own_metric(browser, served, tmp_path):
    """Which a run of pretraining beside it does not have, and neither has a run that has not measured anything."""
    losses = ["learning rate", "gradient norm, before clipping", "tokens/s"]
    MadeRun(tmp_path / "classes", metric="f1_macro", seed=1).write()
    MadeRun(tmp_path / "fresh", step=1, lines=0, metric="f1_macro").write()
    MadeRun(tmp_path / "text", step=10_000, phase="done").write()
    titles = "[...document.querySelectorAll('.plot')].map((one) => one.layout.title.text)"
    with opened(browser, served.folder(tmp_path)) as page:
        choose(page, "classes")
        until(page, f"document.getElementById('chosen-title').textContent === 'classes' && {titles}.length === 5")
        assert page.evaluate(titles) == ["loss", "held-out macro F1", *losses]
        score = json.loads((tmp_path / "classes" / "metrics.jsonl").read_text().splitlines()[-1])["valid_f1_macro"]
        assert f"macro F1 {score:.1%}".replace("%", " %") in seen(page, "#list")
        assert f"Held-out macro F1 {score:.1%} loss".replace("%", " %") in seen(page, "#glance")
        ticks = page.locator(".panel:nth-child(2) .ytick text").all_text_contents()
        assert len(ticks) > 2 and all(re.fullmatch(r"\d+ %", one) for one in ticks)
        page.check("[aria-label='Compare text']")
        until(page, "document.querySelector('.plot').data.filter((one) => one.name).length === 4")
        assert page.evaluate(titles) == ["loss", "held-out macro F1", *losses]
        assert f"macro F1 {score:.1%}".replace("%", " %") in seen(page, "#glance")
        page.check("[aria-label='Compare fresh']")
        until(page, "document.getElementById('legend').textContent.includes('No log line here: fresh.')")
        assert page.locator("#legend .swatch").count() == 2
        page.click("#metrics summary")
        page.uncheck("#metric-list [value=valid_f1_macro]")
        until(page, f"!{titles}.includes('held-out macro F1')")
        choose(page, "text")
        until(page, f"{titles}[0] === 'loss, nats'")
        choose(page, "classes")  # what was not wanted stays away
        until(page, f"{titles}[0] === 'loss'")
        assert page.evaluate(titles) == ["loss", *losses]
        assert not page.is_checked("#metric-list [value=valid_f1_macro]")


def hold(page, pattern):
    """Keeps answers on their way. What is given back waits for the first, and lets them go with all that come later."""
    held = []
    free = []
    page.route(re.compile(pattern), lambda asked: asked.continue_() if free else held.append(asked))

    def release():
        while not held:
            page.wait_for_timeout(20)
        free.append(True)
        for asked in held:
            asked.continue_()

    return release


def test_others_are_chosen_while_curves_are_on_their_way(browser, served, two):
    with opened(browser, served.folder(two), ready=DRAWN) as page:
        choose(page, "wide")
        until(page, "document.getElementById('chosen-title').textContent === 'wide'")
        curves = hold(page, "/api/series")
        choose(page, "narrow")
        until(page, "document.getElementById('chosen-title').textContent === 'narrow'")
        runs = hold(page, "/api/runs/")
        choose(page, "wide")
        curves()
        page.wait_for_timeout(200)
        runs()
        until(page, "document.querySelector('.plot').data.find((one) => one.name).x.at(-1) === 4000")
        assert seen(page, "#chosen-title") == "wide"


def test_it_lives(browser, served, tmp_path):
    run = MadeRun(tmp_path / "alive").write()
    with opened(browser, served.folder(tmp_path), ready=DRAWN) as page:
        page.evaluate("document.querySelector('#list li').mark = document.querySelector('.plot').mark = 'the same'")
        last = traces(page)[0]["last"]
        run.grow(50)
        until(page, f"document.querySelector('.plot').data.find((one) => one.name).x.at(-1) > {last}")
        assert traces(page)[0]["last"] == run.step
        assert f"{human_count(run.step)} of 10.0k" in seen(page, "#list")
        marks = "[document.querySelector('#list li').mark, document.querySelector('.plot').mark]"
        assert page.evaluate(marks) == ["the same", "the same"]


def answering(run, asked):
    """Does what training does with a request."""

    def answer():
        until = time.monotonic() + 120
        while not (run.folder / "request.json").exists():
            if time.monotonic() > until:
                return
            time.sleep(0.05)
        asked.append(json.loads((run.folder / "request.json").read_text())["request"])
        run.phase, run.exit, run.message = "stopped", 75, "asked to stop"
        run.grow(1)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_stop(browser, served, tmp_path):
    run = MadeRun(tmp_path / "alive", lines=50).write()
    with opened(browser, served.folder(tmp_path), ready="#stop:enabled") as page:
        assert TOKEN not in page.url
        page.click("#stop")
        page.click("#confirm button[value=no]")
        assert not page.is_visible("#confirm") and not (run.folder / "request.json").exists()
        asked = []
        thread = answering(run, asked)
        page.click("#stop")
        assert "Stop alive?" in seen(page, "#confirm-title")
        page.click("#confirm-yes")
        until(page, "document.getElementById('answered').textContent.includes('stopped at step')")
        thread.join()
        assert asked == ["stop"]
        until(page, "document.getElementById('list').textContent.includes('stopped')")
        page.wait_for_selector("#stop:disabled")


def test_only_the_run_that_was_asked_waits(browser, served, tmp_path):
    for name in ("one", "two"):
        MadeRun(tmp_path / name, lines=50).write()
    with opened(browser, served.folder(tmp_path), ready="#stop:enabled", refused="409") as page:
        choose(page, "one")
        until(page, "document.getElementById('chosen-title').textContent === 'one'")
        answers = hold(page, "/checkpoint$")
        page.click("#checkpoint")
        page.click("#confirm-yes")
        page.wait_for_selector("#stop:disabled")
        choose(page, "two")
        page.wait_for_selector("#stop:enabled")
        assert seen(page, "#answered") == ""
        choose(page, "one")
        page.wait_for_selector("#stop:disabled")
        assert "Asked one for a checkpoint." in seen(page, "#answered")
        shutil.rmtree(tmp_path / "one" / "processes")  # the answer: nothing runs there
        made = json.loads((tmp_path / "one" / "status.json").read_text())
        (tmp_path / "one" / "status.json").write_text(json.dumps(made | {"phase": "failed"}))
        choose(page, "two")
        until(page, "document.getElementById('chosen-title').textContent === 'two'")
        page.wait_for_selector("#stop:enabled")
        answers()
        page.wait_for_timeout(200)
        assert seen(page, "#answered") == ""
        choose(page, "one")
        until(page, "document.getElementById('answered').textContent.includes('is not running (failed at step')")


def test_the_token_is_asked_for(browser, served, two):
    """Without it, the server tells nothing."""
    served.folder(two)
    with opened(browser, served.address, ready="#locked:not([hidden])", refused="401") as page:
        assert page.locator("#list li").count() == 0
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_selector("#list li")
        assert not page.is_visible("#locked")


def test_on_a_phone_in_the_dark(browser, served, two):
    size = {"width": 360, "height": 740}
    with opened(browser, served.folder(two), viewport=size, has_touch=True, color_scheme="dark") as page:
        choose(page, "wide")
        page.wait_for_selector(DRAWN)
        width = "document.documentElement.scrollWidth"
        assert page.evaluate(width) <= 360
        page.check("[aria-label='Compare narrow']")
        until(page, "document.querySelector('.plot').data.filter((one) => one.name).length === 4")
        page.click("#metrics summary")
        assert page.evaluate(width) <= 360
        for scheme, colour in (("dark", "#12161b"), ("light", "#fff")):
            page.emulate_media(color_scheme=scheme)
            until(page, f"document.querySelector('.plot').layout.paper_bgcolor === '{colour}'")


def test_without_a_run(browser, served, tmp_path):
    with opened(browser, served.folder(tmp_path), ready="#none:not([hidden])") as page:
        assert f"No run yet in {tmp_path}" in seen(page, "#none")
        assert not page.is_visible("#chosen")


def test_a_crowd(browser, served, tmp_path):
    """The rows stay, and of a long run as many points come as the page can show."""
    crowd(tmp_path, 100, 10_000)
    alive = MadeRun(tmp_path / "alive", lines=20).write()
    with opened(browser, served.folder(tmp_path), ready=DRAWN) as page:
        assert page.locator("#list li").count() == 101
        page.evaluate("""() => { window.added = 0; new MutationObserver((all) => {
            for (const one of all) window.added += one.addedNodes.length;
        }).observe(document.getElementById("list"), {childList: true}); }""")
        alive.grow(5)
        until(page, f"document.getElementById('list').textContent.includes('{alive.step:,} of')")
        assert page.evaluate("window.added") == 0
        choose(page, "sweep/run-000")
        until(page, "document.querySelector('.plot').data.find((one) => one.name).x.at(-1) > 90000")
        assert 200 <= traces(page)[0]["points"] <= 1_000
        page.fill("#filter", "failed")
        until(page, "document.querySelectorAll('#list li').length === 25")
        until(page, "document.querySelector('#list li').textContent.includes('out of memory')")
        page.fill("#filter", "")
        page.select_option("#sort", "name")
        names = page.locator("#list .name").all_text_contents()
        assert names == ["alive", *(f"sweep/run-{number:03d}" for number in range(100))]


def test_text_of_a_run_is_text(browser, served, tmp_path):
    name = EVIL.replace("/", "")
    MadeRun(tmp_path / name, config={EVIL: EVIL}, log=(EVIL, "${1}")).write()
    MadeRun(tmp_path / "other", lines=20, seed=1).write()
    with opened(browser, served.folder(tmp_path), ready=DRAWN) as page:
        page.locator(".run input").first.check()
        page.locator(".run input").last.check()
        until(page, "document.querySelector('.plot').data.filter((one) => one.name).length >= 3")
        page.select_option("#focus", label=name)
        until(page, "document.getElementById('log').textContent.includes('onerror')")
        assert page.locator("#log-title").count() == 1 and page.locator("img, #list b, .log b").count() == 0
        assert EVIL in page.inner_text("#log") and EVIL in page.inner_text("#configuration")
        assert name in page.locator("#list .name").all_inner_texts()
        box = page.locator(".plot .nsewdrag").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 60)
        page.wait_for_selector(".hoverlayer .legendtext, .hoverlayer text")
        assert "<img src=x" in "".join(page.locator(".hoverlayer text").all_text_contents())


def test_the_server_is_gone_and_back(browser, served, two):
    with opened(browser, served.folder(two), ready=DRAWN, refused="net::ERR_CONNECTION_REFUSED") as page:
        served.stop()
        page.wait_for_selector("#gone:not([hidden])")
        assert "The server does not answer." in seen(page, "#gone")
        assert page.locator("#list li").count() == 2 and page.is_visible(DRAWN)
        served.start()
        page.wait_for_selector("#gone", state="hidden")


def test_words_are_those_of_the_command_line(browser, served, tmp_path):
    numbers = [0, 0.4, 7, 99.4, 100, 1234, 9_999, 10_000, 54_321, 1e6, 2.34e9, 7e12]
    pairs = [
        ("count", human_count),
        ("seconds", human_seconds),
        ("bytes", human_bytes),
    ]
    with opened(browser, served.folder(tmp_path), ready="#none:not([hidden])") as page:
        for name, ours in pairs:
            whole = [int(one) for one in numbers] if name == "bytes" else numbers
            said = page.evaluate(
                "([name, all]) => import('/words.js').then((found) => all.map(found[name]))", [name, whole]
            )
            assert said == [ours(one) for one in whole], name
        shares = [[0, 0], [0.29, 0], [0.9999, 0], [1, 0], [0.05, 1], [0.99951, 1], [None, 1]]
        said = page.evaluate(
            "(all) => import('/words.js').then(({percent}) => all.map((one) => percent(...one)))", shares
        )
        assert said == ["0 %", "29 %", "99 %", "100 %", "5.0 %", "100.0 %", "–"]
