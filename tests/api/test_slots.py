"""Slots: `id_slot`, POST /slots/{id}?action=save|restore|erase, over restarts, keys, bad names, bad files and kill -9."""
import os
import random
import signal
import subprocess
import threading
import time

import pytest
from conftest import Server, wait_for
from test_openapi import validate

CHAT = "/v1/chat/completions"
ANSWER = {"$ref": "#/components/schemas/SlotAnswer"}
TEXT = "Once upon a time there was a small computer at the edge of the network, and it remembered all it had read. "


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "slots"


@pytest.fixture
def saving(start, folder):
    return start("--slot-save-path", str(folder))


def act(server, slot, action, body=None, status=200, **options):
    reply = server.post(f"/slots/{slot}?action={action}", {} if body is None else body, **options)
    assert reply.status == status, reply.body
    return reply.json if status == 200 else reply.error


def ask(server, text=TEXT * 4, headers=None, **fields):
    """Text with log probabilities, and how much of the prompt was found."""
    body = dict({"prompt": text, "max_tokens": 12, "temperature": 0, "logprobs": 2, "ignore_eos": True}, **fields)
    reply = server.post("/v1/completions", body, headers=headers)
    assert reply.status == 200, reply.body
    return reply.json["choices"], reply.json["timings"]["cache_n"], reply.json["usage"]


def test_a_saved_slot_goes_on_after_a_restart_with_the_same_text(start, folder, server):
    first = start("--slot-save-path", str(folder))
    choices, found, usage = ask(first, id_slot=3)
    assert found == 0
    saved = act(first, 3, "save", {"filename": "story 1.bin"})
    file = folder / "story 1.bin"
    computed = usage["total_tokens"] - 1
    assert saved["n_saved"] == computed // 32 * 32 > 64 and saved["n_written"] == file.stat().st_size
    assert saved["id_slot"] == 3 and saved["filename"] == "story 1.bin" and saved["timings"]["save_ms"] > 0
    assert set(saved) == {"id_slot", "filename", "n_saved", "n_written", "timings"}
    validate(saved, ANSWER)
    assert folder.stat().st_mode & 0o777 == 0o700 and file.stat().st_mode & 0o777 == 0o600
    assert first.metric("slots_saved_total") == 1
    longer = TEXT * 4 + choices[0]["text"] + " And then"

    second = start("--slot-save-path", str(folder))
    restored = act(second, 0, "restore", {"filename": "story 1.bin"})
    assert restored["n_restored"] == saved["n_saved"] and restored["n_read"] == saved["n_written"]
    assert restored["timings"]["restore_ms"] > 0
    assert set(restored) == {"id_slot", "filename", "n_restored", "n_read", "timings"}
    validate(restored, ANSWER)
    assert second.metric("slots_restored_total") == 1 and second.metric("kv_blocks_cached") == saved["n_saved"] / 32
    again, found, usage = ask(second)
    assert again == choices and found == (usage["prompt_tokens"] - 1) // 32 * 32
    expected, _, _ = ask(server, longer)
    got, found, _ = ask(second, longer)
    assert got == expected and found >= saved["n_saved"] - 32
    # the restored slot can be saved again, to the same bytes
    again = act(second, 0, "save", {"filename": "copy"})
    assert again["n_saved"] == saved["n_saved"] and (folder / "copy").read_bytes() == file.read_bytes()


@pytest.mark.parametrize("path,body", [
    (CHAT, {"messages": [{"role": "user", "content": TEXT * 4}]}),
    (CHAT, {"messages": [{"role": "user", "content": TEXT * 4}], "stream": True}),
    ("/v1/messages", {"messages": [{"role": "user", "content": TEXT * 4}], "max_tokens": 5}),
    ("/v1/responses", {"input": TEXT * 4, "max_output_tokens": 5}),
    ("/v1/completions", {"prompt": TEXT * 4, "max_tokens": 0}),
])
def test_every_dialect_fills_a_slot(saving, path, body):
    reply = saving.post(path, dict({"max_tokens": 5}, **body, id_slot=255))
    assert reply.status == 200, reply.body
    assert act(saving, 255, "save", {"filename": "x"})["n_saved"] >= 64


