"""Thinking: text between <think> and </think> goes to reasoning_content, whoever wrote the opening tag (H1)."""
import concurrent.futures
import json
import math
import os
import pathlib
import struct

import pytest
from conftest import DATA, joined, literal

UNPACKED = pathlib.Path(os.environ.get("DSE_TEST_UNPACKED", "unpacked"))

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "Two plus two?"}]
TEMPLATES = DATA / "chat" / "templates"
FORCED = "two plus two is four</think>\n\nIt is 4."


@pytest.fixture(scope="module")
def servers():
    from conftest import Server
    started = {}

    def get(format_, template="deepseek_r1_distill_llama.jinja"):
        if (format_, template) not in started:
            started[format_, template] = Server("--max-model-len", "512", "--reasoning-format", format_, "--chat-template",
                                                str(TEMPLATES / template))
        return started[format_, template]

    yield get
    for server in started.values():
        assert server.stop() == 0


def both_forms(server, **fields):
    """(reasoning, content) of an answer, the same from a stream."""
    body = dict({"messages": USER, "temperature": 0}, **fields)
    message = server.post(CHAT, body).json["choices"][0]["message"]
    events = server.stream(CHAT, body)
    reasoning, content = message.get("reasoning_content"), message["content"]
    assert message.get("reasoning") == reasoning
    assert (joined(events, "reasoning_content") or None, joined(events)) == (reasoning, content)
    for event in events[:-1]:
        for choice in event["choices"]:
            if "reasoning_content" in choice["delta"]:
                assert choice["delta"]["content"] is None and choice["delta"]["reasoning_content"]
    return reasoning, content


def test_prompt_that_opens_the_tag(servers):
    assert servers("deepseek").post("/apply-template", {"messages": USER}).json["prompt"].rstrip().endswith("<think>")
    assert both_forms(servers("deepseek"), grammar=literal(FORCED)) == ("two plus two is four", "It is 4.")
    reasoning, content = both_forms(servers("none"), grammar=literal(FORCED))
    assert reasoning is None and content.startswith("<think>") and content.endswith(FORCED)


@pytest.mark.parametrize("fields", [{"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"},
                                    {"chat_template_kwargs": {"enable_thinking": False}}])
def test_thinking_switched_off_ends_where_the_template_opens_it_all_the_same(servers, fields):
    reasoning, content = both_forms(servers("deepseek"), max_tokens=12, **fields)
    assert reasoning is None and content


def test_thinking_tokens_are_counted(servers):
    answer = servers("deepseek").post(CHAT, {"messages": USER, "grammar": literal(FORCED), "temperature": 0}).json
    reasoning = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < reasoning < answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("forced,expected", [
    ("never closed", ("never closed", "")), ("</think>at once", (None, "at once")),
    ("a</think>b</think>c", ("a", "b</think>c")), ("温度 🧪</think>\n\nnaïve 👩‍🚀", ("温度 🧪", "naïve 👩‍🚀")),
])
def test_other_texts(servers, forced, expected):
    assert both_forms(servers("deepseek"), grammar=literal(forced)) == expected


def test_stop_string_inside_the_thinking(servers):
    assert both_forms(servers("deepseek"), grammar=literal(FORCED), stop=["is four"]) == ("two plus two ", "")


def test_logprobs_list_the_content_only(servers):
    def spelled(entries):
        return b"".join(bytes(entry["bytes"]) for entry in entries).decode()

    server = servers("deepseek")
    for answer in ("\n\nIt is 4.", "\n\n4\n\n", "\n"):
        for fields in ({}, {"stop": ["zz", "\n\n\n\n\n\n4"]}, {"tools": [{"type": "function", "function": {"name": "f"}}]}):
            body = {"messages": USER, "grammar": literal(f"two</think>{answer}"), "logprobs": True, "temperature": 0, **fields}
            choice = server.post(CHAT, body).json["choices"][0]
            assert spelled(choice["logprobs"]["content"]) == choice["message"]["content"], (answer, fields)
            events = server.stream(CHAT, body)[:-1]
            streamed = [entry for event in events for choice in event["choices"] if choice["logprobs"]
                        for entry in choice["logprobs"]["content"]]
            assert streamed == choice["logprobs"]["content"]
        reply = server.post("/v1/responses", {"input": "Hi", "grammar": literal(f"two</think>{answer}"), "temperature": 0,
                                              "include": ["message.output_text.logprobs"]}).json
        for part in [part for item in reply["output"] if item["type"] == "message" for part in item["content"]]:
            assert spelled(part["logprobs"]) == part["text"]


def test_user_text_does_not_open_or_close_thinking(servers):
    server = servers("deepseek")
    for text in ("x </think> y", "<think>", "x <think>\n"):
        messages = [{"role": "user", "content": text}]
        assert text.strip() in server.post("/apply-template", {"messages": messages}).json["prompt"]
        assert both_forms(server, messages=messages, grammar=literal(FORCED)) == ("two plus two is four", "It is 4.")


