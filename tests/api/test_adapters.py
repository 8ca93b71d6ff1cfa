"""LoRA adapters as clients see them: loading, choosing by name and by scale, several in one batch over a warm prefix
cache, bad ones. The numbers themselves are compared with PEFT in tests/fidelity/test_adapters.c."""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import threading
import time

import pytest
from conftest import DATA

ADAPTERS = DATA / "adapters" / "llama_linear"
MODEL = str(DATA / "reference" / "gguf" / "llama_linear.gguf")
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
PROMPT = [(i * 37 + 11) % 500 + 2 for i in range(200)]


@pytest.fixture
def folder(tmp_path):
    """The folder that clients load from: a, b and a.gguf of the same base, and one of another."""
    root = tmp_path / "adapters"
    shutil.copytree(ADAPTERS, root)
    shutil.copytree(DATA / "adapters" / "qwen2_bias" / "a", root / "other")
    return root


@pytest.fixture
def serve(start, folder, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)

    def begin(*arguments, dir=True):
        return start("--served-model-name", "base,alias", "--chat-template", str(template), "--max-model-len", "512",
                     "--kv-cache-memory", "16M", *(["--lora-dir", str(folder)] if dir else []), *arguments, model=MODEL)
    return begin


def load(server, name, path, status=200, **fields):
    reply = server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path), **fields})
    assert reply.status == status, reply.body
    return reply.body.decode() if status == 200 else reply.error


def unload(server, name, status=200):
    reply = server.post("/v1/unload_lora_adapter", {"lora_name": name})
    assert reply.status == status, reply.body
    return reply.body.decode() if status == 200 else reply.error


def names(server):
    return [model["id"] for model in server.get("/v1/models").json["data"]]


def complete(server, model="base", prompt=PROMPT, status=200, **fields):
    body = {"model": model, "prompt": prompt, "max_tokens": 6, "temperature": 0, "logprobs": 3, "ignore_eos": True,
            **fields}
    reply = server.post("/v1/completions", body)
    assert reply.status == status, reply.body
    return reply.json if status == 200 else reply.error


def said(answer):
    return answer["choices"][0]["text"], answer["choices"][0]["logprobs"]


def test_load_list_choose_unload(serve):
    server = serve()
    assert names(server) == ["base", "alias"] and server.get("/lora-adapters").json == []
    assert load(server, "org/a:1", "a") == "Success: LoRA adapter 'org/a:1' added successfully."
    assert names(server) == ["base", "alias", "org/a:1"]
    entry = server.get("/v1/models/org/a:1").json
    assert entry["parent"] == "base" and entry["root"] == "a" and entry["max_model_len"] == 512
    adapted, base = complete(server, "org/a:1"), complete(server, "alias")
    assert adapted["model"] == "org/a:1" and base["model"] == "alias"
    assert said(adapted) != said(base)
    assert server.metric("adapters_loaded") == 1 and server.metric("adapter_bytes") > 10000
    assert unload(server, "org/a:1") == "Success: LoRA adapter 'org/a:1' removed successfully."
    assert names(server) == ["base", "alias"]
    assert server.get("/v1/models/org/a:1").status == 404
    assert complete(server, "org/a:1", status=404)["code"] == "model_not_found"
    assert server.metric("adapters_loaded") == 0 and server.metric("adapter_bytes") == 0
    assert unload(server, "org/a:1", status=404)["type"] == "not_found_error"


def test_every_kind_of_file_is_the_same_adapter(serve, folder):
    server = serve()
    answers = []
    for name, path in [("folder", "a"), ("file", "a/adapter_model.safetensors"), ("gguf", "a.gguf"),
                       ("absolute", folder / "a")]:
        load(server, name, path)
        answers.append(said(complete(server, name)))
    assert all(answer == answers[0] for answer in answers)


WAYS = {
    "base": {"model": "base"},
    "a": {"model": "a"},
    "b": {"model": "b"},
    "a at 0.5": {"model": "base", "lora": [{"id": 0, "scale": 0.5}]},
    "a and b": {"model": "base", "lora": [{"id": 1, "scale": 1}, {"id": 0, "scale": 1}]},
    "a at 0": {"model": "base", "lora": [{"id": 0, "scale": 0}]},
}


