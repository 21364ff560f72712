#!/usr/bin/env python3
"""Makes the files beside this script: results of transformers, for tests that run without transformers.

usage: tests/golden/make_golden.py [--out=DIR]

Needs torch and transformers (any CPU build; versions.json says which ones made the files that are committed). Nothing is
downloaded: the models are tiny and random. README.md describes the files.
"""
import argparse
import json
import pathlib
import platform
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

PROMPT = 24
STEPS = 64
# Rows whose logits are kept in full; row 0 follows the prompt, row j the j-th forced token.
ROWS = (0, 1, 2, 8, 16, 24, 32, 48, 63, 64)

# 0.2 rather than the usual 0.02: tiny models with small weights give nearly equal logits, which test little.
COMMON = dict(initializer_range=0.2, bos_token_id=1, eos_token_id=2, max_position_embeddings=512)
CASES = {
    "llama": (LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                          num_key_value_heads=2, rms_norm_eps=1e-5,
                          rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                                               high_freq_factor=4.0, original_max_position_embeddings=64), **COMMON),
              torch.float32, dict()),
    # With every bias that the family knows, and with the field names of transformers before version 5.
    "llama_tied": (LlamaConfig(vocab_size=320, hidden_size=64, intermediate_size=72, num_hidden_layers=3, num_attention_heads=4,
                               num_key_value_heads=1, tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
                               rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0), **COMMON),
                   torch.float32, dict(older_names=True)),
    "mistral": (MistralConfig(vocab_size=256, hidden_size=96, intermediate_size=144, num_hidden_layers=2,
                              num_attention_heads=6, num_key_value_heads=2, rms_norm_eps=1e-5, sliding_window=None,
                              rope_parameters=dict(rope_type="default", rope_theta=1000000.0), **COMMON),
                torch.bfloat16, dict()),
    "qwen2": (Qwen2Config(vocab_size=384, hidden_size=64, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
                          num_key_value_heads=2, tie_word_embeddings=True,
                          rope_parameters=dict(rope_type="default", rope_theta=1000000.0), **COMMON),
              torch.float32, dict(shard_bytes=120_000)),
    # heads * head_dim, 128, is not hidden_size.
    "qwen3": (Qwen3Config(vocab_size=256, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                          num_key_value_heads=2, head_dim=32,
                          rope_parameters=dict(rope_type="default", rope_theta=1000000.0), **COMMON),
              torch.float32, dict()),
}

# (rope parameters, head_dim)
ROPES = [
    (dict(rope_type="default", rope_theta=10000.0), 128),
    (dict(rope_type="default", rope_theta=1000000.0), 64),
    (dict(rope_type="default", rope_theta=10000.0), 96),
    (dict(rope_type="linear", rope_theta=10000.0, factor=4.0), 128),
    (dict(rope_type="linear", rope_theta=5000000.0, factor=2.5), 80),
    # Llama 3.1, and 3.2 1B.
    (dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
          original_max_position_embeddings=8192), 128),
    (dict(rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
          original_max_position_embeddings=8192), 64),
    (dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=2.0, high_freq_factor=3.0,
          original_max_position_embeddings=64), 32),
]

# config.json files with absent and null fields, to record how transformers resolves them.
CONFIGS = [
    dict(model_type="llama"),
    dict(model_type="mistral"),
    dict(model_type="qwen2"),
    dict(model_type="qwen3"),
    dict(model_type="llama", hidden_size=64, num_attention_heads=8, num_key_value_heads=None, head_dim=None),
    dict(model_type="llama", num_attention_heads=16),
    dict(model_type="mistral", num_attention_heads=16, head_dim=None, sliding_window=None),
    dict(model_type="qwen2", hidden_size=128, num_attention_heads=8, num_key_value_heads=2, head_dim=24),
    dict(model_type="qwen2", num_key_value_heads=None, eos_token_id=[5, 3]),
    dict(model_type="qwen3", num_key_value_heads=None, eos_token_id=7, attention_bias=True),
    dict(model_type="llama", rope_theta=500000.0, max_position_embeddings=131072,
         rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                           original_max_position_embeddings=8192)),
    dict(model_type="llama", rope_theta=20000.0, rope_scaling=dict(type="linear", factor=2.0)),
    dict(model_type="llama", rope_scaling=None, rope_theta=20000.0),
    dict(model_type="llama", rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=30000.0)),
    dict(model_type="llama", rope_parameters=dict(rope_type="default"), rope_theta=40000.0),
    dict(model_type="llama", rope_parameters=dict(factor=8.0, rope_type="llama3", low_freq_factor=1.0, high_freq_factor=4.0,
                                                  rope_theta=500000.0, original_max_position_embeddings=512)),
]


def write_json(path, value, indent=None):
    path.write_text(json.dumps(value, indent=indent, sort_keys=True) + "\n")


