"""`deepseek-edge top`: as text in a pipe, as JSON, and on a terminal (a pseudo terminal and what is written to it)."""
import fcntl
import json
import os
import pty
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
import unicodedata

import pytest
from conftest import post_bytes

CHAT = "/v1/chat/completions"
# What ends a process by default; by SIGKILL nothing can be given back.
DEADLY = [n for n in signal.valid_signals() if n not in set(range(signal.SIGRTMIN + 1, signal.SIGRTMAX)) | {
    signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT, signal.SIGCHLD,
    signal.SIGURG, signal.SIGWINCH, signal.SIGPIPE}]
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


@pytest.mark.parametrize("arguments", [["--once"], ["--once", "--json"], []], ids=" ".join)
def test_output_that_is_lost_is_told_once(server, arguments):
    command = [os.environ["DSE_BINARY"], "top", "--url", url(server), "--interval", "0.2", *arguments]
    with open("/dev/full", "wb") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert result.returncode == 1 and result.stderr.count(b"cannot write to standard output") == 1, result.stderr
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        told = process.stderr.read()
        assert process.wait(20) == 1 and told.count(b"cannot write to standard output") == 1, told


# ---- who does not answer

class Others:
    """A server of others: gives these answers one after the other and then none any more, while it takes requests."""

    def __init__(self, *answers, path=None):
        self.asked = [threading.Event() for _ in range(len(answers) + 1)]
        self.listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self.listener.bind(str(path) if path else ("127.0.0.1", 0))
        self.listener.listen()
        self.url = f"unix:{path}" if path else f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.left = []
        self.thread = threading.Thread(target=self.serve, args=answers, daemon=True)
        self.thread.start()

    def serve(self, *answers):
        for number, event in enumerate(self.asked):
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.left.append(connection)
            connection.recv(4096)
            if number < len(answers):
                connection.sendall(answers[number])
                connection.close()
            event.set()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(10)
        for connection in self.left:
            connection.close()


def answer(state):
    body = json.dumps(state, ensure_ascii=False).encode() if isinstance(state, dict) else state
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_no_server_is_exit_code_7():
    result = top("--url", f"http://127.0.0.1:{free_port()}", "--once")
    assert result.returncode == 7 and b"no server answers" in result.stderr and result.stdout == b""


@pytest.mark.parametrize("value", ["https://127.0.0.1:1", "", "http://", "http://:80", "http://a:b", "http://a:1/path", "unix:",
                                   "http://a:99999999", "http://a:", "http://a:-1", "http://a b", "unix:" + "x" * 200, "http://a\r\nX: y"])
def test_addresses_that_are_none_are_refused(value):
    result = top("--url", value, "--once")
    assert result.returncode == 2 and b"--url" in result.stderr, result


@pytest.mark.parametrize("port", ["0", "65536", "70000", "99999", "00000", "100000", "4294967376"])
def test_ports_that_are_none_are_refused(port):
    result = top("--url", f"http://127.0.0.1:{port}", "--once")
    assert result.returncode == 2 and b"--url: the port" in result.stderr and b"65535" in result.stderr, result


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
    with Others(answer) as server:
        result = top("--url", server.url, "--once")
    assert result.returncode == 7 and result.stderr.count(b"\n") == 1 and result.stdout == b"", result
    assert server.url.encode() in result.stderr


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"", b"[1]", b"{}", b'"ok"', b'{"status": 200}', b"[" * 100000,
                                  b'{"status": "\xff"}', b'{"error": {"message": "no"}}'], ids=lambda body: body[:20])
@pytest.mark.parametrize("arguments", [["--once"], ["--once", "--json"]], ids=" ".join)
def test_what_is_no_state_comes_from_no_server_of_ours(body, arguments):
    with Others(answer(body)) as server:
        result = top("--url", server.url, *arguments)
    assert result.returncode == 7 and result.stdout == b"" and result.stderr.count(b"\n") == 1, result
    assert server.url.encode() in result.stderr and b"is it a deepseek-edge server?" in result.stderr, result


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"", b"{}", b"[" * 100000], ids=lambda body: body[:20])
def test_what_is_no_list_of_adapters_comes_from_no_server_of_ours(body):
    with Others(answer(body)) as server:
        result = subprocess.run([os.environ["DSE_BINARY"], "adapters", "--url", server.url], capture_output=True, timeout=60)
    assert result.returncode == 7 and result.stdout == b"" and result.stderr.count(b"\n") == 1, result
    assert server.url.encode() in result.stderr and b"is it a deepseek-edge server?" in result.stderr, result


