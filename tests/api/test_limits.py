"""Work and memory that a request may cost: bounded by its size, and refused early where it is large."""
import os
import threading
import time

import pytest
from conftest import DATA, post_bytes, read_all

CHAT = "/v1/chat/completions"
MIB = 1 << 20


def memory_peak(server):
    for line in open(f"/proc/{server.process.pid}/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


@pytest.fixture
def fresh(start):
    return start("--max-concurrent", "2")


def test_the_default_body_limit(fresh):
    reply = fresh.post("/tokenize", b'{"content":"%s"}' % (b"a" * (9 * MIB)))
    assert reply.status == 413 and reply.error["code"] == "request_too_large"


@pytest.mark.parametrize("body", [{"content": " a1" * 300000, "with_pieces": True}, {"prompt": " a1" * 300000, "return_token_strs": True}],
                         ids=["pieces", "strings"])
def test_tokens_are_written_without_a_tree(fresh, body):
    before = memory_peak(fresh)
    reply = fresh.post("/tokenize", body)
    assert reply.status == 200
    answer = reply.json
    if "content" in body:
        assert "".join(t["piece"] for t in answer["tokens"]) == body["content"]
    else:
        assert "".join(answer["token_strs"]) == body["prompt"] and answer["count"] == len(answer["tokens"])
    assert memory_peak(fresh) - before < 150 * MIB


def test_pieces_that_are_no_characters(server):
    answer = server.post("/tokenize", {"content": "é🧪\0\"\\", "with_pieces": True}).json
    spelled = b"".join(p.encode() if isinstance(p := t["piece"], str) else bytes(p) for t in answer["tokens"])
    assert spelled.decode() == "é🧪\0\"\\"
    assert any(isinstance(t["piece"], list) for t in answer["tokens"])


def test_large_texts_and_lists_are_refused_before_work(server):
    begin = time.monotonic()
    for body, param in (({"content": "a" * (2 * MIB + 1)}, "content"), ({"prompt": "a" * (2 * MIB + 1)}, "prompt")):
        reply = server.post("/tokenize", body)
        assert reply.status == 400 and reply.error["param"] == param
    reply = server.post("/detokenize", {"tokens": [5] * 300000})
    assert reply.status == 400 and reply.error["param"] == "tokens"
    assert server.post("/detokenize", {"tokens": [5] * 200000}).status == 200
    assert time.monotonic() - begin < 60


def test_prompts_far_beyond_the_context_are_refused_by_their_bytes(server):
    text = "".join(chr(97 + i * i % 26) for i in range(7 * MIB))
    begin = time.monotonic()
    for stream in (False, True):
        reply = server.post("/v1/completions", {"prompt": text, "stream": stream})
        assert reply.status == 400 and reply.error["code"] == "context_length_exceeded" and reply.error["param"] == "prompt"
        assert reply.error["n_ctx"] == 1024 < reply.error["n_prompt_tokens"]
        reply = server.post(CHAT, {"messages": [{"role": "user", "content": text}], "stream": stream})
        assert reply.status == 400 and reply.error["code"] == "context_length_exceeded" and reply.error["param"] == "messages"
    reply = server.post("/tokenize", {"messages": [{"role": "user", "content": text}]})
    assert reply.status == 400 and reply.error["param"] == "messages"
    assert time.monotonic() - begin < 60


def test_many_short_messages(start):
    """Joined in linear time; others are served meanwhile, and the server stops when it shall."""
    server = start("--drain-timeout", "1")
    body = post_bytes(CHAT, {"messages": [{"role": "user", "content": "a"}] * 30000, "max_tokens": 1}, "Connection: close")
    sockets = [server.raw(body, timeout=60) for _ in range(3)]
    begin = time.monotonic()
    assert server.post("/tokenize", {"content": "a"}).status == 200
    assert time.monotonic() - begin < 30
    assert b" 400 " in read_all(sockets[0])[:20]
    begin = time.monotonic()
    sockets += [server.raw(body, timeout=60) for _ in range(2)]
    assert server.stop() == 0
    assert time.monotonic() - begin < 20


def test_memory_does_not_grow_with_the_number_of_requests(start):
    """First all clients come at once with more than any of the requests that follow, so that buffers and KV blocks have been
    touched. Then a heap that holds on to 1 KiB for each request would be found. AddressSanitizer keeps what is freed for a
    while: there the heap as the server counts it is looked at."""
    server = start("--no-enable-prefix-caching", "--max-concurrent", "4", "--pack-cache", "off",
                   model=str(DATA / "reference" / "gguf" / "llama_linear.gguf"))

    def held():
        if "ASAN_OPTIONS" in os.environ:
            return sum(float(line.split()[1]) for line in server.get("/metrics").body.decode().splitlines()
                       if line.startswith("deepseek_edge_memory_bytes{"))
        for line in open(f"/proc/{server.process.pid}/status"):
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no RssAnon")

    def requests(count, words, tokens):
        def client(i):
            for k in range(count // 4):
                prompt = " ".join(f"{i}{k}{n % 7}" for n in range(words - k % 3))
                body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": k % 2 == 0}
                assert server.post("/v1/completions", body).status == 200
        threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    requests(40, 24, 100)
    requests(240, 16, 4)
    before = held()
    requests(240, 16, 4)
    assert held() - before < 240 * 1024
