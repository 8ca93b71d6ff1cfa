"""Errors: always JSON, the right status, the field at fault; and no number, however odd, does harm."""
import json
import re

import pytest
from conftest import literal, post_bytes

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "Say hi"}]


def refused(reply, status, param=None, code=None):
    assert reply.status == status, (reply.status, reply.body)
    assert reply.headers["Content-Type"] == "application/json"
    error = reply.error
    assert isinstance(error["message"], str) and error["message"] and error["type"]
    if param:
        assert error["param"] == param, error
    if code:
        assert error["code"] == code, error
    return error


@pytest.mark.parametrize("body", ["", "{", "[]", "nonsense", '{"a":1,"a":2}', "[" * 1000, '{"messages":' + "[" * 5000,
                                  b"\xff\xfe", b'{"messages":[{"role":"user","content":"\xff"}]}', '"x"', "null",
                                  '{"temperature":1e999}', '{"seed":99999999999999999999}', '{"messages":[NaN]}'])
def test_bodies_that_are_no_json_objects(server, body):
    error = refused(server.post(CHAT, body), 400)
    assert error["type"] == "invalid_request_error"


def test_byte_order_mark_and_other_content_types(server):
    body = json.dumps({"messages": USER, "max_tokens": 1})
    assert server.post(CHAT, b"\xef\xbb\xbf" + body.encode()).status == 200
    assert server.post(CHAT, body, headers={"Content-Type": "text/plain"}).status == 200
    refused(server.post(CHAT, "a=b", headers={"Content-Type": "application/x-www-form-urlencoded"}), 415)


@pytest.mark.parametrize("messages,param", [
    (None, "messages"), ([], "messages"), ("hi", "messages"), ([{}], "messages[0].role"), ([123], "messages[0]"),
    ([{"role": 123, "content": "x"}], "messages[0].role"), ([{"role": "wizard", "content": "x"}], "messages[0].role"),
    ([{"role": "user", "content": 123}], "messages[0].content"), ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": None}], "messages[0].content"),
    (USER + [{"role": "user", "content": [5]}], "messages[1].content[0]"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
     "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], "messages[0].content[0]"),
    ([{"role": "assistant", "tool_calls": 5}], "messages[0].tool_calls"),
    ([{"role": "assistant", "tool_calls": [5]}], "messages[0].tool_calls[0]"),
    ([{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}], "messages[0].tool_calls[0].function.name"),
    ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}],
     "messages[0].tool_calls[0].function.arguments"),
])
def test_bad_messages_are_named(server, messages, param):
    refused(server.post(CHAT, {"messages": messages}), 400, param)


@pytest.mark.parametrize("fields,param", [
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "xml"}}, "response_format.type"), ({"response_format": 5}, "response_format"),
    ({"tool_choice": "required"}, "tool_choice"), ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tool_choice": 5}, "tool_choice"), ({"tools": 5}, "tools"), ({"tools": [5]}, "tools[0]"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"), ({"json_schema": 5}, "json_schema"),
    ({"guided_json": 5}, "guided_json"), ({"grammar": 5}, "grammar"), ({"grammar": "root ::= ("}, "grammar"),
    ({"grammar": "foo ::= \"x\""}, "grammar"), ({"grammar": "root ::= root"}, "grammar"),
    ({"grammar": "root ::= " + "(" * 60000}, "grammar"), ({"logit_bias": []}, "logit_bias"),
    ({"logit_bias": {"foo": 1}}, "logit_bias"), ({"logit_bias": {"999999999": 1}}, "logit_bias"),
    ({"stop": 5}, "stop"), ({"stop": [5]}, "stop[0]"), ({"stop": ["x"] * 17}, "stop"), ({"stop": "x" * 600}, "stop"),
    ({"stream_options": 5}, "stream_options"), ({"stream": "yes"}, "stream"), ({"model": 5}, "model"),
    ({"top_logprobs": 2}, "top_logprobs"), ({"logprobs": 3}, "logprobs"), ({"reasoning_effort": "lots"}, "reasoning_effort"),
    ({"thinking": {"type": "maybe"}}, "thinking.type"), ({"thinking": True}, "thinking"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"), ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"min_tokens": 5, "max_tokens": 2}, "min_tokens"), ({"logit_bias": {"5": 1000}}, 'logit_bias["5"]'),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"), ({"thinking": {"type": 5}}, "thinking.type"),
    ({"messages": USER + [{"role": "assistant", "content": "x", "prefix": 1}]}, "messages[1].prefix"),
])
def test_bad_values_are_named(server, fields, param):
    refused(server.post(CHAT, dict({"messages": USER, "max_tokens": 1}, **fields)), 400, param)


