#!/usr/bin/env python3
"""Writes files as C arrays, plain and compressed, for the server to serve (src/server/ui_files.h). Run by the build.

usage: embed_files.py OUTPUT.c FILE…
"""
import gzip
import hashlib
import pathlib
import sys

TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".svg": "image/svg+xml"}


def array(name, data):
    lines = [",".join(str(byte) for byte in data[at:at + 32]) for at in range(0, len(data), 32)]
    return f"static const unsigned char {name}[] = {{\n" + ",\n".join(lines) + "};\n"


def main():
    output, *paths = map(pathlib.Path, sys.argv[1:])
    arrays, rows = [], []
    for i, path in enumerate(paths):
        data = path.read_bytes()
        packed = gzip.compress(data, 9, mtime=0)  # no time in it: same files, same program
        arrays += [array(f"bytes_{i}", data), array(f"gzip_{i}", packed)]
        rows.append(f'    {{"{path.name}", "{TYPES[path.suffix]}", "{hashlib.sha256(data).hexdigest()[:16]}", '
                    f"bytes_{i}, gzip_{i}, sizeof bytes_{i}, sizeof gzip_{i}}},\n")
    output.write_text("/* Made by tools/embed_files.py. */\n#include \"server/ui_files.h\"\n\n" + "".join(arrays) +
                      "\nconst struct dse_ui_file dse_ui_files[] = {\n" + "".join(rows) + "};\n"
                      f"const size_t dse_ui_n_files = {len(rows)};\n")


main()
