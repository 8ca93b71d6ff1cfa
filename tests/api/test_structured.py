"""Structured output over HTTP: response_format and the other names for the same, on a real model under random sampling.
That an answer is valid is for jsonschema to say."""
import json
import re

import jsonschema
import pytest

from conftest import joined, literal

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "Describe a weather station."}]
STATION = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "kind": {"enum": ["indoor", "outdoor", None]},
        "height": {"type": "integer", "minimum": -400, "maximum": 8848},
        "temperature": {"type": "number", "minimum": -60.5, "exclusiveMaximum": 60},
        "opened": {"type": "string", "format": "date"},
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 1, "maxItems": 3},
        "active": {"type": "boolean"},
    },
    "required": ["name", "height", "temperature", "opened", "id", "tags"],
    "additionalProperties": False,
    "$defs": {"tag": {"type": "string", "maxLength": 6}},
}
SMALL = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["a"],
         "additionalProperties": False}


def named(schema, **fields):
    return {"response_format": {"type": "json_schema", "json_schema": dict({"name": "x", "schema": schema}, **fields)}}


def ask(server, fields, **more):
    body = dict({"messages": USER, "max_tokens": 300}, **fields, **more)
    reply = server.post(CHAT, body)
    assert reply.status == 200, reply.body
    return reply.json["choices"][0]


@pytest.mark.parametrize("seed", range(6))
def test_random_sampling_gives_valid_objects(server, seed):
    choice = ask(server, named(STATION, strict=seed % 2 == 0), temperature=1.8, seed=seed)
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), STATION, format_checker=jsonschema.FormatChecker())


def test_stream_gives_the_same_text(server):
    body = dict({"messages": USER, "max_tokens": 300, "temperature": 1.5, "seed": 7}, **named(STATION))
    whole = server.post(CHAT, body).json["choices"][0]["message"]["content"]
    assert joined(server.stream(CHAT, body)) == whole
    jsonschema.validate(json.loads(whole), STATION)


