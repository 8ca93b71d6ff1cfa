"""What the steps of the engine spend their time on: /debug/steps, the trace file, and /api/edge/state."""
import json
import os
import signal
import subprocess
import time

import pytest
from conftest import post_bytes

CHAT = "/v1/chat/completions"
CAUSES = ["swap", "wait", "schedule", "prefill", "decode", "recompute", "sampling", "delivery"]
LONG = {"messages": [{"role": "user", "content": "count to a hundred"}], "max_tokens": 300, "ignore_eos": True, "stream": True}


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def settled_steps(server, tokens):
    """All steps once so many tokens are in them: the last step of an answer ends after the answer."""
    def enough():
        return sum(step["tokens"] for step in server.get("/debug/steps").json["steps"]) >= tokens
    until(enough)
    return server.get("/debug/steps").json["steps"]


def test_steps_add_up_to_the_answers(start):
    server = start("--chunk-tokens", "16")
    answer = server.chat("Tell me of the sea, in a sentence that is not short at all, please.", max_tokens=12)
    usage, timings = answer["usage"], answer["timings"]
    steps = settled_steps(server, usage["completion_tokens"])
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    assert sum(step["rows"]["prefill"] for step in steps) == usage["prompt_tokens"]
    assert sum(step["rows"]["decode"] for step in steps) == usage["completion_tokens"] - 1
    assert sum(step["tokens"] for step in steps) == usage["completion_tokens"]
    for step, following in zip(steps, steps[1:] + [None]):
        assert list(step["ms"]) == CAUSES and all(value >= 0 for value in step["ms"].values())
        assert step["duration_ms"] == pytest.approx(sum(step["ms"].values()) - step["ms"]["wait"] - step["ms"]["swap"], abs=0.01)
        assert step["rows"]["prefill"] <= step["chunk_tokens"] <= 16
        if following:
            assert step["begin_ms"] + step["duration_ms"] <= following["begin_ms"] + 0.01
    prefill = sum(step["ms"]["prefill"] for step in steps)
    decode = sum(step["ms"]["decode"] for step in steps)
    assert 0 < prefill <= timings["prompt_ms"] and 0 < decode <= timings["predicted_ms"]
    # what nobody else has measured: the engine did nothing else between its first and last step
    assert prefill + decode > 0.5 * (timings["prompt_ms"] + timings["predicted_ms"])


def test_a_prompt_beside_a_stream_shows_as_mixed_steps(start):
    server = start("--max-concurrent", "2", "--chunk-tokens", "32")
    sock = server.raw(post_bytes(CHAT, LONG))
    sock.recv(1000)
    server.chat("word " * 150, max_tokens=2)
    mixed = [step for step in server.get("/debug/steps").json["steps"] if step["rows"]["decode"] and step["rows"]["prefill"]]
    assert mixed
    for step in mixed:
        assert step["ms"]["prefill"] > 0 and step["ms"]["decode"] > 0 and step["running"] == 2
    sock.close()
    assert server.wait_idle()


def test_debug_steps_wants_the_key_and_can_be_switched_off(start):
    server = start("--api-key", "sk-1", "--no-debug-steps")
    assert server.get("/debug/steps").status == 401
    assert server.get("/debug/steps", headers={"x-api-key": "sk-1"}).status == 404
    assert server.get("/api/edge/state").status == 401
    assert server.get("/api/edge/state", headers={"x-api-key": "sk-1"}).status == 200


def test_the_ring_is_bounded(server):
    assert len(server.get("/debug/steps").json["steps"]) <= 512


# ---- the trace file

def test_the_trace_is_whole_json_and_nests(start, tmp_path):
    file = tmp_path / "trace.json"
    server = start("--trace-steps", str(file))
    json.loads(file.read_text())  # from the first moment
    server.chat(max_tokens=20)
    server.stop()
    server = start("--trace-steps", str(file))  # an older trace is written over
    json.loads(file.read_text())
    usage = server.chat(max_tokens=10)["usage"]
    assert server.stop() == 0
    trace = json.loads(file.read_text())
    events = trace["traceEvents"]
    steps = [e for e in events if e["name"] == "step"]
    assert sum(e["args"]["tokens"] for e in steps) == usage["completion_tokens"]
    assert sum(e["args"]["prefill_rows"] for e in steps) == usage["prompt_tokens"]
    assert {e["name"] for e in events if e["ph"] == "X"} <= {"step", *CAUSES}
    assert {e["name"] for e in events if e["ph"] == "M"} == {"process_name", "thread_name"}
    assert {e["name"] for e in events if e["ph"] == "C"} == {"requests", "kv blocks"}
    for parts in (e for e in events if e["ph"] == "X" and e["name"] not in ("step", "wait", "swap")):
        assert any(s["ts"] - 0.01 <= parts["ts"] and parts["ts"] + parts["dur"] <= s["ts"] + s["dur"] + 0.01 for s in steps), parts
    assert "missed" not in file.read_text()


