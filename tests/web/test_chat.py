"""The Chat tab against the real server, and against answers that a test has written."""

import json

import pytest

from conftest import PHONE, answer_with, chunk, say, stream, until

FEED = """() => { const real = window.fetch; window.fetch = (to, options) => String(to).endsWith('completions') ? Promise.resolve(
  new Response(new ReadableStream({start(c) { window.feed = bytes => c.enqueue(Uint8Array.from(bytes)); }}))) : real(to, options); }"""


def by_hand(page):
    """The next answers come from the function that is returned: bytes, as they are given to it."""
    page.evaluate(FEED)

    def feed(text):
        until(page, "window.feed")
        page.evaluate("bytes => feed(bytes)", list(text.encode()) if isinstance(text, str) else list(text))

    return feed


def settings(page, **values):
    for name, value in values.items():
        field = page.locator(f"#settings-form [name={name}]")
        if field.evaluate("node => node.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)


def test_an_answer_is_the_one_of_the_api_with_its_figures(open_page, server):
    page = open_page()
    settings(page, temperature="0", max_tokens="12")
    answer = say(page, "Say hi")
    expected = server.chat(max_tokens=12)
    assert answer.locator(".body").inner_text().strip() == expected["choices"][0]["message"]["content"].strip()
    usage = expected["usage"]
    footer = answer.locator(".footer").inner_text()
    assert (
        f"{usage['completion_tokens']} token" in footer
        and "tok/s" in footer
        and f"prompt {usage['prompt_tokens']}" in footer
    )
    assert page.inner_text("#context-text") == f"{usage['total_tokens']} of 1,024"
    assert page.locator("#context-meter").evaluate("m => [m.value, m.max]") == [usage["total_tokens"], 1024]
    assert page.inner_text("#prompt") == "" and page.is_hidden("#welcome")


def test_text_streams_and_stop_ends_the_request_and_keeps_the_text(open_page, server):
    assert server.wait_idle()
    page = open_page()
    cancelled = server.metric("requests_cancelled_total")
    answer = say(page, "Write a very long story about the sea and all its fish, with a hundred chapters.", wait=False)
    until(page, "document.querySelector('article.assistant .body').textContent.length > 10")
    assert page.is_visible("#stop") and page.is_hidden("#send") and answer.get_attribute("aria-busy") == "true"
    length = len(answer.locator(".body").inner_text())
    until(page, f"document.querySelector('article.assistant .body').textContent.length > {length + 10}")
    page.click("#stop")
    page.wait_for_selector("#send:visible")
    kept = answer.locator(".body").inner_text()
    assert len(kept) > length and "stopped by you" in answer.locator(".footer").inner_text()
    assert "tok/s" in answer.locator(".footer").inner_text()
    assert server.wait_idle(10), "the server stopped too"
    assert server.metric("requests_cancelled_total") == cancelled + 1
    assert answer.locator(".body").inner_text() == kept


def test_escape_stops_and_the_next_question_knows_what_was_written(open_page, server):
    page = open_page()
    say(page, "Tell me everything about ships, in many pages.", wait=False)
    until(page, "document.querySelector('article.assistant .body').textContent.length > 10")
    page.keyboard.press("Escape")
    page.wait_for_selector("#send:visible")
    sent = []
    answer_with(page, stream("ok"), sent=sent)
    say(page, "And now?")
    assert [m["role"] for m in sent[0]["messages"]] == ["user", "assistant", "user"]
    assert server.wait_idle()


def test_edit_and_regenerate_ask_again_from_that_place(open_page):
    page, sent = open_page(), []
    answer_with(page, stream("first"), sent=sent)
    say(page, "one")
    answer_with(page, stream("second"), sent=sent)
    say(page, "two")
    answer_with(page, stream("third"), sent=sent)
    page.locator("article.assistant").last.get_by_text("Regenerate").click()
    until(page, "document.querySelector('article:last-child .body').textContent === 'third'")
    assert [m["content"] for m in sent[2]["messages"]] == ["one", "first", "two"]
    page.locator("article.user").first.get_by_text("Edit").click()
    assert page.input_value(".editor textarea") == "one"
    page.fill(".editor textarea", "uno")
    page.click("text=Send again")
    until(page, "document.querySelectorAll('article').length === 2")
    assert [m["content"] for m in sent[3]["messages"]] == ["uno"]
    page.locator("article.user").first.get_by_text("Edit").click()
    page.keyboard.press("Escape")
    assert page.locator("article").count() == 2 and page.locator(".editor").count() == 0
    page.click("#new-chat")
    assert page.locator("article").count() == 0 and page.is_visible("#welcome")


def test_the_request_has_what_was_set_and_nothing_else(open_page):
    page, sent = open_page(), []
    answer_with(page, stream("ok"), sent=sent)
    say(page, "plain")
    assert set(sent[0]) == {"messages", "stream", "stream_options", "return_progress"}
    settings(
        page,
        system="Be brief.",
        temperature="0.5",
        max_tokens="7",
        top_p="0.9",
        top_k="40",
        min_p="0.1",
        repeat_penalty="1.1",
        seed="42",
        thinking="disabled",
    )
    say(page, "set")
    assert sent[1]["messages"][0] == {"role": "system", "content": "Be brief."}
    expected = {
        "temperature": 0.5,
        "max_tokens": 7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "repeat_penalty": 1.1,
        "seed": 42,
        "thinking": {"type": "disabled"},
    }
    assert {name: sent[1].get(name) for name in expected} == expected
    page.click("text=Reset all")
    say(page, "plain again")
    assert set(sent[2]) == set(sent[0]) and sent[2]["messages"][0]["role"] == "user"


@pytest.mark.parametrize(
    "name, value, label",
    [
        ("temperature", "3", "Temperature"),
        ("max_tokens", "0", "Max tokens"),
        ("top_k", "1.5", "Top k"),
        ("seed", "99999999999999999999", "Seed"),
    ],
)
def test_a_wrong_setting_is_named_and_nothing_is_sent(open_page, name, value, label):
    page, sent = open_page(), []
    answer_with(page, stream("ok"), sent=sent)
    settings(page, **{name: value})
    say(page, "hello")
    assert page.inner_text("#settings-error").startswith(f"{label}: ") and sent == []
    assert page.locator("#settings-form [aria-invalid]").get_attribute("name") == name
    settings(page, **{name: "1"})
    assert page.is_hidden("#settings-error")
    page.locator("article.assistant").last.get_by_text("Regenerate").click()
    until(page, "document.querySelector('article:last-child .body').textContent === 'ok'")
    assert sent[0][name] == 1


def test_the_schema_box_is_there_only_if_the_server_takes_schemas(open_page, server):
    takes = server.post(
        "/apply-template",
        {
            "messages": [{"role": "user", "content": "x"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": {"type": "object"}}},
        },
    )
    page = open_page()
    with page.expect_response("**/apply-template"):
        page.reload()
    page.wait_for_timeout(100)
    assert page.locator("#format-box").is_visible() == (takes.status == 200)


def with_formats(open_page):
    page = open_page(init="sessionStorage.clear()")
    page.route("**/apply-template", lambda route: route.fulfill(json={"prompt": "x"}))
    page.reload()
    page.wait_for_selector("#format-box:visible")
    return page


def test_a_schema_is_sent_and_its_answer_shown_as_code(open_page):
    page, sent = with_formats(open_page), []
    answer_with(page, stream('{"a": "**x** ```', ' `"}'), sent=sent)
    settings(page, format="json_schema", schema='{"type":')
    say(page, "bad")
    assert page.inner_text("#settings-error").startswith("JSON schema: ") and sent == []
    settings(page, schema='{"type":"object"}')
    answer = say(page, "good")
    assert sent[0]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": {"type": "object"}},
    }
    assert answer.locator("pre").inner_text() == '{"a": "**x** ``` `"}'
    settings(page, format="json_object")
    say(page, "any")
    assert sent[1]["response_format"] == {"type": "json_object"} and page.is_hidden("#schema-label")


def test_thoughts_are_folded_when_the_answer_begins(open_page):
    page = open_page()
    # Two streams: one that is still thinking when it ends, one that answers.
    answer_with(
        page,
        stream(
            chunk(delta={"reasoning_content": "Let me "}), chunk(delta={"reasoning_content": "<b>see</b>"}), "Done."
        ),
    )
    answer = say(page, "think")
    fold = answer.locator("details.thinking")
    assert fold.is_visible() and fold.get_attribute("open") is None
    assert "Thought for" in fold.locator("summary").inner_text()
    fold.locator("summary").click()
    assert (
        fold.locator(".thoughts").inner_text() == "Let me <b>see</b>"
        and answer.locator(".body").inner_text() == "Done."
    )
    answer_with(page, stream(chunk(delta={"reasoning_content": "hm"}), end=False))
    answer = say(page, "think on")
    assert (
        answer.locator("details.thinking").get_attribute("open") is not None
    ), "no answer came: the thoughts are all there is"
    assert "ended before" in answer.locator(".error").inner_text()


def test_the_prompt_being_read_is_shown_and_bytes_may_come_in_any_parts(open_page):
    page = open_page()
    feed = by_hand(page)
    say(page, "long", wait=False)
    feed('data: {"choices":[],"prompt_progress":{"total":200,"cache":0,"processed":50}}\n\n')
    page.wait_for_selector("article progress:visible")
    assert page.locator("article progress").evaluate("p => p.value") == 0.25
    until(page, "document.querySelector('article .footer').textContent.includes('50 of 200')")
    feed(stream("h\u00e9llo \u2603", end=False))
    raw = 'data: {"choices":[{"index":0,"delta":{"content":" \u2603\U0001f600"}}]}\r\n\r\n'.encode()
    for at in range(0, len(raw)):
        feed(raw[at : at + 1])
    feed(": a comment\n\n" + stream("!"))
    until(page, "document.querySelector('article.assistant .body').textContent.endsWith('!')")
    assert page.locator("article.assistant .body").inner_text() == "h\u00e9llo \u2603 \u2603\U0001f600!"
    assert page.is_hidden("article progress")


@pytest.mark.parametrize(
    "status, message",
    [
        (400, "top_p must be <img src=x onerror=alert(1)>"),
        (429, "the queue is full"),
        (503, "the server is shutting down"),
        (500, ""),
    ],
)
def test_refusals_are_told_in_the_words_of_the_server(open_page, status, message):
    page = open_page()
    answer_with(page, json.dumps({"error": {"message": message, "param": "top_p"}}), status, "application/json")
    answer = say(page, "hello")
    assert answer.locator(".error").inner_text() == (message or "the server answered 500")
    answer_with(page, stream("better"))
    answer.get_by_text("Regenerate").click()
    until(page, "document.querySelector('article:last-child .body').textContent === 'better'")
    assert page.locator(".assistant .error:visible").count() == 0


@pytest.mark.parametrize(
    "body, says",
    [
        (stream("half", end=False), "ended before the answer"),
        ("<html>busy</html>", "ended before"),
        (stream("half", 'data: {"error":{"message":"the device is lost"}}\n\n', end=False), "the device is lost"),
        ("data: {nonsense\n\n", "JSON"),
        ("", "ended before"),
    ],
)
def test_a_broken_stream_keeps_its_text_and_says_so(open_page, body, says):
    page = open_page()
    answer_with(page, body)
    answer = say(page, "hello")
    assert says in answer.locator(".error").inner_text()
    assert answer.locator(".body").inner_text() == ("half" if "half" in body else "")
    assert page.is_enabled("#send")


def test_a_prompt_beyond_the_context_is_told_by_the_real_server(open_page):
    page = open_page()
    answer = say(page, "word " * 3000)
    assert "maximum context length is 1024" in answer.locator(".error").inner_text()


def test_a_reload_keeps_the_conversation_and_another_tab_does_not_see_it(open_page):
    page, sent = open_page(), []
    answer_with(page, stream("**kept**"))
    settings(page, temperature="0.25")
    say(page, "remember")
    page.reload()
    page.wait_for_selector("#state-dot.ok", state="attached")
    assert page.locator("article .body strong").inner_text() == "kept"
    assert page.input_value("[name=temperature]") == "0.25"
    answer_with(page, stream("more"), sent=sent)
    say(page, "go on")
    assert [m["content"] for m in sent[0]["messages"]] == ["remember", "**kept**", "go on"]
    assert page.evaluate("Object.keys(localStorage)") == []
    other = page.context.new_page()
    other.goto(page.url)
    assert other.locator("article").count() == 0


def test_what_was_kept_may_be_nonsense(open_page):
    for kept in (
        "nonsense",
        "{}",
        "null",
        "[]",
        '{"messages":[{"role":"evil"}],"fields":{"nope":"1"}}',
        '{"messages":7}',
    ):
        page = open_page(init=f"sessionStorage.setItem('deepseek-edge.chat', {json.dumps(kept)})")
        assert page.locator("article").count() == 0 and page.is_enabled("#send"), kept
        page.context.close()


def test_return_sends_on_a_desk_and_makes_a_line_on_a_phone(open_page):
    desk, phone = open_page(), open_page(**PHONE)
    for page in (desk, phone):
        answer_with(page, stream("ok"))
        page.fill("#prompt", "first")
    desk.press("#prompt", "Shift+Enter")
    desk.type("#prompt", "second")
    desk.press("#prompt", "Enter")
    desk.wait_for_selector("article.assistant")
    assert desk.locator("article.user .body").inner_text() == "first\nsecond"
    phone.press("#prompt", "Enter")
    assert phone.input_value("#prompt") == "first\n" and phone.locator("article").count() == 0


def test_the_answer_is_copied_as_the_model_wrote_it(open_page):
    page = open_page()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer_with(page, stream("Use **this**:\n```sh\nls -l\n```"))
    answer = say(page, "copy")
    answer.locator(".actions").get_by_text("Copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == "Use **this**:\n```sh\nls -l\n```"
    answer.locator(".code-block .copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == "ls -l"
    page.wait_for_selector(".code-block .copy:has-text('Copied')")


def test_the_reader_of_old_lines_is_left_where_they_are(open_page):
    page = open_page()
    answer_with(page, stream("\n\n".join(f"line {i}" for i in range(80))))
    say(page, "long")
    assert (
        page.evaluate(
            "() => { const l = document.getElementById('log'); return l.scrollHeight - l.scrollTop - l.clientHeight; }"
        )
        < 60
    )
    page.evaluate("document.getElementById('log').scrollTop = 100")
    feed = by_hand(page)
    say(page, "more", wait=False)
    page.evaluate("document.getElementById('log').scrollTop = 100")
    feed(stream("new text"))
    page.wait_for_selector("article.assistant:last-of-type:not([aria-busy])")
    assert page.evaluate("document.getElementById('log').scrollTop") == 100