ANY = {"type": "object"}
FORMS = {
    "response_format json_object": ({"response_format": {"type": "json_object"}}, ANY),
    "response_format json_object with schema": ({"response_format": {"type": "json_object", "schema": SMALL}}, SMALL),
    "json_schema of llama.cpp": ({"json_schema": SMALL}, SMALL),
    "guided_json": ({"guided_json": SMALL}, SMALL),
    "guided_json as text": ({"guided_json": json.dumps(SMALL)}, SMALL),
    "structured_outputs json": ({"structured_outputs": {"json": SMALL}}, SMALL),
    "guided backend": ({"guided_json": SMALL, "guided_decoding_backend": "xgrammar"}, SMALL),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_json(server, form):
    fields, schema = FORMS[form]
    choice = ask(server, fields, temperature=0.7, seed=3, max_tokens=200)
    text = choice["message"]["content"]
    assert text.startswith("{")
    if schema is SMALL:
        assert choice["finish_reason"] == "stop"
    if choice["finish_reason"] == "stop":
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("fields,pattern", [
    ({"guided_regex": "[a-c]{3}-\\d+"}, "[a-c]{3}-[0-9]+"), ({"regex": "x(yz){2}"}, "xyzyz"),
    ({"structured_outputs": {"regex": "[0-9]{4}"}}, "[0-9]{4}"), ({"guided_choice": ["red", "green \"x\""]}, 'red|green "x"'),
    ({"structured_outputs": {"choice": ["a", "ab"]}}, "ab?"), ({"guided_grammar": literal("hello")}, "hello"),
    ({"structured_outputs": {"grammar": literal("é")}}, "é"), ({"grammar": literal("ok")}, "ok"),
])
def test_texts_that_are_not_json(server, fields, pattern):
    choice = ask(server, fields, temperature=1.5, seed=1, max_tokens=60)
    assert re.fullmatch(pattern if choice["finish_reason"] == "stop" else pattern.replace("+", "*"),
                        choice["message"]["content"])


def test_completions_take_constraints_too(server):
    reply = server.post("/v1/completions", dict({"prompt": "An object:", "max_tokens": 60, "temperature": 1, "seed": 2}, **named(SMALL)))
    assert reply.status == 200
    jsonschema.validate(json.loads(reply.json["choices"][0]["text"]), SMALL)


def test_white_space_is_bounded_or_off(server):
    compact = ask(server, {"structured_outputs": {"json": STATION, "disable_any_whitespace": True}}, temperature=1.5, seed=5)
    text = compact["message"]["content"]
    value = json.loads(text)
    keys = re.sub(r'"(\\.|[^"\\])*"', "", text)
    assert not re.search(r"\s", keys)
    jsonschema.validate(value, STATION)


def test_length_leaves_the_beginning_of_a_valid_text(server):
    choice = ask(server, named(STATION), temperature=0, max_tokens=5)
    assert choice["finish_reason"] == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(choice["message"]["content"])


PREFIX = "response_format.json_schema.schema"
REFUSED = [
    (named({"type": "object", "properties": {"a": {"not": {}}}}), PREFIX + ".properties.a.not"),
    (named({"type": "object", "properties": {"a": {"if": {}}}}), PREFIX + ".properties.a.if"),
    (named({"type": "array", "items": {"contains": {}}}), PREFIX + ".items.contains"),
    (named({"type": "array", "uniqueItems": True}), PREFIX + ".uniqueItems"),
    (named({"type": "wrong"}), PREFIX + ".type"), (named({"type": 123}), PREFIX + ".type"), (named(5), PREFIX),
    (named({"$ref": "https://example.org/x"}), PREFIX + ".$ref"), (named({"$ref": "#/$defs/no"}), PREFIX + ".$ref"),
    (named({"type": "string", "pattern": "(?<=x)+"}), PREFIX + ".pattern"),
    (named({"type": "string", "pattern": "*a"}), PREFIX + ".pattern"),
    (named({"type": "string", "pattern": "(" * 5000}), PREFIX + ".pattern"),
    (named({"anyOf": [{"$ref": "#"}]}), PREFIX),
    (named({"allOf": [{"$ref": "#"}]}), PREFIX + ".allOf[0]"),
    (named({"type": "object", "patternProperties": {}}), PREFIX + ".patternProperties"),
    (named(False), PREFIX),
    (named({}, strict="yes"), "response_format.json_schema.strict"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, PREFIX),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_object", "schema": {"not": {}}}}, "response_format.schema.not"),
    ({"guided_json": {"not": {}}}, "guided_json.not"), ({"guided_json": "{"}, "guided_json"), ({"guided_json": 5}, "guided_json"),
    ({"guided_regex": "("}, "guided_regex"), ({"guided_regex": 5}, "guided_regex"), ({"guided_choice": "x"}, "guided_choice"),
    ({"guided_choice": []}, "guided_choice"), ({"guided_choice": ["a", 5]}, "guided_choice[1]"),
    ({"guided_grammar": "root ::= ("}, "guided_grammar"), ({"structured_outputs": 5}, "structured_outputs"),
    ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs.json.not"),
    ({"structured_outputs": {"disable_any_whitespace": 1}}, "structured_outputs.disable_any_whitespace"),
    (dict(named(SMALL), grammar=literal("x")), "grammar"), (dict(named(SMALL), guided_regex="x"), "guided_regex"),
    ({"structured_outputs": {"regex": "x", "choice": ["x"]}}, "structured_outputs.choice"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"), ({"guided_decoding_backend": 5}, "guided_decoding_backend"),
]


@pytest.mark.parametrize("fields,param", REFUSED)
def test_refusals_name_the_path(server, fields, param):
    reply = server.post(CHAT, dict({"messages": USER, "max_tokens": 1}, **fields))
    assert reply.status == 400, reply.body
    assert reply.error["param"] == param
    assert param in reply.error["message"]


def test_hostile_schemas_are_refused_in_time(server):
    deep = {"type": "null"}
    for _ in range(30):
        deep = {"type": "array", "items": deep}
    assert ask(server, named(deep), max_tokens=4)
    wide = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(2048)}}
    assert ask(server, named(wide), max_tokens=4)
    product = {"allOf": [{"anyOf": [{"minLength": i}, {"maxLength": i + 1}]} for i in range(24)]}
    refused = server.post(CHAT, dict({"messages": USER}, **named(product)), timeout=20)
    assert refused.status == 400 and "DSE_SCHEMA_MAX_" in refused.error["message"]
    for schema in ({"type": "string", "maxLength": 10**9}, {"type": "array", "minItems": 10**18},
                   {"type": "array", "prefixItems": [{}] * 300}, {"properties": {f"p{i}": {} for i in range(3000)}}):
        refused = server.post(CHAT, dict({"messages": USER}, **named(schema)))
        assert refused.status == 400 and "DSE_SCHEMA_MAX_" in refused.error["message"], refused.body


@pytest.fixture(scope="module")
def thinker():
    from conftest import DATA, Server
    server = Server("--max-model-len", "1024", "--chat-template", str(DATA / "chat" / "templates" / "deepseek_r1_distill_llama.jinja"))
    yield server
    assert server.stop() == 0


def test_what_is_thought_is_free(thinker):
    """The prompt opens <think>, for which the model has no token: the first words are a thought, not yet the object. That
    the object comes behind </think> is in test_json_schema.c."""
    body = dict({"messages": USER, "max_tokens": 12, "temperature": 0}, **named(SMALL))
    message = thinker.post(CHAT, body).json["choices"][0]["message"]
    assert not message["content"] and message["reasoning_content"] and not message["reasoning_content"].startswith("{")