def test_history_with_thinking_is_accepted(servers):
    messages = USER + [{"role": "assistant", "content": "It is 4.", "reasoning_content": "hm"},
                       {"role": "user", "content": "Sure?"}]
    for extra in ({}, {"thinking": {"type": "enabled"}}, {"reasoning_effort": "high"},
                  {"chat_template_kwargs": {"enable_thinking": True}}):
        reply = servers("deepseek").post(CHAT, dict({"messages": messages, "max_tokens": 2}, **extra))
        assert reply.status == 200, reply.body


@pytest.mark.parametrize("switch,thinks", [
    ({"thinking": {"type": "enabled"}}, True), ({"thinking": {"type": "disabled"}}, False), ({"reasoning_effort": "high"}, True),
    ({"reasoning_effort": "none"}, False), ({"chat_template_kwargs": {"thinking": True}}, True),
    ({"chat_template_kwargs": {"enable_thinking": True}}, True), ({"model": "deepseek-reasoner"}, True),
    ({"model": "deepseek-chat"}, False),
])
def test_three_names_of_one_switch(servers, switch, thinks):
    """V3.1 opens <think> when thinking is on and closes an empty one when it is off."""
    server = servers("deepseek", "deepseek_v31_official.jinja")
    prompt = server.post("/apply-template", dict(switch, messages=USER)).json["prompt"]
    assert prompt.rstrip().endswith("<think>" if thinks else "</think>")


@pytest.mark.parametrize("template", ["deepseek_coder", "deepseek_r1_distill_llama", "deepseek_v2", "deepseek_v31",
                                      "deepseek_v31_official", "qwen25", "smollm2"])
def test_tool_turns_with_null_content_render_everywhere(servers, template):
    """H3: never None, null or undefined in the prompt."""
    call = {"id": "c9", "type": "function", "function": {"name": "read_meter", "arguments": '{"room":"attic"}'}}
    for content in (None, "", "absent"):
        assistant = {"role": "assistant", "content": content, "tool_calls": [call]}
        if content == "absent":
            del assistant["content"]
        messages = [{"role": "user", "content": "Read it"}, assistant,
                    {"role": "tool", "tool_call_id": "c9", "content": "21.5"}, {"role": "user", "content": "So?"}]
        reply = servers("deepseek", template + ".jinja").post("/apply-template", {"messages": messages})
        assert reply.status == 200, reply.body
        prompt = reply.json["prompt"]
        assert not any(word in prompt for word in ("None", "null", "undefined")), prompt
        assert prompt.count("21.5") <= 1


