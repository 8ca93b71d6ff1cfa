#!/usr/bin/env python3
"""A fuzzer of raw sockets: bytes that are nearly HTTP, at a server of ours that runs meanwhile.

Run by tools/fuzz.sh for long, against a build with sanitizers, and by tests/api/test_raw_sockets.py for a moment. Input number N
of a seed is always the same: what fails can be sent again alone. Standard library only.

What must hold, whatever comes in: an input is answered and its connection ended, within seconds; an answer is a sequence of
whole HTTP/1.1 answers; none has a 5xx status but those that docs/http.md names; /health answers meanwhile; a fixed request
gets the same text before, between and after; and at the end nothing is left: no request, no KV block, no descriptor.

usage: sockets.py [--seconds N] [--seed N] [--only NUMBER] [--threads N]      DSE_BINARY: the program
"""
import argparse
import errno
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "api"))

ANSWER_S = 20  # for an input that is answered within milliseconds, on a machine that does much else
HEALTH_S = 5
LITERAL = {"prompt": "ab", "max_tokens": 12, "temperature": 0, "logprobs": 1}

SMALL = {"max_tokens": 3, "temperature": 0}
USER = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
POSTS = [
    ("/v1/chat/completions", dict(SMALL, messages=USER)),
    ("/v1/chat/completions", dict(SMALL, messages=USER, stream=True, logprobs=True, top_logprobs=2, n=2)),
    ("/v1/chat/completions", dict(SMALL, messages=USER, tools=[TOOL], tool_choice="required")),
    ("/v1/chat/completions", dict(SMALL, messages=USER, response_format={"type": "json_object"})),
    ("/v1/completions", dict(SMALL, prompt=["a", [5, 6]], stop=["x"])),
    ("/v1/completions", dict(SMALL, prompt="a", stream=True, grammar='root ::= "a"*')),
    ("/v1/messages", dict(SMALL, messages=USER, stream=True)),
    ("/v1/messages/count_tokens", {"messages": USER}),
    ("/v1/responses", dict(SMALL, input="Hi")),
    ("/v1/embeddings", {"input": ["a", "b"]}),
    ("/infill", dict(SMALL, input_prefix="a", input_suffix="b")),
    ("/tokenize", {"content": "Hi"}), ("/detokenize", {"tokens": [5, 6]}), ("/apply-template", {"messages": USER}),
]
GETS = ["/health", "/ready", "/version", "/metrics", "/v1/models", "/v1/models/x", "/slots", "/openapi.json", "/debug/steps",
        "/api/edge/state", "/", "/ui/app.js", "/nowhere", "/v1/%6dodels", "/health?a=b&c", "http://localhost/health", "*"]
