"""Filling holes: /infill and `suffix` of completions. The layout of prompts is the models' own, from their model cards:
PREFIX before SUFFIX behind MIDDLE; answers are compared with those to the same token ids, sent as a prompt."""
import json
import math
import os
import pathlib
import random
import struct

import openai
import pytest
from conftest import gguf_with, literal

UNPACKED = pathlib.Path(os.environ.get("DSE_TEST_UNPACKED", "unpacked"))
COMPLETIONS, INFILL = "/v1/completions", "/infill"
BEFORE, BEHIND = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n"
TEXTS = {"qwen3": ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
         "deepseek_v3": ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")}


def make_model(folder, tokenizer, vocabulary, bos, eos):
    """One layer with random weights under a real tokenizer."""
    for file in (UNPACKED / "tokenizers" / tokenizer).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    hidden = 32
    shapes = {"model.embed_tokens": (vocabulary, hidden), "model.norm": (hidden,), "model.layers.0.input_layernorm": (hidden,),
              "model.layers.0.post_attention_layernorm": (hidden,)}
    shapes |= {f"model.layers.0.{part}_proj": (hidden, hidden)
               for part in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")}
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name + ".weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    source, data = random.Random(7), bytearray(end)
    data[0::2] = source.randbytes(end // 2)  # of the mantissa; sign and exponent give sizes from 0.5 to 2
    data[1::2] = source.randbytes(end // 2).translate(bytes((0x3F, 0xBF)[b & 1] for b in range(256)))
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "bos_token_id": bos, "eos_token_id": eos,
        "hidden_act": "silu", "hidden_size": hidden, "intermediate_size": hidden, "max_position_embeddings": 4096,
        "num_attention_heads": 2, "num_hidden_layers": 1, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 10000,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": vocabulary}))
    return str(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    from conftest import Server
    started = {}

    def get(tokenizer):
        if tokenizer not in started:
            sizes = {"qwen3": (151936, 151643, 151645), "deepseek_v3": (129280, 0, 1)}[tokenizer]
            model = make_model(tmp_path_factory.mktemp(tokenizer), tokenizer, *sizes)
            started[tokenizer] = Server("--max-model-len", "512", model=model)
        return started[tokenizer]

    yield get
    for server in started.values():
        assert server.stop() == 0


@pytest.fixture(scope="module")
def with_keys(tmp_path_factory):
    """The test model, whose file says that its tokens 3, 4 and 5 are for holes."""
    from conftest import Server
    keys = {f"tokenizer.ggml.fim_{part}_token_id": 3 + i for i, part in enumerate(("pre", "suf", "mid"))}
    model = gguf_with(os.environ["DSE_TEST_MODEL"], tmp_path_factory.mktemp("fim") / "fim.gguf", keys)
    server = Server("--max-model-len", "512", model=model)
    yield server
    assert server.stop() == 0


def ids_of(server, text, special=False):
    return server.post("/tokenize", {"content": text, "parse_special": special}).json["tokens"]


def prompt_ids(server, marks, bos=()):
    before, behind = ids_of(server, BEFORE), ids_of(server, BEHIND)
    return [*bos, marks[0], *before, marks[1], *behind, marks[2]]


def check(server, marks, bos=()):
    """The same answer as to the token ids, from both endpoints."""
    ids = prompt_ids(server, marks, bos)
    options = {"temperature": 0, "max_tokens": 8, "logprobs": 2}
    expected = server.post(COMPLETIONS, dict(options, prompt=ids)).json
    got = server.post(COMPLETIONS, dict(options, prompt=BEFORE, suffix=BEHIND)).json
    assert got["usage"]["prompt_tokens"] == len(ids)
    assert got["choices"] == expected["choices"]
    from_ids = dict(options, prompt=ids_of(server, BEFORE), suffix=BEHIND)
    assert server.post(COMPLETIONS, from_ids).json["choices"] == expected["choices"]
    filled = server.post(INFILL, {"input_prefix": BEFORE, "input_suffix": BEHIND, "n_predict": 8, "temperature": 0}).json
    assert filled["content"] == expected["choices"][0]["text"] and filled["tokens_evaluated"] == len(ids)
    other = server.post(COMPLETIONS, dict(options, prompt=BEFORE, suffix=BEHIND + "x")).json
    assert other["choices"] != expected["choices"]


def test_tokens_that_the_file_names(with_keys):
    check(with_keys, (3, 4, 5))


@pytest.mark.parametrize("tokenizer,bos", [("qwen3", ()), ("deepseek_v3", (0,))])
def test_tokens_that_are_known_by_their_text(models, tokenizer, bos):
    server = models(tokenizer)
    marks = [ids_of(server, text, special=True) for text in TEXTS[tokenizer]]
    assert all(len(mark) == 1 for mark in marks)
    check(server, [mark[0] for mark in marks], bos)


def test_control_texts_in_code_are_text(models):
    server = models("qwen3")
    usage = server.post(COMPLETIONS, {"prompt": "<|fim_suffix|>", "suffix": "<|im_end|>", "max_tokens": 1}).json["usage"]
    assert usage["prompt_tokens"] == 3 + len(ids_of(server, "<|fim_suffix|>")) + len(ids_of(server, "<|im_end|>"))


def test_other_files_come_first(models):
    server = models("qwen3")
    sep, = ids_of(server, "<|file_sep|>", special=True)
    body = {"input_prefix": BEFORE, "input_suffix": BEHIND, "n_predict": 4, "temperature": 0, "prompt": "a + ",
            "input_extra": [{"filename": "a.py", "text": "A = 1"}, {"text": "B = 2"}]}
    marks = [ids_of(server, text, special=True)[0] for text in TEXTS["qwen3"]]
    ids = [sep, *ids_of(server, "a.py"), *ids_of(server, "\n"), *ids_of(server, "A = 1"), *ids_of(server, "\n"),
           sep, *ids_of(server, "\n"), *ids_of(server, "B = 2"), *ids_of(server, "\n"), sep,
           *prompt_ids(server, marks), *ids_of(server, "a + ")]
    filled = server.post(INFILL, body).json
    expected = server.post(COMPLETIONS, {"prompt": ids, "max_tokens": 4, "temperature": 0}).json
    assert filled["tokens_evaluated"] == len(ids) and filled["content"] == expected["choices"][0]["text"]


def test_the_next_hole_ends_the_filling(models):
    server = models("qwen3")
    for text in ("<|fim_prefix|>", "<|fim_pad|>", "<|file_sep|>"):
        token, = ids_of(server, text, special=True)
        body = {"input_prefix": "a", "input_suffix": "b", "n_predict": 5, "logit_bias": {str(token): 100}}
        filled = server.post(INFILL, body).json
        assert (filled["content"], filled["stop_type"], filled["tokens_predicted"]) == ("", "eos", 1)


def test_forms_of_infill(with_keys):
    body = {"input_prefix": "a", "input_suffix": "b", "temperature": 0, "grammar": literal("one two three")}
    whole = with_keys.post(INFILL, body).json
    assert (whole["index"], whole["content"], whole["stop"], whole["stop_type"]) == (0, "one two three", True, "eos")
    assert whole["timings"]["predicted_n"] == whole["tokens_predicted"] and whole["truncated"] is False
    stopped = with_keys.post(INFILL, dict(body, stop=[" three"])).json
    assert (stopped["content"], stopped["stop_type"], stopped["stopping_word"]) == ("one two", "word", " three")
    assert with_keys.post(INFILL, dict(body, n_predict=2)).json["stop_type"] == "limit"
    reply = with_keys.post(INFILL, dict(body, stream=True))
    frames = [json.loads(f.removeprefix("data: ")) for f in reply.body.decode().split("\n\n")[:-1]]
    assert "".join(f["content"] for f in frames) == "one two three"
    assert [f["stop"] for f in frames] == [False] * (len(frames) - 1) + [True] and len(frames) > 2
    assert frames[-1]["stop_type"] == "eos" and frames[-1]["tokens_predicted"] == whole["tokens_predicted"]


def test_suffix_in_a_stream_and_with_choices(with_keys):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{with_keys.port}/beta", api_key="none", max_retries=0)
    options = dict(model="m", prompt=BEFORE, suffix=BEHIND, max_tokens=5, temperature=0)
    text = client.completions.create(**options).choices[0].text
    assert "".join(c.choices[0].text for c in client.completions.create(**options, stream=True)) == text
    assert [c.text for c in client.completions.create(**options, n=2).choices] == [text] * 2


@pytest.mark.parametrize("fields,param", [
    ({"input_prefix": None}, "input_prefix"), ({"input_suffix": None}, "input_suffix"), ({"input_prefix": 7}, "input_prefix"),
    ({"prompt": 7}, "prompt"), ({"input_extra": 7}, "input_extra"), ({"input_extra": [7]}, "input_extra[0]"),
    ({"input_extra": [{}]}, "input_extra[0].text"), ({"input_extra": [{"text": "x", "filename": 7}]}, "input_extra[0].filename"),
    ({"input_extra": [{"text": "x"}] * 129}, "input_extra"), ({"n_probs": 3}, "n_probs"), ({"temperature": 9}, "temperature"),
    ({"n_predict": "x"}, "n_predict")])
def test_refusals_name_the_field(with_keys, fields, param):
    reply = with_keys.post(INFILL, dict({"input_prefix": "a", "input_suffix": "b"}, **fields))
    assert reply.status == 400 and reply.error["param"] == param, reply.body


def test_refusals_of_suffix(with_keys, server):
    for fields, param in (({"suffix": 7}, "suffix"), ({"suffix": "x", "echo": True}, "echo")):
        reply = with_keys.post(COMPLETIONS, dict({"prompt": "x"}, **fields))
        assert reply.status == 400 and reply.error["param"] == param
    reply = with_keys.post(COMPLETIONS, {"prompt": "x", "suffix": "word " * 600})
    assert reply.status == 400 and reply.error["code"] == "context_length_exceeded"
    reply = with_keys.post(INFILL, {"input_prefix": "word " * 600, "input_suffix": ""})
    assert reply.status == 400 and reply.error["code"] == "context_length_exceeded"
    reply = server.post(COMPLETIONS, {"prompt": "x", "suffix": "y"})
    assert reply.status == 400 and reply.error["param"] == "suffix" and "FIM" in reply.error["message"]
    reply = server.post(INFILL, {"input_prefix": "x", "input_suffix": "y"})
    assert reply.status == 501 and reply.error["type"] == "not_supported_error" and "FIM" in reply.error["message"]
