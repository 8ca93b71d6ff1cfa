"""/v1/messages: Anthropic's own client against the server, and the raw shapes of events and errors."""
import json

import anthropic
import pytest
from conftest import literal, post_bytes, servers_by_template

PATH = "/v1/messages"
USER = [{"role": "user", "content": "How warm is the attic?"}]
TOOLS = [{"name": "read_meter", "description": "Reads a meter.", "input_schema": {
    "type": "object", "properties": {"room": {"type": "string"}, "n": {"type": "integer"}}, "required": ["room"]}}]
CHAT_TOOLS = [{"type": "function", "function": {"name": t["name"], "description": t["description"],
                                                "parameters": t["input_schema"]}} for t in TOOLS]
CALL = '<tool_call>\n{"name": "read_meter", "arguments": {"room": "attic", "n": 3}}\n</tool_call>'


@pytest.fixture(scope="module")
def servers():
    # whole and streamed answers are compared, their usage too: no cache between them
    yield from servers_by_template("--no-enable-prefix-caching", "--max-model-len", "1024", built_in=("deepseek_v4",))


def client(server, **options):
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", max_retries=0,
                               **dict({"api_key": "none"}, **options))


def strict(value):
    """The client itself builds its objects without validation."""
    type(value).model_validate(value.model_dump(warnings=False), strict=True)
    return value


def events_of(server, body):
    """(name, data) of each frame; names and types agree."""
    reply = server.post(PATH, dict(body, stream=True))
    assert reply.status == 200 and reply.headers["Content-Type"] == "text/event-stream"
    events = []
    for frame in reply.body.decode("utf-8", "strict").split("\n\n")[:-1]:
        name, data = frame.split("\n")
        assert name.startswith("event: ") and data.startswith("data: ")
        events.append((name[7:], json.loads(data[6:])))
        assert events[-1][1]["type"] == events[-1][0]
    return events


def both_forms(server, **fields):
    """A message, whole; the client's stream helper must come to the same."""
    body = dict({"model": "m", "max_tokens": 200, "messages": USER}, **fields)
    extra = {"extra_body": {"temperature": 0, "grammar": body.pop("grammar")}} if "grammar" in body else {}
    whole = strict(client(server).messages.create(**body, **extra))
    with client(server).messages.stream(**body, **extra) as stream:
        for event in stream:
            strict(event)
        final = strict(stream.get_final_message())

    def plain(message):
        return [{k: v for k, v in block.model_dump().items() if k != "id"} for block in message.content]

    assert plain(final) == plain(whole)
    assert (final.stop_reason, final.stop_sequence, final.usage) == (whole.stop_reason, whole.stop_sequence, whole.usage)
    return whole


def test_text(servers):
    message = both_forms(servers("qwen25"), grammar=literal("It is 21.5 °C. 🧪"))
    assert [(b.type, b.text) for b in message.content] == [("text", "It is 21.5 °C. 🧪")]
    assert (message.role, message.type, message.stop_reason, message.stop_sequence) == (
        "assistant", "message", "end_turn", None)
    assert message.id.startswith("msg_") and message.usage.input_tokens > 0 and message.usage.output_tokens > 5


def test_usage_and_prompt_are_those_of_chat(servers):
    server = servers("qwen25")
    system = [{"type": "text", "text": "Be "}, {"type": "text", "text": "short.", "cache_control": {"type": "ephemeral"}}]
    message = client(server).messages.create(model="m", max_tokens=3, messages=USER, system=system, tools=TOOLS)
    chat = {"messages": [{"role": "system", "content": "Be short."}] + USER, "tools": CHAT_TOOLS, "max_tokens": 3}
    usage = server.post("/v1/chat/completions", chat).json["usage"]
    got = message.usage
    assert got.input_tokens + got.cache_read_input_tokens + got.cache_creation_input_tokens == usage["prompt_tokens"]
    count = client(server).messages.count_tokens(model="m", messages=USER, system=system, tools=TOOLS)
    assert strict(count).input_tokens == usage["prompt_tokens"]


def test_stop_reasons(servers):
    server = servers("qwen25")
    assert both_forms(server, grammar=literal("one two three"), max_tokens=2).stop_reason == "max_tokens"
    stopped = both_forms(server, grammar=literal("one two three"), stop_sequences=["zzz", " three"])
    assert (stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text) == ("stop_sequence", " three", "one two")
    assert both_forms(server, max_tokens=0, grammar=literal("x")).content == []


def test_thinking(servers):
    server = servers("deepseek_v4")
    message = both_forms(server, grammar=literal("a thought</think>An answer."))
    assert [b.type for b in message.content] == ["thinking", "text"]
    assert (message.content[0].thinking, message.content[1].text) == ("a thought", "An answer.")
    assert message.usage.output_tokens_details.thinking_tokens > 0
    message = both_forms(server, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000,
                         grammar=literal("so</think>Yes."))
    assert message.content[0].thinking == "so"
    message = both_forms(server, thinking={"type": "disabled"}, grammar=literal("Yes."))
    assert [b.type for b in message.content] == ["text"]