def test_first_tokens_have_a_history_with_holes():
    answers = [answer({"status": "ok", "time_to_first_token_seconds": {"count": count, "sum": seconds}})
               for count, seconds in ((1, 0.1), (3, 1.7), (3, 1.7), (4, 1.8))]
    with Others(*answers) as server:
        command = [os.environ["DSE_BINARY"], "top", "--url", server.url, "--interval", "0.2"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              env=dict(os.environ, LC_ALL="C")) as process:
            lines = [next(line for line in process.stdout if line.startswith("latency")) for _ in answers]
            process.kill()
    assert lines[0].startswith("latency first token 0.100 s #  between") and "first token - .# " in lines[2]
    assert lines[3].startswith("latency first token 0.100 s .# .  between"), lines


def test_hostile_names_reach_the_terminal_as_text():
    state = {"status": "ok\x1b[2J", "version": "\u009b31m", "model": {"name": "m\x1b]0;owned\x07\n"}, "slots": [{"state": "\x1b[31m" * 50}]}
    with Others(answer(state)) as server:
        result = top("--url", server.url, "--once")
    assert result.returncode == 0 and b"\x1b" not in result.stdout and b"\x07" not in result.stdout
    assert "\u009b" not in result.stdout.decode() and b"\\x1b" in result.stdout


