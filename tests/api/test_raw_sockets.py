"""A moment of the fuzzer of raw sockets (tests/fuzz/sockets.py): inputs that are the same each time."""
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
import sockets


@pytest.mark.parametrize("seed", [1, 2])
def test_inputs_that_are_nearly_http(tmp_path, seed):
    server = sockets.start_server(tmp_path)
    try:
        n, answers = sockets.fuzz(server, seed, most=400, threads=24)
    finally:
        assert server.stop() == 0, "".join(server.lines)
    assert n == 400 and {"200", "400", "404", "413", "431"} <= set(answers)