def test_a_warm_cache_and_a_mixed_batch_change_nobodys_text(serve):
    """H12: the same prompt of 200 tokens with every choice of adapters, cold, warm, and all at once."""
    cold = {}
    alone = serve("--no-enable-prefix-caching")
    load(alone, "a", "a"), load(alone, "b", "b")
    for way, fields in WAYS.items():
        cold[way] = said(complete(alone, **fields))
    assert len({json.dumps(answer) for answer in cold.values()}) == 5 and cold["base"] == cold["a at 0"]
    server = serve()
    load(server, "a", "a"), load(server, "b", "b")
    for again in (False, True):
        for way, fields in WAYS.items():
            answer = complete(server, **fields)
            assert said(answer) == cold[way], way
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached == (192 if again or way == "a at 0" else 0), way
    wrong = []

    def one(way, prompt):
        if said(complete(server, prompt=prompt, **WAYS[way])) != cold[way]:
            wrong.append(way)
    threads = [threading.Thread(target=one, args=(way, PROMPT)) for way in list(WAYS) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_every_dialect_takes_an_adapter_by_its_name(serve):
    server = serve()
    load(server, "a", "a")
    message = [{"role": "user", "content": "abcdefgh"}]

    def text_of(path, model, **body):
        reply = server.post(path, {"model": model, "temperature": 0, **body})
        assert reply.status == 200, reply.body
        assert reply.json["model"] == model
        return reply.json
    dialects = {
        "/v1/chat/completions": dict(messages=message, max_tokens=8),
        "/v1/completions": dict(prompt="abcdefgh", max_tokens=8),
        "/v1/messages": dict(messages=message, max_tokens=8),
        "/v1/responses": dict(input="abcdefgh", max_output_tokens=16),
        "/v1/embeddings": dict(input="abcdefgh"),
    }
    parts = ("choices", "content", "output", "data")
    for path, body in dialects.items():
        base, adapted = text_of(path, "base", **body), text_of(path, "a", **body)
        by_scale = text_of(path, "base", lora=[{"id": 0, "scale": 1}], **body)

        def content(answer):
            value = next(answer[part] for part in parts if part in answer)
            return json.dumps([{k: v for k, v in item.items() if k != "id"} for item in value])
        assert content(base) != content(adapted), path
        assert content(by_scale) == content(adapted), path
        reply = server.post(path, {"model": "nobody", **body})
        assert reply.status == 404, (path, reply.body)
    assert server.post("/v1/messages/count_tokens", {"model": "a", "messages": message}).status == 200
    assert server.post("/tokenize", {"model": "a", "prompt": "abc"}).status == 200


def test_a_stream_keeps_the_adapter_that_it_began_with(serve, folder):
    server = serve()
    load(server, "a", "a")
    body = {"model": "a", "prompt": PROMPT, "max_tokens": 300, "temperature": 0, "ignore_eos": True}
    whole = server.post("/v1/completions", body).json["choices"][0]["text"]
    texts = []

    def run():
        events = server.stream("/v1/completions", body)
        texts.append("".join(event["choices"][0]["text"] for event in events[:-1] if event["choices"]))
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 60
    while server.metric("requests_running") < len(threads):
        assert time.monotonic() < end
    unload(server, "a")
    load(server, "a", "b")
    for thread in threads:
        thread.join()
    other = server.post("/v1/completions", body).json["choices"][0]["text"]
    assert other != whole
    assert texts == [whole] * 4


def test_reload_in_place_is_a_new_adapter_under_the_old_name(serve, folder):
    server = serve()
    load(server, "x", "a")
    first = said(complete(server, "x"))
    assert "already been loaded" in load(server, "x", "b", status=400)["message"]
    assert said(complete(server, "x")) == first
    load(server, "x", "b", load_inplace=True)
    second = complete(server, "x")
    assert said(second) != first and second["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    load(server, "y", "b")
    same = complete(server, "y")
    assert said(same) == said(second)
    assert [(e["id"], e["name"]) for e in server.get("/lora-adapters").json] == [(0, "x"), (1, "y")]
    load(server, "x", "a", load_inplace=True)
    back = complete(server, "x")  # the same content as at first: what it cached is still right
    assert said(back) == first and back["usage"]["prompt_tokens_details"]["cached_tokens"] == 192


def test_adapters_given_at_start(serve, folder):
    plain = serve("--no-any-model", dir=False)
    base = said(complete(plain))
    server = serve("--lora", f"{folder}/a=0.5,{folder}/b", "--lora-modules", f"named={folder}/a.gguf", dir=False)
    listed = server.get("/lora-adapters").json
    assert [(e["id"], e["name"], e["scale"]) for e in listed] == [(0, "named", 0), (1, "a", 0.5), (2, "b", 1)]
    assert [e["rank"] for e in listed] == [2, 2, 3]
    everyone = said(complete(server))
    assert everyone == said(complete(server, lora=[{"id": 1, "scale": 0.5}, {"id": 2, "scale": 1}]))
    assert said(complete(server, lora=[])) == base
    assert said(complete(server, "named")) == said(complete(server, lora=[{"id": 1, "scale": 1}]))
    assert server.post("/lora-adapters", [{"id": 0, "scale": 2}]).json == {"success": True}
    assert [e["scale"] for e in server.get("/lora-adapters").json] == [2, 0, 0]
    assert said(complete(server)) == said(complete(server, lora=[{"id": 1, "scale": 2}])) != everyone
    assert load(server, "c", "a", status=403)["code"] == "adapters_fixed"
    assert unload(server, "named", status=403)["code"] == "adapters_fixed"
    scaled = serve("--lora-scaled", f"{folder}/a:0.5", dir=False)
    assert said(complete(scaled)) == said(complete(server, lora=[{"id": 1, "scale": 0.5}]))


def test_requests_that_choose_wrongly(serve):
    server = serve()
    load(server, "a", "a")
    for lora, where in [(3, "lora"), ({"id": 0}, "lora"), ([3], "lora[0]"), ([{"id": 0}], "lora[0].scale"),
                        ([{"scale": 1}], "lora[0].id"), ([{"id": -1, "scale": 1}], "lora[0].id"),
                        ([{"id": 2**31, "scale": 1}], "lora"), ([{"id": 2**63, "scale": 1}], "lora[0].id"),
                        ([{"id": 0.5, "scale": 1}], "lora[0].id"), ([{"id": "0", "scale": 1}], "lora[0].id"),
                        ([{"id": 0, "scale": "1"}], "lora[0].scale"), ([{"id": 0, "scale": 1e9}], "lora[0].scale"),
                        ([{"id": 0, "scale": 1}, {"id": 0, "scale": 1}], "lora[1].id"),
                        ([{"id": 1, "scale": 1}], "lora"),
                        ([{"id": 0, "scale": 1}] * 65, "lora")]:
        error = complete(server, lora=lora, status=400)
        assert error["param"] == where, (lora, error)
    assert "together with a model that is an adapter" in complete(server, "a", lora=[], status=400)["message"]
    for scales, status in [({}, 400), ([{"id": 9, "scale": 1}], 400), ([{"id": 0, "scale": 1}], 200), ([], 200)]:
        assert server.post("/lora-adapters", scales).status == status, scales
    reply = server.request("PUT", "/lora-adapters", "[]")
    assert reply.status == 405 and reply.headers["Allow"] == "GET, HEAD, POST, OPTIONS"
    assert said(complete(server, lora=None)) == said(complete(server))


def test_names_and_paths_that_are_refused(serve, folder, tmp_path):
    (tmp_path / "outside").mkdir()
    shutil.copytree(ADAPTERS / "a", tmp_path / "outside" / "a")
    os.symlink(tmp_path / "outside" / "a", folder / "link")
    os.symlink(folder / "a", folder / "inner")
    half = folder / "half"
    half.mkdir()
    shutil.copy(ADAPTERS / "a" / "adapter_config.json", half)
    os.symlink(tmp_path / "outside" / "a" / "adapter_model.safetensors", half / "adapter_model.safetensors")
    server = serve()
    for name in ["", "a b", "a\n", "../a?", "ä", "x" * 129, "base", "alias"]:
        assert load(server, name, "a", status=400)["param"] == "lora_name", name
    outside = ["", "..", "../adapters/a", "a/../../outside/a", "/etc/passwd", str(tmp_path / "outside" / "a"), "link",
               "half", str(folder) + "/../outside/a", str(folder) + "x", "/"]
    for path in outside:
        error = load(server, "x", path, status=400)
        assert error["param"] == "lora_path" and str(tmp_path) not in error["message"], (path, error)
    for path in ["nothing", "a/nothing", "a.gguf/x", str(folder / "nothing")]:
        assert load(server, "x", path, status=404)["type"] == "not_found_error", path
    for body in [{}, {"lora_name": "x"}, {"lora_path": "a"}, {"lora_name": 1, "lora_path": "a"},
                 {"lora_name": "x", "lora_path": ["a"]}, {"lora_name": "x", "lora_path": "a", "load_inplace": "yes"}]:
        assert server.post("/v1/load_lora_adapter", body).status == 400, body
    assert server.post("/v1/unload_lora_adapter", {}).status == 400
    load(server, "inner", "inner")
    assert names(server) == ["base", "alias", "inner"]


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + n]), data[8 + n:]


