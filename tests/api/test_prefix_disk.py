"""The prefix cache on disk: over restarts, under kill -9 while it is written, and its wipe."""
import os
import random
import signal
import subprocess
import time

import pytest
from conftest import Server

TEXT = "Once upon a time there was a small computer at the edge of the network, and it remembered all it had read. "


def ask(server, number, repeat=6):
    body = {"prompt": f"{number}. " + TEXT * repeat, "max_tokens": 12, "temperature": 0, "logprobs": 1}
    reply = server.post("/v1/completions", body)
    assert reply.status == 200, reply.body
    return reply.json["choices"], reply.json["timings"]["cache_n"]


def wait_for(server, metric, least):
    end = time.monotonic() + 60
    while server.metric(metric) < least:
        assert time.monotonic() < end, metric
        time.sleep(0.02)


def start_on(folder, *arguments):
    return Server("--max-model-len", "512", "--prefix-cache-disk", str(folder), *arguments)


def end(server):
    assert server.stop() == 0, "".join(server.lines)
    return [line for line in server.lines if "WARN" in line.upper()]


def cache(*arguments):
    return subprocess.run([os.environ["DSE_BINARY"], "cache", *arguments], capture_output=True, text=True)


def test_a_restart_finds_the_prompt_and_a_wipe_forgets_it(tmp_path):
    folder = tmp_path / "cache"
    server = start_on(folder)
    first, n = ask(server, 1)
    assert n == 0
    end(server)
    files = sorted(folder.glob("*.kv"))
    assert len(files) >= 3
    assert folder.stat().st_mode & 0o777 == 0o700 and all(file.stat().st_mode & 0o777 == 0o600 for file in files)

    server = start_on(folder)
    again, n = ask(server, 1)
    assert again == first and n >= 96 and server.metric("prefix_cache_disk_reads_total") == n // 32
    assert server.metric("prefix_cache_disk_bytes") == sum(file.stat().st_size for file in files)
    busy = cache("wipe", str(folder))
    assert busy.returncode == 1 and "in use" in busy.stderr
    end(server)

    wiped = cache("wipe", str(folder))
    assert wiped.returncode == 0 and f"removed {len(files)} blocks" in wiped.stderr and not list(folder.glob("*.kv"))
    assert cache("wipe", str(tmp_path / "none")).returncode == 3
    assert cache().returncode == 2 and cache("wipe").returncode == 2 and cache("drop", str(folder)).returncode == 2
    server = start_on(folder)
    assert ask(server, 1) == (first, 0)
    end(server)


def test_kill_at_any_point_of_a_write_leaves_a_clean_start(tmp_path):
    """Each round is killed at another moment; every start is without a warning, and whatever is found is right."""
    folder = tmp_path / "cache"
    chance = random.Random(4)
    server = Server("--max-model-len", "512")
    expected = {number: ask(server, number)[0] for number in range(4)}
    end(server)
    found = 0
    for _ in range(6):
        server = start_on(folder)
        assert not list(folder.glob("*.new"))
        for number in range(4):
            choices, n = ask(server, number)
            assert choices == expected[number]
            found += n
        # new beginnings, so that something is being written
        ask(server, chance.randrange(100, 10**6))
        wait_for(server, "prefix_cache_disk_writes_total", chance.randrange(1, 4) if found == 0 else 1)
        time.sleep(chance.random() * 0.01)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        server.reader.join(5)
        assert not [line for line in server.lines if "WARN" in line.upper()], server.lines
    assert found > 0
    server = start_on(folder)
    assert not list(folder.glob("*.new"))
    assert not end(server)


def test_damaged_files_are_removed_with_one_warning(tmp_path):
    folder = tmp_path / "cache"
    server = start_on(folder)
    first, _ = ask(server, 1)
    end(server)
    for i, file in enumerate(sorted(folder.glob("*.kv"))):
        data = bytearray(file.read_bytes())
        if i % 2:
            data[len(data) // 2] ^= 1
        file.write_bytes(data if i % 2 else data[:1000])
    server = start_on(folder)
    assert ask(server, 1) == (first, 0)
    assert len(end(server)) == 1


@pytest.mark.parametrize("arguments, words", [
    (["--prefix-cache-space", "1000"], ["--prefix-cache-space", "block"]),
    (["--no-enable-prefix-caching"], ["--prefix-cache-disk"]),
])
def test_impossible_settings_are_refused(tmp_path, arguments, words):
    command = [os.environ["DSE_BINARY"], "serve", os.environ["DSE_TEST_MODEL"], "--port", "0", "--prefix-cache-disk",
               str(tmp_path / "cache"), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and all(word in result.stderr for word in words), result.stderr


def test_a_folder_that_others_may_enter_is_refused(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    command = [os.environ["DSE_BINARY"], "serve", os.environ["DSE_TEST_MODEL"], "--port", "0", "--prefix-cache-disk",
               str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and "chmod 700" in result.stderr
