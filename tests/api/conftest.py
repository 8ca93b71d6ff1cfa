"""Starts the program's server for black-box tests of the API.

DSE_BINARY is the program, DSE_TEST_MODEL a small GGUF model with a ChatML template. A server prints
`listening on http://…` and `ready on http://…` on stderr.
"""
import http.client
import json
import os
import pathlib
import re
import resource
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(os.environ.get("DSE_TEST_DATA", ROOT / "tests" / "data"))


def check_headers(status, headers, origin=None):
    """What holds for every answer: no header twice, the common ones there, a hint when to come back on 429 and 503."""
    names = [name.lower() for name, _ in headers]
    assert len(names) == len(set(names)), headers
    common = {"x-request-id", "x-content-type-options", "date"}
    if origin:
        common |= {"access-control-allow-origin", "access-control-expose-headers", "vary"}
    assert common <= set(names), headers
    assert ("retry-after" in names) == (status in (429, 503)), headers


class Reply:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()
        check_headers(self.status, self.headers.items())

    @property
    def json(self):
        return json.loads(self.body.decode("utf-8", "strict"))

    @property
    def error(self):
        return self.json["error"]


class Server:
    """One process of `deepseek-edge serve`."""

    def __init__(self, *arguments, wait="ready", model=None, file_bytes=None):
        """file_bytes: a longer file kills the server."""
        command = [os.environ["DSE_BINARY"], "serve", "--model", model or os.environ["DSE_TEST_MODEL"], "--port", "0",
                   "--log-level", "warn", "--drain-timeout", "5", *arguments]
        limit = file_bytes and (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes)))
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        errors="replace", preexec_fn=limit)
        self.lines = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.port = int(re.search(r"//[^\s\"]*:(\d+)", self.wait_line("listening on ")).group(1))
        if wait == "ready":
            self.wait_line("ready on ", 120)

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)

    def wait_line(self, text, timeout=60):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            for line in list(self.lines):
                if text in line:
                    return line
            if self.process.poll() is not None and not self.reader.is_alive():
                break
            time.sleep(0.01)
        raise AssertionError(f"no line {text!r} from the server: {''.join(self.lines)}")

    def request(self, method, path, body=None, headers=None, timeout=120):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        all_headers = {"Content-Type": "application/json"} if body is not None else {}
        all_headers.update(headers or {})
        try:
            connection.request(method, path, body, all_headers)
            return Reply(connection.getresponse())
        finally:
            connection.close()

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, body, **options):
        return self.request("POST", path, body, **options)

    def chat(self, text="Say hi", path="/v1/chat/completions", **fields):
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8}
        body.update(fields)
        reply = self.post(path, body)
        assert reply.status == 200, reply.body
        return reply.json

    def stream(self, path, body):
        """Events of a stream as parsed JSON; checks the framing strictly. The last one is "[DONE]"."""
        reply = self.post(path, dict(body, stream=True))
        assert reply.status == 200, reply.body
        assert reply.headers["Content-Type"] == "text/event-stream"
        text = reply.body.decode("utf-8", "strict")
        assert text.endswith("\n\n")
        events = []
        for frame in text[:-2].split("\n\n"):
            if frame.startswith(":"):
                continue
            assert frame.startswith("data: ") and "\n" not in frame, frame
            data = frame[6:]
            events.append(data if data == "[DONE]" else json.loads(data))
        return events

    def metric(self, name):
        text = self.get("/metrics").body.decode()
        return float(re.search(rf"^deepseek_edge_{name} (\S+)$", text, re.M).group(1))

    def wait_idle(self, seconds=60):
        """True when no request runs or waits within this time, which is only there to end a hang."""
        end = time.monotonic() + seconds
        while True:
            idle = self.metric("requests_running") == 0 and self.metric("requests_waiting") == 0
            if idle and self.get("/slots").json == []:
                return True
            if time.monotonic() > end:
                return False
            time.sleep(0.02)

    def raw(self, data, timeout=10):
        """Sends bytes as they are; returns a connected socket."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        sock.sendall(data)
        return sock

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.reader.join(5)
        return self.process.returncode


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def post_bytes(path, body, *extra):
    """A raw POST request."""
    data = json.dumps(body).encode() if not isinstance(body, bytes) else body
    head = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {len(data)}",
            *extra]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


def read_all(sock):
    data = b""
    try:
        while chunk := sock.recv(65536):
            data += chunk
    except (ConnectionResetError, socket.timeout):
        pass
    return data


def literal(text):
    """A grammar whose only sentence is this text: makes any model emit it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'root ::= "{escaped}"'


