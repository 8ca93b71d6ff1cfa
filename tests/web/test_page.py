"""The page around the chat: tabs, dashboard, key, snippets, small screens, people who do not use a mouse or see it."""

import json
import os
import re
import subprocess
import sys

import pytest
from axe_playwright_python.sync_playwright import Axe

from conftest import DESK, PHONE, answer_with, say, stream, until

TABS = ["chat", "dashboard", "api"]


# ---- dashboard ----

INK = """canvas => { const c = canvas.getContext('2d'), p = c.getImageData(0, 0, canvas.width, canvas.height).data; let n = 0;
  for (let i = 3; i < p.length; i += 4) if (p[i]) n++; return n; }"""


def row(page, name):
    return page.locator("#totals, #facts").locator(f"dt:text-is('{name}') + dd").first.inner_text()


def test_the_dashboard_tells_what_the_server_counts(open_page, server):
    assert server.wait_idle()
    page = open_page("dashboard")
    page.wait_for_selector("#totals dd")
    answer = server.chat(max_tokens=6)
    generated = int(server.metric("generated_tokens_total"))
    page.wait_for_selector(f"#totals dt:text-is('Tokens written') + dd:text-is('{generated:,}')")
    assert row(page, "Requests") == f"{int(server.metric('requests_total')):,}"
    assert answer["usage"]["completion_tokens"] > 0
    assert "1,024 tokens" in row(page, "Context") and row(page, "Name") == "tiny"
    for name in ("speed", "ttft", "requests", "kv"):
        assert page.locator(f"#chart-{name}").evaluate(INK) > 100, name
    label = page.locator("#chart-ttft").get_attribute("aria-label")
    assert re.match(r"Time to first token, mean [\d.]+ m?s; highest [\d.]+ m?s in 60 seconds", label), label


def test_requests_appear_while_they_run(open_page, server):
    page = open_page("dashboard")
    body = json.dumps(
        {"messages": [{"role": "user", "content": "Count"}], "max_tokens": 900, "ignore_eos": True, "stream": True}
    ).encode()
    sock = server.raw(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % len(body)
        + body
    )
    until(page, "document.getElementById('requests').textContent.includes('writing')")
    until(page, "/\\d/.test(document.querySelector('#requests tr td:last-child').textContent)")
    assert "1" in page.locator("#tiles div", has_text="Running").inner_text()
    sock.close()
    until(page, "document.getElementById('requests').textContent === 'none'")
    assert server.wait_idle()


def test_the_history_is_there_at_once_and_both_spans_show_it(open_page, server):
    server.chat(max_tokens=4)
    early = open_page("dashboard")
    early.wait_for_timeout(2500)
    early.context.close()
    page = open_page("dashboard")
    page.click("text=Table")
    # A page that was opened just now knows what was before it: more than one row of five seconds has numbers.
    page.wait_for_selector("#history tbody tr")
    filled = page.locator("#history tbody tr").evaluate_all(
        "rows => rows.filter(r => r.cells[1].textContent !== '–').length"
    )
    assert page.locator("#history tbody tr").count() == 12 and filled >= 1
    assert page.is_hidden("#charts")
    page.click("text=10 min")
    assert page.locator("#history tbody tr").count() == 20
    page.locator(".choice span", has_text="Charts").click()
    until(page, "document.getElementById('chart-speed').getAttribute('aria-label').includes('10 minutes')")
    assert page.locator("#chart-speed").evaluate(INK) > 100 and page.is_hidden("#history")


# The stream of events says this and then nothing more, but does not end.
OPEN_STREAM = """const real = window.fetch; window.fetch = (to, options) => String(to).endsWith('events') ? Promise.resolve(
  new Response(new ReadableStream({start(c) { c.enqueue(new TextEncoder().encode(%s)); }}))) : real(to, options);"""


def feed_dashboard(page, samples, last):
    """Puts numbers of a test into the dashboard, as the stream would."""
    fields = [
        "uptime_ms",
        "prompt_tokens_total",
        "generated_tokens_total",
        "time_to_first_token_count",
        "time_to_first_token_sum",
        "requests_running",
        "requests_waiting",
        "kv_blocks_used",
    ]
    status = {
        "uptime_ms": last[0],
        "state": "ok",
        "version": "1",
        "requests": [],
        "model": None,
        "counters": dict.fromkeys(
            [
                "requests_total",
                "requests_finished_total",
                "requests_cancelled_total",
                "requests_failed_total",
                "requests_rejected_total",
            ],
            0,
        )
        | {"prompt_tokens_total": last[1], "generated_tokens_total": last[2]},
        "gauges": {
            "requests_running": last[5],
            "requests_waiting": last[6],
            "kv_blocks_used": last[7],
            "kv_blocks": 100,
            "kv_bytes": 1 << 30,
            "weight_bytes": 1 << 20,
            "scratch_bytes": 0,
        },
        "histograms": {"time_to_first_token_seconds": {"count": last[3], "sum": last[4]}},
    }
    events = f"event: history\ndata: {json.dumps({'interval_ms': 1000, 'fields': fields, 'samples': samples})}\n\n"
    events += f"event: status\ndata: {json.dumps(status)}\n\n"
    page.add_init_script(OPEN_STREAM % json.dumps(events))