def test_tool_call(servers):
    message = both_forms(servers("qwen25"), tools=TOOLS, grammar=literal("I look." + CALL))
    assert [b.type for b in message.content] == ["text", "tool_use"] and message.stop_reason == "tool_use"
    assert (message.content[1].name, message.content[1].input) == ("read_meter", {"room": "attic", "n": 3})
    assert message.content[1].id.startswith("toolu_")
    message = both_forms(servers("qwen25"), tools=TOOLS, tool_choice={"type": "auto"}, grammar=literal(f"{CALL}\n{CALL}"))
    assert [b.type for b in message.content] == ["tool_use"] * 2 and message.content[0].id != message.content[1].id
    message = both_forms(servers("qwen25"), tools=TOOLS, tool_choice={"type": "none"}, grammar=literal(CALL))
    assert [b.type for b in message.content] == ["text"]


def test_a_call_that_is_no_json_is_an_object_all_the_same(servers):
    broken = CALL.replace('"n": 3}', '"n": 3x}')
    body = {"max_tokens": 200, "messages": USER, "tools": TOOLS, "temperature": 0, "grammar": literal(broken)}
    for block in servers("qwen25").post(PATH, body).json["content"]:
        assert block["type"] == "text" or block["input"] == {"INVALID_JSON": '{"room": "attic", "n": 3x}'}


def test_order_of_events(servers):
    body = {"max_tokens": 100, "messages": USER, "tools": TOOLS, "temperature": 0, "grammar": literal("Hm." + CALL)}
    events = events_of(servers("qwen25"), body)
    names = [name for name, _ in events]
    short = [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert short == ["message_start", "ping"] + block * 2 + ["message_delta", "message_stop"]
    start = events[0][1]["message"]
    assert start["content"] == [] and start["stop_reason"] is None and start["usage"]["output_tokens"] == 0
    indices = [data["index"] for name, data in events if name.startswith("content_block")]
    assert indices == sorted(indices) and set(indices) == {0, 1}
    deltas = [data["delta"] for name, data in events if name == "content_block_delta"]
    assert {d["type"] for d in deltas} == {"text_delta", "input_json_delta"}
    assert json.loads("".join(d.get("partial_json", "") for d in deltas)) == {"room": "attic", "n": 3}


def apply(server, body):
    return server.post("/apply-template", body).json["prompt"]


HISTORY = [
    {"role": "user", "content": [{"type": "text", "text": "How warm"}, {"type": "text", "text": " is it?"}]},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "I should look.", "signature": "x"}, {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "read_meter", "input": {"room": "attic"}},
        {"type": "tool_use", "id": "t2", "name": "read_meter", "input": {"room": "cellar"}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": "21.5"},
        {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "no meter"}], "is_error": True},
        {"type": "text", "text": "And now?"}]}]
CHAT_HISTORY = [
    {"role": "user", "content": "How warm is it?"},
    {"role": "assistant", "content": "I look.", "reasoning_content": "I should look.", "tool_calls": [
        {"id": "t1", "type": "function", "function": {"name": "read_meter", "arguments": {"room": "attic"}}},
        {"id": "t2", "type": "function", "function": {"name": "read_meter", "arguments": {"room": "cellar"}}}]},
    {"role": "tool", "tool_call_id": "t1", "content": "21.5"},
    {"role": "tool", "tool_call_id": "t2", "content": "Error: no meter"}, {"role": "user", "content": "And now?"}]


@pytest.mark.parametrize("template", ["qwen25", "deepseek_v31_official", "deepseek_v4"])
def test_history_is_that_of_chat(servers, template):
    """The prompts have the same number of tokens; both are answered."""
    server = servers(template)
    chat = {"messages": CHAT_HISTORY, "tools": CHAT_TOOLS, "max_tokens": 1}
    expected = server.post("/v1/chat/completions", chat).json["usage"]["prompt_tokens"]
    assert client(server).messages.count_tokens(model="m", messages=HISTORY, tools=TOOLS).input_tokens == expected
    shorter = dict(chat, messages=CHAT_HISTORY[:-1])
    assert server.post("/v1/chat/completions", shorter).json["usage"]["prompt_tokens"] < expected


def test_an_assistant_message_at_the_end_is_continued(servers):
    server = servers("qwen25")
    messages = USER + [{"role": "assistant", "content": [{"type": "text", "text": "It is"}]}]
    chat = {"messages": USER + [{"role": "assistant", "content": "It is", "prefix": True}], "max_tokens": 6, "temperature": 0}
    expected = server.post("/v1/chat/completions", chat).json
    message = client(server).messages.create(model="m", max_tokens=6, messages=messages, extra_body={"temperature": 0})
    assert message.content[0].text == expected["choices"][0]["message"]["content"]
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == expected["usage"]["prompt_tokens"]


