#!/usr/bin/env python3
"""Writes tests/data/tokenizers/extra_cases.jsonl: random hard strings, computed with the Hugging Face library.

  make_extra_tokenizer_cases.py        needs: pip install tokenizers==0.23.3

Two kinds of rows (ASCII-only JSON):
  {"tokenizer": "qwen3" | "deepseek_v3", "text": ..., "ids": [...]}   encode(text, add_special_tokens=False)
  {"pre": name as in GGUF, "text": ..., "pieces": [...]}              bytes of each piece the pre-tokenizer cuts
The strings mix scripts, marks, blanks of all kinds, unassigned characters, contractions and added tokens.
"""
import json
import lzma
import os
import random
import re

from tokenizers import Regex, Tokenizer, pre_tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "tests", "data", "tokenizers")
POOLS = ["abcXYZ", "   \t\n\r\u00a0\u3000\u2028\x85\u200b", "0123456789\u00b2\u2167\u0663", ".,!?'\"-_`$+=<>|~^(){}[]",
         "\u00e9\u00e0\u00fc\u00c0\u00c1\u00f5\u00f6\u00ff\u00f1\u00df\u017f\u212a", "\u4e2d\u6587\u65e5\u8a9e\ud55c\u0e44\u0e17\u0939\u093f",
         "\u0301\u0308\u0334\u0345\u0323\u031b\u3099", "\U0001f642\U0001f469\u200d\U0001f1e9\ufe0f",
         "\x00\x01\x04\x7f\u00ad\ufeff\ue000"]
BITS = ["'s", "'S", "'re", "'LL", "'\u017f", "'ve", "'d", "  ", " \n", "\r\n\r\n", "\n  ", "n't", "z\u0307", "A\u030a",
        "\U000105d2\u0307", "   1", "\u1100\u1161\u11a8"]


def string(rng, added):
    out = ""
    for _ in range(rng.randint(1, 14)):
        x = rng.random()
        if x < 0.2:
            out += rng.choice(BITS)
        elif x < 0.25 and added:
            out += rng.choice(added)
        elif x < 0.35:
            c = rng.randrange(0x3000 if x < 0.31 else 0x20000)
            out += "" if 0xD800 <= c < 0xE000 else chr(c)
        else:
            out += "".join(rng.choice(rng.choice(POOLS)) for _ in range(rng.randint(1, 6)))
    return out


def letters():
    """The letter class of deepseek-llm as our source spells it; the GGUF cases check it against the vocabulary."""
    source = open(os.path.join(HERE, "..", "src", "text", "pretokenizer.c"), encoding="utf-8").read()
    text = "".join(re.findall(r'    "(.*?)"', source[source.index("#define LETTERS"): source.index("#define SPACES")]))
    return re.sub(r"\\u(....)|\\U(........)", lambda m: chr(int(m.group(1) or m.group(2), 16)), text)


def pre_tokenizers_by_name():
    split = lambda p: pre_tokenizers.Split(Regex(p), "isolated")
    digits = pre_tokenizers.Digits(individual_digits=True)
    cjk = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
    gpt4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
            r"|\s+(?!\S)|\s+")
    llm = ["[\r\n]", r"\s?" + letters() + "+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
           r"\s+$", cjk]
    v3 = json.loads(lzma.open(os.path.join(DATA, "deepseek_v3", "tokenizer.json.xz")).read())
    v3 = [p["pattern"]["Regex"] for p in v3["pre_tokenizer"]["pretokenizers"] if p["type"] == "Split"]
    return {
        "deepseek-v3": [split(p) for p in v3],
        "qwen2": [split(gpt4 % "")],
        "llama-bpe": [split(gpt4 % "{1,3}")],
        "deepseek-llm": [split(p) for p in llm] + [digits],
        "deepseek-coder": [split(p) for p in ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", cjk]] + [digits],
        "smollm": [digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)],
    }


def main():
    rng = random.Random(3)
    with open(os.path.join(DATA, "extra_cases.jsonl"), "w", encoding="ascii") as f:
        write = lambda row: f.write(json.dumps(row, separators=(",", ":")) + "\n")
        for name in ("qwen3", "deepseek_v3"):
            tk = Tokenizer.from_str(lzma.open(os.path.join(DATA, name, "tokenizer.json.xz")).read().decode())
            added = [t.content for t in tk.get_added_tokens_decoder().values()]
            for _ in range(60):
                text = string(rng, added)
                write({"tokenizer": name, "text": text, "ids": tk.encode(text, add_special_tokens=False).ids})
        for name, steps in pre_tokenizers_by_name().items():
            for _ in range(60):
                text = string(rng, [])
                pieces = pre_tokenizers.Sequence(steps).pre_tokenize_str(text)
                write({"pre": name, "text": text, "pieces": [len(text[a:b].encode()) for _, (a, b) in pieces]})


if __name__ == "__main__":
    main()
