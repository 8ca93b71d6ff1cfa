"""Files that the malformed-file generator makes are refused by the program: with exit code 2 to 4, naming what is wrong,
without touching standard output. The readers' own tests go through all of them; a process for each third is enough."""
import os
import pathlib
import subprocess


def test_malformed_files_are_refused(program, tmp_path):
    generator = pathlib.Path(os.environ["DSE_TEST_BUILD"]) / "tests" / "unit" / "formats" / "malformed_files"
    subprocess.run([generator, tmp_path], check=True)
    rows = [line.split("\t") for line in (tmp_path / "manifest.tsv").read_text().splitlines()]
    assert len(rows) >= 500
    for name, word in rows[::3]:
        result = program("show", tmp_path / name, timeout=20)
        assert result.returncode in (2, 3, 4), (name, result.returncode, result.stderr)
        assert word in result.stderr, (name, word, result.stderr)
        assert result.stdout == "", name
