"""Headers that every answer carries exactly once, whoever gives it: a handler, the checks on headers, the HTTP layer
before or within a body. Replies of conftest.Server are checked alike in all other tests."""
import json

import pytest
from conftest import check_headers, read_all

CHAT = "/v1/chat/completions"
SMALL = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}).encode()
STREAM = SMALL[:-1] + b',"stream":true}'
LARGE = b"4000\r\n" + b"x" * 16384 + b"\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


def body(data):
    return b"Content-Length: %d\r\n\r\n" % len(data) + data


CASES = {  # name: (status, first line, headers after the common ones and body)
    "get": (200, "GET /health", b"\r\n"),
    "head": (200, "HEAD /v1/models", b"\r\n"),
    "whole answer": (200, "POST " + CHAT, body(SMALL)),
    "stream": (200, "POST " + CHAT, body(STREAM)),
    "preflight": (204, "OPTIONS " + CHAT, b"Access-Control-Request-Method: POST\r\n\r\n"),
    "bad escape in the path": (400, "GET /health%zz", b"\r\n"),
    "hidden NUL in the path": (400, "GET /health%00", b"\r\n"),
    "no body": (400, "POST " + CHAT, b"\r\n"),
    "bad JSON": (400, "POST " + CHAT, body(b"{")),
    "bad value": (400, "POST " + CHAT, body(b'{"messages":5}')),
    "length and encoding": (400, "POST /tokenize", b"Content-Length: 5\r\n" + CHUNKED + b"0\r\n\r\n"),
    "two lengths": (400, "POST /tokenize", b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
    "two hosts": (400, "GET /health", b"Host: localhost\r\n\r\n"),
    "unknown encoding": (400, "POST /tokenize", b"Transfer-Encoding: gzip\r\n\r\n"),
    "no key": (401, "GET /v1/models", b"\r\n"),
    "unknown path": (404, "GET /nowhere", b"\r\n"),
    "unknown path with a body": (404, "POST /nowhere", body(SMALL)),
    "unknown model": (404, "GET /v1/models/other", b"\r\n"),
    "wrong method": (405, "DELETE /health", b"\r\n"),
    "wrong method with a large body": (405, "POST /health", CHUNKED + LARGE * 5 + b"0\r\n\r\n"),
    "large length": (413, "POST " + CHAT, body(b"x" * 70000)),
    "large length that is announced": (413, "POST " + CHAT, b"Expect: 100-continue\r\nContent-Length: 70000\r\n\r\n"),
    "absurd length": (413, "POST " + CHAT, b"Content-Length: 99999999999\r\n\r\n"),
    "body that grows too large": (413, "POST " + CHAT, CHUNKED + LARGE * 5 + b"0\r\n\r\n"),
    "other type": (415, "POST " + CHAT, b"Content-Type: text/csv\r\n" + body(b"a,b")),
    "many headers": (431, "GET /health", b"".join(b"X-%d: v\r\n" % i for i in range(150)) + b"\r\n"),
    "large header": (431, "POST " + CHAT, b"X-Big: " + b"v" * 40000 + b"\r\n" + body(SMALL)),
}


@pytest.fixture(scope="module")
def limited():
    from conftest import Server
    server = Server("--max-model-len", "256", "--max-body", "64K", "--api-key", "k")
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("given", ["", "my-id.1"])
@pytest.mark.parametrize("case", CASES)
def test_common_headers_once_at_every_stage(limited, case, given):
    status, line, rest = CASES[case]
    head = f"{line} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost:3000\r\nConnection: close\r\n"
    head += "" if case == "no key" else "x-api-key: k\r\n"
    head += f"X-Request-Id: {given}\r\n" if given else ""
    answer = read_all(limited.raw(head.encode() + rest))
    first, _, fields = answer.partition(b"\r\n\r\n")[0].decode().partition("\r\n")
    assert first.startswith(f"HTTP/1.1 {status} "), answer
    headers = [tuple(field.split(": ", 1)) for field in fields.split("\r\n")]
    check_headers(status, headers, "http://localhost:3000")
    if given:
        assert ("X-Request-Id", given) in headers
    if status >= 400:
        assert b'{"error":{' in answer


def test_a_page_of_a_foreign_origin_gets_no_cors_headers(server):
    for path, host in (("/health", "localhost"), ("/health", "evil.com"), ("/health%zz", "localhost")):
        for headers in ({}, {"X-Request-Id": "a"}):
            reply = server.get(path, headers=dict(headers, Host=host, Origin="http://evil.com"))
            assert reply.status in (400, 403) and reply.headers["Access-Control-Allow-Origin"] is None
