"""Text of a model never becomes anything but text: no elements that it asks for, nothing loaded, nothing run, nothing
that takes forever. The fixtures add that no exception, dialog or request to others may come of it."""

import json

import pytest

from conftest import Watched, answer_with, say, stream

ALLOWED = {
    "P",
    "H3",
    "H4",
    "H5",
    "H6",
    "UL",
    "OL",
    "LI",
    "STRONG",
    "EM",
    "CODE",
    "PRE",
    "BLOCKQUOTE",
    "HR",
    "TABLE",
    "THEAD",
    "TBODY",
    "TR",
    "TH",
    "TD",
    "DIV",
    "SPAN",
    "BUTTON",
}
ATTRIBUTES = {"class", "tabindex", "type", "data-copy", "start", "scope"}
HOSTILE = [
    '<img src=x onerror="window.hacked=1">',
    "<script>window.hacked=1</script>",
    "<svg/onload=window.hacked=1>",
    '</div></article><iframe src="javascript:parent.hacked=1"></iframe>',
    '<a href="javascript:hacked=1">click</a>',
    "[click](javascript:window.hacked=1)",
    "![x](http://example.com/x.png)",
    '[x]: http://example.com "x"',
    "<http://example.com>",
    "http://example.com/?q=<b>",
    "**<b onclick=hacked=1>bold</b>**",
    "`<script>hacked=1</script>`",
    "```html\n<script>hacked=1</script>\n```",
    '```"><img src=x onerror=hacked=1>\ncode\n```',
    "- <style>*{display:none}</style>\n  - <meta http-equiv=refresh content=0>",
    "> <form action=//example.com><input name=x></form>",
    "# <object data=x>",
    "| <img src=x onerror=hacked=1> | b |\n|---|---|\n| <embed src=x> | y |",
    "&lt;img src=x onerror=hacked=1&gt; &#60;script&#62;",
    "1. {{constructor.constructor('hacked=1')()}} ${hacked=1}",
    "\u202e<txet thgir>\u202c \u2066x",
    "\ufeff<b>\u0000</b>",
    "__proto__ constructor **__proto__**",
    "<!-- --><![CDATA[x]]><?php x ?>",
    "</script><script>hacked=1</script>",
    '<math><mi xlink:href="data:x,<script>hacked=1</script>">',
]
RENDER = """async text => { const {show} = await import('/ui/markdown.js'); const node = document.createElement('div'); const begun = performance.now();
  show(node, text); return {ms: performance.now() - begun, text: node.textContent, html: node.innerHTML,
    names: [...new Set([...node.querySelectorAll('*')].map(n => n.tagName))],
    attributes: [...new Set([...node.querySelectorAll('*')].flatMap(n => n.getAttributeNames()))]}; }"""
# The same text in growing parts, as a stream brings it.
GROW = """async ([text, step]) => { const {show} = await import('/ui/markdown.js'); const node = document.createElement('div');
  for (let end = 1; end < text.length; end += step) show(node, text.slice(0, end)); show(node, text); return node.innerHTML; }"""


@pytest.fixture(scope="module")
def shared(browser, server):
    watched = Watched(browser, server)
    yield watched, watched()
    watched.close()


@pytest.fixture
def page(shared):
    """One page for all who only look at what becomes of a text: opening one takes longer than all they do."""
    watched, page = shared
    yield page
    assert watched.wrong == []


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(page, text):
    answer_with(page, stream(text))
    answer = say(page, text)
    found = answer.locator(".body").evaluate("""body => ({names: [...body.querySelectorAll('*')].map(n => n.tagName),
      attributes: [...body.querySelectorAll('*')].flatMap(n => n.getAttributeNames()), text: body.textContent})""")
    assert set(found["names"]) <= ALLOWED and set(found["attributes"]) <= ATTRIBUTES
    assert page.locator("article.user .body").last.evaluate("body => [body.children.length, body.textContent]") == [
        0,
        text,
    ]
    # What the text says can be read: nothing is swallowed but the marks.
    for word in ("onerror", "script", "javascript:", "http://example.com", "onclick", "style", "iframe"):
        assert text.count(word) == found["text"].count(word) or text.startswith('```"'), word
    assert page.evaluate("window.hacked") is None


def test_hostile_text_that_was_kept_stays_text_after_a_reload(page):
    page.reload()
    assert page.locator("article.assistant").count() == len(HOSTILE)
    names = page.locator("article .body *").evaluate_all("nodes => nodes.map(n => n.tagName)")
    assert set(names) <= ALLOWED and page.evaluate("window.hacked") is None


