"""POST /v1/completions, and the text endpoints."""
import pytest
from conftest import literal

PATH = "/v1/completions"


def test_shape(server):
    answer = server.post(PATH, {"model": "tiny", "prompt": "The capital of France is", "max_tokens": 3, "temperature": 0})
    assert answer.status == 200
    answer = answer.json
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    choice, = answer["choices"]
    assert choice == {"index": 0, "text": choice["text"], "logprobs": None, "finish_reason": "length"}
    assert "Paris" in choice["text"]
    assert answer["usage"]["completion_tokens"] == 3


def test_stream_is_the_same_text(server):
    body = {"prompt": "One, two, three,", "max_tokens": 6, "temperature": 0}
    events = server.stream(PATH, dict(body, stream_options={"include_usage": True}))
    assert events.pop() == "[DONE]"
    assert events.pop()["usage"]["completion_tokens"] == 6
    assert events[-1]["choices"][0]["finish_reason"] == "length" and events[-1]["choices"][0]["text"] == ""
    text = "".join(e["choices"][0]["text"] for e in events)
    assert text == server.post(PATH, body).json["choices"][0]["text"]


def test_token_ids_and_lists_of_prompts(server):
    ids = server.post("/tokenize", {"content": "One, two, three,"}).json["tokens"]
    options = {"max_tokens": 4, "temperature": 0}
    expected = server.post(PATH, dict(options, prompt="One, two, three,")).json["choices"][0]["text"]
    assert server.post(PATH, dict(options, prompt=ids)).json["choices"][0]["text"] == expected
    many = server.post(PATH, dict(options, prompt=[ids, ids])).json
    assert [c["text"] for c in many["choices"]] == [expected, expected]
    assert [c["index"] for c in many["choices"]] == [0, 1]
    assert many["usage"]["prompt_tokens"] == 2 * len(ids)
    mixed = server.post(PATH, dict(options, prompt=["One, two, three,", "Red, green,"], n=2)).json
    assert [c["index"] for c in mixed["choices"]] == [0, 1, 2, 3]
    assert mixed["choices"][0]["text"] == mixed["choices"][1]["text"] == expected


def test_more_prompts_than_the_queue_holds(start):
    server = start("--max-concurrent", "1", "--max-queue", "1")
    answer = server.post(PATH, {"prompt": [f"{i}" for i in range(12)], "max_tokens": 2, "temperature": 0})
    assert answer.status == 200, answer.body
    assert [c["index"] for c in answer.json["choices"]] == list(range(12))
    assert server.wait_idle()


@pytest.mark.parametrize("text,stop,kept", [
    ("one two three four", "three", "one two "), ("one two three four", "o three", "one tw"), ("abc abd abe", "abe", "abc abd "),
    ("one two", "two three", "one two"), ("x" * 40 + "end", "xend", "x" * 39),
])
def test_streamed_logprobs_never_list_what_a_stop_drops(server, text, stop, kept):
    """A token is listed with its text or not at all, in a stream as in a whole answer."""
    body = {"prompt": "a", "grammar": literal(text), "stop": stop, "max_tokens": 60, "logprobs": 1, "temperature": 0}
    whole = server.post(PATH, body).json["choices"][0]
    assert whole["text"] == kept
    tokens, sent = [], ""
    for event in server.stream(PATH, body)[:-1]:
        for choice in event["choices"]:
            sent += choice["text"]
            tokens += choice["logprobs"]["tokens"]
            assert len("".join(tokens[:-1])) < len(sent) or not tokens[1:]
    assert sent == kept and tokens == whole["logprobs"]["tokens"]
    assert "".join(tokens).startswith(kept) and len("".join(tokens[:-1])) < len(kept)

    chat = {"messages": [{"role": "user", "content": "a"}], "grammar": literal(text), "stop": stop, "logprobs": True, "temperature": 0}
    listed = [e["token"] for event in server.stream("/v1/chat/completions", chat)[:-1] for c in event["choices"]
              for e in (c["logprobs"] or {"content": []})["content"]]
    assert listed == [e["token"] for e in server.post("/v1/chat/completions", chat).json["choices"][0]["logprobs"]["content"]]
    assert "".join(listed).startswith(kept) and len("".join(listed[:-1])) < len(kept)


