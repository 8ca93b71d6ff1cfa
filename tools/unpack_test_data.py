#!/usr/bin/env python3
"""Unpacks the .xz files below a data folder into an output folder, keeping relative paths. Used by the test build."""
import lzma
import pathlib
import sys

source, target, stamp = map(pathlib.Path, sys.argv[1:4])
for packed in sorted(source.rglob("*.xz")):
    out = target / packed.relative_to(source).with_suffix("")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(lzma.decompress(packed.read_bytes()))
    # What lies beside a packed file belongs to it (tokenizer_config.json beside tokenizer.json).
    for beside in packed.parent.iterdir():
        if beside.suffix != ".xz" and beside.is_file():
            (out.parent / beside.name).write_bytes(beside.read_bytes())
stamp.write_text("done\n")