def test_the_table_has_the_rates_that_the_totals_mean(open_page):
    page = open_page(ready=False)
    # 100 seconds: 10 tokens a second in the last five, 4 before; one first token of 0.5 s, two of 1 s each in the second row.
    samples, tokens, firsts, total = [], 0, 0, 0.0
    for second in range(0, 101):
        tokens += 10 if second > 95 else 4
        if second == 98:
            firsts, total = firsts + 1, total + 0.5
        if second == 93:
            firsts, total = firsts + 2, total + 2.0
        samples.append(
            [second * 1000, second * 20, tokens, firsts, total, 1 if second == 97 else 0, 3 if second == 92 else 0, 25]
        )
    feed_dashboard(page, samples[:-1], samples[-1])
    page.reload()
    page.click("#tab-dashboard")
    page.click("text=Table")
    page.wait_for_selector("#history tbody tr")
    rows = page.locator("#history tbody tr").evaluate_all("rows => rows.map(r => [...r.cells].map(c => c.textContent))")
    assert rows[0] == ["0–5 s", "10", "20", "500 ms", "1", "0", "25 %"]
    assert rows[1] == ["5–10 s", "4", "20", "1.00 s", "0", "3", "25 %"]
    assert rows[11] == ["55–60 s", "4", "20", "–", "0", "0", "25 %"]


def test_a_sample_that_comes_late_leaves_no_hole(open_page):
    page = open_page(ready=False)
    # Four tokens a second all the time; the sample of second 65 comes 1.4 s late and the one of 66 with it.
    times = [s if s != 65 else 66.4 for s in range(0, 71) if s != 66]
    samples = [[int(t * 1000), 0, int(t * 4), 0, 0, 1, 0, 0] for t in times]
    feed_dashboard(page, samples[:-1], samples[-1])
    page.reload()
    page.click("#tab-dashboard")
    until(page, "document.querySelector('#charts .legend b').textContent !== ''")
    box = page.locator("#chart-requests").bounding_box()
    told = set()
    for x in range(42, int(box["width"]) - 6, 3):
        page.mouse.move(box["x"] + x, box["y"] + 40)
        told.add(page.locator("#charts figure").nth(2).locator(".legend b").first.inner_text())
    assert told == {"1"}


def test_without_canvas_there_are_tables(open_page):
    page = open_page("dashboard", init="HTMLCanvasElement.prototype.getContext = () => null")
    page.wait_for_selector("#history tbody tr")
    assert page.is_hidden("#charts")


def test_pointing_at_a_chart_tells_the_value_there(open_page):
    page = open_page(ready=False)
    samples = [[s * 1000, 0, s * s, 0, 0, 0, 0, 0] for s in range(0, 71)]  # the rate is 2s - 1
    feed_dashboard(page, samples[:-1], samples[-1])
    page.reload()
    page.click("#tab-dashboard")
    until(page, "document.querySelector('#charts .legend b').textContent !== ''")
    box = page.locator("#chart-speed").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 7, box["y"] + 40)
    assert page.locator("#charts .legend b").first.inner_text() == "139"
    page.mouse.move(box["x"] + 41, box["y"] + 40)
    assert page.locator("#charts .legend b").first.inner_text() == "21"


# ---- state ----


def test_a_server_that_ends_is_seen_and_one_that_comes_back_too(open_page, start):
    server = start("--served-model-name", "gone")
    page = open_page("dashboard", at=server)
    assert server.stop() == 0
    page.wait_for_selector("#state-dot.gone", state="attached")
    assert page.inner_text("#state-text") == "not reachable" and "not reachable" in page.inner_text("#live")
    page.click("#tab-chat")
    assert page.is_disabled("#send")
    again = start("--served-model-name", "back", "--port", str(server.port))
    page.wait_for_selector("#state-dot.ok", state="attached")
    assert page.inner_text("#model-name") == "back" and page.is_enabled("#send")
    assert again.port == server.port