def test_echo_with_logprobs_covers_the_prompt(server):
    prompt = "The capital of France is"
    answer = server.post(PATH, {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": 0}).json
    choice = answer["choices"][0]
    assert choice["text"] == prompt and choice["finish_reason"] == "length"
    logprobs = choice["logprobs"]
    assert len({len(logprobs[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}) == 1
    assert "".join(logprobs["tokens"]) == prompt
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert all(v <= 0 for v in logprobs["token_logprobs"][1:])
    for token, offset, top in zip(logprobs["tokens"], logprobs["text_offset"], logprobs["top_logprobs"]):
        assert prompt[offset:offset + len(token)] == token
        assert top is None or (token in top and 2 <= len(top) <= 3)
    longer = server.post(PATH, {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": 2, "temperature": 0}).json
    longer = longer["choices"][0]
    assert longer["logprobs"]["token_logprobs"][:len(logprobs["tokens"])] == logprobs["token_logprobs"]
    assert "".join(longer["logprobs"]["tokens"]) == longer["text"]
    streamed = server.stream(PATH, {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": 2, "temperature": 0})
    chunks = [e["choices"][0] for e in streamed[:-1]]
    assert "".join(c["text"] for c in chunks) == longer["text"]
    assert [t for c in chunks for t in c["logprobs"]["tokens"]] == longer["logprobs"]["tokens"]
    assert [t for c in chunks for t in c["logprobs"]["text_offset"]] == longer["logprobs"]["text_offset"]


def test_prompt_logprobs_equal_those_of_decoding(server):
    """What the model says of a text must not depend on whether it read or wrote it."""
    prompt = "The capital of France is"
    written = server.post(PATH, {"prompt": prompt, "logprobs": 0, "max_tokens": 3, "temperature": 0}).json["choices"][0]
    read = server.post(PATH, {"prompt": prompt + written["text"], "echo": True, "logprobs": 0, "max_tokens": 0}).json
    tail = read["choices"][0]["logprobs"]["token_logprobs"][-3:]
    assert tail == pytest.approx(written["logprobs"]["token_logprobs"], abs=2e-3)


def test_text_offsets_count_characters_not_bytes(server):
    prompt = "温度 ☕ ok"
    choice = server.post(PATH, {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 2, "grammar": literal("é!")})
    choice = choice.json["choices"][0]
    offsets = choice["logprobs"]["text_offset"]
    assert offsets == sorted(offsets) and offsets[-1] <= len(choice["text"])


def test_stop_and_grammar(server):
    body = {"prompt": "x", "grammar": literal("abc.def"), "stop": ["."], "temperature": 0}
    choice = server.post(PATH, body).json["choices"][0]
    assert choice["text"] == "abc" and choice["finish_reason"] == "stop"


@pytest.mark.parametrize("prompt,param", [
    (None, "prompt"), ("", "prompt"), ([], "prompt"), (5, "prompt"), ({}, "prompt"), ([-1], "prompt[0]"),
    ([1, 10**9], "prompt[1]"), ([1, 2.5], "prompt[1]"), ([1, "x"], "prompt[1]"), ([[]], "prompt[0]"),
    (["a", 5], "prompt[1]"), ([[1], ["x"]], "prompt[1][0]"), ([[2**63 - 1]], "prompt[0][0]"), (True, "prompt"),
    (["a"] * 129, "prompt"),
])
def test_bad_prompts_are_named(server, prompt, param):
    reply = server.post(PATH, {"prompt": prompt, "max_tokens": 1})
    assert reply.status == 400 and reply.error["param"] == param


def test_an_empty_suffix_is_none(server):
    assert server.post(PATH, {"prompt": "def f(", "suffix": "", "max_tokens": 1}).status == 200


def test_tokenize_in_both_shapes(server):
    ids = server.post("/tokenize", {"content": "Hello world"}).json
    assert set(ids) == {"tokens"} and len(ids["tokens"]) == 2
    pieces = server.post("/tokenize", {"content": "Hello 🧪", "with_pieces": True}).json["tokens"]
    flat = b"".join(bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces)
    assert flat.decode() == "Hello 🧪"
    vllm = server.post("/tokenize", {"model": "tiny", "prompt": "Hello world", "return_token_strs": True}).json
    assert vllm["tokens"] == ids["tokens"] and vllm["count"] == 2 and vllm["max_model_len"] == 1024
    assert "".join(vllm["token_strs"]) == "Hello world"
    plain = server.post("/tokenize", {"content": "<|im_end|>", "parse_special": False}).json["tokens"]
    assert len(plain) > 1
    assert server.post("/tokenize", {}).status == 400
    assert server.post("/tokenize", {"content": 5}).error["param"] == "content"


def test_detokenize_round_trip(server):
    for text in ("Hello world", "温度 👩‍🚀", "", " two  blanks "):
        ids = server.post("/tokenize", {"content": text}).json["tokens"]
        answer = server.post("/detokenize", {"tokens": ids}).json
        assert answer == {"content": text, "prompt": text}
    for bad in ([-1], [10**9], ["x"], 5, None):
        reply = server.post("/detokenize", {"tokens": bad})
        assert reply.status == 400 and reply.error["param"].startswith("tokens")


def test_chat_prompt_and_tokenize_agree(server):
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    prompt = server.post("/apply-template", body).json["prompt"]
    assert prompt.endswith("<|im_start|>assistant\n")
    ids = server.post("/tokenize", body).json["tokens"]
    assert server.post("/tokenize", {"content": prompt}).json["tokens"] == ids
    assert server.post("/v1/chat/completions", dict(body, max_tokens=1)).json["usage"]["prompt_tokens"] == len(ids)
