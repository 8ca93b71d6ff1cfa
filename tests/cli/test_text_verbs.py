"""`tokenize` and `template` against Hugging Face's numbers, one JSON object a line."""
import json

import pytest

TOKENIZERS = {"deepseek_v3": "deepseek_v3", "qwen3": "qwen3"}


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def cases(path, **wanted):
    return [row for row in map(json.loads, path.read_text().splitlines())
            if all(row.get(key) == value for key, value in wanted.items())]


@pytest.mark.parametrize("form", ["folder", "file"])
@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_tokenize_gives_the_reference_ids(program, data, unpacked, name, form):
    path = unpacked / "tokenizers" / name
    rows = [r for r in cases(data / "tokenizers" / "cases.jsonl", tokenizer=name) if r.get("text") is not None]
    assert len(rows) >= 100
    stdin = "".join(json.dumps({"text": row["text"]}) + "\n" for row in rows)
    result = program("tokenize", "--tokenizer", path if form == "folder" else path / "tokenizer.json", "--json", stdin=stdin)
    assert result.returncode == 0, result.stderr
    assert [row["ids"] for row in lines(result.stdout)] == [row["ids"] for row in rows]


def test_tokenize_works_on_a_gguf_without_weights(program, unpacked):
    path = unpacked / "gguf" / "r1-distill-qwen-7b.vocab.gguf"
    result = program("tokenize", "--tokenizer", path, "--json", stdin='{"text":"Hello world"}\n')
    assert lines(result.stdout) == [{"ids": [9707, 1879]}], result.stderr
    back = program("tokenize", "--tokenizer", path, "--decode", stdin='{"ids":[9707,1879]}\n')
    assert lines(back.stdout) == [{"text": "Hello world"}]


def test_bad_lines_are_refused_by_number(program, unpacked):
    path = unpacked / "tokenizers" / "qwen3"
    for stdin in ('{"text":1}', "[]", "{", '{"text":"\\ud800"}', '{}'):
        result = program("tokenize", "--tokenizer", path, "--json", stdin='{"text":"a"}\n' + stdin + "\n")
        assert result.returncode == 2 and "line 2" in result.stderr, (stdin, result.stderr)


def test_template_renders_the_reference_texts(program, data, unpacked):
    rows = [row for row in cases(data / "chat" / "cases.jsonl", template="qwen3") if row["rendered"] is not None]
    assert len(rows) >= 20
    variables = {"messages", "tools", "add_generation_prompt"}
    requests = [{k: v for k, v in row.items() if k in variables and v is not None} | row["vars"]
                for row in rows]
    result = program("template", "--tokenizer", unpacked / "tokenizers" / "qwen3", "--json",
                     stdin="".join(json.dumps(r) + "\n" for r in requests))
    assert result.returncode == 0, result.stderr
    assert [row["text"] for row in lines(result.stdout)] == [row["rendered"] for row in rows]


def test_template_errors_name_the_line(program, unpacked):
    path = unpacked / "tokenizers" / "qwen3"
    for stdin in ('{"messages":1}', '{"messages":[],"tools":{}}', '{"messages":[],"add_generation_prompt":1}'):
        result = program("template", "--tokenizer", path, "--json", stdin=stdin + "\n")
        assert result.returncode == 2 and "line 1" in result.stderr, result.stderr


def test_the_model_may_be_the_first_argument(program, unpacked):
    path = unpacked / "tokenizers" / "qwen3"
    named = program("tokenize", "--tokenizer", path, "Hello world")
    assert named.stdout.endswith("2 tokens\n"), named.stderr
    assert program("tokenize", path, "Hello world").stdout == named.stdout
    assert program("tokenize", path, "--decode", stdin='{"ids":[9707,1879]}').stdout == '{"text":"Hello world"}\n'
    messages = '{"messages":[{"role":"user","content":"Hi"}]}'
    rendered = program("template", "--tokenizer", path, stdin=messages)
    assert "Hi" in rendered.stdout, rendered.stderr
    assert program("template", path, stdin=messages).stdout == rendered.stdout
    program.fails(2, "tokenize", path, says=["TEXT"])
    program.fails(2, "tokenize", path, "--json", "junk", says=["junk"])
    program.fails(2, "template", path, "junk", says=["junk"])


def test_a_tokenizer_must_be_named_and_exist(program, tmp_path):
    program.fails(2, "tokenize", "--json", says=["--tokenizer"])
    program.fails(2, "template", says=["--tokenizer"])
    program.fails(3, "tokenize", tmp_path / "none.json", "x", says=["none.json"])
    program.fails(2, "tokenize", "x", says=["--tokenizer"])
    program.fails(3, "tokenize", "--tokenizer", tmp_path / "none.json", "x", says=["none.json"])


def test_a_fault_of_a_tokenizer_names_its_file(program, data, unpacked, tmp_path):
    good = json.loads((unpacked / "tokenizers" / "qwen3" / "tokenizer.json").read_text())
    vocabulary, merges = good["model"]["vocab"], good["model"]["merges"]
    faults = {"merges": [["no", "such merge"]] + merges, "vocab": {**vocabulary, "no gap": len(vocabulary) + 1000000}}
    for key, value in faults.items():
        path = tmp_path / key / "tokenizer.json"
        path.parent.mkdir()
        path.write_text(json.dumps({**good, "model": {**good["model"], key: value}}))
        program.fails(4, "tokenize", "--tokenizer", path, "--json", stdin='{"text":"a"}\n', says=[str(path)])
