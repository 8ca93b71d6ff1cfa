"""Clients that leave, servers that are busy, loading or stopping; pings."""
import contextlib
import json
import os
import pathlib
import socket
import threading
import time

import pytest
from conftest import DATA, Server, post_bytes, read_all, wait_for

CHAT = "/v1/chat/completions"
LONG = {"messages": [{"role": "user", "content": "Tell a story"}], "max_tokens": 4000, "ignore_eos": True}


@pytest.fixture(scope="module")
def busy_server():
    server = Server("--max-model-len", "4096", "--max-concurrent", "2", "--chunk-tokens", "64")
    yield server
    assert server.stop() == 0


@contextlib.contextmanager
def cut_short(server, n=1):
    """Within it n clients leave: their requests end as cancelled, not by coming to their end."""
    before = server.metric("requests_cancelled_total")
    yield
    assert server.wait_idle()
    assert server.metric("requests_cancelled_total") == before + n


def generating(server):
    return any(slot["n_generated"] > 0 for slot in server.get("/slots").json)


@pytest.mark.parametrize("stream", [True, False])
def test_client_leaves_while_decoding(busy_server, stream):
    server = busy_server
    sock = server.raw(post_bytes(CHAT, dict(LONG, stream=stream)))
    wait_for(lambda: generating(server))
    with cut_short(server):
        sock.close()
    assert server.metric("kv_blocks_used") == 0


@pytest.mark.parametrize("stream", [True, False])
def test_client_leaves_with_unread_data(busy_server, stream):
    """Closing with unread bytes sends a reset at once."""
    sock = busy_server.raw(post_bytes(CHAT, dict(LONG, stream=stream)))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    wait_for(lambda: generating(busy_server))
    with cut_short(busy_server):
        sock.close()


@pytest.mark.parametrize("stream", [True, False])
def test_client_leaves_while_waiting(busy_server, stream):
    server = busy_server
    running = [server.raw(post_bytes(CHAT, dict(LONG, stream=True))) for _ in range(2)]
    wait_for(lambda: len(server.get("/slots").json) == 2)
    prompt_tokens = server.metric("prompt_tokens_total")
    waiting = server.raw(post_bytes(CHAT, dict(LONG, stream=stream)))
    wait_for(lambda: server.metric("requests_waiting") == 1)
    with cut_short(server, 3):
        waiting.close()
        wait_for(lambda: server.metric("requests_waiting") == 0)
        for sock in running:
            sock.close()
    assert server.metric("prompt_tokens_total") - prompt_tokens < 100, "the dead client's prompt was computed"


@pytest.mark.parametrize("stream", [True, False])
def test_client_leaves_during_prefill(busy_server, stream):
    server = busy_server
    body = dict(LONG, messages=[{"role": "user", "content": "word " * 3000}], max_tokens=10, stream=stream)
    sock = server.raw(post_bytes(CHAT, body))
    wait_for(lambda: len(server.get("/slots").json) == 1)
    slot, = server.get("/slots").json
    assert slot["n_generated"] == 0 and slot["n_processed"] < slot["n_prompt"]
    with cut_short(server):
        sock.close()
    assert server.metric("kv_blocks_used") == 0


@pytest.mark.parametrize("stream", [True, False])
def test_half_close_does_not_cancel(busy_server, stream):
    body = dict(LONG, max_tokens=8, stream=stream)
    sock = busy_server.raw(post_bytes(CHAT, body, "Connection: close"), timeout=60)
    sock.shutdown(socket.SHUT_WR)
    data = read_all(sock)
    assert b" 200 " in data[:20], data
    assert b'"finish_reason":"length"' in data and b'"completion_tokens":8' in data or b"[DONE]" in data
    assert b"error" not in data


def test_half_close_and_then_leaving_cancels(busy_server):
    """Several times: what must not happen depends on how accept, request and half-close fall together."""
    for stream in (True, False) * 4:
        sock = busy_server.raw(post_bytes(CHAT, dict(LONG, stream=stream)))
        sock.shutdown(socket.SHUT_WR)
        wait_for(lambda: generating(busy_server))
        with cut_short(busy_server):
            sock.close()