def test_thoughts_errors_notes_and_names_are_text_too(open_page):
    page = open_page()
    evil = "<img src=x onerror=window.hacked=1>"
    frame = "data: " + json.dumps({"choices": [{"index": 0, "delta": {"reasoning_content": evil}}]}) + "\n\n"
    failure = "data: " + json.dumps({"error": {"message": evil}}) + "\n\n"
    answer_with(page, frame + failure)
    answer = say(page, "x")
    assert answer.locator(".thoughts").inner_text() == evil and answer.locator(".error").inner_text() == evil
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(
            status=200, content_type="text/event-stream", body=stream("ok"), headers={"X-Deepseek-Edge-Note": evil}
        ),
    )
    assert evil in say(page, "y").locator(".footer").inner_text()
    assert page.locator("article img").count() == 0


def test_a_model_may_be_called_anything(open_page, start):
    name = "<img src=x onerror=hacked=1>'\"; rm -rf $HOME `x`"
    server = start("--served-model-name", name)
    page = open_page("dashboard", at=server)
    page.wait_for_selector("#facts dd")
    assert page.inner_text("#model-name") == name and page.locator("#facts dd").first.inner_text() == name
    page.click("#tab-api")
    assert page.inner_text("#api-model") == name and page.locator("img").count() == 0


@pytest.mark.parametrize(
    "text, html",
    [
        ("a **b** c", "<p>a <strong>b</strong> c</p>"),
        ("*i* and ***both***", "<p><em>i</em> and <strong><em>both</em></strong></p>"),
        ("2 * 3 * 4, snake__case__name, __strong__", "<p>2 * 3 * 4, snake__case__name, <strong>strong</strong></p>"),
        ("`a**b**` ``x ` y``", "<p><code>a**b**</code> <code>x ` y</code></p>"),
        (r"\*no\* \# 1\. x", "<p>*no* # 1. x</p>"),
        (
            "- a\n- b\n  - c\n    - d\n- e",
            "<ul><li>a</li><li><p>b</p><ul><li><p>c</p><ul><li>d</li></ul></li></ul></li><li>e</li></ul>",
        ),
        ("3. x\n4. y", '<ol start="3"><li>x</li><li>y</li></ol>'),
        ("1. x\n\n2. y\n\ntext", '<ol start="1"><li>x</li><li>y</li></ol><p>text</p>'),
        ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
        ("# A\n### B ###x", "<h3>A</h3><h5>B ###x</h5>"),
        ("> q\n> r", "<blockquote><p>q\nr</p></blockquote>"),
        ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
        ("text:\n- a", "<p>text:</p><ul><li>a</li></ul>"),
        ("**open", "<p>**open</p>"),
        ("**", "<p>**</p>"),
        ("`", "<p>`</p>"),
        ("", ""),
        ("\n\n", ""),
        ("a ** b", "<p>a ** b</p>"),
    ],
)
def test_marks_become_elements(page, text, html):
    assert page.evaluate(RENDER, text)["html"].replace(' class=""', "") == html


def test_code_blocks_keep_every_character_even_while_they_are_open(page):
    code = 'if (a < b && c > d) {\n\n\tprint("**x**") # `y`\n}'
    for text in (f"```c\n{code}\n```", f"~~~c\n{code}\n~~~", f"```c\n{code}"):
        page.evaluate(
            "async text => { const {show} = await import('/ui/markdown.js'); const n = document.createElement('div'); n.id = 'probe'; "
            "document.body.append(n); show(n, text); }",
            text,
        )
        assert page.locator("#probe pre").evaluate("n => n.textContent") == code
        assert page.locator("#probe .code-head span").inner_text() == "c"
        page.evaluate("document.getElementById('probe').remove()")
    nested = "- step:\n\n  ```sh\n  ls\n    -l\n  ```\n- next"
    html = page.evaluate(RENDER, nested)["html"]
    assert "<code>ls\n  -l</code>" in html and html.count("<li>") == 2


def test_tables_have_rows_and_heads(page):
    html = page.evaluate(RENDER, "| a | b |\n|---|:-:|\n| 1 | **2** |\n| 3 |\n\nend")["html"]
    assert '<th scope="col">a</th>' in html and "<td><strong>2</strong></td>" in html and html.endswith("<p>end</p>")
    assert html.count("<tr>") == 3 and html.count("<td>") == 4, "a short row has empty cells"


