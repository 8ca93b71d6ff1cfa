"""Heads of requests that the library takes and we do not, and the other way round: raw sockets, only to 127.0.0.1."""
import json
import re
import time

import pytest
from conftest import read_all

SMALL = b'{"prompt":"a","max_tokens":1}'
SMUGGLED = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def answers(data):
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", data)]


def refused(server, request, status=400, by_library=False):
    """One JSON error, and the end of the connection."""
    data = read_all(server.raw(request))
    head, _, body = data.partition(b"\r\n\r\n")
    assert answers(data) == [status], data
    if by_library:
        return body.decode()
    assert json.loads(body)["error"]["message"]
    assert b"X-Request-Id: " in head and (status != 400 or b"Connection: close" in head)
    return json.loads(body)["error"]["message"]


def head(*lines, first=b"GET /health HTTP/1.1", host=b"localhost", end=b"\r\n"):
    return end.join((first, b"Host: " + host) + lines) + end + end


@pytest.mark.parametrize("line", [
    b"Content-Length : 60", b"Content-Length\t: 60", b"Transfer-Encoding : chunked", b"X : y", b" X: y", b"X Y: z", b": y",
    b"X\x00: y", b"\x00X: y", b"X: a\x00b", b"X: a\rb", b"X: a\x01b", b"X: a\r\n b", b"X: a\r\n\tTransfer-Encoding: chunked",
    b"X\x7f: y", b"X(: y", b"X\xff: y",
])
def test_header_lines_that_others_may_read_differently(server, line):
    for lines in ((line,), (line, b"Y: z"), (b"Y: z", line)):
        refused(server, head(*lines, first=b"POST /v1/completions HTTP/1.1") + SMUGGLED, by_library=line.startswith(b"X\x00"))


def test_hidden_bytes_in_keys_and_hosts(start):
    server = start("--api-key", "k")
    ask = b"GET /v1/models HTTP/1.1\r\nHost: localhost%s\r\nAuthorization: Bearer k%s\r\n\r\n"
    refused(server, ask % (b"", b"\x00junk"))
    refused(server, ask % (b"\x00.evil.com", b""))
    sock = server.raw(ask.replace(b"\r\n\r\n", b" \t\r\nConnection: close\r\n\r\n") % (b"", b""))
    assert answers(read_all(sock)) == [200]  # white space at the end is not part of a value


@pytest.mark.parametrize("first", [b"GET /health\x00 HTTP/1.1", b"GET /health\x00/x HTTP/1.1", b"GET /health?a\x00b HTTP/1.1",
                                   b"GET /he alth HTTP/1.1", b"GET  /health HTTP/1.1", b"GET /health  HTTP/1.1",
                                   b"GET /he\x01alth HTTP/1.1", b"G\x01T /health HTTP/1.1", b"GET http://a@localhost/health HTTP/1.1",
                                   b"GET http:///health HTTP/1.1", b"GE(T /health HTTP/1.1", b"GET /health%zz HTTP/1.1"])
def test_first_lines(server, first):
    refused(server, head(first=first))


@pytest.mark.parametrize("encoding", [b"identity", b"gzip", b"xchunked", b"chunked, gzip", b"gzip, chunked", b"chunked;q=1"])
def test_unknown_encodings_are_refused_at_once(server, encoding):
    begin = time.monotonic()
    refused(server, head(b"Transfer-Encoding: " + encoding, first=b"POST /v1/completions HTTP/1.1"))
    refused(server, head(b"Transfer-Encoding: " + encoding) + SMALL + SMUGGLED)
    assert time.monotonic() - begin < 10


def test_host(server):
    assert "Host" in refused(server, b"GET /health HTTP/1.1\r\n\r\n")
    assert answers(read_all(server.raw(b"GET /health HTTP/1.0\r\n\r\n"))) == [200]
    refused(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")


def test_absolute_form(server):
    """As to a proxy: the host in the first line is the one that counts."""
    def ask(target, host):
        return answers(read_all(server.raw(head(b"Connection: close", first=b"GET " + target + b" HTTP/1.1", host=host))))

    assert ask(b"http://localhost/health", b"localhost") == [200]
    assert ask(b"HTTP://127.0.0.1:8080/v1/models?x=1", b"127.0.0.1") == [200]
    assert ask(b"https://localhost/health", b"evil.com") == [200]
    assert ask(b"http://evil.com/v1/models", b"localhost") == [403]
    assert ask(b"http://localhost", b"localhost") == [200]  # the page
    assert ask(b"http://localhost?x=/health", b"localhost") == [200]
    assert ask(b"http://localhost/nothing", b"localhost") == [404]
    assert answers(read_all(server.raw(b"GET http://evil.com/v1/models HTTP/1.0\r\n\r\n"))) == [403]


@pytest.mark.parametrize("n", [1000, 10000])
def test_queries_and_cookies_use_up_nothing(server, n):
    query = head(b"Connection: close", first=b"GET /health?" + b"&a=1" * n + b" HTTP/1.1")
    assert answers(read_all(server.raw(query))) == [200]
    cookies = head(b"Connection: close", b"Cookie: " + b"a=b;" * min(n, 7000))
    assert answers(read_all(server.raw(cookies))) == [200]
    body = head(b"Cookie: " + b"a;" * min(n, 10000), b"Connection: close", b"Content-Length: %d" % len(SMALL),
                first=b"POST /v1/completions?" + b"&" * 5000 + b" HTTP/1.1") + SMALL
    assert answers(read_all(server.raw(body))) == [200]


def test_ordinary_heads_in_any_pieces(server):
    """Line ends of either kind, blanks around values, long values, every cut: nothing is taken for hidden."""
    heads = [head(b"A:", b"B: ", b"C:c", b"D: \t d", b"E: e \t ", b"F: " + b"f" * 9000, b"Connection: close"),
             head(b"A: a", b"Cookie: a=b; c=d", b"Connection: close", end=b"\n"),
             b"\r\n\r\n" + head(b"Connection: close", first=b"GET /health?a=b&c=%00 HTTP/1.1"),
             head(b"Content-Length: 5", b"Connection: close") + b"hello"]
    for one in heads:
        assert answers(read_all(server.raw(one))) == [200], one
        for cut in {1, 3, 5, len(one) // 3, len(one) // 2, len(one) - 2, len(one) - 1}:
            sock = server.raw(one[:cut])
            time.sleep(0.02)
            sock.sendall(one[cut:])
            assert answers(read_all(sock)) == [200], (one, cut)
    sock = server.raw(b"")
    for byte in heads[0].replace(b"f" * 8900, b""):
        sock.sendall(bytes([byte]))
    assert answers(read_all(sock)) == [200]
    pipelined = [one.replace(b"Connection: close", b"X: y") for one in heads]
    assert answers(read_all(server.raw(b"".join(pipelined * 3) + heads[0]))) == [200] * 13
