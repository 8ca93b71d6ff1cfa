"""Verbs on real and reference models: run, show, bench, eval."""
import array
import csv
import json
import os
import shutil
import struct

import pytest

QUESTION = "What is the capital of France? Answer in one sentence."
FOLDERS = ["llama_linear", "llama_llama3", "qwen2_bias", "qwen3_yarn"]


def read_safetensors(path):
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + length])
    codes = {"F32": "f", "I32": "i", "I64": "q"}
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in codes:
            continue
        begin, end = entry["data_offsets"]
        values = array.array(codes[entry["dtype"]])
        values.frombytes(raw[8 + length + begin:8 + length + end])
        tensors[name] = (entry["shape"], values)
    return tensors


def eval_logits(program, tmp_path, model, ids, *flags):
    out = tmp_path / "out.safetensors"
    result = program("eval", "--logits", "--ids", "-", "--output", out, *flags, model, stdin=json.dumps(list(ids)))
    assert result.returncode == 0, result.stderr
    return read_safetensors(out)["logits"]


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("prompt", [0, 1, 2])
def test_eval_gives_the_reference_logits(program, data, tmp_path, folder, prompt):
    reference = read_safetensors(data / "reference" / folder / "reference.safetensors")
    shape, ours = eval_logits(program, tmp_path, data / "reference" / folder, reference[f"prompt{prompt}.ids"][1],
                              "--compute", "f32")
    expected_shape, expected = reference[f"prompt{prompt}.logits"]
    positions = reference[f"prompt{prompt}.logit_positions"][1]
    vocabulary = expected_shape[1]
    assert shape[1] == vocabulary
    worst = max(abs(ours[p * vocabulary + v] - expected[i * vocabulary + v])
                for i, p in enumerate(positions) for v in range(vocabulary))
    assert worst < 1e-3, worst


def test_eval_refuses_bad_ids_by_element(program, data, tmp_path):
    model = data / "reference" / "llama_linear"
    for ids, word in [("[]", "not empty"), ("[1,-1]", "element 1"), ("[1.5]", "element 0"), ("[99999999]", "element 0"),
                      ("{}", "JSON list"), ("[", "JSON")]:
        program.fails(2, "eval", "--logits", "--ids", "-", "--output", tmp_path / "o", model, stdin=ids, says=[word])


def test_eval_writes_over_nothing_but_a_regular_file(program, data, tmp_path):
    folder, single = tmp_path / "folder", tmp_path / "model.gguf"
    shutil.copytree(data / "reference" / "llama_linear", folder)
    shutil.copyfile(data / "reference" / "gguf" / "llama_linear.gguf", single)
    ids, fifo, link, hard = (tmp_path / name for name in ("ids.json", "fifo", "link", "hard"))
    ids.write_text("[1, 2]")
    os.mkfifo(fifo)
    link.symlink_to(single)
    os.link(single, hard)

    def state():
        return {path: (path.lstat().st_mode, path.lstat().st_ino, path.lstat().st_size)
                for path in tmp_path.rglob("*")}

    before = state()
    for model, output, code in [(single, fifo, 2), (single, folder, 2), (single, tmp_path / "none" / "o", 1),
                                (single, ids, 2), (single, single, 2), (single, link, 2), (single, hard, 2),
                                (folder, folder / "model.safetensors", 2), (folder, folder / "config.json", 2)]:
        program.fails(code, "eval", "--logits", "--ids", ids, "--output", output, model, says=[str(output)])
        assert state() == before, output
    assert program("eval", "--logits", "--ids", ids, "--output", tmp_path / "o", single).returncode == 0


def test_eval_tells_of_logits_that_are_not_finite(program, data, tmp_path):
    folder, out = tmp_path / "folder", tmp_path / "o"
    shutil.copytree(data / "reference" / "llama_linear", folder)
    weights = folder / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    (length,) = struct.unpack("<Q", raw[:8])
    entry = json.loads(raw[8:8 + length])["model.norm.weight"]
    at = 8 + length + entry["data_offsets"][0]
    size = (entry["data_offsets"][1] - entry["data_offsets"][0]) // entry["shape"][0]
    raw[at:at + size] = b"\xff" * size
    weights.write_bytes(raw)
    program.fails(1, "eval", "--logits", "--ids", "-", "--output", out, folder, stdin="[1, 2]",
                  says=["position 0", "not finite"])
    assert "logits" in read_safetensors(out)


