"""What comes in the middle: a signal while a model loads, a mapped file that loses its end."""
import contextlib
import fcntl
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest


class Cache:
    """A pack cache of its own, with the packed file of one model."""

    def __init__(self, program, folder, model):
        self.model = model
        self.environment = program.environment | {"XDG_CACHE_HOME": str(folder)}
        self.answer = self.run()
        (self.packed,) = folder.glob("deepseek-edge/packed/*.pack")
        self.temporary = self.packed.with_suffix(".tmp")

    def run(self):
        done = subprocess.run(self.command("run", "--temp", "0", "-n", "4", "-p", "Say hi"), text=True,
                              capture_output=True, env=self.environment, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def command(self, verb, *flags):
        return [os.environ["DSE_BINARY"], verb, "--model", str(self.model), *flags]

    @contextlib.contextmanager
    def start(self, verb, *flags):
        process = subprocess.Popen(self.command(verb, *flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, env=self.environment)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    @contextlib.contextmanager
    def being_built(self):
        """As if another process were building the file: whoever loads the model waits, up to a minute."""
        self.packed.unlink(missing_ok=True)
        with open(self.temporary, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write("DSEPACK half a header")
            file.flush()
            yield


@pytest.fixture
def cache(program, model, tmp_path):
    copy = tmp_path / "model.gguf"
    shutil.copyfile(model, copy)
    return Cache(program, tmp_path / "cache", copy)


def wait_for_line(process, text):
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"ended without saying {text!r}")


def wait_until_mapped(process, path):
    maps = pathlib.Path(f"/proc/{process.pid}/maps")
    end = time.monotonic() + 30
    while str(path) not in maps.read_text():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.01)


def end_of(process):
    """Exit code and what is left on standard error. A sleeping loader would take a minute."""
    started = time.monotonic()
    _, text = process.communicate(timeout=50)
    assert time.monotonic() - started < 20
    return process.returncode, text


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_the_load_and_closes_the_port(cache, number, code):
    with cache.being_built(), cache.start("serve", "--port", "0") as process:
        port = int(re.search(r":(\d+)", wait_for_line(process, "listening on ")).group(1))
        wait_until_mapped(process, cache.model)
        process.send_signal(number)
        returned, text = end_of(process)
        assert (returned, number.name in text, "ready" in text) == (code, True, False), text
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        assert not cache.packed.exists()
    # What was left half written is not believed.
    assert cache.temporary.exists()
    assert cache.run() == cache.answer
    assert cache.packed.exists() and not cache.temporary.exists()


def test_a_signal_during_the_load_removes_the_socket(cache, tmp_path):
    path = tmp_path / "s"
    with cache.being_built(), cache.start("serve", "--uds", path) as process:
        wait_for_line(process, "listening on ")
        assert path.exists()
        process.send_signal(signal.SIGTERM)
        assert end_of(process)[0] == 0
        assert not path.exists()


def test_a_signal_right_after_the_load_drains(cache):
    with cache.start("serve", "--port", "0") as process:
        wait_for_line(process, "ready on ")
        process.send_signal(signal.SIGINT)
        returned, text = end_of(process)
        assert returned == 130 and "finishing 0 running requests" in text, text


@pytest.mark.parametrize("verb, flags", [("run", ["-p", "hi"]), ("serve", ["--port", "0"])])
def test_a_model_file_cut_while_it_loads_is_named(cache, verb, flags):
    with contextlib.ExitStack() as stack:
        with cache.being_built():
            process = stack.enter_context(cache.start(verb, *flags))
            wait_until_mapped(process, cache.model)
            os.truncate(cache.model, 0)
        returned, text = end_of(process)
        assert returned == 4 and f"became shorter while in use, or its disk failed: {cache.model};" in text, text


def test_a_pack_cache_cut_under_a_server_is_named(cache):
    with cache.start("serve", "--port", "0") as process:
        port = int(re.search(r":(\d+)", wait_for_line(process, "ready on ")).group(1))
        os.truncate(cache.packed, 4096)
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with pytest.raises((http.client.HTTPException, OSError)):
            client.request("POST", "/v1/completions", json.dumps({"prompt": "hi", "max_tokens": 4}),
                           {"Content-Type": "application/json"})
            client.getresponse().read()
        returned, text = end_of(process)
        assert returned == 4 and str(cache.packed) in text, text
    # The next start sees that the file is not whole and builds it again.
    assert cache.run() == cache.answer


def test_a_bus_error_sent_by_hand_ends_as_usual(cache):
    with cache.start("serve", "--port", "0") as process:
        wait_for_line(process, "ready on ")
        process.send_signal(signal.SIGBUS)
        assert end_of(process)[0] == -signal.SIGBUS
