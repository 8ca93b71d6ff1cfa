"""The prefix cache on disk: over restarts, under kill -9 while it is written, and its wipe."""
import http.client
import os
import random
import signal
import subprocess
import threading
import time

import pytest
from conftest import DATA, Server

TEXT = "Once upon a time there was a small computer at the edge of the network, and it remembered all it had read. "


def ask(server, number, repeat=6):
    body = {"prompt": f"{number}. " + TEXT * repeat, "max_tokens": 12, "temperature": 0, "logprobs": 1}
    reply = server.post("/v1/completions", body)
    assert reply.status == 200, reply.body
    return reply.json["choices"], reply.json["timings"]["cache_n"]


def start_on(folder, *arguments, **options):
    return Server("--max-model-len", "512", "--prefix-cache-disk", str(folder), *arguments, **options)


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


# The smallest model: a server of it is there in a moment, and its blocks are written in one.
TINY = str(DATA / "reference" / "gguf" / "llama_linear.gguf")
KILLS = int(os.environ.get("DSE_TEST_KILLS", "15"))


@pytest.fixture(scope="module")
def expected():
    server = Server("--max-model-len", "512", model=TINY)
    texts = {number: ask(server, number, 2)[0] for number in range(4)}
    end(server)
    return texts


def start_clean(folder, expected, **options):
    """A server on what a killed one has left: no warning, no half file, and whatever is found is right. Returns the blocks found."""
    server = start_on(folder, "--pack-cache", "off", model=TINY, **options)
    assert not list(folder.glob("*.new"))
    found = 0
    for number in expected:
        choices, n = ask(server, number, 2)
        assert choices == expected[number]
        found += n // 32
    assert not [line for line in server.lines if "WARN" in line.upper()], server.lines
    return server, found


def wait_for_a_file_that_is_written(folder, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with os.scandir(folder) as entries:
            if any(entry.name.endswith(".new") for entry in entries):
                return


def test_kill_at_any_moment_leaves_a_clean_start(tmp_path, expected):
    """At random, or as soon as a file is seen that is being written. DSE_TEST_KILLS: how many."""
    folder = tmp_path / "cache"
    chance = random.Random(4)
    found = cut = 0
    for i in range(KILLS):
        server, n = start_clean(folder, expected)
        found += n
        threads = [threading.Thread(target=ask_until_dead, args=(server, chance.randrange(100, 10**6))) for _ in range(2)]
        for thread in threads:
            thread.start()
        if i % 2:
            wait_for_a_file_that_is_written(folder, 0.5)
        else:
            time.sleep(chance.random() * 0.15)
        server.process.kill()
        server.process.wait()
        for thread in threads:
            thread.join()
        cut += len(list(folder.glob("*.new")))
    server, n = start_clean(folder, expected)
    assert not end(server)
    print(f"{KILLS} kills, {found} blocks found again, {cut} files cut short")
    assert found > 0 and n > 0


def ask_until_dead(server, number):
    """Blocks of new beginnings all the time, so that something is being written whenever the server is killed."""
    try:
        while True:
            ask(server, number, 2)
            number += 1
    except (OSError, http.client.HTTPException):
        pass


def test_death_at_any_byte_of_a_file_leaves_a_clean_start(tmp_path, expected):
    """A limit of file sizes kills the server in the middle of a write, after that many bytes of a block."""
    server, _ = start_clean(tmp_path / "whole", expected)
    end(server)
    bytes_of_a_block = next((tmp_path / "whole").glob("*.kv")).stat().st_size
    folder = tmp_path / "cache"
    for limit in (1, 17, 4095, 4096, bytes_of_a_block // 2, bytes_of_a_block - 1):
        server = start_on(folder, "--pack-cache", "off", model=TINY, file_bytes=limit)
        ask_until_dead(server, limit * 1000)
        assert server.process.wait(20) == -signal.SIGXFSZ
        left = [file.stat().st_size for file in folder.glob("*.new")]
        assert left and max(left) <= limit
        server, _ = start_clean(folder, expected)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()


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
