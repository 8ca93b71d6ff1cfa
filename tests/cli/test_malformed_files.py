"""Every file that the malformed-file generator makes is refused by the program: quickly, with exit code 2 to 4, naming
what is wrong, without touching standard output."""
import os
import pathlib
import subprocess
import time


def test_every_malformed_file_is_refused(program, tmp_path):
    generator = pathlib.Path(os.environ["DSE_TEST_BUILD"]) / "tests" / "unit" / "formats" / "malformed_files"
    subprocess.run([generator, tmp_path], check=True)
    rows = [line.split("\t") for line in (tmp_path / "manifest.tsv").read_text().splitlines()]
    assert len(rows) >= 500
    for name, word in rows:
        start = time.monotonic()
        result = program("show", tmp_path / name, timeout=20)
        seconds = time.monotonic() - start
        assert result.returncode in (2, 3, 4), (name, result.returncode, result.stderr)
        assert word in result.stderr, (name, word, result.stderr)
        assert result.stdout == "" and seconds < 5, (name, seconds)
