#!/usr/bin/env python3
"""Writes files as C arrays, plain and compressed, for the server to serve (src/server/embedded.h), @VERSION@ in JSON
replaced. Run by the build.

usage: embed_files.py OUTPUT.c TABLE VERSION FILE…
"""
import gzip
import hashlib
import pathlib
import sys

TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".svg": "image/svg+xml", ".json": "application/json"}


def array(name, data):
    lines = [",".join(str(byte) for byte in data[at:at + 32]) for at in range(0, len(data), 32)]
    return f"static const unsigned char {name}[] = {{\n" + ",\n".join(lines) + "};\n"


def main():
    output, table, version, *paths = sys.argv[1:]
    arrays, rows = [], []
    for i, path in enumerate(map(pathlib.Path, paths)):
        data = path.read_bytes()
        if path.suffix == ".json":
            data = data.replace(b"@VERSION@", version.encode())
        packed = gzip.compress(data, 9, mtime=0)  # no time in it: same files, same program
        arrays += [array(f"bytes_{i}", data), array(f"gzip_{i}", packed)]
        rows.append(f'    {{"{path.name}", "{TYPES[path.suffix]}", "{hashlib.sha256(data).hexdigest()[:16]}", '
                    f"bytes_{i}, gzip_{i}, sizeof bytes_{i}, sizeof gzip_{i}}},\n")
    pathlib.Path(output).write_text(
        "/* Made by tools/embed_files.py. */\n#include \"server/embedded.h\"\n\n" + "".join(arrays) +
        f"\nconst struct dse_embedded_file dse_{table}_files[] = {{\n" + "".join(rows) + "};\n"
        f"const size_t dse_n_{table}_files = {len(rows)};\n")


main()
