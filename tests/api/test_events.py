"""/api/edge/events: what is told, to whom, and that it costs nobody anything."""

import json
import re
import time

import pytest

from conftest import Server, post_bytes, read_all

GET = b"GET /api/edge/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
MAX_LISTENERS = 16


class Listener:
    """A connection to the stream; events are read one by one, framing checked."""

    def __init__(self, server, *headers):
        self.socket = server.raw(GET + "".join(f"{h}\r\n" for h in headers).encode() + b"\r\n", timeout=30)
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        self.headers = {}
        while line := self.file.readline().strip():
            name, value = line.decode().split(": ", 1)
            self.headers[name.lower()] = value
        self.text = b""

    def _more(self):
        """One chunk of the body; False at its end."""
        size = int(self.file.readline() or b"0", 16)
        self.text += self.file.read(size)
        self.file.readline()
        return size > 0

    def next(self):
        while b"\n\n" not in self.text:
            if not self._more():
                return None
        frame, self.text = self.text.split(b"\n\n", 1)
        name, data = re.fullmatch(r"event: (\w+)\ndata: (.*)", frame.decode()).groups()
        return name, json.loads(data)

    def status_after(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            name, status = self.next()
        return status

    def close(self):
        self.file.close()
        self.socket.close()


@pytest.fixture
def listen(server):
    listeners = []

    def one(*headers, at=server):
        listeners.append(Listener(at, *headers))
        return listeners[-1]

    yield one
    for listener in listeners:
        listener.close()


def test_history_comes_first_and_then_the_state_every_second(listen):
    listener = listen()
    assert listener.status == 200 and listener.headers["content-type"] == "text/event-stream"
    assert listener.headers["cache-control"] == "no-store"
    name, history = listener.next()
    assert name == "history" and history["interval_ms"] == 1000
    assert all(len(sample) == len(history["fields"]) for sample in history["samples"])
    times = [sample[0] for sample in history["samples"]]
    assert times == sorted(times) and len(times) <= 600
    listener.next()
    listener.next()
    begun = time.monotonic()
    states = [listener.next() for _ in range(3)]
    assert 2 < time.monotonic() - begun < 5, "one a second"
    assert [name for name, _ in states] == ["status"] * 3
    assert all(900 < b["uptime_ms"] - a["uptime_ms"] < 2500 for (_, a), (_, b) in zip(states, states[1:]))


def test_the_numbers_are_those_of_the_metrics_and_of_the_models(server, listen):
    assert server.wait_idle()
    listener = listen()
    listener.next()
    _, before = listener.next()
    answer = server.chat(max_tokens=5)
    assert server.wait_idle()
    status = listener.status_after(1.5)
    usage = answer["usage"]
    assert (
        status["counters"]["generated_tokens_total"] - before["counters"]["generated_tokens_total"]
        == usage["completion_tokens"]
    )
    assert (
        status["counters"]["prompt_tokens_total"] - before["counters"]["prompt_tokens_total"] == usage["prompt_tokens"]
    )
    first = "time_to_first_token_seconds"
    assert status["histograms"][first]["count"] - before["histograms"][first]["count"] == 1
    for name, value in {**status["counters"], **status["gauges"]}.items():
        if not name.startswith("step"):
            assert value == server.metric(name), name
    for name, histogram in status["histograms"].items():
        assert histogram["count"] == server.metric(f"{name}_count")
    model = server.get("/v1/models").json["data"][0]
    assert status["model"]["name"] == model["id"] and status["model"]["context_length"] == model["max_model_len"]
    assert status["model"]["quantization"] == model["meta"]["quant"] and status["state"] == "ok"


def test_requests_are_shown_while_they_run_without_their_text(server, listen):
    listener = listen()
    listener.next()
    secret = "Xyzzy17"
    sock = server.raw(
        post_bytes(
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": f"Count. {secret}"}],
                "max_tokens": 900,
                "ignore_eos": True,
                "stream": True,
            },
        )
    )
    seen, end = [], time.monotonic() + 30
    while not any(r["running"] and r["n_generated"] > 0 for r in seen):
        assert time.monotonic() < end, seen
        _, status = listener.next()
        seen += status["requests"]
        assert secret not in json.dumps(status)
        assert len(status["requests"]) == status["gauges"]["requests_running"] + status["gauges"]["requests_waiting"]
    sock.close()
    assert len({r["id"] for r in seen}) == 1 and all(r["n_processed"] <= r["n_prompt"] for r in seen)
    assert server.wait_idle()
    assert listener.status_after(1.5)["requests"] == []


def test_listeners_are_bounded_and_those_that_vanish_make_room(server, listen):
    listeners = [listen() for _ in range(MAX_LISTENERS)]
    assert [one.status for one in listeners] == [200] * MAX_LISTENERS
    refused = server.get("/api/edge/events")
    assert refused.status == 429 and "listen" in refused.error["message"]
    assert all(one.next()[0] == "history" for one in listeners), "those who are there stay"
    for one in listeners[:5]:
        one.close()
    end = time.monotonic() + 10
    while (again := listen()).status != 200:
        assert time.monotonic() < end, "places of clients that left are given again"
        time.sleep(0.05)
    assert again.next()[0] == "history"


def test_a_listener_that_does_not_read_harms_nobody(server, listen):
    deaf = server.raw(GET + b"\r\n")
    listener = listen()
    assert server.chat(max_tokens=3)["usage"]["completion_tokens"] > 0
    assert [listener.next()[0] for _ in range(3)] == ["history", "status", "status"]
    deaf.close()


def test_head_and_other_methods(server):
    head = server.request("HEAD", "/api/edge/events")
    assert head.status == 200 and head.headers["Content-Type"] == "text/event-stream" and head.body == b""
    reply = server.post("/api/edge/events", {})
    assert reply.status == 405 and reply.headers["Allow"] == "GET, HEAD, OPTIONS"


def test_a_key_is_needed_when_there_is_one(start):
    server = start("--api-key", "secret")
    assert server.get("/api/edge/events").status == 401
    listener = Listener(server, "Authorization: Bearer secret")
    assert listener.status == 200 and listener.next()[0] == "history"
    listener.close()


def test_the_stream_is_there_while_the_model_loads_and_ends_with_the_server():
    server = Server("--max-model-len", "512", wait="listening")
    listener = Listener(server)
    assert listener.next()[0] == "history"
    _, status = listener.next()
    assert status["state"] in ("loading", "ok") and (status["model"] is None) == (status["state"] == "loading")
    server.wait_line("ready on ", 120)
    assert listener.status_after(1.5)["state"] == "ok"
    begun = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begun < 5, "nobody waits for a listener"
    while listener.next() is not None:  # the body ends as it should: with its last chunk, not with a reset
        pass
    assert read_all(listener.socket) == b""
    listener.close()


def test_the_clock_goes_on_while_a_long_prompt_is_read(server, listen):
    listener = listen()
    listener.next()
    listener.next()
    sock = server.raw(post_bytes("/v1/completions", {"prompt": [5] * 1000, "max_tokens": 1}))
    gaps, last = [], time.monotonic()
    for _ in range(4):
        listener.next()
        gaps.append(time.monotonic() - last)
        last = time.monotonic()
    sock.close()
    assert max(gaps) < 3, gaps
    assert server.wait_idle()
