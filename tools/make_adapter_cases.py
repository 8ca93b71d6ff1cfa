#!/usr/bin/env python3
"""Writes tests/data/adapters: small random LoRA adapters for the tiny reference models, and the logits of Hugging Face.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch transformers peft gguf
    /tmp/venv/bin/python tools/make_adapter_cases.py tests/data/reference tests/data/adapters

The folders are written by PEFT itself (save_pretrained), the GGUF twins with the gguf package as llama.cpp's converter
does: factors under the base model's tensor names, rows of B of q and k re-ordered for llama. Logits: transformers, f32,
eager attention, no cache; PEFT adds the adapters. Several at once are active adapters of one model, a scale is a factor
on the scaling that PEFT worked out. Further arguments are the models to do, all if there are none.
"""
import json
import pathlib
import sys

import gguf
import numpy as np
import peft
import torch
import transformers
from safetensors.numpy import load_file, save_file

PROMPT, POSITIONS = 1, [0, 5, 11, 16]
LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
MODELS = {
    "llama_linear": {
        "a": (dict(r=2, lora_alpha=5, target_modules=LLAMA), torch.float16),
        "b": (dict(r=3, lora_alpha=4, target_modules=["k_proj", "v_proj"], use_rslora=True), torch.bfloat16),
    },
    "qwen2_bias": {
        "a": (dict(r=2, lora_alpha=3, target_modules=["q_proj", "k_proj", "down_proj"],
                   rank_pattern={"model.layers.1.self_attn.q_proj": 5, r"layers\.[23]\.self_attn\.k_proj": 1},
                   alpha_pattern={"^model.layers.2.mlp.down_proj": 7, "k_proj": 2}), torch.float32),
        "b": (dict(r=17, lora_alpha=17, target_modules=["v_proj"]), torch.bfloat16),
    },
    "qwen3_yarn": {
        "a": (dict(r=2, lora_alpha=4, target_modules=LLAMA), torch.bfloat16),
    },
    "deepseek_v2": {
        "a": (dict(r=3, lora_alpha=6, target_modules=r".*(self_attn\.(q_proj|kv_a_proj_with_mqa|o_proj)|"
                                                     r"(shared_experts|layers\.0\.mlp)\.(gate|up|down)_proj)"),
              torch.bfloat16),
    },
    "deepseek_v3": {
        "a": (dict(r=2, lora_alpha=4, target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"]),
              torch.float16),
    },
}
MODELS["deepseek_v32"] = MODELS["deepseek_v3"]
# name of the logits: active adapters with their scales
SETS = {"base": {}, "a": {"a": 1.0}, "b": {"b": 1.0}, "a_half": {"a": 0.5}, "a_b": {"a": 1.0, "b": 1.0},
        "a_minus_b": {"a": 0.75, "b": -1.5}}
GGUF_NAMES = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
              "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
              "kv_a_proj_with_mqa": "attn_kv_a_mqa"}


def gguf_name(module):
    parts = module.split(".")
    name = GGUF_NAMES[parts[-1]] + ("_shexp" if "shared_experts" in parts else "")
    return f"blk.{parts[parts.index('layers') + 1]}.{name}.weight"