def test_eval_writes_the_logits_of_the_prediction_layer_too(program, data, tmp_path):
    model, out = data / "reference" / "deepseek_v3", tmp_path / "out.safetensors"
    reference = read_safetensors(model / "reference.safetensors")
    ids = list(reference["prompt1.ids"][1])
    logits = eval_logits(program, tmp_path, model, ids, "--compute", "f32")
    assert list(read_safetensors(out)) == ["logits"]
    assert eval_logits(program, tmp_path, model, ids, "--compute", "f32", "--mtp") == logits
    tensors = read_safetensors(out)
    assert sorted(tensors) == ["logits", "mtp_logits"]
    shape, ours = tensors["mtp_logits"]
    expected_shape, expected = reference["prompt1.mtp_logits"]
    assert shape == expected_shape == [len(ids) - 1, logits[0][1]]
    assert max(abs(a - b) for a, b in zip(ours, expected, strict=True)) < 1e-3


def test_eval_refuses_mtp_where_there_is_none(program, data, tmp_path):
    out = tmp_path / "o"
    for model in ("deepseek_v2", "llama_linear", "gguf/deepseek_v3.gguf"):
        program.fails(4, "eval", "--logits", "--mtp", "--ids", "-", "--output", out, data / "reference" / model,
                      stdin="[1, 2]", says=["no prediction layer", model])
    model = data / "reference" / "deepseek_v3"
    program.fails(2, "eval", "--logits", "--mtp", "--ids", "-", "--output", out, model, stdin="[1]",
                  says=["--mtp", "at least 2 ids"])
    program.fails(2, "eval", "--mtp", "--ids", "-", "--output", out, model, stdin="[1, 2]", says=["--logits"])
    program.fails(2, "run", "--mtp", model, says=["--mtp"])
    assert not out.exists()


def test_run_answers_and_keeps_standard_output_clean(program, model):
    result = program("run", model, "--temp", "0", "-n", "24", "-p", QUESTION)
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout
    again = program("run", model, "--temp", "0", "-n", "24", stdin=QUESTION, env={})
    assert again.stdout == result.stdout
    for flags in (["--threads", "1"], ["--chunk-tokens", "3"], ["--pack-cache", "off"]):
        assert program("run", model, "--temp", "0", "-n", "24", "-p", QUESTION,
                       *flags).stdout == result.stdout, flags


def test_seed_repeats_and_differs(program, model):
    def answer(seed):
        return program("run", model, "--seed", seed, "-n", "20", "--temp", "1.2", "-p", "Tell me a story.").stdout
    assert answer(1) == answer(1) != answer(2)


def test_json_schema_holds_the_answer(program, model, tmp_path):
    schema = tmp_path / "s.json"
    schema.write_text('{"type":"object","properties":{"a":{"enum":["x y"]},"n":{"type":"integer","minimum":7,"maximum":7}},'
                      '"required":["a","n"]}')
    result = program("run", model, "--json-schema", schema, "-p", "hi", "--temp", "1.5", "-n", "200")
    assert json.loads(result.stdout) == {"a": "x y", "n": 7}
    grammar = tmp_path / "g.gbnf"
    grammar.write_text('root ::= "x"')
    program.fails(2, "run", model, "--json-schema", schema, "--grammar-file", grammar, "-p", "hi", says=["--json-schema"])
    schema.write_text('{"type":"object","properties":{"a":{"not":{}}}}')
    program.fails(2, "run", model, "--json-schema", schema, "-p", "hi", says=["properties.a.not", "not supported"])
    schema.write_text('{"type":')
    program.fails(2, "run", model, "--json-schema", schema, "-p", "hi", says=[str(schema)])
    program.fails(3, "run", model, "--json-schema", tmp_path / "none.json", "-p", "hi", says=["none.json"])


