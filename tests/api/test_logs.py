"""JSON logs: every line of standard error is an object; one access line for each request, with ids, trace and times, and
nothing that a client wrote."""
import hashlib
import json
import pathlib
import re
import socket
import time

import pytest
from conftest import post_bytes

CHAT = "/v1/chat/completions"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
COMMON = {"time", "level", "component", "message", "edge_node_id"}
SECRET = "walrus-7431"


def parsed(server):
    return [json.loads(line) for line in list(server.lines)]


def access(server, request_id, timeout=20):
    """The access line of a request; there is exactly one."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        lines = [line for line in parsed(server) if line["component"] == "access" and line["request_id"] == request_id]
        if lines:
            assert len(lines) == 1
            return lines[0]
        time.sleep(0.02)
    raise AssertionError(f"no line of {request_id}: {''.join(server.lines)}")


@pytest.fixture
def logged(start):
    return start("--log-format", "json", "--log-level", "debug", "--node-id", "press-3.line_A:2")


def test_every_line_is_json_from_start_to_end(start):
    server = start("--log-format", "json", "--log-level", "debug")
    server.chat(max_tokens=2)
    server.post(CHAT, "{")
    server.raw(b"GET /\xff%00\x1b[31m HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: \x1b\r\n\r\n").close()
    server.raw(b"GET /\xc2\x9b31m HTTP/1.1\r\nHost: localhost\r\n\r\n").recv(100)
    assert server.stop() == 0
    lines = parsed(server)
    assert len(lines) > 8
    for line in lines:
        assert COMMON <= set(line), line
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert line["level"] in ("error", "warn", "info", "debug")
    messages = [line["message"] for line in lines]
    assert any(m.startswith("listening on http://") for m in messages)
    assert any(m.startswith("ready on http://") for m in messages)
    assert any("SIGTERM" in m for m in messages)


def test_the_node_is_a_hash_of_the_machines_id_and_never_the_id(start):
    server = start("--log-format", "json")
    node = parsed(server)[0]["edge_node_id"]
    machine = pathlib.Path("/etc/machine-id")
    source = machine.read_text().strip() if machine.is_file() else socket.gethostname()
    assert node == hashlib.sha256(b"deepseek-edge node id\n" + source.encode()).hexdigest()[:16]
    assert source not in "".join(server.lines)
    assert server.get("/api/edge/state").json["edge_node_id"] == node


def test_one_line_with_counts_and_times_per_answer(logged):
    began = time.monotonic()
    reply = logged.post(CHAT, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "temperature": 0},
                        headers={"X-Request-Id": "mine-1", "traceparent": f"00-{TRACE}-{PARENT}-01"})
    took_ms = (time.monotonic() - began) * 1000
    usage, timings = reply.json["usage"], reply.json["timings"]
    line = access(logged, "mine-1")
    assert line["edge_node_id"] == "press-3.line_A:2" and line["level"] == "info"
    assert line["trace_id"] == TRACE and line["parent_id"] == PARENT
    assert reply.headers["traceparent"] == f"00-{TRACE}-{line['span_id']}-01" and line["span_id"] != PARENT
    assert line["method"] == "POST" and line["path"] == "/chat/completions" and line["status"] == 200
    assert line["complete"] is True and line["stream"] is False
    assert line["response_bytes"] == len(reply.body)
    assert line["prompt_tokens"] == usage["prompt_tokens"] and line["completion_tokens"] == usage["completion_tokens"]
    assert line["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert line["finish_reason"] == reply.json["choices"][0]["finish_reason"]
    assert line["model"] == reply.json["model"]
    assert line["prefill_ms"] == pytest.approx(timings["prompt_ms"], abs=0.01)
    assert line["decode_ms"] == pytest.approx(timings["predicted_ms"], abs=0.01)
    assert line["queue_ms"] + line["prefill_ms"] + line["decode_ms"] <= line["duration_ms"] <= took_ms


def test_a_stream_is_one_line_too(logged):
    reply = logged.post(CHAT, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": True})
    line = access(logged, reply.headers["X-Request-Id"])
    assert line["stream"] is True and line["status"] == 200 and line["complete"] is True
    assert line["response_bytes"] == len(reply.body) and 1 <= line["completion_tokens"] <= 5
    assert line["trace_id"] == reply.headers["traceparent"].split("-")[1]


@pytest.mark.parametrize("header", ["", "garbage", f"00-{TRACE}-{PARENT}-01-more", f"ff-{TRACE}-{PARENT}-01",
                                    f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE.upper()}-{PARENT}-01"])
def test_a_malformed_traceparent_begins_a_new_trace(logged, header):
    reply = logged.get("/version", headers={"traceparent": header})
    sent = re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-00", reply.headers["traceparent"])
    assert sent and sent.group(1) != TRACE and set(sent.group(1)) != {"0"}
    line = access(logged, reply.headers["X-Request-Id"])
    assert (line["trace_id"], line["span_id"]) == sent.groups() and "parent_id" not in line


def test_two_traceparents_begin_a_new_trace(logged):
    header = f"traceparent: 00-{TRACE}-{PARENT}-01\r\n".encode()
    sock = logged.raw(b"GET /version HTTP/1.0\r\nHost: localhost\r\n" + 2 * header + b"\r\n")
    head = b"".join(iter(lambda: sock.recv(4096), b"")).decode()
    sock.close()
    assert " 200 " in head and TRACE not in head and "traceparent: 00-" in head
    line = access(logged, re.search(r"X-Request-Id: (\S+)", head).group(1))
    assert line["trace_id"] != TRACE and "parent_id" not in line


def test_the_answer_to_head_has_no_bytes(logged):
    reply = logged.request("HEAD", "/v1/models")
    line = access(logged, reply.headers["X-Request-Id"])
    assert line["method"] == "HEAD" and line["status"] == 200 and line["response_bytes"] == 0 and line["complete"] is True


def test_errors_and_unknown_paths_are_told_without_what_the_client_wrote(logged):
    for reply, status, path in (
            (logged.post(CHAT, {"messages": [], "x": SECRET}), 400, "/chat/completions"),
            (logged.get(f"/{SECRET}?q={SECRET}"), 404, "(unknown)"),
            (logged.get(f"/v1/models/{SECRET}"), 404, "/models/"),
            (logged.get("/health", headers={"Host": SECRET}), 403, "/health")):
        line = access(logged, reply.headers["X-Request-Id"])
        assert line["status"] == reply.status == status and line["path"] == path
    secret = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 2, "user": SECRET}
    reply = logged.post(CHAT + "?key=" + SECRET, secret, headers={"Authorization": "Bearer " + SECRET, "x-api-key": SECRET})
    access(logged, reply.headers["X-Request-Id"])
    assert SECRET not in "".join(logged.lines)


def test_a_client_that_left_is_told_apart(logged):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 400, "ignore_eos": True}
    # A plain answer may have been begun by the newline that tells a closed connection from a half-closed one.
    for stream, statuses in ((False, {200, 499}), (True, {200})):
        name = f"gone-{stream}"
        sock = logged.raw(post_bytes(CHAT, dict(body, stream=stream), f"X-Request-Id: {name}"))
        if stream:
            sock.recv(1000)
        else:
            time.sleep(0.3)
        sock.close()
        line = access(logged, name)
        assert line["status"] in statuses and line["complete"] is False, line
    assert logged.wait_idle()


def test_text_lines_have_the_same_fields(start):
    server = start("--log-level", "info")
    server.get("/health", headers={"X-Request-Id": "plain-1"})
    line = server.wait_line("plain-1")
    assert line.startswith('info: access: GET /health 200 request_id="plain-1" trace_id="') and " status=200 " in line


def test_requests_are_not_logged_below_info(start):
    server = start("--log-format", "json")
    server.get("/health", headers={"X-Request-Id": "quiet-1"})
    assert server.stop() == 0
    assert "quiet-1" not in "".join(server.lines)


@pytest.mark.parametrize("value", ["", " ", "a b", "x" * 65, 'a"b', "é", "a/b", "a\nb"])
def test_node_ids_that_are_none_are_refused(value):
    import os
    import subprocess
    command = [os.environ["DSE_BINARY"], "serve", "--model", os.environ["DSE_TEST_MODEL"], "--port", "0", "--node-id", value]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and "--node-id" in result.stderr, result


def test_a_failed_start_is_told_as_json_too():
    import os
    import subprocess
    command = [os.environ["DSE_BINARY"], "serve", "--model", os.environ["DSE_TEST_MODEL"], "--port", "0", "--log-format", "json",
               "--trace-steps", "/nowhere/trace.json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    line, = (json.loads(line) for line in result.stderr.splitlines())
    assert result.returncode > 0 and line["level"] == "error" and "/nowhere/trace.json" in line["message"]
