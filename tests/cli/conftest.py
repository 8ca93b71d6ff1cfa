"""The program as a person runs it: a command line in, text and an exit code out."""
import os
import pathlib
import subprocess

import pytest


class Program:
    def __init__(self, home):
        self.binary = os.environ["DSE_BINARY"]
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("DEEPSEEK_EDGE_", "HF_"))}
        self.environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}

    def __call__(self, *arguments, stdin="", env=None, timeout=120):
        return subprocess.run([self.binary, *map(str, arguments)], input=stdin, text=True, capture_output=True,
                              env=self.environment | (env or {}), timeout=timeout)

    def fails(self, code, *arguments, says=(), **options):
        result = self(*arguments, **options)
        assert result.returncode == code, (result.returncode, result.stderr)
        assert result.stdout == ""
        for word in says:
            assert word in result.stderr, result.stderr
        assert result.stderr.count("\n") == 1 or "memory" in result.stderr, result.stderr
        return result


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    return Program(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def model():
    return os.environ["DSE_TEST_MODEL"]


@pytest.fixture(scope="session")
def data():
    return pathlib.Path(os.environ["DSE_TEST_DATA"])


@pytest.fixture(scope="session")
def unpacked():
    return pathlib.Path(os.environ["DSE_TEST_UNPACKED"])
