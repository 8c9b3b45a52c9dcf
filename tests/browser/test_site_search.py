"""The search of the documentation site where it is opened from its folder, and what stands in for workers there."""

import re
import shutil
from pathlib import Path

import pytest
from browser.served import browser_path, opened, until

pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytestmark = pytest.mark.skipif(browser_path() is None, reason="needs Chromium or Chrome on the path")

ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "docs" / "site" / "iframe-worker.js"
SITE = ROOT / "build" / "site"
PAGE = """<!doctype html><body><p>ready</p><script src="iframe-worker.js"></script><script>
const heard = [], failed = [];
window.addEventListener("message", () => heard.push("the page heard what was for the worker's owner"));
const worker = new Worker("deep/worker.js?a=1&copy=2");
worker.onmessage = ({ data }) => heard.push(data);
worker.onerror = ({ message }) => failed.push(message);
const bytes = new Uint8Array([7]), question = { list: [1, 2], bytes };
worker.postMessage(question, [bytes.buffer]);
question.list.push(3);
worker.postMessage("raise");
const other = new Worker("deep/worker.js"), others = [];
other.addEventListener("message", ({ data }) => others.push(data));
other.postMessage("only for the other");
const absent = new Worker("nowhere.js"), absences = [];
absent.addEventListener("error", ({ message }) => absences.push(message));
</script>"""
WORKER = """
postMessage(["begins", location.protocol, typeof document === "object" && parent.IFrameWorker === parent.Worker]);
addEventListener("message", ({ data }) => {
  if (data === "raise") throw new Error("so it was");
  if (data === "only for the other") postMessage(data);
});
onmessage = async ({ data }) => {
  if (!data.list) return;
  await importScripts("beside.js", "../above.js");
  postMessage([data.list, data.bytes[0], BESIDE, ABOVE]);
};
"""


def test_a_frame_does_what_a_worker_does(browser, tmp_path):
    """Messages both ways and as they were when they were sent, scripts beside the worker's own, errors, and an end."""
    (tmp_path / "deep").mkdir()
    shutil.copy(SHIM, tmp_path)
    for name, text in (
        ("page.html", PAGE),
        ("deep/worker.js", WORKER),
        ("deep/beside.js", "const BESIDE = 'beside'"),
        ("above.js", "const ABOVE = BESIDE + ' and above'"),
    ):
        (tmp_path / name).write_text(text)
    with opened(browser, (tmp_path / "page.html").as_uri(), ready="p", refused="") as page:
        until(page, "heard.length === 2 && failed.length === 1 && others.length === 2 && absences.length === 1")
        begins = ["begins", "about:", True]
        assert page.evaluate("heard") == [begins, [[1, 2], 7, "beside", "beside and above"]]
        assert page.evaluate("bytes.byteLength") == 0  # it was handed over
        assert page.evaluate("others") == [begins, "only for the other"]
        assert "error" in page.evaluate("failed[0]") and "nowhere.js" in page.evaluate("absences[0]")
        page.evaluate("() => { other.terminate(); other.postMessage('only for the other'); }")
        assert page.locator("iframe").count() == 2
        page.wait_for_timeout(100)
        assert page.evaluate("others.length") == 2


def test_served_pages_keep_the_browsers_workers(browser):
    context = browser.new_context()
    page = context.new_page()
    page.route("**/*", lambda route: route.fulfill(body="<!doctype html>", content_type="text/html"))
    page.goto("http://site.invalid/")
    page.add_script_tag(content=SHIM.read_text(encoding="utf-8"))
    assert page.evaluate("[String(Worker).includes('[native code]'), typeof IFrameWorker]") == [True, "undefined"]
    context.close()


def test_the_site_is_searched_from_its_folder(browser):
    """`scripts/docs` builds it."""
    built = SITE / "site" / SHIM.name
    if not built.exists() or built.read_bytes() != SHIM.read_bytes():
        pytest.skip("needs build/site of this checkout, which scripts/docs builds")
    elsewhere = []
    with opened(browser, (SITE / "index.html").as_uri(), ready=".md-search__input") as page:
        page.on("request", lambda request: elsewhere.append(request.url))
        page.reload()
        page.click(".md-search__input")
        page.wait_for_function(
            "document.querySelector('.md-search-result__meta').textContent.includes('Type to start')"
        )
        page.fill(".md-search__input", "speedru")  # unheard: of some single letters Material makes an invalid query
        page.keyboard.type("n")
        page.wait_for_selector(".md-search-result__item:first-child [href*='/speedrun.html']")
        found = page.locator(".md-search-result__link").first
        address, title = found.evaluate("(link) => link.href"), found.locator("h1, h2").first.inner_text()
        found.click()
        page.wait_for_url(re.compile(r"[?&]h="))
        page.wait_for_selector("article mark")
        assert page.url.startswith("file://") and page.url.partition("?")[0] == address.partition("?")[0]
        assert title in page.inner_text("article")
    assert {url.partition(":")[0] for url in elsewhere} <= {"file", "about", "data"}, elsewhere