METHODS = ["GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "TRACE", "CONNECT", "get", "PRI", "X" * 40]
VERSIONS = ["HTTP/1.1"] * 8 + ["HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1.2", "HTTP/11", "http/1.1", "HTTP/1.", ""]
# What parsers trip over, put in at random places.
SPLICES = [b"\0", b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\n\n", b"\r\n ", b"\t", b" ", b":", b": ", b"%00", b"%", b"\xff\xfe", b"\x80",
           b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: -1\r\n", b"Content-Length: 18446744073709551616\r\n",
           b"Content-Length: 99999999\r\n", b"Content-Length : 5\r\n", b"Content-Length: 5, 5\r\n", b"Content-Length: +5\r\n",
           b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding:\x0bchunked\r\n",
           b"Expect: 100-continue\r\n", b"Expect: x\r\n", b"Connection: close\r\n", b"Connection: keep-alive, Upgrade\r\n",
           b"Upgrade: h2c\r\n", b"Host: evil.example\r\n", b"Host:\r\n", b"Cookie: a=b; c=d\r\n", b"Cookie: ;;==;\r\n",
           b"Authorization: Bearer " + b"k" * 300 + b"\r\n", b"traceparent: 00-zz\r\n", b"Range: bytes=0-1\r\n",
           b"X-Priority: 99999999999999999999\r\n", b"Origin: http://localhost\r\n", b"Accept-Encoding: gzip\r\n",
           b"0\r\n\r\n", b"5\r\nhello\r\n", b"ffffffffffffffff\r\n", b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"]
OTHER_PROTOCOLS = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
                   b"GET /health\r\n", b"\r\n\r\n\r\n", b"\0" * 100, b"HELP\r\n", b"GET / HTTP/1.1" + b" " * 500 + b"\r\n\r\n",
                   b"$" * 70000]


def head_of(chance, method, path, length, *lines):
    version = chance.choice(VERSIONS) if chance.random() < 0.1 else "HTTP/1.1"
    out = [f"{method} {path} {version}".rstrip(), "Host: 127.0.0.1", *lines]
    if length is not None:
        out += ["Content-Type: application/json", f"Content-Length: {length}"]
    return "\r\n".join(out).encode() + b"\r\n\r\n"


def whole_post(chance, *lines):
    path, body = chance.choice(POSTS)
    data = json.dumps(body).encode()
    return head_of(chance, "POST", path, len(data), *lines) + data


def whole_request(chance):
    if chance.random() < 0.6:
        return whole_post(chance)
    method = chance.choice(METHODS) if chance.random() < 0.2 else "GET"
    return head_of(chance, method, chance.choice(GETS), None)


def pipelined(chance):
    return b"".join(whole_request(chance) for _ in range(chance.randrange(2, 12)))


def chunked(chance):
    """A body in chunks, right or with one thing wrong."""
    path, body = chance.choice(POSTS)
    data, out = json.dumps(body).encode(), b""
    wrong = chance.choice([None, None, "size", "end", "extension", "trailer", "missing", "length"])
    pieces = chance.randrange(1, 6)
    for i in range(pieces):
        piece = data[len(data) * i // pieces:len(data) * (i + 1) // pieces]
        size = b"%x" % len(piece)
        if wrong == "size" and chance.random() < 0.5:
            size = chance.choice([b"ffffffffffffffff", b"10000000000000000", b"-1", b"0x5", b" 5", b"5 ", b"", b"g", b"7fffffff", b"00005",
                                  b"0" * 300 + b"5", b"+5"])
        if wrong == "extension":
            size += chance.choice([b";a=b", b";" + b"x" * 3000, b" ; a", b";a=\"\0\"", b";\n"])
        out += size + b"\r\n" + piece + (chance.choice([b"", b"\n", b"xx", b"\r"]) if wrong == "end" else b"\r\n")
    if wrong != "missing":
        out += b"0\r\n" + (b"X-Trailer: 1\r\nContent-Length: 3\r\n" * chance.choice([1, 2, 2000]) if wrong == "trailer" else b"") + b"\r\n"
    lines = ["Transfer-Encoding: " + chance.choice(["chunked"] * 6 + ["Chunked", "gzip, chunked", "chunked, chunked", "identity"])]
    return head_of(chance, "POST", path, chance.choice([0, 5, len(data)]) if wrong == "length" else None, *lines) + out


def wrong_length(chance):
    path, body = chance.choice(POSTS)
    data = json.dumps(body).encode()
    n = chance.choice([0, 1, len(data) - 1, len(data) + 1, len(data) + 50, 2**31, 2**63, 2**64, 10**30, 9 * 2**20, -1])
    return head_of(chance, "POST", path, n) + data


def large_head(chance):
    kind, n = chance.randrange(4), chance.choice([90, 101, 1000, 10000])
    if kind == 0:
        return head_of(chance, "GET", "/health", None, *(f"X-{i}: {i}" for i in range(n)))
    if kind == 1:
        return head_of(chance, "GET", "/health", None, "X-Long: " + "a" * n * 8)
    if kind == 2:
        return head_of(chance, "GET", "/" + "a" * n * 8, None)
    return head_of(chance, "GET", "/health?" + "&".join(f"a{i}=b" for i in range(n)), None, "Cookie: " + ";".join("c=d" for _ in range(n)))


def expecting(chance):
    """Expect: 100-continue, with the body, without it, or with another request in its place."""
    data = whole_post(chance, "Expect: 100-continue")
    head, _, body = data.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n" + chance.choice([body, b"", body[:5], whole_request(chance)])


def bad_body(chance):
    """A right head, and a body that is broken JSON or broken in its values."""
    path, body = chance.choice(POSTS)
    data = bytearray(json.dumps(body).encode())
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data) + 1)
        data[at:at + chance.randrange(3)] = chance.choice([
            b"\0", b"[" * 200, b"{\"a\":" * 140, b"\"", b"\\ud800", b"\\u0000", b"\xff", b"-1", b"1e308", b"99999999999999999999", b"null", b"true",
            b"[]", b"{}", b"NaN", b",", b"}"])
    return head_of(chance, "POST", path, len(data)) + bytes(data)


def nonsense(chance):
    return chance.choice(OTHER_PROTOCOLS) if chance.random() < 0.7 else chance.randbytes(chance.randrange(1, 3000))


MAKERS = [whole_request, pipelined, chunked, chunked, wrong_length, large_head, expecting, bad_body, bad_body, nonsense]