def test_grammar_forces_the_answer(program, model, tmp_path):
    grammar = tmp_path / "g.gbnf"
    grammar.write_text('root ::= "🧪 naïve 温度 👩‍🚀 ok"')
    result = program("run", model, "--grammar-file", grammar, "-p", "hi")
    assert result.stdout == "🧪 naïve 温度 👩‍🚀 ok", result.stderr
    grammar.write_text('root ::= missing')
    program.fails(2, "run", model, "--grammar-file", grammar, "-p", "hi", says=["missing"])


def test_stop_text_is_not_printed(program, model, tmp_path):
    grammar = tmp_path / "g.gbnf"
    grammar.write_text('root ::= "one two three four"')
    assert program("run", model, "--grammar-file", grammar, "--stop", " three", "-p", "hi").stdout == "one two"


def test_show_tells_shape_and_memory(program, model):
    shown = json.loads(program("show", model, "--json").stdout)
    assert shown["architecture"] == "llama" and shown["quantization"] == "q4_1" and shown["layers"] == 30
    assert shown["parameters"] == 134515008 and shown["tied_embeddings"] is True
    assert shown["kv_bytes_per_token"] == 30 * 3 * 64 * 2 * 2
    assert "q4_1" in program("show", model).stdout


@pytest.mark.parametrize("context,rows", [
    (1, [1]), (1024, [1024]), (2048, [2048]), (2049, [2048, 2049]), (10000, [2048, 4096, 8192, 10000]),
    (131072, [2048 << i for i in range(7)]), (163840, [2048 << i for i in range(7)] + [163840]),
])
def test_memory_table_ends_with_the_context_of_the_model(program, data, tmp_path, context, rows):
    folder = tmp_path / "folder"
    shutil.copytree(data / "reference" / "llama_linear", folder)
    config = json.loads((folder / "config.json").read_text())
    config.pop("rope_scaling", None)
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": context}))
    shown = json.loads(program("show", folder, "--json").stdout)
    assert shown["context_length"] == context
    assert [row["context"] for row in shown["memory"]] == rows
    assert all(row["kv_bytes"] == shown["kv_bytes_per_token"] * row["context"] for row in shown["memory"])
    table = program("show", folder).stdout.split("weights + KV\n")[1].splitlines()
    assert [int(line.split()[0]) for line in table] == rows


def test_show_tells_experts_and_latents(program, data):
    shown = json.loads(program("show", data / "reference" / "deepseek_v2", "--json").stdout)
    assert shown["architecture"] == "deepseek_v2"
    assert shown["experts"] == {"count": 16, "used": 4, "shared": 2, "ffn": 48, "dense_layers": 1}
    assert shown["latent_attention"]["kv_rank"] == 64 and shown["latent_attention"]["rope"] == 16
    # 12 of 16 experts rest in each of three layers, and all rows but one of the embeddings
    assert shown["parameters"] - shown["active_parameters"] == 3 * 12 * 3 * 48 * 128 + 511 * 128
    assert shown["kv_bytes_per_token"] == 4 * (64 + 16) * 2
    text = program("show", data / "reference" / "deepseek_v32").stdout
    assert "4 of 16 used" in text and "at most 24 keys" in text


@pytest.mark.parametrize("folder, contexts", [("deepseek_v2", [512]), ("deepseek_v3", [2048, 2560]),
                                              ("qwen2_bias", None)])
def test_show_lists_the_memory_up_to_the_whole_context(program, data, folder, contexts):
    shown = json.loads(program("show", data / "reference" / folder, "--json").stdout)
    listed = [row["context"] for row in shown["memory"]]
    assert listed == (contexts or listed) and listed == sorted(set(listed)) and listed[-1] == shown["context_length"]
    assert all(row["kv_bytes"] == row["context"] * shown["kv_bytes_per_token"] for row in shown["memory"])
    text = program("show", data / "reference" / folder).stdout.splitlines()
    assert [int(line.split()[0]) for line in text[-len(listed):]] == listed


@pytest.mark.parametrize("name, teacher", [
    ("DeepSeek-R1-Distill-Qwen-1.5B", "DeepSeek-R1"), ("DeepSeek-R1-0528-Qwen3-8B", "DeepSeek-R1-0528"),
    ("DeepSeek-R1-Distill-Llama-8B", "DeepSeek-R1"), ("DeepSeek-R1-0528-Qwen3-8B-Distill", "DeepSeek-R1-0528"),
    ("deepseek-coder-1.3b-instruct", None), ("Qwen2.5-7B", None)])