def test_half_closed_answer_is_one_json_document(busy_server):
    """The probes before it are white space."""
    sock = busy_server.raw(post_bytes(CHAT, dict(LONG, max_tokens=20), "Connection: close"), timeout=60)
    sock.shutdown(socket.SHUT_WR)
    head, _, rest = read_all(sock).partition(b"\r\n\r\n")
    assert b"application/json" in head and b"chunked" in head
    document = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        document, rest = document + rest[:int(size, 16)], rest[int(size, 16) + 2:]
    assert json.loads(document)["usage"]["completion_tokens"] == 20


def test_impatient_client_frees_its_slot(busy_server):
    import http.client
    connection = http.client.HTTPConnection("127.0.0.1", busy_server.port, timeout=0.1)
    connection.request("POST", CHAT, json.dumps(LONG), {"Content-Type": "application/json"})
    with pytest.raises(TimeoutError):
        connection.getresponse()
    with cut_short(busy_server):
        connection.close()


def test_health_answers_under_load(busy_server):
    """H7, short: streams, a long prefill, idle and trickling connections."""
    server = busy_server
    sockets = [server.raw(post_bytes(CHAT, dict(LONG, stream=True))) for _ in range(24)]
    sockets.append(server.raw(post_bytes(CHAT, dict(LONG, messages=[{"role": "user", "content": "word " * 3000}]))))
    sockets += [server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(200)]
    slow = [server.raw(b"GET /health HT") for _ in range(20)]
    wait_for(lambda: any(slot["n_prompt"] > 2000 for slot in server.get("/slots").json) or generating(server))
    for _ in range(20):
        assert server.get("/health").status == 200 and server.get("/metrics").status == 200
        assert server.metric("requests_running") + server.metric("requests_waiting") > 0
        for sock in slow:
            sock.send(b"x")
    for sock in sockets + slow:
        sock.close()
    assert server.wait_idle()
    assert server.chat(max_tokens=2)["choices"]


def test_pings_while_silent(start):
    server = start("--ping-interval-ms", "50", "--max-concurrent", "1")
    blocker = server.raw(post_bytes(CHAT, dict(LONG, stream=True)))
    wait_for(lambda: generating(server))
    waiting = server.raw(post_bytes(CHAT, dict(LONG, max_tokens=1, stream=True), "Connection: close"), timeout=60)
    time.sleep(0.5)
    blocker.close()
    data = read_all(waiting)
    assert data.count(b": keep-alive\n\n") >= 3
    assert data.index(b": keep-alive") < data.index(b"data: {") and b"[DONE]" in data


def test_probes_do_not_follow_the_text(start):
    server = start("--ping-interval-ms", "10000")
    data = read_all(server.raw(post_bytes(CHAT, dict(LONG, max_tokens=3, stream=True), "Connection: close")))
    assert b": keep-alive" not in data


def test_health_while_loading():
    """The front answers before the model is there; work is refused with a hint when to come back."""
    server = Server("--max-model-len", "256", wait="listening")
    states = set()
    while True:
        assert server.get("/health").status == 200
        assert server.get("/v1/models").json["data"] and server.get("/metrics").status == 200
        ready = server.get("/ready")
        states.add(ready.status)
        if ready.status == 200:
            break
        assert ready.headers["Retry-After"]
        reply = server.post(CHAT, LONG)
        if reply.status == 503:
            assert reply.headers["Retry-After"] and reply.error["type"] == "server_error"
    assert server.stop() == 0


@pytest.mark.parametrize("stream", [True, False])
def test_sigterm_finishes_what_runs(start, stream):
    server = start("--drain-timeout", "60")
    body = dict(LONG, max_tokens=30, stream=stream)
    sock = server.raw(post_bytes(CHAT, body), timeout=60)
    wait_for(lambda: generating(server))
    server.process.terminate()
    wait_for(lambda: server.get("/ready").status == 503)
    assert server.get("/ready").headers["Retry-After"] and server.get("/health").status == 200
    refused = server.post(CHAT, LONG)
    assert refused.status == 503 and refused.headers["Retry-After"]
    data = read_all(sock)
    assert b'"finish_reason":"length"' in data
    assert server.process.wait(10) == 0


def test_sigterm_ends_what_is_left_at_the_timeout(start):
    server = start("--drain-timeout", "1", "--max-model-len", "2048")
    sockets = [server.raw(post_bytes(CHAT, dict(LONG, stream=stream))) for stream in (True, False, True)]
    wait_for(lambda: generating(server))
    begin = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begin < 10
    for sock in sockets:
        read_all(sock)