def columns(line):
    """As terminals count them: two for wide characters, none for those that combine."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in line)


WIDE = {"japanese": "\u65e5\u672c\u8a9e", "hangul": "\ud55c\uad6d", "full": "\uff21\uff22", "kana": "\u304b\u30ab\u3099", "emoji": "\U0001f600\u26a1\u2705",
        "rare": "\U00020000\U0001b000", "mixed": "a\u65e5b", "accents": "e\u0301", "hebrew": "\u05d0\u05b8", "ascii": "xyz"}


@pytest.mark.parametrize("text", WIDE.values(), ids=WIDE)
def test_lines_of_wide_characters_fit_and_fill_the_width(text):
    state = {"status": "ok", "model": {"name": text * 300}, "sensors": {"power_watts": {"x" + text * 300: 1}}}
    with Others(answer(state)) as server:
        lines = top("--url", server.url, "--once").stdout.decode().splitlines()
    assert all(columns(line) <= 160 for line in lines), lines
    full = [line for line in lines if text in line]
    assert len(full) == 2 and all(columns(line) >= 159 for line in full), full


# ---- on a terminal

def signals_as_by_default():
    """Whatever the tests were started with; and no core files."""
    for number in DEADLY:
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


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
                                        stderr=subprocess.PIPE, env=environment, start_new_session=True,
                                        preexec_fn=signals_as_by_default)

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


@pytest.mark.parametrize("number", DEADLY)
def test_signals_give_the_screen_back(server, number):
    screen = Terminal("--url", url(server))
    screen.wait_for(b"q quit")
    screen.process.send_signal(number)
    ended, restored = screen.end()
    assert ended == (130 if number == signal.SIGINT else -number) and restored
    assert screen.output.endswith(b"\x1b[?25h\x1b[?1049l")


@pytest.mark.parametrize("number", [signal.SIGWINCH, signal.SIGCHLD, signal.SIGURG, signal.SIGPIPE, signal.SIGCONT])
def test_signals_that_end_nothing_keep_the_screen(server, number):
    screen = Terminal("--url", url(server))
    screen.wait_for(b"q quit")
    screen.process.send_signal(number)
    screen.press(b"s")
    screen.wait_for(b"sort: speed")
    screen.press(b"q")
    assert screen.end() == (0, True)


def in_shell(script, steps):
    """Runs a script with job control on a pseudo terminal. Of steps: what to wait for in the output and what to type
    then. Returns all output and, of each `stty -g` in it, the modes of the terminal."""
    master, slave = pty.openpty()
    environment = dict(os.environ, TERM="xterm", LC_ALL="C.UTF-8")

    def begin():
        signals_as_by_default()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(["sh", "-mc", script], stdin=slave, stdout=slave, stderr=slave, env=environment,
                               start_new_session=True, preexec_fn=begin)
    os.close(slave)
    output, start, end = b"", 0, time.monotonic() + 30
    while True:
        assert time.monotonic() < end, output
        if steps and steps[0][0] in output[start:]:
            start = len(output)
            os.write(master, steps.pop(0)[1])
        if select.select([master], [], [], 0.1)[0]:
            try:
                output += os.read(master, 65536)
            except OSError:
                break
    process.wait(10)
    os.close(master)
    assert not steps, (steps, output)
    return output, re.findall(rb"(?<=[\nl])[0-9a-f]+(?::[0-9a-f]+){10,}", b"\n" + output)


def test_ctrl_backslash_gives_the_screen_back(server):
    command = f"{os.environ['DSE_BINARY']} top --url {url(server)}"
    output, modes = in_shell(f"ulimit -c 0; stty -g; {command}; echo code $?; stty -g", [(b"q quit", b"\x1c")])
    assert b"code 131" in output and len(modes) == 2 and modes[0] == modes[1], output
    assert output.rindex(b"\x1b[?1049l") > output.rindex(b"\x1b[?1049h")


def test_to_be_stopped_gives_the_screen_back_until_it_goes_on(server):
    command = f"{os.environ['DSE_BINARY']} top --url {url(server)}"
    output, modes = in_shell(f"stty -g; {command}; echo stopped; stty -g; fg; stty -g",
                             [(b"q quit", b"\x1a"), (b"q quit", b"q")])
    before, between, after = re.split(rb"stopped\r\n|\r\n[^\r\n]* top --url [^\r\n]*\r\n(?=\x1b)", output)
    assert len(modes) == 3 and len(set(modes)) == 1, output
    for part in (before, after):  # taken and given back, twice
        assert b"\x1b[?1049h\x1b[?25l" in part and b"\x1b[?25h\x1b[?1049l" in part, output
    assert b"\x1b" not in between


# ---- a server that takes a request and hangs

def ends_soon(process):
    """Long before the server would be given up."""
    begun = time.monotonic()
    code = process.wait(20)
    assert time.monotonic() - begun < 3
    return code


@pytest.mark.parametrize("arguments", [["--once"], ["--once", "--json"], []], ids=" ".join)
def test_ctrl_c_ends_the_wait_for_the_first_answer(arguments):
    with Others() as server:
        command = [os.environ["DSE_BINARY"], "top", "--url", server.url, *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert server.asked[0].wait(20)
            process.send_signal(signal.SIGINT)
            assert ends_soon(process) == 130
            assert process.stdout.read() == b""


def test_ctrl_c_before_the_first_answer_leaves_a_terminal_as_it_was():
    with Others() as server:
        screen = Terminal("--url", server.url)
        assert server.asked[0].wait(20)
        screen.process.send_signal(signal.SIGINT)
        assert ends_soon(screen.process) == 130
        assert screen.end() == (130, True) and screen.output == b""


@pytest.mark.parametrize("end,code", [(b"q", 0), (signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_server_that_hangs_keeps_no_key_waiting(end, code):
    with Others(answer({"status": "ok"})) as server:
        screen = Terminal("--url", server.url, "--interval", "0.2")
        screen.wait_for(b"q quit")
        assert server.asked[1].wait(20)
        begun = time.monotonic()
        screen.press(b"s")
        screen.wait_for(b"sort: speed")
        if isinstance(end, bytes):
            screen.press(end)
        else:
            screen.process.send_signal(end)
        assert ends_soon(screen.process) == code and time.monotonic() - begun < 4
        assert screen.end() == (code, True)


def test_a_server_that_hangs_is_told():
    with Others(answer({"status": "ok", "uptime_seconds": 1})) as server:
        screen = Terminal("--url", server.url, "--interval", "0.2")
        screen.wait_for(b"  ok  node")
        screen.output = b""
        screen.wait_for(b"does not answer")
        screen.press(b"q")
        assert screen.end() == (0, True)


def test_a_small_screen_is_kept_to(server):
    screen = Terminal("--url", url(server), rows=6, columns=30)
    screen.wait_for(b"q quit")
    screen.read()
    for line in ESCAPE.sub(b"", screen.output).decode().splitlines():
        assert len(line) <= 30, line
    assert screen.output.count(b"\r\n") % 5 == 0
    screen.press(b"q")
    assert screen.end() == (0, True)


@pytest.mark.parametrize("width", range(40, 46))
def test_wide_characters_keep_to_a_small_screen(tmp_path, monkeypatch, width):
    path = tmp_path / ("\u65e5\u672c\u8a9e" * 5)
    monkeypatch.chdir(tmp_path)
    with Others(answer({"status": "ok", "model": {"name": "\u65e5\u672c\u8a9e" * 30}}), path=path.name) as server:
        screen = Terminal("--url", server.url, "--interval", "0.2", rows=6, columns=width)
        screen.wait_for(b"q quit")
        assert server.asked[1].wait(20)
    screen.wait_for("no server answers at unix:\u65e5".encode())
    screen.read()
    lines = re.split(r"\r+\n|\x1b\[\d+;1H|\x1b\[H", screen.output.decode())
    widths = [columns(ESCAPE.sub(b"", line.encode()).decode()) for line in lines]
    assert max(widths) <= width and widths.count(width) + widths.count(width - 1) >= 3, lines
    screen.press(b"q")
    assert screen.end() == (0, True)


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
    screen.output = b""
    screen.wait_for(b"does not answer  node")
    assert b"  up " not in screen.output
    with_same_port = start("--port", str(port))
    screen.output = b""
    screen.wait_for(b"  ok  node")  # pictures of before may still come
    screen.wait_for(b"  up ")
    screen.press(b"q")
    assert screen.end() == (0, True)
    assert with_same_port.port == port
