"""Help, flags, exit codes, and the sentences for what cannot be honoured."""
import os
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINE = ("serve --model deepseek-ai/DeepSeek-Coder-1.3B-Instruct --quantize awq --device cuda:0 --port 8080 "
        "--max-concurrent 32").split()


def test_without_a_verb_the_short_help_is_shown(program):
    result = program()
    assert result.returncode == 2 and "deepseek-edge run" in result.stderr


def test_help_lists_every_flag_of_a_verb(program):
    result = program("help", "serve")
    assert result.returncode == 0 and "--max-concurrent" in result.stdout and "--n-prompt" not in result.stdout
    assert program("serve", "--help").stdout == result.stdout
    assert "--seed" in program("--help=seed").stdout


def test_documented_flags_are_those_of_the_program(program):
    assert (ROOT / "docs" / "options.md").read_text() == program("help", "--markdown").stdout


def test_help_says_how_many_packs_are_kept(program):
    header = (ROOT / "src" / "device" / "pack_folder.h").read_text()
    kept = int(re.search(r"#define DSE_PACKS_KEPT (\d+)", header).group(1)) + 1
    for verb in ("run", "serve", "bench", "eval"):
        assert re.search(rf"--pack-cache[^-]*at most\s+{kept}\s+models", program("help", verb).stdout), verb


def test_man_page_names_every_exit_code(program):
    page = program("help", "--man").stdout
    for code in (0, 1, 2, 3, 4, 5, 6, 7, "130, 143"):
        assert f"\n{code}\n" in page


def test_man_page_names_the_words_a_flag_takes(program):
    page = program("help", "--man").stdout
    assert "[auto f32] (default auto)" in page and "[md csv json jsonl]" in page


def test_flags_of_llama_cpp_are_taken(program):
    """By their names there, where there is such a thing here; the model is what is missing in the end."""
    serve = ("-c 4096 -np 2 -ub 256 -t 1 --alias a --n-gpu-layers 0 --host 127.0.0.1 --port 0 --api-key k --no-warmup "
             "--reasoning-format deepseek --ctx-size 4096 --parallel 2 --ubatch-size 256 --threads 1 -a b -dev cpu").split()
    program.fails(3, "serve", "-m", "no/such-model", *serve, says=["no/such-model"])
    run = ("-n 4 -p x -sys s --temp 0 --top-k 1 --top-p 1 --min-p 0 --repeat-penalty 1 -r END --reverse-prompt END2 "
           "--predict 4 --system-prompt s --n-predict 4 --seed 1 -ngl 0").split()
    program.fails(3, "run", "-m", "no/such-model", *run, says=["no/such-model"])
    program.fails(2, "run", "-m", "no/such-model", "-p", "x", "-s", "s", "-no-cnv", says=["--raw"])


def test_readme_line_parses_and_names_the_missing_device(program):
    program.fails(6, *LINE, says=["cuda:0", "--device cpu"])


def test_that_line_on_the_cpu_names_the_missing_model(program):
    line = [word if word != "cuda:0" else "cpu" for word in LINE]
    program.fails(3, *line[:-4], "--port", "0", says=["deepseek-ai/DeepSeek-Coder-1.3B-Instruct"])


def test_unknown_verbs_and_flags_get_a_suggestion(program):
    program.fails(2, "serv", says=['"serve"'])
    program.fails(2, "serve", "--max-concurent", "3", says=["--max-concurrent"])
    program.fails(2, "show", "--n-prompt", "3", says=["not a flag of `show`"])
    program.fails(2, "frobnicate", says=["help"])


def test_values_are_checked_by_name(program):
    for flag, value in [("--port", "70000"), ("--port", "x"), ("--port", "-1"), ("--max-concurrent", "0"),
                        ("--max-concurrent", "99999999999999999999"), ("--memory-fraction", "nan"),
                        ("--memory-fraction", "2"), ("--ctx-size", "1e400"), ("--ctx-size", "-5"),
                        ("--quantize", "q9"), ("--max-body", "12Q"), ("--kv-cache-memory", "1.5")]:
        name = {"--ctx-size": "--max-model-len"}.get(flag, flag)
        program.fails(2, "serve", flag, value, says=[name])
    program.fails(2, "serve", "--port", says=["--port needs a value"])


def test_environment_sets_flags_and_is_checked(program):
    program.fails(2, "serve", env={"DEEPSEEK_EDGE_PORT": "x"}, says=["DEEPSEEK_EDGE_PORT"])
    program.fails(6, "serve", env={"DEEPSEEK_EDGE_DEVICE": "vulkan:0"}, says=["vulkan:0"])


def test_flags_that_cannot_be_honoured_are_refused(program, model):
    program.fails(6, "run", model, "hi", "--gpu-layers", "20", says=["--gpu-layers"])
    program.fails(4, "run", model, "hi", "--kv-cache-dtype", "q8_0", says=["--kv-cache-dtype"])
    program.fails(2, "run", model, "hi", "--quantize", "awq", says=["--quantize awq", "q4_1"])


def test_missing_models_are_exit_3(program, tmp_path):
    for verb in ("run", "serve", "show", "bench"):
        program.fails(3, verb, tmp_path / "none.gguf", says=["none.gguf"])
    program.fails(3, "run", "-p", "hi", says=["make run"])


def test_a_prompt_is_given_once(program, model):
    program.fails(2, "run", model, "a", "-p", "b", says=["once"])


def test_port_in_use_is_exit_7(program, model):
    import socket
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        program.fails(7, "serve", model, "--port", busy.getsockname()[1], says=[str(busy.getsockname()[1])])


