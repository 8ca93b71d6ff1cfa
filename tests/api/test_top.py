"""`deepseek-edge top`: as text in a pipe, as JSON, and on a terminal (a pseudo terminal and what is written to it)."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import threading
import time

import pytest
from conftest import post_bytes

CHAT = "/v1/chat/completions"
ESCAPE = re.compile(rb"\x1b\[[?0-9;]*[A-Za-z]")


def top(*arguments, timeout=60, **environment):
    env = {k: v for k, v in os.environ.items() if not k.startswith("DEEPSEEK_EDGE_")} | environment
    return subprocess.run([os.environ["DSE_BINARY"], "top", *arguments], capture_output=True, timeout=timeout, env=env)


def url(server):
    return f"http://127.0.0.1:{server.port}"


def test_once_is_plain_text_of_what_the_server_says(server):
    server.chat(max_tokens=3)
    result = top("--url", url(server), "--once")
    assert result.returncode == 0 and result.stderr == b""
    text = result.stdout.decode()
    for part in ("deepseek-edge ", url(server), "context 1024", "tok/s", "blocks of 32 tokens", "running 0 of 4", "heat", "(none)"):
        assert part in text, text
    assert b"\x1b" not in result.stdout and b"\r" not in result.stdout
    assert max(len(line) for line in text.splitlines()) <= 160


def test_the_environment_and_colours_change_nothing_in_a_pipe(server):
    result = top("--once", "--color", "always", DEEPSEEK_EDGE_URL=url(server), CLICOLOR_FORCE="1", TERM="xterm-256color")
    assert result.returncode == 0 and b"\x1b" not in result.stdout


def test_other_locales_get_ascii_bars(server):
    result = top("--url", url(server), "--once", LC_ALL="C")
    assert result.stdout.isascii() and b"[---" in result.stdout


def test_once_json_is_the_state_on_one_line(server):
    result = top("--url", url(server), "--once", "--json")
    line, = result.stdout.splitlines()
    state = json.loads(line)
    assert state["status"] == "ok" and state["model"]["max_concurrent"] == 4


def test_without_once_a_pipe_gets_a_look_at_each_interval(server):
    command = [os.environ["DSE_BINARY"], "top", "--url", url(server), "--interval", "0.2", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        uptimes = [json.loads(process.stdout.readline())["uptime_seconds"] for _ in range(3)]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        assert process.returncode == 130
    assert uptimes == sorted(set(uptimes)) and uptimes[2] - uptimes[0] >= 0.4


def test_a_reader_that_leaves_ends_it(server):
    command = [os.environ["DSE_BINARY"], "top", "--url", url(server), "--interval", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 1


def test_requests_have_rows(start):
    server = start("--max-concurrent", "1")
    body = {"messages": [{"role": "user", "content": "count"}], "max_tokens": 300, "ignore_eos": True, "stream": True}
    first, second = server.raw(post_bytes(CHAT, body)), server.raw(post_bytes(CHAT, body))
    first.recv(1000)
    end = time.monotonic() + 20
    while server.metric("requests_waiting") != 1 or server.get("/api/edge/state").json["slots"][0]["n_generated"] < 2:
        assert time.monotonic() < end
        time.sleep(0.02)
    text = top("--url", url(server), "--once").stdout.decode()
    assert re.search(r"^\s+\d+\s+decode\s+[\d.]+ s\s+[\d.]+\s+\d+\s+\d+/512$", text, re.M), text
    assert re.search(r"^\s+\d+\s+waiting\s+", text, re.M) and "waiting 1" in text
    first.close()
    second.close()
    assert server.wait_idle()


# ---- who does not answer

def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_no_server_is_exit_code_7():
    result = top("--url", f"http://127.0.0.1:{free_port()}", "--once")
    assert result.returncode == 7 and b"no server answers" in result.stderr and result.stdout == b""


@pytest.mark.parametrize("value", ["https://127.0.0.1:1", "", "http://", "http://:80", "http://a:b", "http://a:1/path", "unix:",
                                   "http://a:99999999", "http://a b", "unix:" + "x" * 200, "http://a\r\nX: y"])
def test_addresses_that_are_none_are_refused(value):
    result = top("--url", value, "--once")
    assert result.returncode == 2 and b"--url" in result.stderr, result


def test_keys(start):
    server = start("--api-key", "sk-top")
    assert top("--url", url(server), "--once").returncode == 2
    result = top("--url", url(server), "--once", "--api-key", "wrong")
    assert result.returncode == 2 and b"--api-key" in result.stderr
    assert top("--url", url(server), "--once", "--api-key", "sk-top").returncode == 0
    assert top("--url", url(server), "--once", DEEPSEEK_EDGE_API_KEY="sk-top").returncode == 0
    assert top("--url", url(server), "--once", "--api-key", "a\nb").returncode == 2


def test_a_unix_socket(tmp_path):
    path = tmp_path / "s"
    command = [os.environ["DSE_BINARY"], "serve", "--model", os.environ["DSE_TEST_MODEL"], "--uds", str(path),
               "--max-model-len", "256"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("ready on "):
                break
        result = top("--url", f"unix:{path}", "--once", "--json")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert json.loads(result.stdout)["status"] == "ok"


@pytest.mark.parametrize("answer", [
    b"", b"HTTP/1.1 200 OK\r\n\r\n", b"garbage\r\n\r\n{}", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\n\r\n[1]", b"HTTP/1.1 404 No\r\n\r\n{}", b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100000,
    b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10000 + b"\r\n{}",
])
def test_servers_of_others_are_survived(answer):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve():
            connection, _ = listener.accept()
            connection.recv(4096)
            connection.sendall(answer)
            connection.close()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        result = top("--url", f"http://127.0.0.1:{listener.getsockname()[1]}", "--once")
        thread.join(10)
    assert result.returncode in (1, 2, 4, 7) and result.stderr.count(b"\n") == 1 and result.stdout == b"", result


def test_hostile_names_reach_the_terminal_as_text():
    state = {"status": "ok\x1b[2J", "version": "\u009b31m", "model": {"name": "m\x1b]0;owned\x07\n"}, "slots": [{"state": "\x1b[31m" * 50}]}
    body = json.dumps(state).encode()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve():
            connection, _ = listener.accept()
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            connection.close()
        threading.Thread(target=serve, daemon=True).start()
        result = top("--url", f"http://127.0.0.1:{listener.getsockname()[1]}", "--once")
    assert result.returncode == 0 and b"\x1b" not in result.stdout and b"\x07" not in result.stdout
    assert "\u009b" not in result.stdout.decode() and b"\\x1b" in result.stdout


# ---- on a terminal

class Terminal:
    """`top` on a pseudo terminal of a given size."""

    def __init__(self, *arguments, rows=24, columns=80, env=None):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.output = b""
        environment = dict(os.environ, TERM="xterm", LC_ALL="C.UTF-8", **(env or {}))
        self.process = subprocess.Popen([os.environ["DSE_BINARY"], "top", *arguments], stdin=slave, stdout=slave,
                                        stderr=subprocess.PIPE, env=environment, start_new_session=True)

    def read(self, seconds=0.3):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([self.master], [], [], 0.05)[0]:
                self.output += os.read(self.master, 65536)

    def wait_for(self, text, seconds=20):
        end = time.monotonic() + seconds
        while text not in self.output:
            assert time.monotonic() < end, self.output
            self.read(0.1)

    def press(self, key):
        self.output = b""
        os.write(self.master, key)

    def end(self):
        code = self.process.wait(20)
        self.read()
        restored = termios.tcgetattr(self.slave) == self.before
        os.close(self.slave)
        os.close(self.master)
        self.process.stderr.close()
        return code, restored


def test_the_screen_is_taken_and_given_back(server):
    screen = Terminal("--url", url(server), "--interval", "0.3")
    screen.wait_for(b"q quit")
    assert screen.output.startswith(b"\x1b[?1049h\x1b[?25l") and b"running 0 of 4" in screen.output
    assert "█".encode() in screen.output or "▁".encode() in screen.output
    screen.press(b"s")
    screen.wait_for(b"sort: speed")
    screen.press(b"p")
    screen.wait_for(b"(paused)")
    screen.press(b"p")
    screen.wait_for(b"p pause")
    screen.press(b"q")
    assert screen.end() == (0, True)
    assert screen.output.rstrip().endswith(b"\x1b[?25h\x1b[?1049l")


@pytest.mark.parametrize("number,code", [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGHUP, -1)])
def test_signals_give_the_screen_back(server, number, code):
    screen = Terminal("--url", url(server))
    screen.wait_for(b"q quit")
    screen.process.send_signal(number)
    ended, restored = screen.end()
    assert ended == code and restored
    assert b"\x1b[?25h\x1b[?1049l" in screen.output


def test_a_small_screen_is_kept_to(server):
    screen = Terminal("--url", url(server), rows=6, columns=30)
    screen.wait_for(b"q quit")
    screen.press(b"q")
    screen.process.wait(20)
    screen.read()
    for line in ESCAPE.sub(b"", screen.output).decode().split("\r\n"):
        assert len(line) <= 30, line
    assert screen.output.count(b"\r\n") % 5 == 0
    screen.end()


def test_no_color_writes_no_colour(server):
    screen = Terminal("--url", url(server), env={"NO_COLOR": "1"})
    screen.wait_for(b"q quit")
    screen.press(b"q")
    screen.end()
    assert not re.search(rb"\x1b\[[0-9;]*m", screen.output)


def test_a_server_that_goes_away_is_told_and_its_return_too(start):
    server = start()
    screen = Terminal("--url", url(server), "--interval", "0.2")
    screen.wait_for(b"q quit")
    port = server.port
    assert server.stop() == 0
    screen.wait_for(b"no server answers")
    with_same_port = start("--port", str(port))
    screen.output = b""
    screen.wait_for(b"q quit")
    screen.press(b"q")
    assert screen.end() == (0, True)
    assert with_same_port.port == port
