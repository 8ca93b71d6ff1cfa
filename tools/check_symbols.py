#!/usr/bin/env python3
"""Every symbol that our objects export begins with dse_ (main of the program aside).

usage: check_symbols.py BUILD_FOLDER
"""
import pathlib
import subprocess
import sys

build = pathlib.Path(sys.argv[1])
bad = []
for library in sorted(build.glob("src/**/*.a")):
    listing = subprocess.run(["nm", "--defined-only", "--extern-only", library], stdout=subprocess.PIPE, text=True,
                             stderr=subprocess.DEVNULL, check=False).stdout
    for line in listing.splitlines():
        fields = line.split()
        if len(fields) == 3 and not fields[2].startswith("dse_") and fields[2] != "main":
            bad.append(f"{library.name}: {fields[2]}")
print("\n".join(sorted(set(bad))), end="\n" if bad else "")
sys.exit(1 if bad else 0)
