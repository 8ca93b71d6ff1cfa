#!/usr/bin/env python3
"""Writes rope_expected.h: inverse frequencies computed here from the published formulas (math in double, plain Python),
for test_rope.c. Run it again after changing a case: python3 rope_expected.py > rope_expected.h"""
import math
import struct


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def base(theta, r):
    return [theta ** (-2 * i / r) for i in range(r // 2)]


def llama3(fs, factor, lo, hi, original):
    out = []
    for f in fs:
        wave = 2 * math.pi / f
        if wave < original / hi:
            out.append(f)
        elif wave > original / lo:
            out.append(f / factor)
        else:
            s = (original / wave - lo) / (hi - lo)
            out.append((1 - s) * f / factor + s * f)
    return out


def yarn(fs, theta, r, factor, original, fast=32, slow=1):
    corr = lambda n: r * math.log(original / (n * 2 * math.pi)) / (2 * math.log(theta))
    lo, hi = max(math.floor(corr(fast)), 0), min(math.ceil(corr(slow)), r - 1)
    if lo == hi:
        hi += 0.001
    out = []
    for i, f in enumerate(fs):
        ramp = min(max((i - lo) / (hi - lo), 0), 1)
        out.append(f * (1 - ramp) + f / factor * ramp)
    return out


def m(factor, a):
    return 0.1 * a * math.log(factor) + 1 if factor > 1 else 1


# name, values, factor on cos and sin
CASES = [
    ("llama_linear", [f / 4 for f in base(100000, 16)], 1),
    ("llama_llama3", llama3(base(500000, 64), 8, 1, 4, 128), 1),
    ("qwen2_bias", base(1e6, 32), 1),
    ("qwen3_yarn", yarn(base(1e6, 64), 1e6, 64, 4, 64), m(4, 1)),
    ("r1_distill_llama", llama3(base(500000, 128), 8, 1, 4, 8192), 1),
    ("r1_0528_qwen3", yarn(base(1e6, 128), 1e6, 128, 4, 32768), m(4, 1)),
    ("v2_lite", yarn(base(10000, 64), 10000, 64, 40, 4096), 1),
    ("unequal_mscales", yarn(base(10000, 64), 10000, 64, 40, 4096), m(40, 1.0) / m(40, 0.5)),
    ("other_betas", yarn(base(10000, 64), 10000, 64, 16, 2048, 64, 2), 1.25),
    ("same_bounds", yarn(base(10000, 4), 10000, 4, 2, 8, 1, 1), m(2, 1)),
]

print("/* Made by rope_expected.py. */\n#ifndef TESTS_ROPE_EXPECTED_H\n#define TESTS_ROPE_EXPECTED_H\n")
for name, values, factor in CASES:
    print(f"static const float rope_{name}[] = {{")
    for i in range(0, len(values), 5):
        print("    " + " ".join(f"{f32(v)!r}f," .replace("1.0f", "1.0f") for v in values[i:i + 5]))
    print(f"}};\n#define ROPE_{name.upper()}_FACTOR {f32(factor)!r}f\n")
print("#endif")