def mutate(chance, data):
    data = bytearray(data)
    for _ in range(chance.choice([0, 1, 1, 2, 5, 20])):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[at:at + chance.randrange(1, 30)]
        elif kind == 2:
            data[at:at] = data[at:at + chance.randrange(1, 200)]
        elif kind == 3:  # where a line begins is where it hurts most
            lines = [m.end() for m in re.finditer(rb"\r?\n", bytes(data))] or [0]
            at = chance.choice(lines)
            data[at:at] = chance.choice(SPLICES)
        else:
            data[at:at] = chance.choice(SPLICES)
    return bytes(data)


class Input:
    """What is sent, in which pieces, and how the connection is left."""

    def __init__(self, seed, number):
        chance = random.Random(f"{seed}/{number}")
        data = chance.choice(MAKERS)(chance)
        if chance.random() < 0.6:
            data = mutate(chance, data)
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice([0, 0, 1, 3, 10])))
        self.pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)])]
        self.pause = chance.choice([0, 0, 0.001, 0.01])
        # wait: for all answers, after the end of what is sent; the others leave early
        self.end = chance.choice(["wait"] * 6 + ["close", "reset", "first byte"])
        if chance.random() < 0.1:
            self.pieces = self.pieces[:chance.randrange(1, len(self.pieces) + 1)]


class Wrong(Exception):
    pass


def take_answer(data, number):
    """Checks the answer that data begins with; returns what follows it, or None when it is not whole."""
    head, found, rest = data.partition(b"\r\n\r\n")
    if not found:
        if not b"HTTP/1.1 ".startswith(data[:9]):
            raise Wrong(f"no answer of HTTP: {data[:200]!r}")
        return None
    lines = head.split(b"\r\n")
    match = re.fullmatch(rb"HTTP/1\.[01] (\d{3}) [A-Za-z' -]+", lines[0])
    if not match:
        raise Wrong(f"no status line: {lines[0][:200]!r}")
    status, headers = int(match[1]), {}
    for line in lines[1:]:
        name, colon, value = line.partition(b": ")
        if not colon or name.lower() in headers or b"\r" in line or b"\n" in line:
            raise Wrong(f"header {line[:200]!r} in {head!r}")
        headers[name.lower()] = value
    ours = b"x-request-id" in headers
    # What the library below the server answers by itself: another version of HTTP. Overload is ours, and says when to come back.
    if status >= 500 and not (status == 503 and b"retry-after" in headers) and not (status == 505 and not ours):
        raise Wrong(f"status {status}: {data[:600]!r}")
    if status == 100:
        return rest
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        while True:
            size, found, rest = rest.partition(b"\r\n")
            if not found:
                return None
            if not re.fullmatch(rb"[0-9a-fA-F]+", size):
                raise Wrong(f"size of a chunk: {size[:50]!r}")
            n = int(size, 16)
            if len(rest) < n + 2:
                return None
            if rest[n:n + 2] != b"\r\n":
                raise Wrong("a chunk does not end where it says")
            rest = rest[n + 2:]
            if n == 0:
                return rest
    if b"content-length" not in headers:
        return b""  # to the end of the connection
    n = int(headers[b"content-length"])
    if len(rest) >= n:
        return rest[n:]
    return None


def check_answers(data, number):
    """Answers to HEAD have no body, and nobody knows here which are: what stands where a body should, is looked at as an answer."""
    while data:
        rest = take_answer(data, number)
        head, found, body = data.partition(b"\r\n\r\n")
        if found and body.startswith(b"HTTP/1.1 "):
            rest = body
        if rest is None:
            return
        data = rest


class Run:
    def __init__(self, port, seed):
        self.port, self.seed = port, seed
        self.lock = threading.Lock()
        self.next, self.failure, self.answers, self.ports = 0, None, {}, {}

    def send(self, number):
        """Returns what came back, b"" if nobody waited for it."""
        what, got = Input(self.seed, number), b""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_S)
        self.ports[sock.getsockname()[1]] = number
        try:
            for piece in what.pieces:
                sock.sendall(piece)
                if what.pause:
                    time.sleep(what.pause)
            if what.end == "first byte":
                sock.settimeout(0.2)
                sock.recv(1)
            elif what.end == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            elif what.end == "wait":
                sock.shutdown(socket.SHUT_WR)
                while part := sock.recv(65536):
                    got += part
        except OSError as error:
            # What is no request is not read to its end: our side finds the connection reset.
            if what.end == "wait" and error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                raise Wrong(f"neither answered nor closed: {error}, after {got[:200]!r}") from error
        finally:
            sock.close()
        return got if what.end == "wait" else b""

    def one(self, number):
        got = self.send(number)
        check_answers(got, number)
        if got:
            with self.lock:
                status = got[9:12].decode("latin-1")
                self.answers[status] = self.answers.get(status, 0) + 1

    def worker(self, end, most):
        while time.monotonic() < end and not self.failure:
            with self.lock:
                number, self.next = self.next, self.next + 1
            if most is not None and number >= most:
                return
            try:
                self.one(number)
            except (Wrong, OSError) as error:
                self.failure = self.failure or f"input {number} of seed {self.seed}: {error}\nsent: {Input(self.seed, number).pieces!r:.3000}"


