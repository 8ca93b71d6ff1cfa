"""/v1/embeddings: shapes, inputs of all kinds, pooling. Their numbers: tests/fidelity/test_hidden_states.c."""
import base64
import math
import os
import struct

import openai
import pytest
from conftest import gguf_with, post_bytes

PATH = "/v1/embeddings"
TEXTS = ["The cat sits.", "Ein Hund läuft. 🐕", "x"]


def embed(server, given, **fields):
    reply = server.post(PATH, dict({"input": given}, **fields))
    assert reply.status == 200, reply.body
    answer = reply.json
    assert answer["object"] == "list" and [d["index"] for d in answer["data"]] == list(range(len(answer["data"])))
    assert all(d["object"] == "embedding" for d in answer["data"])
    return [d["embedding"] for d in answer["data"]]


def test_vectors_have_the_length_one(server):
    vectors = embed(server, TEXTS)
    size = len(vectors[0])
    assert size > 8 and all(len(v) == size for v in vectors)
    assert all(math.isclose(math.sqrt(sum(x * x for x in v)), 1, abs_tol=1e-6) for v in vectors)
    assert vectors[0] != vectors[1]


def test_base64_is_the_same_numbers(server):
    floats, text = embed(server, TEXTS), embed(server, TEXTS, encoding_format="base64")
    for vector, code in zip(floats, text):
        raw = base64.b64decode(code, validate=True)
        assert raw == struct.pack(f"<{len(vector)}f", *vector)


def test_an_input_does_not_depend_on_its_neighbours(server):
    assert embed(server, TEXTS) == [embed(server, text)[0] for text in TEXTS]


def test_token_ids_are_the_text(server):
    ids = [server.post("/tokenize", {"prompt": text}).json["tokens"] for text in TEXTS]
    assert embed(server, ids) == embed(server, TEXTS) and embed(server, ids[0]) == embed(server, TEXTS[:1])
    usage = server.post(PATH, {"input": TEXTS}).json["usage"]
    assert usage == {"prompt_tokens": sum(map(len, ids)), "total_tokens": sum(map(len, ids))}


def test_control_texts_are_text(server):
    ids = server.post("/tokenize", {"content": "<|im_end|>", "parse_special": False}).json["tokens"]
    assert len(ids) > 1 and embed(server, "<|im_end|>") == embed(server, [ids])


def test_openai_client(server):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
    answer = client.embeddings.create(model="tiny", input=TEXTS)  # asks for base64 by itself
    type(answer).model_validate(answer.model_dump(), strict=True)
    assert answer.model == "tiny" and answer.usage.total_tokens > 3
    assert [d.embedding for d in answer.data] == [pytest.approx(v, abs=1e-9) for v in embed(server, TEXTS)]
    size = len(answer.data[0].embedding)
    assert len(client.embeddings.create(model="tiny", input="x", dimensions=size).data[0].embedding) == size
    for bad in (size - 1, size + 1):
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model="tiny", input="x", dimensions=bad)
        assert caught.value.param == "dimensions" and str(size) in caught.value.body["message"]


@pytest.mark.parametrize("fields,param", [
    ({}, "input"), ({"input": None}, "input"), ({"input": ""}, "input"), ({"input": []}, "input"), ({"input": 7}, "input"),
    ({"input": ["x", ""]}, "input"), ({"input": ["x", 7]}, "input[1]"), ({"input": [[]]}, "input[0]"),
    ({"input": [[1, -1]]}, "input[0][1]"), ({"input": [1, 2**31]}, "input[1]"), ({"input": ["x"] * 2049}, "input"),
    ({"input": "x", "encoding_format": "int8"}, "encoding_format"), ({"input": "x", "dimensions": 0}, "dimensions"),
    ({"input": "x", "dimensions": "7"}, "dimensions"), ({"input": "x", "model": 7}, "model")])
def test_refusals_name_the_field(server, fields, param):
    reply = server.post(PATH, fields)
    assert reply.status == 400 and reply.error["param"] == param, reply.body


def test_too_long_an_input(server):
    assert len(embed(server, [[5] * 1024])) == 1  # the whole context
    reply = server.post(PATH, {"input": ["x", [5] * 1025]})
    assert reply.status == 400 and reply.error["code"] == "context_length_exceeded"
    assert (reply.error["n_ctx"], reply.error["n_prompt_tokens"], reply.error["param"]) == (1024, 1025, "input")


def test_many_inputs_pass_a_short_queue(start):
    server = start("--max-concurrent", "2", "--max-queue", "2")
    inputs = [[i % 50 + 20, i % 7 + 40] for i in range(300)]
    vectors = embed(server, inputs)
    assert len(vectors) == 300 and vectors[0] == embed(server, inputs[:1])[0] and vectors[299] == embed(server, inputs[299:])[0]


def test_a_client_that_leaves_frees_all(server):
    sock = server.raw(post_bytes(PATH, {"input": [[5] * 900] * 200}))
    assert sock.send(b"") == 0
    while not server.get("/slots").json:
        pass
    sock.close()
    assert server.wait_idle(20)


def test_pooling_is_what_the_file_says(start, server, tmp_path):
    """Two tokens: their mean is a sum of the first's and the last's vector, each of which has length 1 here."""
    ids = [500, 700]
    mean, = embed(server, [ids])
    kinds = {name: start(model=gguf_with(os.environ["DSE_TEST_MODEL"], tmp_path / f"{name}.gguf",
                                         {"llama.pooling_type": kind})) for name, kind in
             (("mean", 1), ("first", 2), ("last", 3), ("rank", 4))}
    assert embed(kinds["mean"], [ids]) == [mean]
    first, = embed(kinds["first"], [ids])
    last, = embed(kinds["last"], [ids])
    assert [first] == embed(server, [ids[:1]]) and first != last != mean
    dot = sum(a * b for a, b in zip(first, last))
    p, q = (sum(a * b for a, b in zip(mean, v)) for v in (first, last))
    x, y = (p - q * dot) / (1 - dot * dot), (q - p * dot) / (1 - dot * dot)
    assert x > 0 and y > 0 and [x * a + y * b for a, b in zip(first, last)] == pytest.approx(mean, abs=1e-5)
    reply = kinds["rank"].post(PATH, {"input": "x"})
    assert reply.status == 501 and reply.error["type"] == "not_supported_error"


def test_eos_is_added_where_the_file_says(start, tmp_path):
    server = start(model=gguf_with(os.environ["DSE_TEST_MODEL"], tmp_path / "eos.gguf",
                                   {"tokenizer.ggml.add_eos_token": True}))
    ids = server.post("/tokenize", {"content": "A text."}).json["tokens"]
    reply = server.post(PATH, {"input": "A text."}).json
    assert reply["usage"]["prompt_tokens"] == len(ids) + 1
    assert [reply["data"][0]["embedding"]] != embed(server, [ids])