@pytest.mark.parametrize("step", [1, 3, 7])
def test_a_growing_text_ends_as_the_whole_one(page, step):
    text = (
        "# T\nIntro **bold**\n\n- a\n  - b `c`\n- d\n\n```py\nx = 1\n```\n\n| h |\n|---|\n| v |\n\n> q\n\n1. one\n2. two **x**\n\nEnd *it*.\n"
        + "\n\n".join(HOSTILE)
    )
    assert page.evaluate(GROW, [text, step]) == page.evaluate(RENDER, text)["html"]


N = 100_000


@pytest.mark.parametrize(
    "name, text",
    [
        ("stars", "*" * N),
        ("pairs", "**" * (N // 2) + "x"),
        ("star words", "*a " * (N // 3)),
        ("marks", "**a" * (N // 3)),
        ("ticks", "`" * N),
        ("tick words", "`a ``b ```c " * (N // 12)),
        ("under", "_" * N),
        ("slashes", "\\" * N),
        ("quotes", ">" * N),
        ("quote words", "> " * (N // 2)),
        ("dashes", "- " * (N // 2)),
        ("rules", "-" * N + "x"),
        ("blank", " " * N + "x"),
        ("blank mark", "#" + " " * N),
        ("fence", "```" + " " * N + "`"),
        ("fences", "```\n" * (N // 4)),
        ("items", "- a\n" * (N // 4)),
        ("deep", "".join(" " * i + "- x\n" for i in range(400))),
        ("table", "|" * N + "\n" + "|-" * 900),
        ("table blank", "a|b\n" + " " * N + "x-"),
        ("cells", "|a" * 900 + "\n" + "|-" * 900 + ("\n" + "|b" * 900) * 20),
        ("rows", "|a|\n|-|\n" + "|b|\n" * (N // 4)),
        ("lines", "\n" * N),
        ("numbers", "1" * N + "."),
        ("hashes", "#" * N),
        ("tabs", "\t" * N),
        ("nul", "\0" * N),
        ("brackets", "[" * N + "](" * 1000),
        ("mixed", "**`*_" * (N // 5)),
        ("surrogates", "\U0001f600" * (N // 2)),
        ("item blank", "- " + " " * N + "\n x"),
        ("number item", ("9" * 9 + ". x\n") * 8000),
    ],
)
def test_no_text_takes_long(page, name, text):
    found = page.evaluate(RENDER, text)
    assert found["ms"] < 5000, found["ms"]
    assert set(found["names"]) <= ALLOWED and set(found["attributes"]) <= ATTRIBUTES


# Milliseconds to show a text, to show it grown by a little and to show it shrunk to nothing.
TIME = """async ([unit, n]) => { const {show} = await import('/ui/markdown.js'); const text = unit.repeat(n);
  const node = document.createElement('div'); const begun = performance.now();
  for (const t of [text, text + unit, '']) show(node, t); return performance.now() - begun; }"""


@pytest.mark.parametrize(
    "unit",
    [
        "a\n\n",
        "**a** `b`\n\n",
        "```c\na\n```\n",
        "# h\n",
        "---\n",
        "> q\n\n",
        "> q\n>\n",
        "- a\n",
        "- a\n\n  b\n\n",
        "- a\ntext\n\n\n",
        "1. x\n\ntext\n\n",
        "a|b\n-|-\nc|d\n\n",
        "a\n- b\n> c\n",
    ],
)
def test_work_grows_with_the_number_of_blocks_and_not_faster(page, unit):
    """Eight times the blocks: about 8 times the time, and 64 times if each block were to ask for all the others."""
    few = min(page.evaluate(TIME, [unit, 2000]) for _ in range(5))
    assert any(page.evaluate(TIME, [unit, 16000]) < 30 * max(few, 1) for _ in range(4))


def test_blocks_that_did_not_change_stay_the_same_nodes(page):
    same = """async () => { const {show} = await import('/ui/markdown.js'); const node = document.createElement('div');
      show(node, 'a\\n\\nb\\n\\nc'); const [a, b] = node.children; show(node, 'a\\n\\nB\\n\\nc\\n\\nd');
      const kept = node.children[0] === a && node.children[1] !== b; show(node, 'a'); const one = node.innerHTML;
      show(node, 'a\\n\\ne'); return [kept, one, node.innerHTML, node.children[0] === a]; }"""
    assert page.evaluate(same) == [True, "<p>a</p>", "<p>a</p><p>e</p>", True]