def joined(events, field="content"):
    """The text of a chat stream."""
    out = ""
    for event in events:
        if event == "[DONE]":
            continue
        for choice in event["choices"]:
            out += choice["delta"].get(field) or ""
    return out


@pytest.fixture(scope="session")
def server():
    server = Server("--max-model-len", "1024", "--max-concurrent", "4", "--served-model-name", "tiny,org/tiny:q4")
    yield server
    assert server.stop() == 0, "".join(server.lines)


@pytest.fixture
def start():
    """Starts further servers; all are stopped and must end well."""
    started = []

    def start_one(*arguments, **options):
        started.append(Server("--max-model-len", "512", *arguments, **options))
        return started[-1]

    yield start_one
    for one in started:
        code = one.stop()
        assert code == 0, "".join(one.lines)


def gguf_with(source, target, keys):
    """A copy of a GGUF file with further keys: integers become u32, booleans bool."""
    data = pathlib.Path(source).read_bytes()
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def number(at, form="<Q"):
        return struct.unpack_from(form, data, at)[0]

    def value_end(at, kind):
        if kind == 8:
            return at + 8 + number(at)
        if kind != 9:
            return at + sizes[kind]
        element, count, at = number(at, "<I"), number(at + 4), at + 12
        if element in sizes:
            return at + sizes[element] * count
        for _ in range(count):
            at = value_end(at, element)
        return at

    n_tensors, n_keys, at = number(8), number(16), 24
    for _ in range(n_keys):
        at += 8 + number(at)
        at = value_end(at + 4, number(at, "<I"))
    end = at
    for _ in range(n_tensors):
        at += 8 + number(at)
        at += 4 + 8 * number(at, "<I") + 12
    added = b"".join(struct.pack("<Q", len(name)) + name.encode() + (
        struct.pack("<I?", 7, value) if isinstance(value, bool) else struct.pack("<II", 4, value))
        for name, value in keys.items())
    head = data[:16] + struct.pack("<Q", n_keys + len(keys)) + data[24:end] + added + data[end:at]
    target.write_bytes(head + bytes(-len(head) % 32) + data[at + -at % 32:])
    return str(target)


def write_adapter(folder, module, n_in, n_out):
    """A LoRA adapter of rank 1 for one matrix, as PEFT writes it."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 1}))
    name, a = f"base_model.model.model.{module}.lora_", 4 * n_in
    header = json.dumps({f"{name}A.weight": {"dtype": "F32", "shape": [1, n_in], "data_offsets": [0, a]},
                         f"{name}B.weight": {"dtype": "F32", "shape": [n_out, 1], "data_offsets": [a, a + 4 * n_out]}})
    values = [((i * 37) % 101 - 50) / 100 for i in range(n_in + n_out)]
    data = struct.pack("<Q", len(header)) + header.encode() + struct.pack(f"<{len(values)}f", *values)
    (folder / "adapter_model.safetensors").write_bytes(data)


def servers_by_template(*arguments, built_in):
    """For a fixture: yields a function that gives the server of a chat template, by name, and of further arguments; each
    is started once, all must end well. built_in: names that the program itself has, also where a file is called so."""
    started = {}

    def get(template, *further):
        if (template, further) not in started:
            path = DATA / "chat" / "templates" / f"{template}.jinja"
            started[template, further] = Server(*arguments, "--chat-template", template if template in built_in else str(path),
                                                *further)
        return started[template, further]

    yield get
    for server in started.values():
        assert server.stop() == 0
