#!/usr/bin/env python3
"""Measures decode steps of Hugging Face transformers, in the columns of bfio_engine_bench.

Uses the same checkpoint (--model) or random weights of the same shape (--shape), SDPA attention, a static cache, and one
forward pass per step on one new token of every sequence; greedy. On CUDA the step is compiled with CUDA graphs
(torch.compile, mode reduce-overhead) if that works, and run uncompiled if not; the output line says which.

    venv/bin/python tests/bench/transformers_decode.py --model=DIR --device=cpu --threads=1 --batches=1,4 --contexts=128

  step_ms   median step; tok/s: batch / step
  floor_ms  (weights read by a step + keys and values) / bandwidth, measured by a copy (CUDA) or a sum (CPU)
  over      step / floor
"""
import argparse
import statistics
import sys
import time

import torch
import transformers

SHAPES = {
    "llama-8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                     num_key_value_heads=8, head_dim=128, vocab_size=128256, tie_word_embeddings=False),
    "llama-1b": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
                     num_key_value_heads=8, head_dim=64, vocab_size=128256, tie_word_embeddings=True),
}


def load(args, dtype):
    if args.model:
        model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, attn_implementation="sdpa")
    else:
        config = transformers.LlamaConfig(**SHAPES[args.shape], max_position_embeddings=131072, rope_theta=500000.0)
        with torch.device(args.device):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return model.to(args.device).eval()


def bandwidth(device):
    """Bytes per second: read and written by a copy on a GPU, read by a sum on a CPU; the best of several."""
    count = 1 << (30 if device == "cuda" else 27)
    data = torch.ones(count // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(data) if device == "cuda" else None
    best = float("inf")
    for _ in range(8):
        start = clock(device)
        target.copy_(data) if target is not None else data.sum()
        best = min(best, clock(device) - start)
    return count * (2 if target is not None else 1) / best


def clock(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def step_bytes(model):
    """Bytes of the weights that a step reads: all except an embedding that is not shared with the output."""
    embedding = model.get_input_embeddings().weight
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    if model.get_output_embeddings().weight is not embedding:
        total -= embedding.numel() * embedding.element_size()
    return total


@torch.inference_mode()
def measure(model, args, batch, context, compiled):
    config, device = model.config, args.device
    cache = transformers.StaticCache(config=config, max_cache_len=context + args.steps + 8)
    ids = torch.randint(0, config.vocab_size, (batch, context), device=device)
    start = clock(device)
    piece = max(1, args.step_tokens // batch)
    for at in range(0, context, piece):
        end = min(context, at + piece)
        out = model(ids[:, at:end], past_key_values=cache, use_cache=True, logits_to_keep=1,
                    cache_position=torch.arange(at, end, device=device))
    token = out.logits[:, -1].argmax(-1, keepdim=True)
    prefill = batch * context / (clock(device) - start)

    def step(token, position):
        logits = model(token, past_key_values=cache, use_cache=True, cache_position=position).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    if compiled:  # compiled again for each shape: after several shapes torch falls back to eager or dynamic shapes
        torch._dynamo.reset()
    run = torch.compile(step, mode="reduce-overhead", dynamic=False) if compiled else step
    times = []
    for i in range(args.steps + 4):  # the first four compile and warm up
        position = torch.tensor([context + i], device=device)
        start = clock(device)
        token = run(token, position).clone()
        times.append(clock(device) - start)
    return statistics.median(times[4:]), prefill


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="directory of a checkpoint")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="use random weights of this shape instead of --model")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="default: bfloat16 on CUDA, float32 on a CPU")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--batches", default="1,4,16,64")
    parser.add_argument("--contexts", default="128,1024")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--step_tokens", type=int, default=2048, help="tokens of a forward pass of the prefill")
    args = parser.parse_args()
    if bool(args.model) == bool(args.shape):
        parser.error("exactly one of --model and --shape is required")
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("transformers_decode: there is no CUDA device")
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype or ("bfloat16" if args.device == "cuda" else "float32"))
    model = load(args, dtype)
    speed = bandwidth(args.device)
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv_bytes = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * dtype.itemsize
    weights = step_bytes(model)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {args.device}, {dtype}, "
          f"{args.threads} threads, {speed / 1e9:.1f} GB/s; {weights / 2**20:.1f} MiB of weights a step")
    print(f"{'batch':>6} {'context':>8} {'step_ms':>9} {'tok/s':>9} {'floor_ms':>9} {'over':>6} {'prefill_tok/s':>14}  how")
    for context in map(int, args.contexts.split(",")):
        for batch in map(int, args.batches.split(",")):
            how = "as it is"
            try:
                result = measure(model, args, batch, context, False)
                if args.device == "cuda":
                    try:
                        compiled = measure(model, args, batch, context, True)
                        if compiled[0] < result[0]:
                            result, how = compiled, "compiled, CUDA graphs"
                    except Exception as error:  # torch.compile raises exceptions of many types
                        how = f"as it is (compiling failed: {type(error).__name__})"
            except torch.cuda.OutOfMemoryError:
                print(f"{batch:6} {context:8}  out of memory")
                continue
            seconds, prefill = result
            floor = (weights + kv_bytes * batch * (context + args.steps / 2)) / speed
            print(f"{batch:6} {context:8} {seconds * 1e3:9.3f} {batch / seconds:9.0f} {floor * 1e3:9.3f} "
                  f"{seconds / floor:6.2f} {prefill:14.0f}  {how}", flush=True)


if __name__ == "__main__":
    main()
