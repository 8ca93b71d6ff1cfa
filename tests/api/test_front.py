"""The front: keys, CORS, Host, methods, limits, and raw sockets that break the rules. Only to 127.0.0.1, bounded."""
import json
import socket
import time

import pytest
from conftest import post_bytes, read_all

CHAT = "/v1/chat/completions"
SMALL = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


def statuses(data):
    """Status codes of the answers in a raw byte stream."""
    return [int(part.split(b" ")[1]) for part in data.split(b"HTTP/1.1 ")[1:] for part in [b"x " + part]]


# ---- keys

@pytest.fixture(scope="module")
def keyed():
    from conftest import Server
    server = Server("--api-key", "sk-first", "--api-key", "sk-second", "--max-model-len", "256")
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("headers", [
    {}, {"Authorization": "Bearer "}, {"Authorization": "Bearer sk-firs"}, {"Authorization": "Bearer sk-first1"},
    {"Authorization": "Bearer sk-firstsk-first"}, {"Authorization": "sk-first"}, {"Authorization": "Basic sk-first"},
    {"x-api-key": "SK-FIRST"}, {"x-api-key": ""}, {"Authorization": "Bearer " + "sk-first" * 500},
])
def test_wrong_keys_are_401(keyed, headers):
    for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/slots"), ("GET", "/nowhere")):
        reply = keyed.request(method, path, SMALL if method == "POST" else None, headers)
        assert reply.status == 401 and reply.headers["WWW-Authenticate"] == "Bearer"
        assert reply.error["type"] == "authentication_error" and reply.error["code"] == "invalid_api_key"
        assert "sk-" not in reply.body.decode()


def test_right_keys_and_public_paths(keyed):
    for headers in ({"Authorization": "Bearer sk-first"}, {"authorization": "bearer  sk-second"},
                    {"x-api-key": "sk-second"}):
        assert keyed.post(CHAT, SMALL, headers=headers).status == 200
    for path in ("/health", "/v1/health", "/ready", "/metrics", "/version"):
        assert keyed.get(path).status == 200
    assert keyed.request("OPTIONS", CHAT).status == 204


def test_key_files(start, tmp_path):
    """Blank lines, comments, blanks around keys, a byte order mark and line ends of any kind are not part of a key."""
    file = tmp_path / "keys"
    file.write_bytes(b"\xef\xbb\xbffirst\r\n\r\n# a comment\n  second \t\n   \n#third\n")
    server = start("--api-key-file", str(file))
    for key, status in (("first", 200), ("second", 200), ("#third", 401), ("third", 401), ("# a comment", 401), ("", 401), (" ", 401)):
        assert server.get("/v1/models", headers={"x-api-key": key}).status == status, key


@pytest.mark.parametrize("arguments", [["--api-key", " "], ["--api-key-file", b"\n \n"], ["--api-key-file", b"# only\n"],
                                       ["--api-key-file", b"a\0b\n"], ["--api-key-file", b"\xef\xbb\xbf\n"]])
def test_keys_that_are_none_are_refused(arguments, tmp_path):
    import os
    import subprocess
    flag, value = arguments
    if isinstance(value, bytes):
        (tmp_path / "keys").write_bytes(value)
        value = str(tmp_path / "keys")
    command = [os.environ["DSE_BINARY"], "serve", "--model", os.environ["DSE_TEST_MODEL"], "--port", "0", flag, value]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and "key" in result.stderr, result