def test_the_page_is_there_while_the_model_loads(open_page):
    page = open_page(ready=False)
    feed = {
        "uptime_ms": 1,
        "state": "loading",
        "version": "1",
        "requests": [],
        "model": None,
        "counters": {},
        "gauges": {},
        "histograms": {"time_to_first_token_seconds": {"count": 0, "sum": 0}},
    }
    page.add_init_script(OPEN_STREAM % json.dumps(f"event: status\ndata: {json.dumps(feed)}\n\n"))
    page.reload()
    page.wait_for_selector("#state-text:has-text('loading')")
    page.fill("#prompt", "x")
    assert page.is_disabled("#send")


def test_a_page_too_many_still_chats(open_page, server):
    sockets = []
    while server.get("/slots").status == 200 and len(sockets) < 40:
        sock = server.raw(b"GET /api/edge/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        sockets.append(sock)
        if b" 429 " in sock.recv(64):
            break
    page = open_page()
    answer_with(page, stream("fine"))
    assert say(page, "hello").locator(".body").inner_text() == "fine"
    page.click("#tab-dashboard")
    page.wait_for_selector("#live:has-text('too many pages')")
    for sock in sockets:
        sock.close()
    page.wait_for_selector("#live:text-is('live')")


# ---- key ----


def test_a_key_is_asked_for_and_kept_in_this_tab_only(open_page, start):
    server = start("--api-key", "right key")
    page = open_page(at=server, ready=False)
    page.wait_for_selector("#key-dialog[open]")
    assert page.evaluate("document.activeElement.id") == "key-input"
    page.fill("#key-input", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key-problem:visible")
    assert "did not take" in page.inner_text("#key-problem") and page.input_value("#key-input") == ""
    page.fill("#key-input", "schlüssel")
    page.click("text=Use this key")
    assert "ASCII" in page.inner_text("#key-problem") and page.is_visible("#key-dialog")
    page.fill("#key-input", " right key ")
    page.click("text=Use this key")
    page.wait_for_selector("#state-dot.ok", state="attached")
    page.fill("#settings-form [name=max_tokens]", "3")
    answer = say(page, "Hi")
    assert answer.locator(".footer").inner_text() != "" and answer.locator(".error:visible").count() == 0
    assert page.evaluate(
        "[JSON.stringify(sessionStorage).includes('right key'), JSON.stringify(localStorage), document.cookie, location.href.includes('key')]"
    ) == [True, "{}", "", False]
    page.click("#tab-api")
    assert "right key" not in page.inner_text("body") and "$OPENAI_API_KEY" in page.inner_text("#snippets")
    page.reload()
    page.wait_for_selector("#state-dot.ok", state="attached")
    page.click("#key-button")
    page.click("text=Forget it")
    page.wait_for_selector("#key-dialog[open]")
    assert page.evaluate("JSON.stringify(sessionStorage).includes('right key')") is False


def test_a_question_for_the_key_that_is_waved_away_comes_back_when_it_matters(open_page, start):
    page = open_page(at=start("--api-key", "k"), ready=False)
    page.wait_for_selector("#key-dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#key-dialog[open]")


# ---- snippets ----


def test_the_snippets_run_as_they_are_copied(open_page, server):
    page = open_page("api")
    page.wait_for_selector("#api-model:text-is('tiny')")
    blocks = page.locator("#snippets .code-block").evaluate_all(
        "nodes => Object.fromEntries(nodes.map(n => [n.querySelector('h3').textContent, n.querySelector('pre').textContent]))"
    )
    environment = {**os.environ, "OPENAI_API_KEY": "none"}
    for title in ("curl", "curl, streamed", "Python", "Python, streamed"):
        command = (
            [sys.executable, "-c", blocks[title]]
            if title.startswith("Python")
            else ["bash", "-c", blocks[title].replace("curl ", "curl -sS ", 1)]
        )
        # A small limit for the answer, so that the test is quick.
        command[-1] = command[-1].replace('"model"', '"max_tokens":5,"model"').replace("model=", "max_tokens=5, model=")
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert result.returncode == 0 and result.stdout.strip(), (title, result.stderr)
        assert ("[DONE]" in result.stdout) == (title == "curl, streamed")
        if title == "curl":
            assert json.loads(result.stdout)["model"] == "tiny"


def test_odd_names_are_quoted_in_snippets(open_page):
    page = open_page()
    name = 'it\'s "x" $HOME `id` \\'
    text = page.evaluate(
        """async name => { const {showSnippets} = await import('/ui/snippets.js'); showSnippets(name);
      return Object.fromEntries([...document.querySelectorAll('#snippets .code-block')].map(n => [n.querySelector('h3').textContent, n.querySelector('pre').textContent])); }""",
        name,
    )
    shell = text["curl"].split("-d ", 1)[1]
    printed = subprocess.run(["sh", "-c", f"printf %s {shell}"], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed)["model"] == name
    assert (
        re.search(r"model=(\".*\"),\n", text["Python"])
        and eval(re.search(r"model=(\".*\"),\n", text["Python"]).group(1)) == name
    )


# ---- for everybody ----


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("tab", TABS)
def test_accessible_and_within_the_screen(open_page, tab, screen, scheme):
    page = open_page(tab, **screen, color_scheme=scheme)
    if tab == "chat":
        answer_with(
            page,
            stream(
                "# Title\n"
                + "w" * 300
                + "\n\n```sh\n"
                + "x" * 300
                + "\n```\n\n| a | b |\n|---|---|\n| "
                + "c " * 60
                + " | d |\n\n- **l**\n\n"
            ),
        )
        say(page, "q" * 200)
    elif tab == "dashboard":
        page.wait_for_selector("#totals dd")
    check_screen(page, f"{tab}")
    if tab == "chat" and screen is PHONE:
        page.click("#settings-button")
        check_screen(page, "settings")
        page.click("#settings-close")
        page.wait_for_selector("#composer:visible")
    if tab == "dashboard":
        page.click("text=Table")
        check_screen(page, "table")


def check_screen(page, what):
    assert page.evaluate(
        "document.documentElement.scrollWidth <= innerWidth"
    ), f"{what}: nothing sticks out to the side"
    found = Axe().run(page)
    assert found.violations_count == 0, what + "\n" + found.generate_report()
    small = page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, textarea, summary')].filter(n => n.checkVisibility() && n.type !== 'radio')
      .map(n => [n.textContent || n.name, n.getBoundingClientRect()]).filter(([, r]) => r.width && (r.height < 36 || r.width < 36)).map(([t, r]) => `${t} ${r.width}x${r.height}`)"""
    )
    assert small == [], f"{what}: fingers need room"
    cut = page.evaluate(
        """() => [...document.querySelectorAll('button')].filter(n => n.checkVisibility() && n.scrollWidth > n.clientWidth + 1).map(n => n.textContent)"""
    )
    assert cut == [], f"{what}: words of buttons are whole"


def test_the_theme_is_chosen_and_kept(open_page):
    page = open_page(**DESK, color_scheme="dark")
    back = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")
    dark = back()
    page.click("#theme-button")
    assert page.inner_text("#theme-button") == "Theme: light" and back() != dark
    page.reload()
    assert page.inner_text("#theme-button") == "Theme: light" and back() != dark
    page.click("#theme-button")
    assert back() == dark and page.inner_text("#theme-button") == "Theme: dark"


def test_everything_is_reached_by_keys(open_page):
    page = open_page()
    page.locator("#tab-chat").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-dashboard" and page.is_visible("#dashboard")
    page.keyboard.press("End")
    assert page.is_visible("#api") and page.url.endswith("#api")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#chat")
    answer_with(page, stream("ok\n```\ncode\n```"))
    say(page, "hello")
    page.locator("#tab-chat").focus()
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "(document.activeElement.id || document.activeElement.name || document.activeElement.textContent.trim())"
            )
        )
    assert {
        "log",
        "prompt",
        "send",
        "new-chat",
        "settings-button",
        "theme-button",
        "Edit",
        "Copy",
        "Regenerate",
        "temperature",
        "system",
    } <= reached
    assert page.evaluate("document.getElementById('tab-api').tabIndex") == -1


def test_readers_hear_the_answer_once_and_not_every_token(open_page):
    page = open_page()
    answer_with(page, stream("The", " answer"))
    say(page, "q")
    assert page.inner_text("#announcer") == "Answer: The answer"
    assert page.get_attribute("#log", "aria-live") == "off" and page.get_attribute("#announcer", "role") == "status"


def test_addresses_lead_to_tabs_and_back_goes_back(open_page):
    page = open_page("nonsense")
    assert page.is_visible("#chat")
    page.click("#tab-dashboard")
    page.click("#tab-api")
    page.go_back()
    assert page.is_visible("#dashboard") and page.get_attribute("#tab-dashboard", "aria-selected") == "true"


def test_without_scripts_the_page_says_so(open_page):
    page = open_page(ready=False, **DESK, java_script_enabled=False)
    assert "needs JavaScript" in page.inner_text("body")


def test_it_loads_quickly_and_little(open_page):
    page = open_page(ready=False)
    sizes = []
    page.on(
        "response",
        lambda r: (
            sizes.append(int(r.headers.get("content-length", 0)))
            if "/ui/" in r.url or r.url.endswith("#chat")
            else None
        ),
    )
    page.reload()
    page.wait_for_selector("#state-dot.ok", state="attached")
    assert len(sizes) >= 9 and sum(sizes) < 64 << 10, "bytes over the network, compressed"