WORDS = {  # field that takes one word of a list: a request with it
    "reasoning_effort": lambda word: {"reasoning_effort": word},
    "thinking.type": lambda word: {"thinking": {"type": word}},
    "tool_choice": lambda word: {"tool_choice": word, "tools": [{"type": "function", "function": {"name": "f"}}]},
    "response_format.type": lambda word: {"response_format": {"type": word, "json_schema": {"schema": {}}}},
    "messages[0].role": lambda word: {"messages": [{"role": word, "content": "x"}] + USER},
    "messages[0].content[0].type": lambda word: {"messages": [{"role": "user", "content": [{"type": word, word: "x"}]}]},
}


@pytest.mark.parametrize("field", WORDS)
def test_refusals_list_exactly_the_words_that_are_taken(server, field):
    def ask(word):
        return server.post(CHAT, dict({"messages": USER, "max_tokens": 0}, **WORDS[field](word)))

    message = refused(ask("nonsense"), 400, field)["message"]
    listed = re.split(", | or ", re.fullmatch(r'\S+ must be (.+), not "nonsense"', message).group(1))
    others = {"", "None", "none\0", "minimal", "xhigh", "max", "ultra", "enabled", "disabled", "adaptive", "auto", "required",
              "any", "text", "json_object", "json_schema", "grammar", "refusal", "image_url", "file", "user", "developer",
              "function"}
    for word in listed:
        assert ask(word).status == 200, word
    for word in others - set(listed):
        refused(ask(word), 400)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_minus_one_is_no_limit(server, field):
    """As llama.cpp's clients say it: the same as leaving the field out; and the newest name still wins."""
    def length(**fields):
        answer = server.post("/v1/completions", dict({"prompt": "a" + " a" * 1000, "ignore_eos": True}, **fields)).json
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] <= 1024
        return answer["usage"]["completion_tokens"]

    assert length(**{field: -1}) == length() > 5
    assert length(**{"n_predict": 3, "max_tokens": 3, "max_completion_tokens": 3, field: -1}) == (
        3 if field != "max_completion_tokens" else length())
    for wrong in (-2, -1.5, -2147483648):
        refused(server.post(CHAT, {"messages": USER, field: wrong}), 400, field)


NUMBERS = ["-1", "-2147483648", "2147483648", "9223372036854775807", "1e308", "-1e308", '"5"', '"NaN"', "1.5", "[]", "{}",
           "true"]
RANGES = {  # field: values of NUMBERS that are allowed
    "n": set(), "max_tokens": {"-1", "2147483648", "9223372036854775807"}, "top_k": {"-1"},
    "seed": {"-1", "-2147483648", "2147483648", "9223372036854775807"}, "top_logprobs": set(), "min_tokens": set(),
    "temperature": {"1.5"}, "top_p": set(), "min_p": set(), "presence_penalty": {"-1", "1.5"},
    "frequency_penalty": {"-1", "1.5"}, "repetition_penalty": {"1.5"}, "id_slot": {"-1"},
}


@pytest.mark.parametrize("field", RANGES)
def test_odd_numbers_are_taken_or_refused_by_name(server, field):
    for number in NUMBERS:
        body = '{"messages":[{"role":"user","content":"hi"}],"grammar":"root ::= \\"a\\"","logprobs":true,"%s":%s}'
        reply = server.post(CHAT, body % (field, number))
        if number in RANGES[field]:
            assert reply.status == 200, (field, number, reply.body)
        else:
            refused(reply, 400, field)


@pytest.mark.parametrize("field", ["n_keep", "n_probs", "n_discard", "cache_prompt", "mirostat"])
def test_fields_of_other_servers_do_no_harm(server, field):
    for number in NUMBERS:
        body = '{"messages":[{"role":"user","content":"hi"}],"max_tokens":0,"%s":%s}' % (field, number)
        assert server.post(CHAT, body).status == 200


