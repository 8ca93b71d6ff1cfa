"""What the benchmarks share: a server of ours that answers requests, and where results go. Standard library only."""
import http.client
import json
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Server:
    """`PROGRAM serve MODEL …` on a free port, ready to be asked."""

    def __init__(self, program, model, *arguments):
        command = [program, "serve", model, "--port", "0", "--max-model-len", "4096", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if match := re.search(r"ready on \S+:(\d+)", line):
                self.port = int(match.group(1))
                return
        raise SystemExit(f"the server did not start: {' '.join(command)}")

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", path, json.dumps(body))
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def stop(self):
        self.process.terminate()
        self.process.stderr.read()
        self.process.wait()


def cpu_name():
    """The model name, and on x86 its family and number, which tell apart what has one name."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    cpu = re.search(r"model name\s*:\s*(.*)", text)
    family = re.search(r"cpu family\s*:\s*(\d+)", text)
    number = re.search(r"model\s*:\s*(\d+)", text)
    return (cpu.group(1) if cpu else "cpu") + (f" {family.group(1)}-{number.group(1)}" if family and number else "")


def results_file(suffix=""):
    """bench/results/<cpu>/<commit><suffix>.csv; the folder is made."""
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], check=True, stdout=subprocess.PIPE,
                            text=True).stdout.strip()
    folder = ROOT / "bench" / "results" / re.sub(r"[^A-Za-z0-9]+", "-", cpu_name()).strip("-").lower()
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{commit}{suffix}.csv"