def permute(rows, n_head):
    """The order of llama.cpp's converter: halves of a head become pairs."""
    return rows.reshape(n_head, 2, rows.shape[0] // n_head // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(folder, path, arch, config):
    options = json.loads((folder / "adapter_config.json").read_text())
    tensors = {}
    with torch.no_grad():
        from safetensors.torch import load_file as load_torch
        for name, value in load_torch(folder / "adapter_model.safetensors").items():
            module, factor = name.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".", 1)
            array = value.float().numpy()
            if arch == "llama" and factor == "lora_B" and module.endswith(("q_proj", "k_proj")):
                heads = config.num_attention_heads if module.endswith("q_proj") else config.num_key_value_heads
                array = permute(array, heads)
            tensors[gguf_name(module) + (".lora_a" if factor == "lora_A" else ".lora_b")] = array
    writer = gguf.GGUFWriter(path, arch)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, options["lora_alpha"])
    for name, array in sorted(tensors.items()):
        writer.add_tensor(name, np.ascontiguousarray(array.astype(np.float16 if arch == "llama" else np.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def fill(model, name, seed):
    generator = torch.Generator().manual_seed(seed)
    for key, value in model.named_parameters():
        if f"lora_A.{name}." in key:
            value.data = torch.randn(value.shape, generator=generator) / value.shape[1] ** 0.5
        elif f"lora_B.{name}." in key:
            value.data = 0.15 * torch.randn(value.shape, generator=generator)


def logits_of(model, ids, chosen, names):
    scalings = []
    for layer in model.modules():
        if isinstance(layer, peft.tuners.lora.LoraLayer):
            for name in names:
                if name in layer.scaling:
                    scalings.append((layer.scaling, name, layer.scaling[name]))
                    layer.scaling[name] *= chosen.get(name, 0.0)
    if chosen:
        model.base_model.set_adapter(list(chosen))
        out = model(ids).logits
    else:
        with model.disable_adapter():
            out = model(ids).logits
    for scaling, name, value in scalings:
        scaling[name] = value
    return out[0].float().numpy()


def make(reference, out, model_name, adapters):
    torch.manual_seed(1)
    torch.set_num_threads(1)
    base = transformers.AutoModelForCausalLM.from_pretrained(reference / model_name, dtype=torch.float32,
                                                             attn_implementation="eager").eval()
    base.config.model_type = "plain"  # else PEFT takes gate_proj, wherever it is, for the experts
    known = load_file(reference / model_name / "reference.safetensors")
    ids = torch.tensor(known[f"prompt{PROMPT}.ids"].astype(np.int64))[None]
    folder = out / model_name
    model = None
    for index, (name, (options, dtype)) in enumerate(adapters.items()):
        config = peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **options)
        if model is None:
            model = peft.get_peft_model(base, config, adapter_name=name)
        else:
            model.add_adapter(name, config)
        fill(model, name, 100 * len(model_name) + index)
    model.eval()
    # What is on disk is what is computed: rounded to its type first.
    for key, value in model.named_parameters():
        for name, (_, dtype) in adapters.items():
            if f".{name}." in key and "lora_" in key:
                value.data = value.data.to(dtype).float()
    result, greatest = {}, {}
    with torch.no_grad():
        for label, chosen in SETS.items():
            if not set(chosen) <= set(adapters):
                continue
            logits = logits_of(model, ids, chosen, list(adapters))
            if label == "base":
                base_logits = logits
                error = np.abs(logits - known[f"prompt{PROMPT}.logits"]).max()
                assert error < 1e-4, error
                continue
            greatest[label] = round(float(np.abs(logits - base_logits).max()), 3)
            result[f"prompt{PROMPT}.{label}.logits"] = logits[POSITIONS]
    result["positions"] = np.array(POSITIONS, dtype=np.int32)
    for name, (_, dtype) in adapters.items():
        for key, value in model.named_parameters():
            if f".{name}." in key and "lora_" in key:
                value.data = value.data.to(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, selected_adapters=list(adapters))
    (folder / "README.md").unlink()
    for name in adapters:
        path = folder / name / "adapter_config.json"
        options = json.loads(path.read_text())
        options["base_model_name_or_path"] = model_name
        if isinstance(options["target_modules"], list):
            options["target_modules"].sort()
        path.write_text(json.dumps(options, indent=1, sort_keys=True) + "\n")
    save_file(result, folder / "reference.safetensors")
    if model_name == "llama_linear":
        write_gguf(folder / "a", folder / "a.gguf", "llama", base.config)
    if model_name == "deepseek_v2":
        write_gguf(folder / "a", folder / "a.gguf", "deepseek2", base.config)
    print(model_name, "largest changes of a logit", greatest)


def main():
    reference, out = map(pathlib.Path, sys.argv[1:3])
    for name, adapters in MODELS.items():
        if len(sys.argv) > 3 and name not in sys.argv[3:]:
            continue
        make(reference, out, name, adapters)
    print("torch", torch.__version__, "transformers", transformers.__version__, "peft", peft.__version__)


if __name__ == "__main__":
    main()