BAD = [
    ({"max_tokens": None}, "max_tokens"), ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": "7"}, "max_tokens"),
    ({"messages": None}, "messages"), ({"messages": []}, "messages"), ({"messages": [7]}, "messages[0]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [7]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 7}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": 7}]}]},
     "messages[0].content[0].content"),
    ({"messages": USER + [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}]},
     "messages[1].content[0].input"),
    ({"messages": USER + [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]},
     "messages[1]"),
    ({"system": 7}, "system"), ({"system": [{"type": "image"}]}, "system[0]"),
    ({"tools": {}}, "tools"), ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "f", "input_schema": {}}] * 2}, "tools[1].name"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
    ({"tool_choice": "auto"}, "tool_choice"), ({"tool_choice": {"type": "x"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "tool"}, "tools": TOOLS}, "tool_choice.name"),
    ({"stop_sequences": "x"}, "stop_sequences"), ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"stop_sequences": ["x"] * 17}, "stop_sequences"), ({"thinking": True}, "thinking"),
    ({"thinking": {"type": "maybe"}}, "thinking.type"), ({"thinking": {"type": "enabled", "budget_tokens": 0}},
                                                         "thinking.budget_tokens"),
    ({"temperature": 3}, "temperature"), ({"top_k": "x"}, "top_k"), ({"stream": 1}, "stream"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type")]


@pytest.mark.parametrize("fields,name", BAD)
def test_refusals_name_the_field(servers, fields, name):
    body = dict({"model": "m", "max_tokens": 5, "messages": USER}, **fields)
    reply = servers("qwen25").post(PATH, body)
    assert reply.status == 400, reply.body
    assert set(reply.json) == {"type", "error", "request_id"} and reply.json["type"] == "error"
    assert reply.error["type"] == "invalid_request_error" and reply.error["message"].startswith(name), reply.error
    assert reply.json["request_id"] == reply.headers["request-id"] == reply.headers["X-Request-Id"]


def test_errors_as_the_client_knows_them(servers):
    server = servers("qwen25")
    with pytest.raises(anthropic.BadRequestError) as caught:
        client(server).messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "word " * 2000}])
    assert "prompt is too long: " in str(caught.value) and "> 1024 maximum" in str(caught.value)
    assert caught.value.request_id
    locked = servers("qwen25", "--api-key", "secret", "--served-model-name", "tiny", "--no-any-model")
    for key, kind in (("wrong", anthropic.AuthenticationError), ("secret", anthropic.NotFoundError)):
        with pytest.raises(kind) as caught:
            client(locked, api_key=key).messages.create(model="other", max_tokens=5, messages=USER)
        assert caught.value.body["error"]["type"] == {401: "authentication_error", 404: "not_found_error"}[
            caught.value.status_code]
    message = client(locked, api_key=None, auth_token="secret").messages.create(model="tiny", max_tokens=1, messages=USER)
    assert message.model == "tiny"
    for method, path, status in (("GET", PATH, 405), ("POST", "/anthropic/v1/nothing", 404)):
        reply = server.request(method, path)
        assert reply.status == status and reply.json["type"] == "error"
    assert "type" not in server.post("/v1/nothing", {}).json


def test_every_path(servers):
    server = servers("qwen25")
    body = {"max_tokens": 3, "messages": USER, "grammar": literal("ok"), "temperature": 0}
    for prefix in ("", "/v1", "/anthropic", "/anthropic/v1", "/beta", "/beta/v1"):
        assert server.post(prefix + "/messages", body).json["content"] == [{"type": "text", "text": "ok"}]
        assert server.post(prefix + "/messages/count_tokens", body).json["input_tokens"] > 5


def test_what_the_api_does_not_have_is_ignored(servers):
    body = {"max_tokens": 50, "messages": USER, "grammar": literal("ok"), "temperature": 0, "n": 3, "logprobs": "x",
            "stop": 7, "stream_options": 7, "response_format": 7, "metadata": {"user_id": "u"}, "service_tier": "auto",
            "max_completion_tokens": 0, "cache_control": {"type": "ephemeral"}, "system": None, "tools": None}
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "x"}
    reply = servers("qwen25").post(PATH, body, headers=headers)
    assert reply.status == 200 and reply.json["content"][0]["text"] == "ok"


def test_silence_is_filled_with_pings(start):
    """The second request waits for the first, which writes a long answer."""
    server = start("--ping-interval-ms", "50", "--max-concurrent", "1")
    long = dict(messages=USER, max_tokens=300, ignore_eos=True)
    first = server.raw(post_bytes("/v1/chat/completions", dict(long, stream=True)))
    assert first.recv(65536)
    names = [name for name, _ in events_of(server, dict(max_tokens=3, messages=USER))]
    assert names[0] == "ping" and names.count("ping") > 2
    first.close()


def test_a_failure_in_a_stream_is_an_event(start):
    """The server ends while it answers."""
    server = start("--drain-timeout", "0")
    body = {"max_tokens": 400, "messages": USER, "stream": True, "ignore_eos": True}
    sock = server.raw(post_bytes(PATH, body), timeout=60)
    data = b""
    while b"content_block_delta" not in data:
        data += sock.recv(65536)
    server.process.terminate()
    while chunk := sock.recv(65536):
        data += chunk
    last = data.decode().split("event: ")[-1]
    assert last.startswith("error\ndata: ")
    error = json.loads(last.split("\n")[1][6:])
    assert error["error"]["type"] == "overloaded_error" and error["request_id"]
