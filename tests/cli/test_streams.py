"""Standard streams: output that is lost, input that is too much or unreadable, descriptors that are closed, and text of
files in messages."""
import json
import os
import subprocess

import pytest


@pytest.fixture
def start(program):
    def run(*arguments, **options):
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run([program.binary, *map(str, arguments)], env=program.environment, timeout=120,
                              stderr=subprocess.PIPE, **options)
    return run


@pytest.fixture
def tiny(data):
    return data / "reference" / "gguf" / "llama_linear.gguf"


PRINTING = [["help"], ["--help"], ["help", "run"], ["run", "--help"], ["help", "--man"], ["help", "--markdown"],
            ["--help=seed"], ["version"], ["--version"], ["version", "--json"], ["devices"], ["devices", "--json"],
            ["show", "MODEL"], ["show", "MODEL", "--json"], ["tokenize", "--tokenizer", "MODEL", "hi"],
            ["run", "MODEL", "--raw", "-n", "2", "--temp", "0", "-p", "hi"]]


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_lost_output_is_a_failure(start, tiny, arguments):
    arguments = [tiny if word == "MODEL" else word for word in arguments]
    with open("/dev/full", "wb") as full:
        result = start(*arguments, stdout=full)
    assert result.returncode == 1 and result.stderr.count(b"standard output") == 1, result.stderr
    result = start(*arguments, stdout=None, preexec_fn=lambda: os.close(1))
    assert result.returncode == 1 and result.stderr.count(b"standard output") == 1, result.stderr


@pytest.mark.parametrize("more", [[], ["--json"]], ids=str)
def test_output_that_is_lost_while_it_is_made_is_told_once(start, tiny, tmp_path, more):
    template, messages = tmp_path / "t.jinja", tmp_path / "m.json"
    template.write_text("{{ messages[0].content }}", encoding="utf-8")
    messages.write_text(json.dumps({"messages": [{"role": "user", "content": "x" * 100000}]}), encoding="utf-8")
    with open("/dev/full", "wb") as full, open(messages, "rb") as stdin:
        result = start("template", "--tokenizer", tiny, "--chat-template", template, *more, stdin=stdin, stdout=full)
    assert result.returncode == 1 and result.stderr.count(b"standard output") == 1, result.stderr


def test_a_failure_keeps_its_own_exit_code(start):
    with open("/dev/full", "wb") as full:
        assert start("show", "/nonexistent.gguf", stdout=full).returncode == 3


def test_a_closed_standard_stream_is_never_the_model(start, tiny):
    result = start("run", tiny, "--raw", "-n", "2", "--temp", "0", stdin=None, stdout=subprocess.PIPE,
                   preexec_fn=lambda: os.close(0))
    assert result.returncode == 1 and b"cannot read standard input" in result.stderr, result.stderr
    plain = start("run", tiny, "--raw", "-n", "2", "--temp", "0", "-p", "hi", stdout=subprocess.PIPE)
    before = tiny.read_bytes()
    result = start("run", tiny, "--raw", "-n", "2", "--temp", "0", "-p", "hi", stdout=subprocess.PIPE,
                   preexec_fn=lambda: (os.close(0), os.close(2)))
    assert (result.returncode, result.stdout) == (0, plain.stdout)
    assert tiny.read_bytes() == before


def test_standard_input_that_cannot_be_read_is_a_failure(start, tiny, tmp_path):
    for arguments in (["run", tiny, "--raw"], ["run", tiny, "--raw", "-f", "-"],
                      ["tokenize", "--json", "--tokenizer", tiny],
                      ["eval", "--logits", "--ids", "-", "--output", tmp_path / "o", tiny]):
        folder = os.open("/", os.O_RDONLY)
        result = start(*arguments, stdin=folder, stdout=subprocess.PIPE)
        os.close(folder)
        assert result.returncode == 1 and b"read standard input" in result.stderr, result.stderr


def endless(start, *arguments):
    """Input that never ends: only a limit that is looked at while reading ends the program."""
    command = ["sh", "-c", "yes aaaaaaaaaaaaaaaa | tr -d '\\n'"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as source:
        try:
            return start(*arguments, stdin=source.stdout, stdout=subprocess.PIPE)
        finally:
            source.kill()


def test_input_without_end_is_refused_while_it_is_read(start, tiny):
    result = endless(start, "run", tiny, "--raw")
    assert result.returncode == 4 and b"longer than 67108864" in result.stderr, result.stderr
    result = endless(start, "tokenize", "--json", "--tokenizer", tiny)
    assert result.returncode == 4 and b"line of standard input is longer" in result.stderr, result.stderr


def test_input_beyond_the_memory_is_told_as_that(program, tiny):
    command = f"yes aaaaaaaaaaaaaaaa | tr -d '\\n' | '{program.binary}' run '{tiny}' --raw"
    environment = dict(program.environment)
    if "ASAN_OPTIONS" in environment:  # its shadow needs terabytes of addresses: there single allocations are limited
        environment["ASAN_OPTIONS"] += ":max_allocation_size_mb=20"
    else:
        command = f"ulimit -v 80000; {command}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, env=environment, timeout=120)
    assert result.returncode == 5 and b"out of memory" in result.stderr, result.stderr


def test_a_nul_in_a_prompt_is_refused(program, tiny, tmp_path):
    prompt = tmp_path / "prompt"
    prompt.write_bytes(b"before\0after")
    program.fails(2, "run", tiny, "--raw", "-f", prompt, says=["NUL", "byte 6"])
    program.fails(2, "run", tiny, "--raw", stdin="before\0after", says=["NUL", "byte 6"])
    program.fails(2, "run", tiny, "--raw", "-f", "-", stdin="before\0after", says=["NUL"])


def test_messages_carry_no_escape_sequences(start, tmp_path):
    name = tmp_path / "x\x1b]0;owned\x07\x1b[31m.gguf"
    name.write_bytes(b"GGUF\x1b[31m")
    for verb in ("show", "run", "bench"):
        result = start(verb, name, stdout=subprocess.PIPE)
        assert result.returncode == 4 and b"\x1b" not in result.stderr and b"\\x1b]0;owned\\x07" in result.stderr


def test_log_lines_carry_no_escape_sequences(start, tiny):
    result = start("run", tiny, "--raw", "-n", "1", "-p", "hi", "--pack-cache", "/dev/null/\x1b[31m",
                   stdout=subprocess.PIPE)
    assert result.returncode == 0 and b"\x1b" not in result.stderr and b"\\x1b[31m" in result.stderr, result.stderr


def test_a_template_cannot_speak_to_the_terminal(program, tiny, tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{{ raise_exception('boo\x1b[31m\x9b31m') }}", encoding="utf-8")
    result = program.fails(2, "template", "--tokenizer", tiny, "--chat-template", template, stdin='{"messages":[]}')
    assert "boo\\x1b[31m\\xc2\\x9b31m" in result.stderr


def test_names_that_are_not_utf8_are_shown(start, tiny, tmp_path):
    name = os.path.join(os.fsencode(tmp_path), b"x\xff\x1b[31m.gguf")
    with open(name, "wb") as file:
        file.write(tiny.read_bytes())
    shown = json.loads(start("show", os.fsdecode(name), "--json", stdout=subprocess.PIPE).stdout)
    assert shown["path"].endswith("/x\ufffd\x1b[31m.gguf")
    assert b"x\\xff\\x1b[31m.gguf" in start("show", os.fsdecode(name), stdout=subprocess.PIPE).stdout
