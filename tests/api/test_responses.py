"""/v1/responses: OpenAI's own client against the server, and the raw shapes of events and errors."""
import json

import openai
import pytest
from conftest import literal, post_bytes, servers_by_template

PATH = "/v1/responses"
PARAMETERS = {"type": "object", "properties": {"room": {"type": "string"}, "n": {"type": "integer"}}, "required": ["room"]}
TOOLS = [{"type": "function", "name": "read_meter", "description": "Reads a meter.", "parameters": PARAMETERS}]
CHAT_TOOLS = [{"type": "function", "function": {k: v for k, v in t.items() if k != "type"}} for t in TOOLS]
CALL = '<tool_call>\n{"name": "read_meter", "arguments": {"room": "attic", "n": 3}}\n</tool_call>'


@pytest.fixture(scope="module")
def servers():
    # whole and streamed answers are compared, their usage too: no cache between them
    yield from servers_by_template("--no-enable-prefix-caching", "--max-model-len", "1024", built_in=("deepseek_v4",))


def client(server):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)


def strict(value):
    """The client itself builds its objects without validation."""
    type(value).model_validate(value.model_dump(warnings=False), strict=True)
    return value


def plain(response):
    """What must be the same in two answers to one request."""
    def without_ids(item):
        return {k: v for k, v in item.model_dump().items() if k not in ("id", "call_id", "parsed", "parsed_arguments")}

    output = [without_ids(item) for item in response.output]
    for item in output:
        item["content"] = [{k: v for k, v in part.items() if k != "parsed"} for part in item.get("content") or []]
    return output, response.status, response.incomplete_details, response.usage, response.instructions


def both_forms(server, **fields):
    """A response, whole; the client's stream must come to the same."""
    body = dict({"model": "m", "input": "How warm is the attic?"}, **fields)
    extra = {"extra_body": {"grammar": body.pop("grammar")}} if "grammar" in body else {}
    whole = strict(client(server).responses.create(**body, temperature=0, **extra))
    events = list(client(server).responses.create(**body, temperature=0, stream=True, **extra))
    for event in events:
        strict(event)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [e.type for e in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0].response.output == [] and events[0].response.status == "in_progress"
    final = events[-1].response
    assert events[-1].type == f"response.{whole.status}" and final.id == events[0].response.id
    assert plain(final) == plain(whole)
    if whole.status == "completed":  # the client's own accumulation, which knows no other end
        with client(server).responses.stream(**body, temperature=0, **extra) as stream:
            for _ in stream:
                pass
            assert plain(stream.get_final_response()) == plain(whole)
    deltas, done = {}, {}
    for event in events:
        if event.type.endswith(".delta"):
            deltas[event.output_index] = deltas.get(event.output_index, "") + event.delta
        if event.type in ("response.output_text.done", "response.reasoning_text.done"):
            done[event.output_index] = event.text
        if event.type == "response.function_call_arguments.done":
            done[event.output_index] = event.arguments
        if event.type == "response.output_item.done":
            assert final.output[event.output_index] == event.item
    assert deltas == done and set(done) == set(range(len(final.output)))
    return whole


def test_text(servers):
    response = both_forms(servers("qwen25"), grammar=literal("It is 21.5 °C. 🧪"))
    assert response.output_text == "It is 21.5 °C. 🧪" and response.status == "completed"
    assert [item.type for item in response.output] == ["message"] and response.error is None
    assert response.id.startswith("resp_") and response.object == "response" and response.store is False
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert (response.tools, response.tool_choice, response.parallel_tool_calls) == ([], "auto", True)


LOGPROBS = ["message.output_text.logprobs"]