@pytest.fixture(scope="module")
def thinking_vocabulary(tmp_path_factory):
    """A model whose vocabulary has <think> and </think>; its weights are zeros, so every token is as likely as another."""
    folder = tmp_path_factory.mktemp("model")
    for file in (UNPACKED / "tokenizers" / "qwen3").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    hidden, vocabulary = 32, 151936
    shapes = {"model.embed_tokens": (vocabulary, hidden), "model.norm": (hidden,), "model.layers.0.input_layernorm": (hidden,),
              "model.layers.0.post_attention_layernorm": (hidden,)}
    shapes |= {f"model.layers.0.{part}_proj": (hidden, hidden)
               for part in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")}
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name + ".weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "bos_token_id": 151643, "eos_token_id": 151645,
        "hidden_act": "silu", "hidden_size": hidden, "intermediate_size": hidden, "max_position_embeddings": 4096,
        "num_attention_heads": 2, "num_hidden_layers": 1, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 10000,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": vocabulary}))
    return str(folder)


@pytest.fixture(scope="module")
def zeros(thinking_vocabulary):
    from conftest import Server
    server = Server("--max-model-len", "512", "--chat-template", str(TEMPLATES / "deepseek_r1_distill_llama.jinja"),
                    model=thinking_vocabulary)
    yield server
    assert server.stop() == 0


def token(server, text):
    one, = server.post("/tokenize", {"content": text}).json["tokens"]
    return one


BUDGETS = [{"thinking": {"type": "enabled", "budget_tokens": 5}}, {"thinking_budget": 5}, {"thinking_token_budget": 5},
           {"thinking_budget_tokens": 5}]


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_thought_ends_after_exactly_its_budget(zeros, budget):
    body = dict({"max_tokens": 12, "logit_bias": {str(token(zeros, "x")): 100}}, **budget)
    assert both_forms(zeros, **body) == ("x" * 5, "x" * 6)  # and one token for </think>
    answer = zeros.post(CHAT, dict(body, messages=USER, n=3, logprobs=True, temperature=1, seed=3)).json
    assert answer["usage"]["completion_tokens"] == 36
    for choice in answer["choices"]:
        assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("x" * 5, "x" * 6)
        assert len(choice["logprobs"]["content"]) == 6


@pytest.mark.parametrize("count", [0, 1, 2, 11, 12, 13, -1, 2**62])
def test_budgets_of_any_size(zeros, count):
    body = {"max_tokens": 12, "logit_bias": {str(token(zeros, "x")): 100}, "thinking_budget": count}
    thought = 12 if count < 0 or count > 12 else count
    assert both_forms(zeros, **body) == ("x" * thought or None, "x" * (12 - thought - 1))


def test_budgets_that_make_no_sense_are_refused(zeros):
    for name, values in (("thinking_budget", (-2, 1.5, "5", [], True)), ("thinking_token_budget", (-2,)),
                         ("thinking_budget_tokens", (2**63,))):
        for value in values:
            reply = zeros.post(CHAT, {"messages": USER, name: value})
            assert reply.status == 400 and reply.error["param"] == name, reply.body
    for value in (0, -1, 1.5, "5"):
        reply = zeros.post(CHAT, {"messages": USER, "thinking": {"type": "enabled", "budget_tokens": value}})
        assert reply.status == 400 and reply.error["param"] == "thinking.budget_tokens", reply.body


def test_a_thought_that_ends_by_itself_is_left_alone(zeros):
    close, word = token(zeros, "</think>"), token(zeros, "x")
    body = {"max_tokens": 12, "thinking_budget": 5, "messages": USER, "temperature": 0}
    assert both_forms(zeros, **body, logit_bias={str(close): 50, str(word): 50}, grammar='root ::= "yes"')[1] in ("yes", "")
    message = both_forms(zeros, **body, logit_bias={str(close): 100}, grammar='root ::= "yes"')
    assert message == (None, "yes")


def test_a_constraint_begins_behind_a_thought_that_was_ended(zeros):
    body = {"max_tokens": 20, "thinking_budget": 3, "logit_bias": {str(token(zeros, "x")): 100}, "guided_choice": ["yes", "no"]}
    reasoning, content = both_forms(zeros, **body)
    assert reasoning == "xxx" and content in ("yes", "no")


def test_the_server_has_a_budget_for_who_names_none(start, thinking_vocabulary):
    for format_, expected in (("deepseek", ("xxxx", "x" * 7)), ("none", (None, "<think>xxxx</think>" + "x" * 7))):
        server = start("--chat-template", str(TEMPLATES / "deepseek_r1_distill_llama.jinja"), "--reasoning-budget", "4",
                       "--reasoning-format", format_, model=thinking_vocabulary)
        body = {"max_tokens": 12, "logit_bias": {str(token(server, "x")): 100}}
        assert both_forms(server, **body) == expected
        assert server.chat(**body, thinking_budget=-1)["choices"][0]["message"]["content"].count("</think>") == 0
        message = server.post("/v1/messages", dict(body, messages=USER, thinking={"type": "enabled", "budget_tokens": 2})).json
        if format_ == "deepseek":
            assert [block.get("thinking") or block["text"] for block in message["content"]] == ["xx", "x" * 9]
        text = server.post("/v1/completions", dict(body, prompt="<think>")).json["choices"][0]["text"]
        assert text == "x" * 12  # no chat, no thoughts


def test_without_a_token_for_it_the_end_is_written(servers):
    """The same with a model to which </think> is plain text: by itself it would think on."""
    server = servers("deepseek")
    free, _ = both_forms(server, max_tokens=20, ignore_eos=True)
    for count in (0, 7):
        reasoning, content = both_forms(server, max_tokens=20, ignore_eos=True, thinking_budget=count)
        answer = server.chat(USER[0]["content"], max_tokens=count + 1, ignore_eos=True)["choices"][0]["message"]
        assert free.startswith(reasoning or "") and content and (reasoning or "") in (answer.get("reasoning_content") or "")
    # what else runs changes nothing
    body = {"messages": USER, "max_tokens": 16, "ignore_eos": True, "temperature": 0, "thinking_budget": 7, "logprobs": True}
    alone = server.post(CHAT, body).json["choices"]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda i: server.post(CHAT, dict(body, thinking_budget=7 + i % 2)).json["choices"], range(4)))
    assert together[0] == together[2] == alone and together[1] == together[3] != alone


def test_a_grammar_that_says_everything_is_not_broken_by_a_budget(servers):
    for count in (0, 3):
        assert both_forms(servers("deepseek"), grammar=literal(FORCED), thinking_budget=count) == ("two plus two is four", "It is 4.")
    schema = {"type": "object", "properties": {"n": {"const": 4}}, "required": ["n"]}
    reasoning, content = both_forms(servers("deepseek"), guided_json=schema, thinking_budget=6, max_tokens=60)
    assert json.loads(content) == {"n": 4}


def test_a_grammar_is_for_the_answer_behind_the_thinking(start, thinking_vocabulary):
    server = start("--chat-template", str(TEMPLATES / "deepseek_r1_distill_llama.jinja"), model=thinking_vocabulary)
    close, = server.post("/tokenize", {"content": "</think>"}).json["tokens"]
    word, = server.post("/tokenize", {"content": "x"}).json["tokens"]
    body = {"messages": USER, "grammar": 'root ::= "yes" | "no"', "max_tokens": 12, "seed": 1}
    reasoning, content = both_forms(server, **body, logit_bias={str(word): 100})
    assert reasoning == "x" * 12 and content == ""  # the grammar has no x
    reasoning, content = both_forms(server, **body, logit_bias={str(close): 100})
    assert reasoning is None and content in ("yes", "no")
