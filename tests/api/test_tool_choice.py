"""Calls that must be calls: tool_choice, strict, parallel_tool_calls, in every format, under random sampling. A template
only says which format the model is shown; the model is a small one that calls nothing by itself."""
import json

import jsonschema
import pytest

from conftest import DATA, Server, joined, literal
from test_tools import BUILT_IN, TEMPLATES, streamed

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "How warm is the attic?"}]
METER = {"type": "object", "properties": {
    "room": {"enum": ["attic", "cellar \"x\"", "hall"]}, "n": {"type": "integer", "minimum": 1, "maximum": 5},
    "when": {"type": "string", "format": "date"}, "deep": {"type": "object", "properties": {"a": {"type": "boolean"}},
                                                         "required": ["a"], "additionalProperties": False},
}, "required": ["room", "n"], "additionalProperties": False}
CLOCK = {"type": "object", "properties": {"zone": {"type": "string", "maxLength": 8}}, "additionalProperties": False}
SCHEMAS = {"read_meter": METER, "clock": CLOCK, "ping": None}


def tool(name, **fields):
    function = dict({"name": name, "description": f"Does {name}."}, **fields)
    if SCHEMAS[name]:
        function["parameters"] = SCHEMAS[name]
    return {"type": "function", "function": function}


TOOLS = [tool("read_meter"), tool("clock"), tool("ping")]
FORMATS = ["deepseek_v31_official", "deepseek_v3", "deepseek_v32", "deepseek_v4", "qwen25", "smollm2", "plain"]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    started = {}

    def get(template):
        if template not in started:
            path = TEMPLATES / f"{template}.jinja"
            if template == "plain":
                path = tmp_path_factory.mktemp("template") / "plain.jinja"
                path.write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}")
            chosen = [] if template == "smollm2" else ["--chat-template", template if template in BUILT_IN else str(path)]
            started[template] = Server("--max-model-len", "2048", *chosen)
        return started[template]

    yield get
    for server in started.values():
        assert server.stop() == 0


def calls_of(server, body):
    """The calls of an answer, whole; those of the stream are the same."""
    body = dict({"messages": USER, "tools": TOOLS, "max_tokens": 250, "chat_template_kwargs": {"thinking": False}}, **body)
    reply = server.post(CHAT, body)
    assert reply.status == 200, reply.body
    choice = reply.json["choices"][0]
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in choice["message"].get("tool_calls", [])]
    content, deltas, finish = streamed(server.stream(CHAT, body))
    assert (content, finish) == (choice["message"]["content"] or "", choice["finish_reason"])
    assert [(c["name"], c["arguments"]) for c in deltas] == calls
    return choice, calls


def check(calls):
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name] or {"type": "object", "maxProperties": 0},
                            format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize("template", FORMATS)
def test_a_named_tool_is_called_with_valid_arguments(servers, template):
    choice, calls = calls_of(servers(template), {"tool_choice": {"type": "function", "function": {"name": "read_meter"}},
                                                 "parallel_tool_calls": False, "temperature": 1.5, "seed": 11})
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert [name for name, _ in calls] == ["read_meter"]
    check(calls)


@pytest.mark.parametrize("template", FORMATS)
def test_required_calls_some_tool(servers, template):
    choice, calls = calls_of(servers(template), {"tool_choice": "required", "temperature": 1.5, "seed": 5, "max_tokens": 120})
    assert calls
    if choice["finish_reason"] == "tool_calls":
        assert choice["message"]["content"] is None
        check(calls)
    else:  # cut in a call, or in the beginning of the next one
        check(calls[:-1])


@pytest.mark.parametrize("template", ["qwen25", "deepseek_v4"])
def test_allowed_tools_are_the_only_ones(servers, template):
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "clock"}},
                                             {"type": "function", "function": {"name": "ping"}}]}
    _, calls = calls_of(servers(template), {"tool_choice": {"type": "allowed_tools", "allowed_tools": allowed},
                                            "parallel_tool_calls": False, "temperature": 1.5, "seed": 3})
    assert len(calls) == 1 and calls[0][0] in ("clock", "ping")
    check(calls)


@pytest.mark.parametrize("template", ["qwen25", "deepseek_v31_official", "deepseek_v4"])
def test_strict_tools_leave_text_alone(servers, template):
    strict = [tool("read_meter", strict=True)]
    choice, calls = calls_of(servers(template), {"tools": strict, "temperature": 0, "max_tokens": 12})
    assert choice["message"]["content"] and not calls