def test_logprobs_are_those_of_chat(servers):
    server, text = servers("qwen25"), "It is 21.5 °C. 🧪"
    response = both_forms(server, grammar=literal(text), include=LOGPROBS, top_logprobs=3)
    part, = response.output[0].content
    body = {"messages": [{"role": "user", "content": "How warm is the attic?"}], "grammar": literal(text), "temperature": 0,
            "logprobs": True, "top_logprobs": 3}
    expected = server.post("/v1/chat/completions", body).json["choices"][0]["logprobs"]["content"]
    assert len(expected) > 5 and all(len(entry["top_logprobs"]) == 3 for entry in expected)
    assert [e.model_dump() for e in part.logprobs] == expected
    assert b"".join(bytes(e.bytes) for e in part.logprobs).decode() == text and response.top_logprobs == 3
    assert both_forms(server, grammar=literal(text)).output[0].content[0].logprobs == []
    response = both_forms(server, grammar=literal(text), include=LOGPROBS)
    assert [e.logprob for e in response.output[0].content[0].logprobs] == [e["logprob"] for e in expected]
    assert all(e.top_logprobs == [] for e in response.output[0].content[0].logprobs)


def test_logprobs_come_with_their_text(servers):
    """Each text has its own, in a stream those of a delta with it; calls and thoughts have none."""
    server = servers("qwen25")
    for fields in ({"tools": TOOLS, "grammar": literal(f"I look.{CALL}Now I know.{CALL}")}, {"grammar": literal("a 🧪 b")}):
        body = dict({"input": "How warm?", "temperature": 0, "include": LOGPROBS, "top_logprobs": 1}, **fields)
        whole = server.post(PATH, body).json
        spoken = [item["content"][0] for item in whole["output"] if item["type"] == "message"]
        for part in spoken:
            assert b"".join(bytes(e["bytes"]) for e in part["logprobs"]).decode().strip() == part["text"].strip()
        stream = server.post(PATH, dict(body, stream=True)).body.decode()
        events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
        for number, part in enumerate(spoken):
            index = [i for i, item in enumerate(whole["output"]) if item["type"] == "message"][number]
            deltas = [e for e in events if e["type"] == "response.output_text.delta" and e["output_index"] == index]
            assert sum((e["logprobs"] for e in deltas), []) == part["logprobs"]
            assert all(len(e["logprobs"]) >= 1 for e in deltas)
            done, = [e for e in events if e["type"] == "response.output_text.done" and e["output_index"] == index]
            assert done["logprobs"] == part["logprobs"]
    response = both_forms(servers("deepseek_v4"), grammar=literal("a thought</think>An answer."), include=LOGPROBS)
    assert "".join(e.token for e in response.output[1].content[0].logprobs).strip() == "An answer."


def test_the_request_is_repeated(servers):
    fields = dict(instructions="Be short.", max_output_tokens=40, metadata={"a": "b"}, parallel_tool_calls=False,
                  tools=[dict(TOOLS[0], strict=False)], tool_choice="none", top_p=0.5, text={"format": {"type": "text"}},
                  reasoning={"effort": "low"}, store=True, truncation="auto", user="u", service_tier="auto",
                  include=["reasoning.encrypted_content"], prompt_cache_key="k", stream_options={"include_obfuscation": False})
    response = client(servers("qwen25")).responses.create(model="m", input="x", extra_body={"grammar": literal("ok")}, **fields)
    strict(response)
    assert (response.instructions, response.max_output_tokens, response.metadata) == ("Be short.", 40, {"a": "b"})
    assert (response.parallel_tool_calls, response.tool_choice, response.top_p) == (False, "none", 0.5)
    assert response.tools[0].name == "read_meter" and response.reasoning.effort == "low"
    assert (response.store, response.truncation, response.output_text) == (False, "disabled", "ok")


def test_incomplete(servers):
    response = both_forms(servers("qwen25"), grammar=literal("one two three"), max_output_tokens=2)
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete" and response.usage.output_tokens == 2
    assert both_forms(servers("qwen25"), max_output_tokens=0, grammar=literal("x")).output == []