def randomise(model, generator):
    """Norms and biases of transformers' initialisation are ones and zeros, which would hide a forgotten one."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.25 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.3 * noise)


@torch.no_grad()
def decode(model, prompt, forced):
    """Logits after the prompt and after each forced token, one token at a time over a KV cache."""
    out = model(torch.tensor([prompt]), use_cache=True)
    rows = [out.logits[0, -1]]
    for token in forced:
        out = model(torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True)
        rows.append(out.logits[0, -1])
    return torch.stack(rows).float()


def older_names(folder):
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    write_json(folder / "config.json", config, indent=2)


def make_case(name, number, out):
    config, dtype, options = CASES[name]
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    torch.manual_seed(number)
    generator = torch.Generator().manual_seed(1000 + number)
    model = AutoModelForCausalLM.from_config(config)
    randomise(model, generator)
    model.to(dtype).save_pretrained(folder, max_shard_size=options.get("shard_bytes", "1GB"))
    (folder / "generation_config.json").unlink(missing_ok=True)
    if options.get("older_names"):
        older_names(folder)
    load = lambda dtype: AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    ids = torch.randint(3, config.vocab_size, (PROMPT + STEPS,), generator=generator).tolist()
    prompt, forced = ids[:PROMPT], ids[PROMPT:]
    exact = decode(load(torch.float32), prompt, forced)
    with torch.no_grad():
        at_once = load(torch.float32)(torch.tensor([ids])).logits[0, PROMPT - 1:]
    relative = lambda a, b: float((a - b).norm() / b.norm())
    assert relative(at_once, exact) < 1e-5, relative(at_once, exact)
    half = decode(load(torch.bfloat16), prompt, forced)
    top = exact.topk(2, dim=-1)
    save_file({"logits": exact[list(ROWS)].contiguous(), "logsumexp": exact.logsumexp(-1).contiguous(),
               "margin": (top.values[:, 0] - top.values[:, 1]).contiguous()}, folder / "logits.safetensors")
    write_json(folder / "case.json", {
        "prompt": prompt, "forced": forced, "rows": list(ROWS), "top1": top.indices[:, 0].tolist(),
        "transformers_bf16": {"max_abs_error": float((half - exact).abs().max()), "relative_l2": relative(half, exact),
                              "top1_equal": int((half.argmax(-1) == top.indices[:, 0]).sum())},
    })
    for file in folder.iterdir():
        file.chmod(0o644)
    print(f"{name}: {sum(p.stat().st_size for p in folder.iterdir())} bytes, logits {float(exact.std()):.2f} wide, "
          f"smallest margin {float((top.values[:, 0] - top.values[:, 1]).min()):.4f}, "
          f"bf16 error {float((half - exact).abs().max()):.4f}, relative {relative(half, exact):.4f}")


def frequencies(rope, head_dim):
    config = LlamaConfig(hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim, max_position_embeddings=131072,
                         rope_parameters=dict(rope))
    if rope["rope_type"] == "default":
        return transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config).inv_freq.tolist()
    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)[0].tolist()


def resolved(text):
    """The fields of our ModelConfig, as transformers resolves them."""
    text = json.loads(json.dumps(text))  # transformers writes into what it is given
    model_type = text.pop("model_type")
    config = AutoConfig.for_model(model_type, **text)
    eos = config.eos_token_id
    model = config.__class__(**{**config.to_dict(), "vocab_size": 16, "hidden_size": 2 * config.num_attention_heads,
                                "head_dim": 2, "intermediate_size": 4, "num_hidden_layers": 1, "layer_types": None})
    with torch.device("meta"):
        names = {name for name, _ in AutoModelForCausalLM.from_config(model).named_parameters()}
    layer = "model.layers.0."
    return {
        "vocab": config.vocab_size, "hidden": config.hidden_size, "intermediate": config.intermediate_size,
        "layers": config.num_hidden_layers, "heads": config.num_attention_heads, "kv_heads": config.num_key_value_heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        "max_positions": config.max_position_embeddings, "rms_epsilon": config.rms_norm_eps,
        "tied_embeddings": config.tie_word_embeddings, "qkv_bias": layer + "self_attn.q_proj.bias" in names,
        "output_bias": layer + "self_attn.o_proj.bias" in names, "mlp_bias": layer + "mlp.gate_proj.bias" in names,
        "qk_norm": layer + "self_attn.q_norm.weight" in names, "rope": config.rope_parameters,
        "eos": [] if eos is None else sorted(eos) if isinstance(eos, list) else [eos],
        "sliding_window": config.sliding_window if hasattr(config, "sliding_window") else None,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for number, name in enumerate(CASES, 1):
        make_case(name, number, args.out)
    write_json(args.out / "rope.json", [{"rope": rope, "head_dim": head_dim, "inverse_frequencies": frequencies(rope, head_dim)}
                                        for rope, head_dim in ROPES])
    write_json(args.out / "configs.json", [{"config": config, "resolved": resolved(config)} for config in CONFIGS], indent=1)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "python": platform.python_version(),
                "machine": platform.machine()}
    write_json(args.out / "versions.json", versions)
    print(versions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