def test_the_answer_is_a_call_or_json(servers):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    body = {"temperature": 1, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    for seed in range(2):
        choice, calls = calls_of(servers("qwen25"), dict(body, seed=seed, tools=[tool("read_meter", strict=True)]))
        if calls:
            assert choice["message"]["content"] is None
        else:
            jsonschema.validate(json.loads(choice["message"]["content"]), schema)


def test_thinking_is_free_and_the_call_comes_behind_it(servers):
    body = {"messages": USER, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200,
            "temperature": 1.2, "seed": 1, "chat_template_kwargs": {"thinking": True}}
    reply = servers("deepseek_v31_official").post(CHAT, body)
    assert reply.status == 200, reply.body


def test_a_model_without_tools_sees_them_and_the_history_in_words(servers):
    history = USER + [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c9", "type": "function", "function": {"name": "read_meter", "arguments": "{\"room\":\"attic\"}"}}]},
        {"role": "tool", "tool_call_id": "c9", "content": "21.5"}, {"role": "user", "content": "And the cellar?"}]
    for template in ("plain", "smollm2"):
        text = servers(template).post("/apply-template", {"messages": history, "tools": TOOLS}).json["prompt"]
        assert text.count("21.5") == 1 and "None" not in text and "null" not in text
        for part in ('"name":"read_meter"', '<tool_call>\n{"name": "read_meter", "arguments": {"room":"attic"}}\n</tool_call>',
                     "<tool_response>\n21.5\n</tool_response>", "And the cellar?"):
            assert text.count(part) == 1, (part, text)
        without = servers(template).post("/apply-template", {"messages": history}).json["prompt"]
        assert "# Tools" not in without and "21.5" in without and '{"room":"attic"}' in without


def test_generic_calls_are_read(servers):
    text = '<tool_call>\n{"name": "read_meter", "arguments": {"room": "attic", "n": 3}}\n</tool_call>'
    choice, calls = calls_of(servers("plain"), {"grammar": literal(text), "temperature": 0})
    assert choice["finish_reason"] == "tool_calls" and calls == [("read_meter", '{"room": "attic", "n": 3}')]


@pytest.mark.parametrize("fields,param", [
    ({"tool_choice": "always"}, "tool_choice"), ({"tool_choice": {"type": "tool"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.function.name"),
    ({"tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice.function.name"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "x", "tools": []}}}, "tool_choice.allowed_tools.mode"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": []}}}, "tool_choice.allowed_tools.tools"),
    ({"tool_choice": "required", "tools": []}, "tool_choice"), ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"tools": [{"type": "function", "function": {"name": "x", "strict": 1}}]}, "tools[0].function.strict"),
    *(({"tool_choice": choice, "tools": [tool("ping"), {"type": "function", "function": {"name": "x", "parameters": value}}]},
       "tools[1].function.parameters") for value in (5, [], "{}", True) for choice in ("auto", "none")),
    ({"tools": [tool("ping"), tool("read_meter"), tool("ping")]}, "tools[2].function.name"),
    ({"tool_choice": "none", "tools": [tool("ping")] * 2}, "tools[1].function.name"),
    ({"tools": [tool("ping")] * 513}, "tools"), ({"tool_choice": "required", "grammar": literal("x")}, "grammar"),
    ({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tool_choice": "required", "tools": [tool("ping"), {"type": "function", "function": {
        "name": "x", "parameters": {"type": "object", "properties": {"a": {"not": {}}}}}}]},
     "tools[1].function.parameters.properties.a.not"),
    ({"tools": [{"type": "function", "function": {"name": "x", "strict": True, "parameters": {"type": "string"}}}]}, "tools[0].function.parameters"),
])
def test_refusals_name_their_field(servers, fields, param):
    reply = servers("qwen25").post(CHAT, dict({"messages": USER, "tools": TOOLS, "max_tokens": 1}, **fields))
    assert reply.status == 400, reply.body
    assert reply.error["param"] == param, reply.error


def test_what_nobody_forces_may_have_any_schema(servers):
    odd = {"type": "function", "function": {"name": "x", "parameters": {"not": {}}}}
    assert servers("qwen25").post(CHAT, {"messages": USER, "tools": [odd], "max_tokens": 1}).status == 200