def watch(server, run, expected, end, threads):
    """While the inputs are sent: /health at once, but for what a busy machine takes, and the fixed request with the same text."""
    while any(thread.is_alive() for thread in threads):
        begin = time.monotonic()
        if server.get("/health", timeout=ANSWER_S).status != 200:
            run.failure = run.failure or "/health is not 200"
        if time.monotonic() - begin > HEALTH_S:
            run.failure = run.failure or f"/health took {time.monotonic() - begin:.1f} s"
        reply = server.post("/v1/completions", LITERAL)
        if reply.status != 503 and reply.json["choices"] != expected:
            run.failure = run.failure or f"the fixed request has another answer: {reply.body!r}"
        time.sleep(0.2)


def descriptors(server):
    """What each open descriptor is."""
    found = []
    for entry in pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except FileNotFoundError:
            pass  # closed meanwhile
    return found


def inputs_of(server, run, links):
    """The inputs whose connections are still open on the server's side."""
    numbers = set()
    for line in pathlib.Path(f"/proc/{server.process.pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if f"socket:[{words[9]}]" in links:
            numbers.add(run.ports.get(int(words[2].split(":")[1], 16)))
    return sorted(numbers - {None})


def fuzz(server, seed, seconds=None, most=None, threads=8):
    """Raises Wrong. Returns the number of inputs and how many were answered, by status of the first answer."""
    expected = server.post("/v1/completions", LITERAL).json["choices"]
    run = Run(server.port, seed)
    before = len(descriptors(server))
    end = time.monotonic() + (seconds or 3600)
    workers = [threading.Thread(target=run.worker, args=(end, most)) for _ in range(threads)]
    for worker in workers:
        worker.start()
    watch(server, run, expected, end, workers)
    if run.failure:
        raise Wrong(run.failure)
    if server.process.poll() is not None:
        raise Wrong(f"the server has ended with {server.process.returncode}")
    limit = time.monotonic() + 30
    while True:
        open_now = descriptors(server)
        left = [f"{len(open_now) - before} descriptors"] if len(open_now) > before else []
        left += [name for name in ("requests_running", "requests_waiting", "kv_blocks_used") if server.metric(name) > 0]
        if not left:
            break
        if time.monotonic() > limit:
            raise Wrong(f"left behind: {', '.join(left)}; by inputs {inputs_of(server, run, open_now)} of seed {seed}")
        time.sleep(0.1)
    if server.post("/v1/completions", LITERAL).json["choices"] != expected:
        raise Wrong("the fixed request has another answer at the end")
    return min(run.next, most) if most is not None else run.next, run.answers


TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a:{% endif %}"


def start_server(folder, *arguments):
    """The smallest model there is, with tokens for holes and a template, so that every endpoint works."""
    from conftest import DATA, Server, gguf_with
    template = pathlib.Path(folder) / "short.jinja"
    template.write_text(TEMPLATE)
    keys = {f"tokenizer.ggml.fim_{part}_token_id": 3 + i for i, part in enumerate(("pre", "suf", "mid"))}
    model = gguf_with(DATA / "reference" / "gguf" / "llama_linear.gguf", pathlib.Path(folder) / "tiny.gguf", keys)
    # Without a prefix cache no block may be in use at the end; quick pings make the server look often for who has left.
    return Server("--chat-template", str(template), "--no-enable-prefix-caching", "--ping-interval-ms", "100", "--pack-cache",
                  "off", *arguments, model=model)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", type=int, help="send this one input, and show it and its answer")
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    with tempfile.TemporaryDirectory() as folder:
        server = start_server(folder)
        try:
            if options.only is not None:
                print(Input(seed, options.only).pieces, Run(server.port, seed).send(options.only), sep="\n")
                return
            n, answers = fuzz(server, seed, seconds=options.seconds, threads=options.threads)
            print(f"  clean, seed {seed}: {n} inputs, first answers {dict(sorted(answers.items()))}")
        except Wrong as error:
            sys.exit(f"seed {seed}: {error}")
        finally:
            code = server.stop()
        if code != 0:
            sys.exit(f"seed {seed}: the server has ended with {code}: {''.join(server.lines)[-4000:]}")


if __name__ == "__main__":
    main()