def write_safetensors(path, header, data):
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_bad_adapters_are_told_apart_and_change_nothing(serve, folder):
    server = serve()
    load(server, "good", "a")
    before, listed = said(complete(server, "good")), server.get("/lora-adapters").json
    header, data = read_safetensors(folder / "b" / "adapter_model.safetensors")
    config = json.loads((folder / "b" / "adapter_config.json").read_text())
    first = "base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight"
    partner = first.replace("lora_A", "lora_B")
    count = 0

    def attempt(fragment, new_header=None, new_data=None, **changes):
        nonlocal count
        count += 1
        path = folder / f"bad{count}"
        path.mkdir()
        (path / "adapter_config.json").write_text(json.dumps({**config, **changes}))
        write_safetensors(path / "adapter_model.safetensors", header if new_header is None else new_header,
                          data if new_data is None else new_data)
        error = load(server, "bad", path.name, status=400)
        assert fragment in error["message"] and error["param"] == "lora_path", (fragment, error)

    def renamed(old, new):
        return {new if name == old else name: entry for name, entry in header.items()}

    def changed(name, **fields):
        return {key: {**entry, **fields} if key == name else entry for key, entry in header.items()}
    attempt("is for layer 3, the model has layers 0 to 2", renamed(first, first.replace("layers.0", "layers.3")))
    attempt("536870912", renamed(first, first.replace("layers.0", "layers.536870912")))
    attempt("no partner", renamed(partner, partner.replace("k_proj", "o_proj")))
    attempt("lm_head", renamed(first, "base_model.model.lm_head.lora_A.weight"))
    attempt("kv_b_proj", renamed(first, first.replace("k_proj", "kv_b_proj")))
    attempt("does not have", renamed(first, first.replace("k_proj", "q_a_proj")))
    attempt("mlp.experts.0.up_proj", renamed(first, first.replace("self_attn.k_proj", "mlp.experts.0.up_proj")))
    attempt("lora_magnitude_vector", renamed(first, first.replace("lora_A.weight", "lora_magnitude_vector")))
    attempt("q_norm", renamed(first, first.replace("k_proj", "q_norm")))
    shape = header[first]["shape"]
    attempt("this model asks for", changed(first, shape=[shape[1], shape[0]]))
    attempt("has 1 dimensions", changed(first, shape=[shape[0] * shape[1]]))
    attempt("rank", changed(first, shape=[1, shape[0] * shape[1]]))
    begin = header[first]["data_offsets"][0]
    attempt("has the rank 0", {**changed(first, shape=[0, shape[1]], data_offsets=[begin, begin]),
                               "base_model.model.filler": header[first]})
    attempt("the rank 3", r=4)
    attempt("the rank 3", rank_pattern={"k_proj": 2})
    for bits in (b"\x80\x7f", b"\xc0\x7f", b"\x80\xff"):  # infinity, NaN, -infinity in bf16
        at = header[first]["data_offsets"][0]
        attempt(first, new_data=data[:at] + bits + data[at + 2:])
    attempt("truncated", new_data=data[:-2])
    attempt("follow the last tensor", new_data=data + b"..")
    for key, value in [("use_dora", True), ("bias", "all"), ("modules_to_save", ["lm_head"]), ("fan_in_fan_out", True),
                       ("lora_bias", True), ("peft_type", "IA3"), ("r", "3"), ("lora_alpha", None), ("r", 0),
                       ("layer_replication", [[0, 2]]), ("target_parameters", ["x"]), ("init_lora_weights", "pissa"),
                       ("alora_invocation_tokens", [1]), ("alpha_pattern", {"(": 1}),
                       ("alpha_pattern", {"k_proj": "1"}),
                       ("rank_pattern", [1]), ("lora_alpha", 1e300), ("use_rslora", 1),
                       ("alpha_pattern", {"(([a-z_.0-9]+)+)+[QZ]": 1})]:
        attempt(key if key not in ("r", "lora_alpha") else "", **{key: value})
    (folder / "page.gguf").write_text("<html>not found</html>")
    (folder / "empty").mkdir()
    (folder / "pickle").mkdir()
    (folder / "pickle" / "adapter_model.bin").write_bytes(b"\x80\x02.")
    for path, status, fragment in [("other", 400, "another model"), ("page.gguf", 400, "GGUF"),
                                   ("pickle", 400, "pickle"),
                                   ("empty", 404, "adapter_model.safetensors")]:
        assert fragment in load(server, "bad", path, status=status)["message"]
    shutil.copy(MODEL, folder / "model.gguf")
    assert "general.type" in load(server, "bad", "model.gguf", status=400)["message"]
    gguf = (folder / "a.gguf").read_bytes()
    for old, new in [(b"adapter.type", b"adapter.tipe"), (b"lora_a", b"lora_c"), (b"blk.2.", b"blk.7."),
                     (b"attn_q.w", b"attn_x.w"), (b"adapter.lora.alpha", b"adapter.lora.alpho"),
                     (b"\x05\x00\x00\x00\x00\x00\x00\x00llama", b"\x05\x00\x00\x00\x00\x00\x00\x00qwen2")]:
        assert old in gguf
        (folder / "bad.gguf").write_bytes(gguf.replace(old, new))
        load(server, "bad", "bad.gguf", status=400)
    for cut in (0, 3, 24, 400, len(gguf) // 2, len(gguf) - 1):
        (folder / "bad.gguf").write_bytes(gguf[:cut])
        load(server, "bad", "bad.gguf", status=400)
    assert server.get("/lora-adapters").json == listed and names(server) == ["base", "alias", "good"]
    assert said(complete(server, "good")) == before


def test_memory_and_ranks_are_bounded(serve):
    server = serve("--lora-memory", "64k", "--max-lora-rank", "3")
    load(server, "b", "b")
    reply = server.post("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "a"})
    assert reply.status == 503 and "left for adapters" in reply.error["message"], reply.body
    assert names(server) == ["base", "alias", "b"]
    small = serve("--max-lora-rank", "2")
    assert "has the rank 3" in load(small, "b", "b", status=400)["message"]
    load(small, "a", "a"), load(small, "a2", "a.gguf")
    error = complete(small, lora=[{"id": 0, "scale": 1}, {"id": 1, "scale": 1}])
    assert error["choices"]  # the same content twice: one adapter
    assert small.metric("adapters_loaded") == 2


def test_what_no_request_could_use_never_becomes_the_default(serve, folder):
    """Else every request that names no adapter would be refused."""
    server = serve("--max-lora-rank", "4")
    for i in range(9):
        load(server, f"a{i}", "a.gguf" if i % 2 else "a")
    load(server, "b", "b")  # the ranks are 2 and 3

    def scales(*ids, status=200):
        reply = server.post("/lora-adapters", [{"id": i, "scale": 0.5} for i in ids])
        assert reply.status == status, reply.body
        return reply.json if status == 200 else reply.error
    scales(9)
    listed, before = server.get("/lora-adapters").json, said(complete(server))
    for ids, fragment in [(range(9), "more than 8"), ((0, 9), "--max-lora-rank")]:
        error = scales(*ids, status=400)
        assert error["param"] == "scales" and fragment in error["message"], error
        assert server.get("/lora-adapters").json == listed and said(complete(server)) == before
    scales(*range(8))  # one content
    error = load(server, "a0", "b", status=400, load_inplace=True)
    assert error["param"] == "lora_path" and "--max-lora-rank" in error["message"]
    assert server.get("/lora-adapters").json[0]["path"] == "a"
    complete(server)
    error = complete(server, lora=[{"id": 0, "scale": 1}, {"id": 9, "scale": 1}], status=400)
    assert error["param"] == "lora" and "--max-lora-rank" in error["message"]
    for flags in (["--lora", ",".join([f"{folder}/a"] * 9)], ["--lora", f"{folder}/a,{folder}/b", "--max-lora-rank", "4"]):
        failed = program("serve", MODEL, "--port", "0", *flags)
        assert failed.returncode == 2 and "adapters" in failed.stderr, failed


def program(*arguments):
    return subprocess.run([os.environ["DSE_BINARY"], *arguments], capture_output=True, text=True, timeout=60)


def test_the_verb(serve):
    server = serve()
    url = f"http://127.0.0.1:{server.port}"
    done = program("adapters", "load", "a", "a", "--url", url)
    assert done.returncode == 0 and "added successfully" in done.stderr and done.stdout == "", done
    assert program("adapters", "load", "a", "b", "--url", url).returncode == 2
    assert program("adapters", "load", "a", "b", "--inplace", "--url", url).returncode == 0
    listed = json.loads(program("adapters", "list", "--json", "--url", url).stdout)
    assert [(entry["name"], entry["path"], entry["rank"]) for entry in listed] == [("a", "b", 3)]
    table = program("adapters", "--url", url).stdout.splitlines()
    assert table[0].split() == ["id", "name", "scale", "rank", "bytes", "path"] and table[1].split()[1] == "a"
    missing = program("adapters", "unload", "zzz", "--url", url)
    assert missing.returncode == 3 and "no adapter 'zzz'" in missing.stderr
    assert program("adapters", "unload", "a", "--url", url).returncode == 0
    assert program("adapters", "load", "a", "--url", url).returncode == 2
    assert program("adapters", "list", "--inplace", "--url", url).returncode == 2
    assert program("adapters", "--url", "http://127.0.0.1:1").returncode == 7


def test_run_takes_adapters(folder):
    arguments = ["run", MODEL, "--raw", "-p", "abcdefgh", "-n", "12", "--temp", "0", "--max-model-len", "128"]
    base = program(*arguments)
    adapted = program(*arguments, "--lora", str(folder / "a"))
    assert base.returncode == 0 and adapted.returncode == 0 and base.stdout != adapted.stdout, (base, adapted)
    scaled = program(*arguments, "--lora", f"{folder}/a=0.25", "--lora-scaled", f"{folder}/a.gguf:0.75")
    assert scaled.stdout == adapted.stdout
    none = program(*arguments, "--lora", f"{folder}/a=0")
    assert none.stdout == base.stdout
    for flags, code in [(["--lora", str(folder / "nothing.gguf")], 3), (["--lora", str(folder / "other")], 4),
                        (["--lora-scaled", str(folder / "a")], 2), (["--lora", ""], 2)]:
        failed = program(*arguments, *flags)
        assert failed.returncode == code and failed.stderr.startswith("deepseek-edge: "), (flags, failed)


def test_flags_that_would_do_nothing_are_refused(tmp_path):
    for flags in (["--lora-memory", "1G"], ["--max-lora-rank", "8"], ["--lora-modules", "name"], ["--lora-modules", "=x"],
                  ["--lora-modules", "a=x", "--lora-modules", "a=y"], ["--lora", "a,,b"]):
        failed = program("serve", MODEL, "--port", "0", *flags)
        assert failed.returncode == 2 and flags[0] in failed.stderr, (flags, failed)
    own = program("serve", MODEL, "--port", "0", "--lora-modules", f"llama_linear={ADAPTERS / 'a'}")
    assert own.returncode == 2 and "'llama_linear', which is the name of the model itself" in own.stderr, own
    assert program("serve", MODEL, "--port", "0", "--lora-dir", str(tmp_path / "nothing")).returncode == 3
    assert program("serve", MODEL, "--port", "0", "--lora-dir", MODEL).returncode == 2