def test_serve_listens_only_when_its_flags_are_fine(program, model, data, tmp_path):
    """Whatever can be refused without loading the model is refused before a port is announced."""
    broken, folder = tmp_path / "broken.jinja", data / "reference" / "llama_linear"
    broken.write_text("{% if %}")
    for code, *line in ((2, model, "--quantize", "awq"), (2, model, "-q", "q8_0"), (4, folder, "--quantize", "gptq"),
                        (4, model, "--chat-template", broken), (3, model, "--chat-template", tmp_path / "none"),
                        (4, model, "--kv-cache-dtype", "q4_0"),
                        (2, model, "--pack-cache", ""), (6, model, "--device", "cuda:0"), (6, model, "-ngl", "1"),
                        (2, model, "--api-key", ""), (3, model, "--api-key-file", tmp_path / "none"),
                        (2, model, "--cors-origins", ","), (2, model, "--served-model-name", ","),
                        (2, model, "--served-model-name", "good,b\udcffd"), (2, model, "--served-model-name", "n" * 256),
                        (2, model, "--uds", "/tmp/" + "x" * 200), (3, tmp_path / "none.gguf")):
        result = program.fails(code, "serve", *line, "--port", "0")
        assert "listening" not in result.stderr, line


def test_beyond_loopback_needs_a_key(program, model):
    program.fails(2, "serve", model, "--host", "0.0.0.0", "--port", "0", says=["--api-key", "--insecure"])


def test_too_little_memory_is_exit_5_with_numbers(program, model):
    result = program("run", model, "-p", "hi", "--kv-cache-memory", "64K", "--ctx-size", "8192")
    assert result.returncode == 5 and result.stdout == "", result.stderr
    assert re.search(r"\d", result.stderr) and "--ctx-size" in result.stderr


def test_version_and_devices_are_machine_readable(program):
    import json
    version = json.loads(program("version", "--json").stdout)
    assert version["version"] and version["cpu"]
    devices = json.loads(program("devices", "--json").stdout)
    assert devices["threads"] >= 1 and any(d["name"] == "cpu" and d["usable"] for d in devices["devices"])


def test_arguments_that_nobody_reads_are_refused(program, data, tmp_path):
    tiny = data / "reference" / "gguf" / "llama_linear.gguf"
    output = tmp_path / "o"
    for arguments in (["run", tiny, "hi", "junk"], ["run", "-m", tiny, "hi", "junk"], ["show", tiny, "junk"],
                      ["show", "--model", tiny, "junk"], ["serve", tiny, "junk"], ["bench", tiny, "junk"],
                      ["version", "junk"], ["devices", "junk"], ["help", "run", "junk"],
                      ["eval", "--logits", "--ids", "-", "--output", output, tiny, "junk"],
                      ["template", "--tokenizer", tiny, "junk"],
                      ["tokenize", "--json", "--tokenizer", tiny, "junk"],
                      ["tokenize", "--decode", "--tokenizer", tiny, "junk"]):
        program.fails(2, *arguments, says=["junk"])
    for flag in (["--system", "x"], ["--think"], ["--no-think"], ["--chat-template", "x"]):
        program.fails(2, "run", tiny, "--raw", "-p", "hi", *flag, says=["--raw", flag[0].replace("no-", "")])


def test_an_empty_pack_cache_is_refused(program, data):
    tiny = data / "reference" / "gguf" / "llama_linear.gguf"
    for verb in ("run", "serve", "bench"):
        program.fails(2, verb, tiny, "--pack-cache", "", says=["--pack-cache"])
    program.fails(2, "run", tiny, env={"DEEPSEEK_EDGE_PACK_CACHE": ""}, says=["--pack-cache"])


def test_many_more_threads_than_cpus_are_refused(program, data):
    tiny = data / "reference" / "gguf" / "llama_linear.gguf"
    most = 4 * len(os.sched_getaffinity(0))
    program.fails(2, "run", tiny, "-p", "hi", "-t", min(1024, most + 1), says=["--threads", str(most)])
    result = program("run", tiny, "--raw", "-n", "1", "-p", "hi", "-t", min(most, 8))
    assert result.returncode == 0, result.stderr


def test_what_is_no_model_file_is_exit_4(program, tmp_path):
    os.mkfifo(tmp_path / "fifo.gguf")
    (tmp_path / "loop.gguf").symlink_to(tmp_path / "loop.gguf")
    (tmp_path / "broken.gguf").symlink_to("nothing")
    (tmp_path / "locked.gguf").touch(mode=0)
    names = [tmp_path / "fifo.gguf", tmp_path / "loop.gguf", tmp_path / "broken.gguf", "/dev/null", "/dev/zero"]
    if os.geteuid() != 0:
        names.append(tmp_path / "locked.gguf")
    for name in names:
        for verb in ("run", "show", "bench"):
            program.fails(4, verb, name, says=[str(name)])
        program.fails(4, "tokenize", "--tokenizer", name, "hi", says=[str(name)])


def test_a_fifo_in_the_hub_cache_does_not_hang(program, data, tmp_path):
    repository = tmp_path / "models--a--b"
    (repository / "refs").mkdir(parents=True)
    (repository / "snapshots").mkdir()
    (repository / "snapshots" / "1").symlink_to(data / "reference" / "llama_linear")
    os.mkfifo(repository / "refs" / "main")
    assert program("show", "a/b", env={"HF_HUB_CACHE": str(tmp_path)}, timeout=20).returncode == 0