def test_prompt_too_long_names_both_numbers(server):
    text = "word " * 3000
    for stream in (False, True):
        reply = server.post(CHAT, {"messages": [{"role": "user", "content": text}], "max_tokens": 7, "stream": stream})
        error = refused(reply, 400, "messages", "context_length_exceeded")
        tokens = error["n_prompt_tokens"]
        assert error["n_ctx"] == 1024 and tokens > 1024 and error["type"] == "invalid_request_error"
        assert error["message"].startswith(
            f"This model's maximum context length is 1024 tokens. However, you requested {tokens + 7} tokens "
            f"({tokens} in the messages, 7 in the completion). Please reduce")
    error = refused(server.post("/v1/completions", {"prompt": text}), 400, "prompt", "context_length_exceeded")
    assert error["n_ctx"] == 1024


def test_every_prompt_of_a_list_is_refused_in_the_same_words(server):
    """As if it were alone, wherever it stands; only a stream that has begun says it in an event."""
    prompt = "word " * 3000
    alone = refused(server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}), 400)
    for prompts in ([prompt, "a"], ["a", prompt], ["a", "b", prompt]):
        body = {"prompt": prompts, "max_tokens": 1}
        assert refused(server.post("/v1/completions", body), 400, "prompt", "context_length_exceeded") == alone
        reply = server.post("/v1/completions", dict(body, stream=True))
        if prompts[0] == prompt:
            assert refused(reply, 400) == alone
        else:
            last, done = reply.body.decode().split("\n\n")[-3:-1]
            assert reply.status == 200 and done == "data: [DONE]" and json.loads(last.removeprefix("data: "))["error"] == alone
    assert server.wait_idle()


def test_prompts_at_the_edge_of_the_context(start):
    """H5: exactly the context, one less, and an endless answer beside another request."""
    server = start("--max-concurrent", "2", "--max-model-len", "256")
    ids = server.post("/tokenize", {"content": "a" + " a" * 400}).json["tokens"]
    for length, status in ((300, 400), (256, 400), (255, 200), (250, 200)):
        reply = server.post("/v1/completions", {"prompt": ids[:length], "max_tokens": 1000, "ignore_eos": True})
        assert reply.status == status, (length, reply.body)
        if status == 200:
            assert reply.json["usage"]["completion_tokens"] == 256 - length
            assert reply.json["choices"][0]["finish_reason"] == "length"


def test_unknown_paths_and_methods(server):
    refused(server.get("/nowhere"), 404)
    refused(server.post("/v1/audio/speech", {}), 404)
    refused(server.get("/v1"), 404)
    for path in ("/v1/chat/completions", "/tokenize"):
        for method in ("GET", "PUT", "DELETE", "HEAD"):
            reply = server.request(method, path)
            assert reply.status == 405 and "POST" in reply.headers["Allow"]
    for path in ("/health", "/v1/models", "/metrics"):
        reply = server.post(path, {})
        assert reply.status == 405 and "GET" in reply.headers["Allow"]
        assert refused(reply, 405)


def test_unknown_models(server, start):
    assert server.post(CHAT, {"model": "gpt-4o", "messages": USER, "max_tokens": 1}).json["model"] == "tiny"
    assert server.post(CHAT, {"model": "org/tiny:q4", "messages": USER, "max_tokens": 1}).json["model"] == "org/tiny:q4"
    refused(server.get("/v1/models/other"), 404, code="model_not_found")
    strict = start("--no-any-model", "--served-model-name", "only")
    refused(strict.post(CHAT, {"model": "gpt-4o", "messages": USER}), 404, "model", "model_not_found")
    assert strict.post(CHAT, {"model": "only", "messages": USER, "max_tokens": 1}).status == 200


def test_models_are_listed(server):
    listed = server.get("/v1/models").json
    assert listed["object"] == "list" and [m["id"] for m in listed["data"]] == ["tiny", "org/tiny:q4"]
    for path in ("/v1/models/org/tiny:q4", "/models/org%2Ftiny%3Aq4", "/v1/models/tiny"):
        model = server.get(path).json
        assert model["object"] == "model" and model["owned_by"] and isinstance(model["created"], int)
        assert model["max_model_len"] == 1024 and model["meta"]["n_ctx"] == 1024
        assert model["meta"]["n_params"] > 10**8 and model["meta"]["size"] > 10**7 and model["meta"]["quant"]


