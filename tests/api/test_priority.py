"""Priorities over HTTP: where they come from, what is refused, and that an urgent request passes those that run."""
import os
import subprocess
import threading
import time

import pytest
from conftest import Server

PATH = "/v1/completions"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("plain\nhigh  priority=7\nlow priority=-3\n# a comment\n")
    server = Server("--api-key-file", str(keys), "--max-concurrent", "1", "--max-model-len", "1024")
    yield server
    assert server.stop() == 0, "".join(server.lines)


def ask(server, key, n, headers=None, **fields):
    body = {"prompt": "once upon a time", "max_tokens": n, "ignore_eos": True, "temperature": 0} | fields
    return server.post(PATH, body, headers={"Authorization": f"Bearer {key}"} | (headers or {}))


@pytest.mark.parametrize("value", [101, -101, 1.5, "3", True, [1]])
def test_a_priority_outside_its_range_is_refused_by_name(keyed, value):
    reply = ask(keyed, "plain", 1, priority=value)
    assert reply.status == 400 and reply.error["param"] == "priority", reply.body


@pytest.mark.parametrize("value", ["101", "", "high", "1.5", "99999999999999999999"])
def test_a_header_that_is_no_priority_is_refused_by_name(keyed, value):
    reply = ask(keyed, "plain", 1, headers={"X-Priority": value})
    assert reply.status == 400 and reply.error["param"] == "X-Priority", reply.body


@pytest.mark.parametrize("fields", [{"priority": 100}, {"priority": -100}, {"priority": None}, {"priority": 5.0}])
def test_priorities_are_taken(keyed, fields):
    assert ask(keyed, "plain", 1, headers={"X-Priority": "-7"}, **fields).status == 200


def finished(server, requests):
    """Names of requests in the order in which their answers came; each is sent when the one before it is in."""
    order, threads = [], []
    bearer = {"Authorization": "Bearer plain"}

    def run(name, *arguments, **options):
        assert ask(server, *arguments, **options).status == 200
        order.append(name)

    for number, (name, key, n, options) in enumerate(requests):
        thread = threading.Thread(target=run, args=(name, key, n), kwargs=options)
        thread.start()
        threads.append(thread)
        while len(server.get("/slots", headers=bearer).json) <= number and not order:
            time.sleep(0.005)
    for thread in threads:
        thread.join()
    while server.get("/slots", headers=bearer).json:
        time.sleep(0.005)
    return "".join(order)


LONG, SHORT = 250, 2


@pytest.mark.parametrize("requests, order", [
    ([("l", "plain", LONG, {}), ("s", "plain", SHORT, {})], "ls"),
    ([("l", "plain", LONG, {}), ("s", "plain", SHORT, {"priority": 1})], "sl"),
    ([("l", "plain", LONG, {}), ("s", "plain", SHORT, {"headers": {"X-Priority": "1"}})], "sl"),
    ([("l", "plain", LONG, {}), ("s", "high", SHORT, {})], "sl"),
    # the body counts before the header
    ([("l", "plain", LONG, {}), ("s", "plain", SHORT, {"priority": 0, "headers": {"X-Priority": "9"}})], "ls"),
    # a key with a priority asks for no more than that
    ([("l", "plain", LONG, {}), ("s", "low", SHORT, {"priority": 50})], "ls"),
    ([("l", "low", LONG, {}), ("s", "plain", SHORT, {})], "sl"),
])
def test_who_is_more_urgent_is_done_first(keyed, requests, order):
    assert finished(keyed, requests) == order


@pytest.mark.parametrize("line", ["key priority=", "key priority=101", "key prio=3", "key priority=3 4", "key 3"])
def test_a_key_line_that_says_something_else_is_refused(tmp_path, line):
    keys = tmp_path / "keys"
    keys.write_text("first\n" + line + "\n")
    with pytest.raises(AssertionError, match=r"line 2: what follows the key must be priority=N"):
        Server("--api-key-file", str(keys))


@pytest.mark.parametrize("text, says", [
    (b"# keys\n\none priority=3\n two\r\none\n", "line 5: the key is that of line 3"), (b"one\rone \n", "line 2: the key is that of line 1"),
    (b"one\ntwo\x01\n", "line 2: the key has a control character"), (b"\x7fone", "line 1: the key has a control character"),
    (b"one\r\n\r\n\x1b[2J priority=2\r\n", "line 3: the key has a control character")])
def test_a_key_that_is_there_twice_or_has_control_characters_is_refused_by_its_line(tmp_path, text, says):
    keys = tmp_path / "keys"
    keys.write_bytes(text)
    command = [os.environ["DSE_BINARY"], "serve", os.environ["DSE_TEST_MODEL"], "--port", "0", "--api-key-file", str(keys)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2 and says in run.stderr and "listening" not in run.stderr, run.stderr
    assert "\x1b" not in run.stderr and "two" not in run.stderr
