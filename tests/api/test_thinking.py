"""Thinking: text between <think> and </think> goes to reasoning_content, whoever wrote the opening tag (H1)."""
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
    answer = servers("deepseek").post(CHAT, {"messages": USER, "grammar": literal(FORCED), "logprobs": True}).json
    spelled = b"".join(bytes(e["bytes"]) for e in answer["choices"][0]["logprobs"]["content"]).decode()
    assert spelled.strip() == "It is 4."


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


def test_a_grammar_is_for_the_answer_behind_the_thinking(start, thinking_vocabulary):
    server = start("--chat-template", str(TEMPLATES / "deepseek_r1_distill_llama.jinja"), model=thinking_vocabulary)
    close, = server.post("/tokenize", {"content": "</think>"}).json["tokens"]
    word, = server.post("/tokenize", {"content": "x"}).json["tokens"]
    body = {"messages": USER, "grammar": 'root ::= "yes" | "no"', "max_tokens": 12, "seed": 1}
    reasoning, content = both_forms(server, **body, logit_bias={str(word): 100})
    assert reasoning == "x" * 12 and content == ""  # the grammar has no x
    reasoning, content = both_forms(server, **body, logit_bias={str(close): 100})
    assert reasoning is None and content in ("yes", "no")
