"""The real OpenAI client, two generations of it, against the server: sdk_checks.py in a process for each."""
import os
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parent


def packages(version):
    """A folder with this version of the client; the environment's own needs none."""
    from importlib.metadata import version as installed
    if installed("openai") == version:
        return None
    folder = pathlib.Path(sys.prefix) / f"openai-{version}"
    if not (folder / "done").exists():
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade",
                        "--target", str(folder), f"openai=={version}"], check=True)
        (folder / "done").touch()
    return folder


@pytest.mark.parametrize("version", ["2.54.0", "3.57.0"])
def test_openai_client(server, version):
    folder = packages(version)
    environment = dict(os.environ, OPENAI_BASE_URL=f"http://127.0.0.1:{server.port}/v1", OPENAI_API_KEY="none")
    if folder:
        environment["PYTHONPATH"] = str(folder)
    result = subprocess.run([sys.executable, str(FOLDER / "sdk_checks.py"), version], env=environment, text=True,
                            capture_output=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
