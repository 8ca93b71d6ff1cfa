#!/usr/bin/env python3
"""Writes a text file as a C array, @VERSION@ in it replaced. Called by the build.

usage: embed_file.py FILE OUTPUT NAME VERSION
"""
import pathlib
import sys

source, output, name, version = sys.argv[1:]
data = pathlib.Path(source).read_bytes().replace(b"@VERSION@", version.encode())
lines = [", ".join(map(str, data[i:i + 24])) for i in range(0, len(data), 24)]
pathlib.Path(output).write_text(f"static const char {name}[] = {{\n" + ",\n".join(lines) + "};\n")