def test_queue_full_is_429_with_retry_after(start):
    server = start("--max-concurrent", "1", "--max-queue", "1")
    body = {"messages": USER, "max_tokens": 400, "ignore_eos": True, "stream": True}
    busy = [server.raw(post_bytes(CHAT, body)) for _ in range(2)]
    while len(server.get("/slots").json) < 2:
        pass
    reply = server.post(CHAT, {"messages": USER})
    refused(reply, 429, code="rate_limit_exceeded")
    assert 1 <= int(reply.headers["Retry-After"]) < 120
    assert server.metric("requests_running") == 1 and server.metric("requests_waiting") == 1
    slots = server.get("/slots").json
    assert sorted(s["is_processing"] for s in slots) == [False, True] and "prompt" not in slots[0]
    for sock in busy:
        sock.close()
    assert server.wait_idle()


@pytest.mark.parametrize("number", ["99999999999999999999", "-9223372036854775809", "1e999", "-1e999", "1" * 400 + ".5",
                                    "9" * 50000])
def test_numbers_beyond_all_types(server, number):
    """Of no harm where nobody reads them; refused by name where somebody does."""
    body = '{"messages":[{"role":"user","content":"a 1e999 \\" 1e999"}],"max_tokens":0,%s}'
    for ignored in ('"user_id":%s', '"x":{"y":[1,%s,"1e999"]}', '"x":[%s]', '"metadata":{"a":%s }'):
        reply = server.post(CHAT, body % ignored % number)
        assert reply.status == 200, reply.body
    int64 = 2**63 - 1
    for field, least, most in [("seed", -int64 - 1, int64), ("max_completion_tokens", -1, int64), ("max_tokens", -1, int64),
                               ("n_predict", -1, int64), ("top_k", -1, 2**31 - 1), ("n", 1, 8), ("min_tokens", 0, 2**31 - 1),
                               ("top_logprobs", 0, 20)]:
        text = body.replace('"max_tokens":0,', "") % ('"logprobs":true,"%s":%s' % (field, number))
        message = refused(server.post(CHAT, text), 400, field)["message"]
        assert message == f"{field} must be an integer from {least} to {most}"
    for field, least, most in [("temperature", 0, 2), ("top_p", 0, 1), ("min_p", 0, 1), ("presence_penalty", -2, 2),
                               ("frequency_penalty", -2, 2), ("repetition_penalty", 0.001, 100)]:
        message = refused(server.post(CHAT, body % ('"%s":%s' % (field, number))), 400, field)["message"]
        assert message == f"{field} must be from {least} to {most}"
    refused(server.post(CHAT, body % ('"logit_bias":{"5":%s}' % number)), 400, 'logit_bias["5"]')
    refused(server.post(CHAT, body % ('"stop":[%s]' % number)), 400, "stop[0]")
    for at, path, text in [("prompt[1]", "/v1/completions", '{"prompt":[1,%s]}'),
                           ("tokens[1]", "/detokenize", '{"tokens":[1,%s]}'),
                           ("stop_token_ids[0]", CHAT, body % '"stop_token_ids":[%s]')]:
        message = refused(server.post(path, text % number), 400, at)["message"]
        assert re.fullmatch(re.escape(at) + r" must be an integer from 0 to \d+", message)


@pytest.mark.parametrize("number", ["1e17", "9007199254740993.0", "-9223372036854775808.0"])
def test_integers_may_have_a_point_or_an_exponent(server, number):
    assert server.post(CHAT, '{"messages":[{"role":"user","content":"a"}],"max_tokens":0,"seed":%s}' % number).status == 200
    message = refused(server.post(CHAT, '{"messages":[{"role":"user","content":"a"}],"n":%s}' % number), 400, "n")["message"]
    assert str(int(float(number))) in message


def test_an_error_after_numbers_beyond_all_types_is_told(server):
    for body in ('{"x":1e999', '{"x":1e999,}', '{"x":1e999e5}', '{"x":-}', '{"x":1e999,"x":1}'):
        refused(server.post(CHAT, body), 400)


def test_grammars_that_no_token_can_follow(server):
    """Never a failure of ours."""
    for grammar in ('root ::= ""', 'root ::= "" | ""', 'root ::= [a-z]* "" ', 'root ::= "\\x00"'):
        for fields in ({}, {"min_tokens": 2}, {"ignore_eos": True}):
            reply = server.post(CHAT, dict({"messages": USER, "max_tokens": 4, "grammar": grammar}, **fields))
            assert reply.status == 400 or reply.json["choices"][0]["finish_reason"] in ("stop", "length"), reply.body
    assert server.wait_idle()


def test_grammar_literal_helper_is_exact(server):
    text = 'a"b\\c\nd'
    assert server.chat(grammar=literal(text), max_tokens=50)["choices"][0]["message"]["content"] == text
