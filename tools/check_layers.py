#!/usr/bin/env python3
"""Includes may point one way only: base <- {quant, text, kernels} <- {model, device} <- engine <- server <- cli."""
import pathlib
import re
import sys

ALLOWED = {
    "base": {"base"},
    "quant": {"base", "quant"},
    "text": {"base", "text"},
    "kernels": {"base", "kernels", "quant"},
    "model": {"base", "quant", "text", "model"},
    "device": {"base", "quant", "kernels", "model", "device"},
    "engine": {"base", "quant", "text", "kernels", "model", "device", "engine"},
    "server": {"base", "quant", "text", "kernels", "model", "device", "engine", "server"},
}

root = pathlib.Path(__file__).resolve().parent.parent
bad = []
for room, allowed in ALLOWED.items():
    for path in sorted((root / "src" / room).rglob("*.[ch]")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"/]+)/', line)
            if match and match.group(1) not in allowed:
                bad.append(f"{path.relative_to(root)}:{number}: {room}/ must not include {match.group(1)}/")
            if re.match(r'\s*#\s*include\s+"[^"]+\.c"', line):
                bad.append(f"{path.relative_to(root)}:{number}: includes a .c file")
print("\n".join(bad), end="\n" if bad else "")
sys.exit(1 if bad else 0)