def test_a_slot_is_what_was_said_last_in_it(saving):
    ask(saving, id_slot=1)
    long = act(saving, 1, "save", {"filename": "a"})["n_saved"]
    ask(saving, TEXT * 2, id_slot=1)
    assert act(saving, 1, "save", {"filename": "b"})["n_saved"] < long
    ask(saving, TEXT * 4)  # without a slot: nothing changes
    ask(saving, TEXT * 4, id_slot=-1)
    assert act(saving, 1, "save", {"filename": "b"})["n_saved"] < long


def test_erase_forgets_the_slot_and_what_nobody_else_uses(saving):
    _, _, usage = ask(saving, id_slot=1)
    _, found, _ = ask(saving)
    assert found > 0
    assert act(saving, 1, "erase") == {"id_slot": 1, "n_erased": usage["total_tokens"]}
    assert saving.metric("kv_blocks_cached") == 0 and ask(saving)[1] == 0
    assert "id_slot" in act(saving, 1, "save", {"filename": "x"}, 400)["message"]
    assert act(saving, 1, "erase", "") == {"id_slot": 1, "n_erased": 0}  # llama-server's clients send no body


def test_keys_have_slots_and_files_of_their_own(start, folder):
    server = start("--slot-save-path", str(folder), "--api-key", "one", "--api-key", "two")
    one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
    ask(server, id_slot=0, headers=one)
    assert act(server, 0, "save", {"filename": "x"}, 400, headers=two)["param"] == "id_slot"
    act(server, 0, "save", {"filename": "x"}, headers=one)
    error = act(server, 0, "restore", {"filename": "x"}, 400, headers=two)
    assert error["param"] == "filename" and "another API key" in error["message"]
    act(server, 0, "restore", {"filename": "x"}, headers=one)
    assert server.post("/slots/0?action=save", {"filename": "x"}).status == 401
    # a salt is a key too
    ask(server, id_slot=0, headers=one, cache_salt="s")
    act(server, 0, "save", {"filename": "y"}, headers=one)
    assert "cache_salt" in act(server, 0, "restore", {"filename": "y"}, 400, headers=one)["message"]
    act(server, 0, "restore", {"filename": "y", "cache_salt": "s"}, headers=one)
    assert act(server, 0, "restore", {"filename": "y", "cache_salt": ""}, 400, headers=one)["param"] == "cache_salt"
    # no key replaces the file of another one, and each its own
    old = (folder / "x").read_bytes()
    ask(server, TEXT * 5, id_slot=0, headers=two)
    error = act(server, 0, "save", {"filename": "x"}, 400, headers=two)
    assert error["param"] == "filename" and "the name x is taken" in error["message"] and "another API key" in error["message"]
    ask(server, TEXT * 5, id_slot=0, headers=one, cache_salt="s")
    assert act(server, 0, "save", {"filename": "x"}, 400, headers=one)["param"] == "filename"
    assert (folder / "x").read_bytes() == old
    ask(server, TEXT * 5, id_slot=0, headers=one)
    act(server, 0, "save", {"filename": "x"}, headers=one)
    assert len((folder / "x").read_bytes()) > len(old)
    assert sorted(file.name for file in folder.iterdir()) == ["x", "y"]


NO_NAMES = ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", "a\0b", "\n", "\x1b[2J", ".hidden", "n" * 201, "é" * 101, 5, None, [], {},
            True]


def test_names_that_are_no_plain_names_are_refused(saving, folder):
    ask(saving, id_slot=1)
    for name in NO_NAMES:
        for action in ("save", "restore"):
            assert act(saving, 1, action, {"filename": name}, 400)["param"] == "filename", name
    assert list(folder.iterdir()) == []


