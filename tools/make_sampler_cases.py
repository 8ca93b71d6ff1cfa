#!/usr/bin/env python3
"""Writes tests/data/sampling/cases.json: distributions that the sampler must draw from.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install numpy
    /tmp/venv/bin/python tools/make_sampler_cases.py tests/data/sampling/cases.json

Computed in float64 from the published definitions, step by step, with full sorts:
  repetition penalty  transformers RepetitionPenaltyLogitsProcessor: score < 0 ? score * p : score / p, prompt and output
  presence, frequency OpenAI API reference: mu[j] - c[j] * frequency - (c[j] > 0) * presence, output only
  temperature         transformers TemperatureLogitsWarper
  top-k, top-p        transformers TopKLogitsWarper, TopPLogitsWarper (sorted ascending, cumulative <= 1 - p removed)
  min-p               vLLM: probability < min_p * largest probability removed
  logprobs            log-softmax of the untouched logits
"""
import json
import sys

import numpy as np

NEUTRAL = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0,
               frequency_penalty=0.0)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def change(logits, case):
    x = logits.astype(np.float64)
    for token, bias in case["logit_bias"]:
        x[token] += bias
    p = case["params"]
    for token in sorted(set(case["prompt"] + case["output"])):
        x[token] = x[token] * p["repetition_penalty"] if x[token] < 0 else x[token] / p["repetition_penalty"]
    for token in sorted(set(case["output"])):
        x[token] -= case["output"].count(token) * p["frequency_penalty"] + p["presence_penalty"]
    x[case["n_tokens"]:] = -np.inf
    if case["allowed"] is not None:
        x[[i for i in range(len(x)) if i not in case["allowed"]]] = -np.inf
    x[case["banned"]] = -np.inf
    return x


def warp(x, p):
    x = x / p["temperature"]
    if p["top_k"]:
        x = np.where(x < np.sort(x)[-min(p["top_k"], len(x))], -np.inf, x)
    margin = 1.0
    if p["top_p"] < 1:
        order = np.argsort(x, kind="stable")
        cumulative = softmax(x[order]).cumsum()
        remove = cumulative <= 1 - p["top_p"]
        remove[-1:] = False
        margin = np.abs(cumulative - (1 - p["top_p"])).min()
        x[order[remove]] = -np.inf
    probs = softmax(x)
    if p["min_p"]:
        ratio = probs / probs.max()
        margin = min(margin, np.abs(ratio[ratio < 1] - p["min_p"]).min(initial=1.0))
        x = np.where(ratio < p["min_p"], -np.inf, x)
        probs = softmax(x)
    return probs, margin


def make(name, rng, n=48, spread=2.0, n_pad=0, history=False, bias=False, mask=False, banned=False, **params):
    logits = np.round(rng.normal(0, spread, n), 4).astype(np.float32)
    n_tokens = n - n_pad
    logits[n_tokens:] = 50  # padding rows must never win
    case = dict(name=name, logits=[round(float(v), 4) for v in logits], n_tokens=n_tokens,
                params={**NEUTRAL, **params}, prompt=[], output=[], logit_bias=[], allowed=None, banned=[])
    if history:
        case["prompt"] = rng.integers(0, n_tokens, 12).tolist()
        case["output"] = rng.integers(0, n_tokens // 2, 16).tolist()
    if bias:
        case["logit_bias"] = [[int(t), round(float(b), 2)]
                              for t, b in zip(rng.integers(0, n_tokens, 5), rng.normal(0, 3, 5))] + [[1, -100.0]]
    if mask:
        case["allowed"] = sorted(rng.choice(n_tokens, n_tokens // 3, replace=False).tolist())
    if banned:
        case["banned"] = rng.choice(n_tokens, 4, replace=False).tolist()
    x = change(logits, case)
    probs, margin = warp(x.copy(), case["params"])
    if margin < 1e-4:  # a filter's edge lies on a token: float32 may decide otherwise
        return make(name, rng, n, spread, n_pad, history, bias, mask, banned, **params)
    case["greedy"] = int(np.argmax(x))
    case["probs"] = [[int(i), float(f"{probs[i]:.9g}")] for i in np.flatnonzero(probs)]
    case["logprobs"] = [float(f"{v:.8g}") for v in np.log(softmax(logits.astype(np.float64)))]
    return case


def main(path):
    rng = np.random.default_rng(20250117)
    cases = [
        make("plain", rng),
        make("hot", rng, temperature=2.5),
        make("cold", rng, temperature=0.3),
        make("very_hot", rng, n=20, temperature=1e6),
        make("padding", rng, n_pad=7),
        make("top_k", rng, top_k=5),
        make("top_k_all", rng, top_k=48),
        make("top_k_more", rng, top_k=1000),
        make("top_p", rng, top_p=0.8),
        make("top_p_small", rng, top_p=0.05),
        make("top_p_large", rng, top_p=0.99),
        make("top_p_hot", rng, top_p=0.5, temperature=3.0),
        make("min_p", rng, min_p=0.1),
        make("min_p_cold", rng, min_p=0.05, temperature=0.5),
        make("min_p_one", rng, min_p=1.0),
        make("top_k_top_p", rng, top_k=12, top_p=0.7),
        make("top_k_min_p", rng, top_k=12, min_p=0.2),
        make("top_p_min_p", rng, top_p=0.9, min_p=0.2),
        make("all_filters", rng, top_k=20, top_p=0.9, min_p=0.1, temperature=1.4),
        make("repetition", rng, history=True, repetition_penalty=1.3),
        make("repetition_below_one", rng, history=True, repetition_penalty=0.8),
        make("presence", rng, history=True, presence_penalty=0.7),
        make("presence_negative", rng, history=True, presence_penalty=-1.5),
        make("frequency", rng, history=True, frequency_penalty=0.4),
        make("all_penalties", rng, history=True, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3),
        make("bias", rng, bias=True),
        make("bias_and_penalties", rng, bias=True, history=True, repetition_penalty=1.5, frequency_penalty=0.2),
        make("mask", rng, mask=True),
        make("mask_top_k", rng, mask=True, top_k=6),
        make("mask_top_p", rng, mask=True, top_p=0.7, n=130),
        make("banned", rng, banned=True),
        make("everything", rng, n=130, n_pad=3, history=True, bias=True, mask=True, banned=True, top_k=25, top_p=0.95,
             min_p=0.02, temperature=1.2, repetition_penalty=1.1, presence_penalty=0.3, frequency_penalty=0.1),
        make("wide", rng, n=1500, top_k=30),
        make("wide_top_p", rng, n=1500, top_p=0.6, spread=3.0),
        make("wide_plain", rng, n=1500, spread=3.0),
    ]
    with open(path, "w") as file:
        json.dump({"cases": cases}, file)
        file.write("\n")


main(sys.argv[1])
