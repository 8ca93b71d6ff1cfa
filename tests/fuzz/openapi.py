#!/usr/bin/env python3
"""Schemathesis against a running server and the description that it serves: whatever is sent to any endpoint, no answer is a
5xx. Run by tools/fuzz.sh; too long for every day, whose part of it tests/api/test_openapi.py has: the ranges that are described.

usage: openapi.py [--seconds N] [--seed N] [--phases LIST]      DSE_BINARY: the program
"""
import argparse
import pathlib
import random
import subprocess
import sys
import tempfile

import sockets

# /api/edge/events never ends, and a client that waits for its end would wait for ever.
COMMAND = ["run", "--exclude-path", "/api/edge/events", "--checks", "not_a_server_error", "--request-timeout", "60",
           "--no-color", "--continue-on-failure"]


def start_server(folder):
    """With a short context: without max_tokens, and most requests have none, answers go on to its end."""
    return sockets.start_server(folder, "--max-model-len", "320")


def run(server, folder, *options):
    """(whether all is well, what schemathesis says)"""
    url = f"http://127.0.0.1:{server.port}"
    program = pathlib.Path(sys.executable).parent / "schemathesis"
    result = subprocess.run([program, *COMMAND, "--url", url, *options, url + "/openapi.json"], cwd=folder, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    idle = server.process.poll() is None and server.wait_idle() and server.metric("kv_blocks_used") == 0
    return result.returncode == 0 and idle, result.stdout + ("" if idle else "\nthe server is gone, or requests are left in it")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--phases", default="examples,coverage,fuzzing,stateful")
    options = parser.parse_args()
    limit = ["--max-time", str(options.seconds)] if options.seconds else []
    with tempfile.TemporaryDirectory() as folder:
        server = start_server(folder)
        try:
            good, text = run(server, folder, "--phases", options.phases, "--seed", str(options.seed), *limit)
        finally:
            code = server.stop()
        if not good or code != 0:
            sys.exit(f"{text}\nseed {options.seed}, the server has ended with {code}: {''.join(server.lines)[-4000:]}")
        print(f"  clean, seed {options.seed}:{next((line for line in text.splitlines() if ' generated, ' in line), '')}")


if __name__ == "__main__":
    main()