def test_requests_that_make_no_sense_are_refused_by_name(saving):
    for slot in ("-1", "256", "1e0", "0x1", "99999999999999999999", "1/2", "a", "%2e%2e", "1%00"):
        reply = saving.post(f"/slots/{slot}?action=erase", {})
        assert reply.status == 400, (slot, reply.body)
    for query in ("", "?", "?action", "?action=", "?action=sav", "?action=saveall", "?Action=save", "?x=save", "?" + "a" * 300,
                  "?" + "a" * 300 + "&action=erase", "?action=save&action=erase", "?action=erase&x&action=erase",
                  "?action=erase&action="):
        reply = saving.post("/slots/1" + query, {"filename": "x"})
        assert reply.status == 400 and reply.error["param"] == "action", (query, reply.body)
    assert saving.post("/slots/1?x=1&action=erase&y", {}).status == 200
    for body in ("", "[]", "{", "5"):
        assert saving.post("/slots/1?action=save", body).status == 400
    assert act(saving, 1, "save", {}, 400)["param"] == "filename"
    assert act(saving, 1, "save", {"filename": "x"}, 400)["param"] == "id_slot"
    assert act(saving, 1, "restore", {"filename": "x"}, 400)["param"] == "filename"
    assert saving.request("GET", "/slots/1?action=save").status == 405
    for fields in ({"id_slot": 256}, {"id_slot": -2}, {"id_slot": "1"}, {"id_slot": 1, "n": 2}, {"id_slot": 1, "prompt": ["a", "b"]}):
        reply = saving.post("/v1/completions", dict({"prompt": "a", "max_tokens": 1}, **fields))
        assert reply.status == 400 and reply.error["param"] == "id_slot", reply.body
    ask(saving, "short", id_slot=9, max_tokens=1)
    assert "nothing to save" in act(saving, 9, "save", {"filename": "x"}, 400)["message"]


def test_without_a_folder_or_a_cache_nothing_is_saved(start, folder):
    server = start()
    ask(server, id_slot=0)
    for action in ("save", "restore"):
        error = act(server, 0, action, {"filename": "x"}, 501)
        assert error["type"] == "not_supported_error" and "--slot-save-path" in error["message"]
    assert act(server, 0, "erase")["n_erased"] > 0
    server = start("--no-enable-prefix-caching")
    ask(server, id_slot=0)
    assert act(server, 0, "erase")["n_erased"] > 0 and act(server, 0, "erase")["n_erased"] == 0
    run = subprocess.run([os.environ["DSE_BINARY"], "serve", os.environ["DSE_TEST_MODEL"], "--slot-save-path", str(folder),
                          "--no-enable-prefix-caching"], capture_output=True, text=True)
    assert run.returncode == 2 and "--slot-save-path" in run.stderr
    folder.mkdir(mode=0o755)
    run = subprocess.run([os.environ["DSE_BINARY"], "serve", os.environ["DSE_TEST_MODEL"], "--port", "0", "--slot-save-path",
                          str(folder)], capture_output=True, text=True)
    assert run.returncode == 2 and "chmod 700" in run.stderr


def test_slots_are_not_saved_among_the_files_of_the_prefix_cache(start, folder):
    folder.mkdir(mode=0o700)
    link = folder.parent / "link"
    link.symlink_to(folder)
    for slots, cache in ((folder, folder), (folder, f"{folder}/../slots/"), (link, folder), (folder, link), (link, link)):
        run = subprocess.run([os.environ["DSE_BINARY"], "serve", os.environ["DSE_TEST_MODEL"], "--port", "0", "--slot-save-path",
                              str(slots), "--prefix-cache-disk", str(cache)], capture_output=True, text=True, timeout=60)
        assert run.returncode == 2 and "--slot-save-path and --prefix-cache-disk are the same folder" in run.stderr, run.stderr
        assert "listening" not in run.stderr and list(folder.iterdir()) == []
    server = start("--slot-save-path", str(folder), "--prefix-cache-disk", str(folder.parent / "cache"))
    ask(server, id_slot=0)
    act(server, 0, "save", {"filename": "lock"})