def test_show_names_the_teacher_of_distilled_models(program, data, tmp_path, name, teacher):
    folder = tmp_path / name
    shutil.copytree(data / "reference" / "qwen2_bias", folder)
    shown = json.loads(program("show", folder, "--json").stdout)
    text = program("show", folder).stdout
    assert shown["architecture"] == "qwen2" and shown["name"] == name
    assert shown.get("distilled_from") == teacher and ("distilled" in text) == (teacher is not None)
    assert f"qwen2, not that of {teacher}, from which it was distilled\n" in text or teacher is None


def test_bench_writes_the_promised_rows(program, model):
    result = program("bench", model, "-p", "32", "-n", "4", "-d", "16", "-b", "1,2", "-r", "1", "-o", "json")
    rows = json.loads(result.stdout)
    assert [(r["n_prompt"], r["n_gen"], r["n_depth"], r["n_seqs"]) for r in rows] == \
        [(32, 0, 16, 1), (32, 0, 16, 2), (0, 4, 16, 1), (0, 4, 16, 2)]
    assert all(r["tokens_per_second"] > 0 and r["bandwidth_bytes_per_second"] > 1e8 and r["macs_per_second"] > 1e8
               and 0 < r["of_limit"] and r["cpu"] for r in rows)
    head, *lines = program("bench", model, "-p", "0", "-n", "4", "-r", "1", "-o", "csv").stdout.splitlines()
    assert len(lines) == 1 and len(next(csv.reader(lines))) == len(head.split(","))


def test_bench_kernel_compares_each_kernel_with_its_roof(program):
    result = program("bench", "kernel", "-r", "1", "-o", "json")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)
    if not rows:  # a CPU for which there is only portable code
        return
    assert {r["layout"] for r in rows} >= {"f32", "f16", "bf16", "u4", "u4s", "u4k", "q8", "q6k", "a8", "fp8"}
    for r in rows:
        assert r["macs_per_cycle"] > 0 and r["roof_macs_per_cycle"] > 0 and 0 < r["share_of_bandwidth"], r
    head, *lines = program("bench", "kernel", "-r", "1", "-o", "csv").stdout.splitlines()
    assert len(lines) == len(rows) and head.startswith("layout,isa,")
    program.fails(2, "bench", "kernel", "junk", says="junk")


def test_bench_shows_exact_and_fast_numerics_in_one_table(program, data):
    flags = ["-p", "64", "-n", "2", "-r", "1", "--pack-cache", "off"]
    latent, plain = data / "reference" / "deepseek_v2", data / "reference" / "llama_linear"

    def rows(*more, model=latent):
        result = program("bench", model, *flags, *more)
        assert result.returncode == 0, result.stderr
        return result

    found = json.loads(rows("--numerics", "both", "-o", "json").stdout)
    assert [(r["n_prompt"], r["numerics"]) for r in found] == [(64, "exact"), (64, "fast"), (0, "exact"), (0, "fast")]
    for numerics in ("exact", "fast"):
        found = json.loads(rows("--numerics", numerics, "-o", "json").stdout)
        assert [r["numerics"] for r in found] == [numerics] * 2
    assert [r["numerics"] for r in json.loads(rows("-o", "json").stdout)] == ["exact"] * 2
    head, *lines = rows("--numerics", "both", "-o", "csv").stdout.splitlines()
    column = head.split(",").index("numerics")
    assert [line.split(",")[column] for line in lines] == ["exact", "fast"] * 2
    table = [line.split("|") for line in rows("--numerics", "both").stdout.splitlines() if line.startswith("| ")]
    column = [cell.strip() for cell in table[0]].index("numerics")
    assert [row[column].strip() for row in table[1:]] == ["exact", "fast"] * 2
    result = rows("--numerics", "both", "-o", "json", model=plain)
    assert [r["numerics"] for r in json.loads(result.stdout)] == ["exact"] * 2
    assert result.stderr.count("--numerics") == 1 and "latent attention" in result.stderr