def test_thinking(servers):
    server = servers("deepseek_v4")
    response = both_forms(server, grammar=literal("a thought</think>An answer."))
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].content[0].text == "a thought" and response.output[0].summary == []
    assert response.output_text == "An answer." and response.usage.output_tokens_details.reasoning_tokens > 0
    response = both_forms(server, reasoning={"effort": "none"}, grammar=literal("Yes."))
    assert [item.type for item in response.output] == ["message"]


def test_tool_calls(servers):
    response = both_forms(servers("qwen25"), tools=TOOLS, grammar=literal(f"I look.{CALL}\n{CALL}"))
    assert [item.type for item in response.output] == ["message", "function_call", "function_call"]
    for item in response.output[1:]:
        assert item.name == "read_meter" and json.loads(item.arguments) == {"room": "attic", "n": 3}
        assert item.call_id.startswith("call_")
    assert response.output[1].call_id != response.output[2].call_id and response.status == "completed"


def test_hosted_tools_are_left_out(servers):
    body = {"input": "x", "tools": [{"type": "web_search"}, {"type": "mcp", "server_label": "s"}, TOOLS[0]],
            "max_output_tokens": 1}
    reply = servers("qwen25").post(PATH, body)
    assert reply.status == 200 and reply.headers["X-Deepseek-Edge-Note"] == "tools ignored: web_search, mcp"
    count = servers("qwen25").post(PATH + "/input_tokens", body).json["input_tokens"]
    assert count == servers("qwen25").post(PATH + "/input_tokens", dict(body, tools=TOOLS)).json["input_tokens"]


INPUT = [
    {"role": "developer", "content": "Be short."},
    {"role": "user", "content": [{"type": "input_text", "text": "How warm"}, {"type": "input_text", "text": " is it?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "I should look."}]},
    {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [
        {"type": "output_text", "text": "I look.", "annotations": []}]},
    {"type": "function_call", "call_id": "t1", "name": "read_meter", "arguments": '{"room": "attic"}'},
    {"type": "function_call", "call_id": "t2", "name": "read_meter", "arguments": '{"room": "cellar"}'},
    {"type": "function_call_output", "call_id": "t1", "output": "21.5"},
    {"type": "function_call_output", "call_id": "t2", "output": [{"type": "input_text", "text": "none"}]},
    {"role": "user", "content": "And now?"}]
MESSAGES = [
    {"role": "system", "content": "Answer."}, {"role": "developer", "content": "Be short."},
    {"role": "user", "content": "How warm is it?"},
    {"role": "assistant", "content": "I look.", "reasoning_content": "I should look.", "tool_calls": [
        {"id": "t1", "type": "function", "function": {"name": "read_meter", "arguments": '{"room": "attic"}'}},
        {"id": "t2", "type": "function", "function": {"name": "read_meter", "arguments": '{"room": "cellar"}'}}]},
    {"role": "tool", "tool_call_id": "t1", "content": "21.5"}, {"role": "tool", "tool_call_id": "t2", "content": "none"},
    {"role": "user", "content": "And now?"}]


@pytest.mark.parametrize("template", ["qwen25", "deepseek_v31_official", "deepseek_v4"])
def test_input_is_that_of_chat(servers, template):
    server = servers(template)
    chat = {"messages": MESSAGES, "tools": CHAT_TOOLS, "max_tokens": 4, "temperature": 0}
    expected = server.post("/v1/chat/completions", chat).json
    response = client(server).responses.create(model="m", input=INPUT, instructions="Answer.", tools=TOOLS,
                                               max_output_tokens=4, temperature=0)
    assert response.usage.input_tokens == expected["usage"]["prompt_tokens"]
    message = expected["choices"][0]["message"]
    assert response.output_text == message["content"] or message.get("reasoning_content")
    counted = client(server).responses.input_tokens.count(model="m", input=INPUT, instructions="Answer.", tools=TOOLS)
    assert counted.input_tokens == expected["usage"]["prompt_tokens"]


def test_output_can_be_sent_back(servers):
    server = servers("deepseek_v4")
    first = client(server).responses.create(model="m", input="Hi", temperature=0,
                                            extra_body={"grammar": literal("hm</think>Hello.")})
    again = [{"role": "user", "content": "Hi"}, *first.output, {"role": "user", "content": "Bye"}]
    second = client(server).responses.create(model="m", input=again, temperature=0, reasoning={"effort": "none"},
                                             extra_body={"grammar": literal("Bye.")})
    assert second.output_text == "Bye." and second.usage.input_tokens > first.usage.input_tokens


BAD = [
    ({"input": None}, "input"), ({"input": 7}, "input"), ({"input": []}, "input"), ({"input": [7]}, "input[0]"),
    ({"input": [{"type": "message"}]}, "input[0].role"), ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 7}]}]}, "input[0].content[0].text"),
    ({"input": [{"type": "function_call", "call_id": "a", "name": "f"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}]}, "input"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "input[0].output"),
    ({"input": [{"type": "reasoning", "content": 7}]}, "input[0].content"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"), ({"input": [{"type": "computer_call"}]}, "input[0]"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"), ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"), ({"background": True}, "background"), ({"store": "x"}, "store"),
    ({"instructions": 7}, "instructions"), ({"max_output_tokens": -1}, "max_output_tokens"),
    ({"max_output_tokens": "x"}, "max_output_tokens"), ({"tools": 7}, "tools"), ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"), ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0]"),
    ({"tools": [{"type": "function", "name": "f", "parameters": 7}]}, "tools[0].parameters"),
    ({"tools": [{"type": "function", "name": "f"}] * 2}, "tools[1].name"),
    ({"tool_choice": "maybe"}, "tool_choice"), ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.name"), ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"text": 7}, "text"), ({"text": {"format": {"type": "xml"}}}, "text.format.type"), ({"reasoning": 7}, "reasoning"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort"), ({"metadata": 7}, "metadata"), ({"include": 7}, "include"),
    ({"include": [7]}, "include[0]"), ({"top_logprobs": 3}, "top_logprobs"), ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs"),
    ({"temperature": 3}, "temperature"), ({"stream": 1}, "stream")]


