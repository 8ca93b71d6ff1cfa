"""Opens the page of a real server in headless Chromium (DSE_CHROMIUM, or the first `chromium` of the PATH).

Every page that a test opens is watched: an exception, a breach of the content security policy or a request to anybody but
the server fails the test that caused it.
"""

import importlib.util
import json
import os
import pathlib
import shutil
import time

import pytest
from playwright.sync_api import sync_playwright

spec = importlib.util.spec_from_file_location(
    "api_conftest", pathlib.Path(__file__).resolve().parent.parent / "api" / "conftest.py"
)
api = importlib.util.module_from_spec(spec)
spec.loader.exec_module(api)
Server = api.Server

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True, "device_scale_factor": 3}
DESK = {"viewport": {"width": 1280, "height": 800}}


@pytest.fixture(scope="session")
def server():
    server = Server("--max-model-len", "1024", "--max-concurrent", "4", "--served-model-name", "tiny")
    yield server
    assert server.stop() == 0, "".join(server.lines)


@pytest.fixture(scope="session")
def browser():
    # Without the sandbox, which containers do not allow: only this page is ever opened.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("DSE_CHROMIUM") or shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield browser
        browser.close()


class Watched:
    """Opens pages; remembers what they did wrong."""

    def __init__(self, browser, server):
        self.browser, self.server = browser, server
        self.contexts, self.wrong = [], []

    def __call__(self, tab="chat", at=None, ready=True, init=None, **options):
        server = at or self.server
        home = f"http://127.0.0.1:{server.port}/"
        context = self.browser.new_context(**(options or DESK))
        self.contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30000)
        page.on("pageerror", lambda error: self.wrong.append(f"exception: {error}"))
        page.on(
            "console",
            lambda m: "Failed to load resource" not in m.text
            and m.type in ("error", "warning")
            and self.wrong.append(f"console: {m.text}"),
        )
        page.on("request", lambda r: r.url.startswith(home) or self.wrong.append(f"request to {r.url}"))
        page.on("dialog", lambda d: (self.wrong.append(f"dialog: {d.message}"), d.dismiss()))
        if init:
            page.add_init_script(init)
        page.goto(f"{home}#{tab}")
        if ready:
            page.wait_for_selector("#state-dot.ok", state="attached")
        return page

    def close(self):
        for context in self.contexts:
            context.close()


@pytest.fixture
def open_page(browser, server):
    watched = Watched(browser, server)
    yield watched
    watched.close()
    assert watched.wrong == []


@pytest.fixture
def start():
    started = []

    def start_one(*arguments, **options):
        started.append(Server("--max-model-len", "512", *arguments, **options))
        return started[-1]

    yield start_one
    for one in started:
        assert one.stop() == 0, "".join(one.lines)


def chunk(content=None, finish=None, **more):
    """A frame as /v1/chat/completions streams it."""
    delta = {} if content is None else {"content": content}
    delta.update(more.pop("delta", {}))
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}) + "\n\n"


USAGE = {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 0}}


def stream(*parts, end=True):
    """The body of a stream with these texts as deltas."""
    frames = "".join(part if part.startswith("data: ") else chunk(part) for part in parts)
    return frames + (
        chunk(None, "stop") + 'data: {"choices":[],"usage":' + json.dumps(USAGE) + "}\n\ndata: [DONE]\n\n"
        if end
        else ""
    )


def answer_with(page, body, status=200, content_type="text/event-stream", sent=None):
    """From now on the page's chat requests are answered with this and not by the server; they are put into `sent`."""

    def handle(route):
        if sent is not None:
            sent.append(route.request.post_data_json)
        route.fulfill(status=status, content_type=content_type, body=body)

    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", handle)


def until(page, expression, seconds=30):
    """Waits for it to be true. Playwright's own waiting needs eval, which the page's policy forbids."""
    end = time.monotonic() + seconds
    while not page.evaluate(f"() => Boolean({expression})"):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(20)


def say(page, text, wait=True):
    page.fill("#prompt", text)
    page.click("#send")
    if wait:
        page.wait_for_selector("article.assistant:last-of-type:not([aria-busy])")
    return page.locator("article.assistant").last