def test_fast_numerics_are_close_and_never_silently_nothing(program, data, tmp_path):
    """A model with latent attention computes otherwise, one without says so, and nobody is told who did not ask."""
    ids = [2 + i for i in range(200)]
    for folder, differs in [("deepseek_v2", True), ("llama_linear", False)]:
        model, out = data / "reference" / folder, tmp_path / "out.safetensors"
        logits = {}
        for numerics in ("exact", "fast"):
            result = program("eval", "--logits", "--ids", "-", "--output", out, "--pack-cache", "off", "--numerics",
                             numerics, model, stdin=json.dumps(ids))
            assert result.returncode == 0, result.stderr
            assert ("changes nothing" in result.stderr) == (numerics == "fast" and not differs), result.stderr
            logits[numerics] = read_safetensors(out)["logits"][1]
        worst = max(abs(a - b) for a, b in zip(logits["exact"], logits["fast"], strict=True))
        assert (0 < worst < 0.02) if differs else worst == 0, (folder, worst)
    program.fails(2, "eval", "--logits", "--numerics", "both", "--ids", "-", "--output", out, model, stdin="[1]",
                  says=["--numerics", "exact fast"])
    program.fails(2, "bench", "--numerics", "quick", model, says=["--numerics", "both"])


def test_show_tells_what_fast_numerics_take(program, data):
    # of each of 4 layers and 4 heads 32 rows of 64 columns in bf16
    shown = json.loads(program("show", data / "reference" / "deepseek_v2", "--json").stdout)
    assert shown["latent_attention"]["fast_numerics_bytes"] == 4 * 4 * 32 * 64 * 2
    assert "64.0 KiB of weights more" in program("show", data / "reference" / "deepseek_v2").stdout
    assert "numerics" not in program("show", data / "reference" / "llama_linear").stdout


def test_bench_refuses_before_it_prints(program, model):
    """Whichever of the rows it is that cannot be had: no table is begun."""
    for form in ("md", "csv", "json", "jsonl"):
        small = ["bench", model, "-p", "8", "-n", "0", "-r", "1", "-o", form]
        program.fails(1, *small, "-d", "0,999999", says=["1000007"])
        result = program.fails(5, *small, "-d", "0,8100", "-b", "1,1024", "--compute", "f32", says=["MiB"])
        use = result.stderr.split(": use ")[1].split()
        assert use[0] == "--n-seqs" and 1 <= int(use[1]) < 1024, result.stderr


def test_hugging_face_cache_names_work_in_any_case(program, data, tmp_path):
    snapshot = tmp_path / "models--Org--Tiny-Model" / "snapshots" / "abc123"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(data / "reference" / "llama_linear")
    (tmp_path / "models--Org--Tiny-Model" / "refs").mkdir()
    (tmp_path / "models--Org--Tiny-Model" / "refs" / "main").write_text("abc123")
    shown = program("show", "org/tiny-model", "--json", env={"HF_HUB_CACHE": str(tmp_path)})
    assert json.loads(shown.stdout)["architecture"] == "llama", shown.stderr
    program.fails(3, "show", "org/other", env={"HF_HUB_CACHE": str(tmp_path)}, says=["org/other"])


@pytest.mark.parametrize("folder,name", [
    ("models--Org--Tiny-Model/snapshots/0123abc", "Org/Tiny-Model"), ("models--tiny/snapshots/0123abc", "tiny"),
    ("models--a-b--c.d/snapshots/main", "a-b/c.d"), ("other/snapshots/0123abc", "0123abc"),
    ("models--Org--Tiny/0123abc", "0123abc"), ("snapshots/mine", "mine"),
])
def test_a_cached_model_is_called_by_its_repository(program, data, tmp_path, folder, name):
    shutil.copytree(data / "reference" / "llama_linear", tmp_path / folder)
    assert json.loads(program("show", tmp_path / folder, "--json").stdout)["name"] == name
    lines = program("show", tmp_path / folder).stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("name ")] == [name]
    if folder.startswith("models--") and "/" in name:
        env = {"HF_HUB_CACHE": str(tmp_path)}
        assert json.loads(program("show", name.lower(), "--json", env=env).stdout)["name"] == name
        rows = program("bench", name, "-p", "1", "-n", "0", "-r", "1", "-o", "jsonl", env=env).stdout
        assert json.loads(rows)["model"] == name