def test_bad_files_are_refused_and_change_nothing(saving, folder):
    ask(saving, id_slot=1)
    act(saving, 1, "save", {"filename": "good"})
    good = (folder / "good").read_bytes()
    cached = saving.metric("kv_blocks_cached")
    chance = random.Random(8)
    bad = {"empty": b"", "short": good[:50], "cut": good[:-1], "longer": good + b"x", "other": os.urandom(500), "zero": bytes(len(good)),
           "gguf": b"GGUF" + bytes(200), "count": good[:68] + b"\xff\xff\xff\xff" + good[72:]}
    for i in range(40):
        at = chance.randrange(len(good))
        bad[f"flip{i}"] = good[:at] + bytes([good[at] ^ 1 << chance.randrange(8)]) + good[at + 1:]
    for name, data in bad.items():
        (folder / name).write_bytes(data)
    (folder / "link").symlink_to(folder / "good")
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    for name in [*bad, "link", "pipe", "folder", "missing"]:
        error = act(saving, 2, "restore", {"filename": name}, 400)
        assert error["param"] == "filename" and error["message"], name
    assert act(saving, 2, "save", {"filename": "x"}, 400)["param"] == "id_slot"  # slot 2 still holds nothing
    assert saving.metric("kv_blocks_cached") == cached
    act(saving, 2, "restore", {"filename": "good"})
    error = act(saving, 1, "save", {"filename": "folder"}, 400)
    assert error["param"] == "filename" and "folder is a folder" in error["message"]
    act(saving, 1, "save", {"filename": "link"})  # in place of the link
    assert not (folder / "link").is_symlink() and (folder / "good").read_bytes() == good == (folder / "link").read_bytes()
    assert not [file for file in folder.iterdir() if file.name.startswith(".")]


def test_another_model_setting_is_refused(start, saving, folder):
    ask(saving, id_slot=1)
    act(saving, 1, "save", {"filename": "x"})
    other = start("--slot-save-path", str(folder), "--compute", "f32")
    assert "other settings" in act(other, 1, "restore", {"filename": "x"}, 400)["message"]


def test_saving_and_restoring_disturb_no_stream(saving, server):
    """Others' text while slots go in and out all the time is that of a quiet server."""
    ask(saving, id_slot=1)
    over = threading.Event()
    failures = []

    def transfer():
        while not over.is_set():
            for action in ("save", "restore"):
                reply = saving.post(f"/slots/1?action={action}", {"filename": "x"})
                if reply.status not in (200, 503):
                    failures.append(reply.body)

    threads = [threading.Thread(target=transfer) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for i in range(3):
            text = f"{i} " + TEXT * (1 + i)
            fields = {"max_tokens": 24, "seed": i, "temperature": 1}
            assert ask(saving, text, **fields)[0] == ask(server, text, **fields)[0]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert saving.wait_idle() and saving.metric("kv_blocks_used") == 0


def test_kill_while_a_slot_is_saved_leaves_the_old_file_or_the_new_one(folder):
    chance = random.Random(5)
    arguments = ("--max-model-len", "512", "--slot-save-path", str(folder))
    sizes = set()
    for round_ in range(3):
        server = Server(*arguments)
        assert not [file for file in folder.iterdir() if file.name.startswith(".")]
        if round_ > 0:
            restored = act(server, 0, "restore", {"filename": "x"})
            sizes.add(restored["n_restored"])
        for slot, repeat in ((1, 4), (2, 6)):
            ask(server, TEXT * repeat, id_slot=slot)
        act(server, 1, "save", {"filename": "x"})

        def save_for_ever():
            try:
                for i in range(10000):
                    server.post(f"/slots/{1 + i % 2}?action=save", {"filename": "x"})
            except OSError:
                pass

        thread = threading.Thread(target=save_for_ever)
        thread.start()
        time.sleep(0.02 + chance.random() * 0.05)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        thread.join()
    assert len(sizes) <= 2 and all(size >= 64 for size in sizes)


def test_the_server_ends_while_slots_are_saved(folder):
    server = Server("--max-model-len", "512", "--slot-save-path", str(folder))
    ask(server, TEXT * 5, id_slot=1)

    def save():
        try:
            for _ in range(200):
                assert server.post("/slots/1?action=save", {"filename": "x"}).status in (200, 503)
        except OSError:
            pass

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_for(lambda: server.metric("slots_saved_total") >= 1)
    assert server.stop() == 0, "".join(server.lines)
    for thread in threads:
        thread.join()
    assert [file.name for file in folder.iterdir()] == ["x"]