@pytest.mark.parametrize("fields,name", BAD)
def test_refusals_name_the_field(servers, fields, name):
    reply = servers("qwen25").post(PATH, dict({"model": "m", "input": "x"}, **fields))
    assert reply.status == 400, reply.body
    assert reply.error["type"] == "invalid_request_error" and reply.error["param"] == name
    assert reply.error["message"].startswith(name), reply.error


def test_too_long_an_input(servers):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client(servers("qwen25")).responses.create(model="m", input="word " * 2000, stream=stream)
        assert caught.value.code == "context_length_exceeded" and caught.value.param == "input"


def test_every_path(servers):
    body = {"input": "x", "grammar": literal("ok"), "temperature": 0}
    for prefix in ("", "/v1", "/beta", "/beta/v1"):
        reply = servers("qwen25").post(prefix + "/responses", body)
        assert reply.json["output"][0]["content"][0]["text"] == "ok"


def test_frames_have_names_and_no_done(servers):
    body = {"input": "x", "grammar": literal("ok"), "temperature": 0, "stream": True}
    text = servers("qwen25").post(PATH, body).body.decode()
    for frame in text.split("\n\n")[:-1]:
        name, data = frame.split("\n")
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]
    assert text.endswith("\n\n") and "[DONE]" not in text


def test_a_failure_in_a_stream_is_an_event(start):
    """The server ends while it answers."""
    server = start("--drain-timeout", "0")
    sock = server.raw(post_bytes(PATH, {"input": "x", "stream": True, "ignore_eos": True}), timeout=60)
    data = b""
    while b"output_text.delta" not in data:
        data += sock.recv(65536)
    server.process.terminate()
    while chunk := sock.recv(65536):
        data += chunk
    events = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: ")]
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.failed" and events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"]["message"]