def test_the_trace_of_a_killed_server_is_whole(tmp_path):
    from conftest import Server
    file = tmp_path / "trace.json"
    server = Server("--max-model-len", "512", "--trace-steps", str(file))
    sock = server.raw(post_bytes(CHAT, LONG))
    until(lambda: '"name":"step"' in file.read_text())
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    sock.close()
    assert any(e["name"] == "step" for e in json.loads(file.read_text())["traceEvents"])


@pytest.mark.parametrize("text", ["x", "a text longer than the beginning of a trace " * 50, '{"displayTimeUnit":"ms"}'])
def test_a_file_that_is_no_trace_is_not_written_over(tmp_path, text):
    file = tmp_path / "model.gguf"
    file.write_text(text)
    command = [os.environ["DSE_BINARY"], "serve", "--model", os.environ["DSE_TEST_MODEL"], "--port", "0", "--trace-steps", file]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and "is no trace of steps" in result.stderr and str(file) in result.stderr
    assert file.read_text() == text


@pytest.mark.parametrize("path", ["/nowhere/trace.json", "/tmp", "/dev/null", ""])
def test_a_trace_that_cannot_be_written_is_refused_before_the_port_opens(path):
    command = [os.environ["DSE_BINARY"], "serve", "--model", os.environ["DSE_TEST_MODEL"], "--port", "0", "--trace-steps", path]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode > 0 and "listening" not in result.stderr and result.stderr.count("\n") == 1, result


# ---- /api/edge/state

def test_state_tells_of_running_and_waiting_requests(start):
    server = start("--max-concurrent", "1")
    idle = server.get("/api/edge/state").json
    assert idle["status"] == "ok" and idle["slots"] == [] and idle["model"]["context_length"] == 512
    first = server.raw(post_bytes(CHAT, LONG))
    first.recv(1000)
    second = server.raw(post_bytes(CHAT, LONG))
    until(lambda: server.metric("requests_waiting") == 1)
    until(lambda: server.get("/api/edge/state").json["slots"][0]["n_generated"] >= 3)
    state = server.get("/api/edge/state").json
    running, waiting = state["slots"]
    assert running["state"] == "decode" and waiting["state"] == "waiting"
    assert running["n_processed"] == running["n_prompt"] > 0 and running["tokens_per_second"] > 0
    assert waiting["n_generated"] == waiting["n_processed"] == 0 and waiting["tokens_per_second"] == 0
    assert running["age_seconds"] > waiting["age_seconds"] > 0
    assert state["requests"]["running"] == 1 and state["requests"]["waiting"] == 1
    assert state["tokens"]["generated_per_second"] > 0 and 0 < state["kv"]["blocks_used"] <= state["kv"]["blocks"]
    assert set(state["step_seconds"]) == set(CAUSES)
    assert set(state["sensors"]) == {"temperature_celsius", "cpu_frequency_hertz", "power_watts", "throttled"}
    assert "count to" not in json.dumps(state)
    slots = server.get("/slots").json
    assert [slot["id"] for slot in slots] == [running["id"], waiting["id"]]
    first.close()
    second.close()
    assert server.wait_idle()


def test_state_answers_while_the_model_loads(tmp_path):
    """Without a model the answer is whole; here after a drain has begun nothing else is different."""
    from conftest import Server
    server = Server("--max-model-len", "512", wait=None)
    state = server.get("/api/edge/state").json
    assert state["status"] in ("loading", "ok") and (state["model"] is None) == (state["status"] == "loading")
    server.wait_line("ready on ", 120)
    assert server.stop() == 0