def test_everybody_is_told_of_the_end(start):
    """At the drain timeout: whatever runs or waits, whole or as a stream, gets its error before the connection closes."""
    server = start("--drain-timeout", "1", "--max-concurrent", "2", "--max-model-len", "4096")
    body = dict(LONG, max_tokens=4000)
    sockets = []
    for n, stream in enumerate((True, False, True, False), 1):
        sockets.append((stream, server.raw(post_bytes(CHAT, dict(body, stream=stream)), timeout=30)))
        wait_for(lambda: len(server.get("/slots").json) == n)
    many = server.raw(post_bytes("/v1/completions", {"prompt": ["a"] * 20, "max_tokens": 4000, "ignore_eos": True}), timeout=30)
    wait_for(lambda: len(server.get("/slots").json) > 4)
    slow = server.raw(post_bytes(CHAT, dict(body, stream=True)))  # never reads
    wait_for(lambda: generating(server))
    assert server.stop() == 0
    for stream, sock in sockets + [(False, many)]:
        data = read_all(sock)
        if stream:
            text = data.decode("utf-8", "replace")
            assert text.startswith("HTTP/1.1 200 ") and '"code":"draining"' in text and "data: [DONE]" in text, data[-300:]
            assert text.endswith("0\r\n\r\n")
        else:
            head, _, answer = data.partition(b"\r\n\r\n")
            assert b" 503 " in head and b"Retry-After: " in head and json.loads(answer)["error"]["code"] == "draining"
    slow.close()


def test_many_clients_that_come_and_go(busy_server):
    """Nothing is left behind: no slot, no block, no memory."""
    server = busy_server

    def visit(i):
        sock = server.raw(post_bytes(CHAT, dict(LONG, stream=i % 2 == 0)))
        time.sleep(0.01 * (i % 7))
        sock.close()

    def memory():
        text = server.get("/metrics").body.decode()
        return int(text.split('memory_bytes{purpose="request"} ')[1].split()[0])

    rest = memory()
    for round_ in range(3):
        threads = [threading.Thread(target=visit, args=(i,)) for i in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.wait_idle()
    wait_for(lambda: memory() <= rest)
    assert server.metric("kv_blocks_used") == 0


def test_a_server_whose_model_file_was_cut_short_is_not_ready(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes((DATA / "reference" / "gguf" / "llama_linear.gguf").read_bytes())
    server = Server("--max-model-len", "256", "--pack-cache", "off", model=path)
    try:
        assert server.get("/ready").status == 200
        os.truncate(path, path.stat().st_size - 1)
        assert server.get("/ready").status == 503 and server.get("/ready").json == {"status": "failed"}
        assert server.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 2}).status == 503
        assert server.get("/health").status == 200
    finally:
        server.stop()


def test_clients_that_reset_as_their_request_ends_leave_no_connection(start):
    """The reset comes in between the end of the request and the moment from which its connection is watched, or not: of
    thousands some hit it. A connection that is never looked at again keeps its descriptor and ends the stop in an abort."""
    server = start("--max-concurrent", "2")
    descriptors = pathlib.Path(f"/proc/{server.process.pid}/fd")
    request = post_bytes("/tokenize", {"content": "a"})
    server.post("/tokenize", {"content": "a"})
    before = len(list(descriptors.iterdir()))

    def visit():
        for _ in range(500):
            with server.raw(request) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")

    threads = [threading.Thread(target=visit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: len(list(descriptors.iterdir())) <= before, 20)


@pytest.mark.parametrize("stream", [True, False])
def test_an_idle_connection_does_not_keep_those_that_were_reset(start, stream):
    """One that is older and open stands before them where the library looks for what has timed out."""
    server = start("--max-concurrent", "2", "--max-model-len", "4096")
    descriptors = pathlib.Path(f"/proc/{server.process.pid}/fd")
    server.chat(max_tokens=2)
    with server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as idle:
        assert idle.recv(4096)
        before = len(list(descriptors.iterdir()))
        for _ in range(8):
            with server.raw(post_bytes(CHAT, dict(LONG, stream=stream))) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                wait_for(lambda: generating(server))
            wait_for(lambda: server.get("/slots").json == [])
        wait_for(lambda: len(list(descriptors.iterdir())) <= before, 10)
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(4096).startswith(b"HTTP/1.1 200 ")