def test_a_model_without_a_tokenizer_is_refused_in_a_sentence():
    import os
    import subprocess
    from conftest import DATA
    command = [os.environ["DSE_BINARY"], "serve", "--model", str(DATA / "reference" / "llama_linear"), "--port", "0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode > 0 and "tokenizer" in result.stderr, result


def test_binding_wider_than_loopback_needs_a_key(start):
    import os
    import subprocess
    command = [os.environ["DSE_BINARY"], "serve", "--model", os.environ["DSE_TEST_MODEL"], "--port", "0", "--host", "0.0.0.0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and "--api-key" in result.stderr and "--insecure" in result.stderr


@pytest.mark.parametrize("arguments,environment", [(["--uds", ""], {}), ([], {"DEEPSEEK_EDGE_UDS": ""})])
def test_an_empty_socket_path_is_refused(arguments, environment):
    """The system would listen on a name without a file, open to every user of the machine."""
    import os
    import subprocess
    command = [os.environ["DSE_BINARY"], "serve", "--model", os.environ["DSE_TEST_MODEL"], "--port", "0", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})
    assert result.returncode == 2 and "--uds" in result.stderr, result


# ---- browsers

@pytest.mark.parametrize("host,allowed", [
    ("localhost", True), ("localhost:8080", True), ("127.0.0.1:1", True), ("127.8.9.1", True), ("[::1]:80", True),
    ("a.localhost", True), ("evil.com", False), ("localhost.evil.com", False), ("127.0.0.1.evil.com", False),
    ("127.evil.com", False), ("evil.com:127.0.0.1", False), ("", False), ("localhost@evil.com", False),
    ("192.168.0.1", False), ("127.0.0.1.1", False), ("127.0.0", False), ("[::2]", False), ("evil.com#.localhost", False),
])
def test_host_header_guards_against_rebinding(server, host, allowed):
    reply = server.get("/v1/models", headers={"Host": host})
    assert reply.status == (200 if allowed else 403)
    if not allowed:
        assert reply.error["code"] == "host_not_allowed"


@pytest.mark.parametrize("origin,allowed", [
    ("http://localhost", True), ("http://localhost:3000", True), ("https://127.0.0.1:5173", True), ("http://[::1]:9", True),
    ("http://localhost.evil.com", False), ("http://evil.com", False), ("http://localhost@evil.com", False), ("null", False),
    ("http://127.0.0.1.evil.com", False), ("https://evil.com:80", False), ("http://evil.com/localhost", False),
])
def test_origins(server, origin, allowed):
    reply = server.get("/v1/models", headers={"Origin": origin})
    assert reply.status == (200 if allowed else 403)
    assert reply.headers["Access-Control-Allow-Origin"] == (origin if allowed else None)
    if allowed:
        assert "Origin" in reply.headers["Vary"] and "X-Request-Id" in reply.headers["Access-Control-Expose-Headers"]


def test_configured_origins(start):
    one = start("--cors-origins", "https://app.example")
    assert one.get("/health", headers={"Origin": "https://app.example"}).headers["Access-Control-Allow-Origin"]
    assert not one.get("/health", headers={"Origin": "https://app.example.evil.com"}).headers["Access-Control-Allow-Origin"]
    two = start("--cors-origins", " https://a.example , https://b.example ")
    assert two.get("/health", headers={"Origin": "https://b.example"}).headers["Access-Control-Allow-Origin"]
    assert two.get("/health", headers={"Origin": "https://a.example"}).headers["Access-Control-Allow-Origin"]
    every = start("--cors-origins", "*")
    for origin in ("https://a.b", "http://localhost:3000"):
        assert every.get("/health", headers={"Origin": origin}).headers["Access-Control-Allow-Origin"]


def test_configured_origins_take_the_place_of_the_local_ones(start):
    """As the help says. Who asks without leave is answered, but no page may read it."""
    local = "http://localhost:3000"
    one = start("--cors-origins", "https://app.example")
    two = start("--cors-origins", f"https://app.example,{local}")
    for method, path in (("GET", "/health"), ("OPTIONS", CHAT)):
        reply = one.request(method, path, headers={"Origin": local, "Access-Control-Request-Method": "POST"})
        assert reply.status in (200, 204) and not reply.headers["Access-Control-Allow-Origin"]
        reply = two.request(method, path, headers={"Origin": local, "Access-Control-Request-Method": "POST"})
        assert reply.headers["Access-Control-Allow-Origin"] == local
    assert one.get("/health", headers={"Origin": "https://other.example"}).status == 403


def test_preflight_names_methods_and_headers(server):
    reply = server.request("OPTIONS", CHAT, headers={"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST",
                                                     "Access-Control-Request-Headers": "authorization,content-type"})
    assert reply.status == 204 and reply.body == b""
    assert "POST" in reply.headers["Access-Control-Allow-Methods"]
    assert "authorization" in reply.headers["Access-Control-Allow-Headers"]
    assert int(reply.headers["Access-Control-Max-Age"]) > 0


# ---- ordinary HTTP

def test_request_ids(server):
    assert server.get("/health", headers={"X-Request-Id": "my-id.1"}).headers["X-Request-Id"] == "my-id.1"
    made = [server.get("/health").headers["X-Request-Id"] for _ in range(3)]
    assert len(set(made)) == 3
    assert server.get("/health", headers={"X-Request-Id": "a b<c>"}).headers["X-Request-Id"] not in ("a b<c>", None)
    assert server.post(CHAT, SMALL).headers["X-Request-Id"]


def test_head_is_get_without_a_body(server):
    reply = server.request("HEAD", "/v1/models")
    assert reply.status == 200 and reply.body == b"" and int(reply.headers["Content-Length"]) > 50
    assert reply.headers["Date"]


def test_keep_alive_and_pipelining(server):
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    sock = server.raw(one * 5 + post_bytes(CHAT, SMALL) + one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    data = read_all(sock)
    assert data.count(b"HTTP/1.1 200") == 7, data


def test_chunked_bodies_and_expect_continue(server):
    body = json.dumps(SMALL).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:7], body[7:])) + b"0\r\n\r\n"
    assert b"200 OK" in read_all(server.raw(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks))
    sock = server.raw(head + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
    assert sock.recv(100).startswith(b"HTTP/1.1 100")
    sock.sendall(body)
    assert b"200 OK" in read_all(sock)


def test_http_1_0(server):
    data = read_all(server.raw(b"GET /health HTTP/1.0\r\n\r\n"))
    assert b" 200 " in data and data.endswith(b'{"status":"ok"}')
    body = json.dumps(dict(SMALL, stream=True)).encode()
    data = read_all(server.raw(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body))
    assert b" 200 " in data and data.endswith(b"data: [DONE]\n\n") and b"chunked" not in data


def test_stream_headers(server):
    reply = server.post(CHAT, dict(SMALL, stream=True))
    assert reply.headers["X-Accel-Buffering"] == "no" and "no-cache" in reply.headers["Cache-Control"]
    assert reply.headers["Transfer-Encoding"] == "chunked"


# ---- limits

def test_large_bodies_are_413(start):
    server = start("--max-body", "64K")
    for extra in ({}, {"stream": True}):
        reply = server.post(CHAT, dict(SMALL, user="x" * 70000, **extra))
        assert reply.status == 413 and reply.error["code"] == "request_too_large"
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    sock = server.raw(head + b"Expect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n")
    assert b" 413 " in sock.recv(1000)
    sock = server.raw(head + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
    sock.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n" + (b"4000\r\n" + b"x" * 16384 + b"\r\n") * 5 + b"0\r\n\r\n")
    assert b" 413 " in read_all(sock)
    assert server.post(CHAT, dict(SMALL, user="x" * 60000)).status == 200


def test_many_or_large_headers_are_431(server):
    assert server.get("/health", headers={f"X-{i}": "v" for i in range(90)}).status == 200
    reply = server.get("/health", headers={f"X-{i}": "v" for i in range(150)})
    assert reply.status == 431 and reply.error["code"] == "headers_too_large"
    assert server.get("/health", headers={"X-Big": "v" * 40000}).status == 431
    flood = b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: v\r\n" % i for i in range(10000)) + b"\r\n"
    data = read_all(server.raw(flood))
    assert b" 431 " in data or data == b""
    assert server.get("/health").status == 200


@pytest.mark.parametrize("request_bytes,allowed", [
    (b"GET /health%00x HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404}),
    # the library ends the path at a raw NUL; all checks see the same shorter path
    (b"GET /health\x00/x HTTP/1.1\r\nHost: localhost\r\n\r\n", {200, 400, 404}),
    (b"GET /health\r\nHost: localhost\r\n\r\n", {400}),
    (b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404}),
    (b"GET /v1/models/..%2f..%2fetc HTTP/1.1\r\nHost: localhost\r\n\r\n", {404}),
    (b"GET /health%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}),
    (b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n", {200, 400, 404}),
    (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", {404, 414, 431}),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", {400}),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", {400}),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 18446744073709551617\r\n\r\n", {400, 413}),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", {400, 501}),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", {400}),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", {400, 413}),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n", {400}),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.com\r\n\r\n", {400}),
    (b"GET /health HTTP/1.1\r\n\r\n", {400}),
    (b"GARBAGE\r\n\r\n", {400, 404, 405}),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50 + b"\r\n\r\n", {400, 404, 405}),
    (b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n", {200, 400, 505}),
])
def test_requests_that_break_the_rules(server, request_bytes, allowed):
    """Refused or cut off, at once, and nobody else notices."""
    sock = server.raw(request_bytes, timeout=3)
    sock.shutdown(socket.SHUT_WR)
    data = read_all(sock)
    if data:
        assert int(data.split(b" ")[1]) in allowed, data[:200]
    assert b"root:" not in data
    assert server.get("/health").status == 200


def test_body_that_never_comes_whole(server):
    sock = server.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"content\"")
    sock.close()
    assert server.post("/tokenize", {"content": "x"}).status == 200


def test_random_bytes(server):
    import random
    generator = random.Random(1)
    for _ in range(200):
        sock = server.raw(generator.randbytes(generator.randint(1, 300)) + b"\r\n\r\n")
        sock.close()
    assert server.get("/health").status == 200


def test_slow_reader_is_cut_off_and_does_not_hold_up_the_engine(start):
    """A client that never reads: its queue is bounded, others go on, its request ends."""
    server = start("--max-concurrent", "2", "--max-model-len", "256")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", server.port))
    body = {"messages": [{"role": "user", "content": "hi"}], "n": 1, "max_tokens": 100, "ignore_eos": True, "stream": True,
            "logprobs": True, "top_logprobs": 20}
    sock.sendall(post_bytes(CHAT, body))
    begin = time.monotonic()
    assert server.post(CHAT, SMALL).status == 200
    assert time.monotonic() - begin < 20
    assert server.wait_idle()
    sock.close()
