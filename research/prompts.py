#!/usr/bin/python3
"""Draws the pictures of docs/start/concepts.md: the cost of a lone prompt, the common level, and first tokens against other tokens.

    research/prompts.py [--out=docs/pictures] [--sim=build/bin/bfio_sim]

The first two are computed from the cost of a step; the third runs `bfio_sim serve` for every rule and budget (two minutes).
"""
import argparse
import json
import pathlib
import subprocess
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

matplotlib.rcParams.update({"svg.hashsalt": "bfio", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
                            "axes.spines.right": False})
# A step of a rank: C + A max(0, rows - B0) + K2 tokens of context (the BF-IO paper's Llama-3-70B; docs/research/papers.md).
C_S, A_S, B0, K2_S = 45.5e-3, 0.30e-3, 64, 2 * 80 * 8 * 128 * 2 / (2 * 2.039e12)
COST = "45.5e-3,0.30e-3,64,4.2e-9,8.037e-8"
# Tokens of context of each rank's 48 decodes.
CONTEXTS = tuple(48 * tokens for tokens in (2600, 700, 1500, 400, 2200, 900, 1300, 1100))
DECODE, PROMPT, WAIT = "#4477aa", "#ee7733", "#e4e7ea"
RULES = ("vllm", "vllm_cadence", "sglang_delayer", "atom_coalescer", "trtllm_adp", "tpu_batch", "equal_chunks")
BUDGETS = (256, 512, 2048, 8192)


def step_s(rows, context):
    return C_S + A_S * max(0, rows - B0) + K2_S * context


def stacked(axes, decodes, prompts, title):
    """Times of ranks in a step, ms: what decodes take, what prompts add, and the wait for the slowest."""
    ranks = range(len(decodes))
    longest = max(d + p for d, p in zip(decodes, prompts))
    axes.bar(ranks, decodes, color=DECODE, label="decodes")
    axes.bar(ranks, prompts, bottom=decodes, color=PROMPT, label="prompts")
    axes.bar(ranks, [longest - d - p for d, p in zip(decodes, prompts)], bottom=[d + p for d, p in zip(decodes, prompts)],
             color=WAIT, label="wait for the slowest rank")
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("rank")
    axes.set_xticks(list(ranks))


def finish(figure, left):
    left.set_ylabel("step time, ms")
    figure.legend(*left.get_legend_handles_labels(), loc="lower center", ncol=3, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.07, 1, 1))


def lone(path):
    base = [1e3 * step_s(48, context) for context in CONTEXTS]
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 2.9), sharey=True)
    stacked(left, base, [0] * 8, "decodes only")
    chunk = [0] * 8
    chunk[3] = 1e3 * step_s(48 + 512, CONTEXTS[3]) - base[3]
    stacked(right, base, chunk, "one rank computes 512 tokens of a prompt")
    finish(figure, left)
    figure.savefig(path, metadata={"Date": None})


def level(path):
    base = [1e3 * step_s(48, context) for context in CONTEXTS]
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 2.9), sharey=True)
    equal = [1e3 * step_s(48 + 64, context) - b for context, b in zip(CONTEXTS, base)]
    stacked(left, base, equal, "512 tokens in equal chunks of 64")
    # The level at which the free rows below the knee and the time below it hold 512 tokens.
    free = 8 * (B0 - 48)
    low, high = max(base), max(base) + 200
    while high - low > 1e-6:
        middle = (low + high) / 2
        tokens = free + sum((middle - b) * 1e-3 / A_S for b in base)
        low, high = (middle, high) if tokens < 512 else (low, middle)
    stacked(right, base, [high - b for b in base], "512 tokens up to a common level")
    right.axhline(high, color="black", linewidth=0.8, linestyle="--")
    left.set_ylim(40, None)
    finish(figure, left)
    figure.savefig(path, metadata={"Date": None})


def serve(sim, rule, budget):
    run = subprocess.run([sim, "serve", "--profile=conversation", "--workers=8", "--slots=72", "--load=0.5", f"--cost={COST}",
                          f"--rule={rule}", f"--budget={budget}", f"--lag={2 if rule == 'bf_io' else 0}", "--json"],
                         check=True, capture_output=True, text=True)
    return json.loads(run.stdout)


def frontier(path, sim):
    figure, axes = plt.subplots(figsize=(5.6, 3.8))
    for rule in RULES:
        print(f"{rule} ...", file=sys.stderr)
        runs = [serve(sim, rule, budget) for budget in BUDGETS]
        axes.plot([run["ttft_s"]["p50"] for run in runs], [1e3 * run["tpot_s"]["p50"] for run in runs], marker=".", label=rule,
                  linewidth=1)
    ours = serve(sim, "bf_io", 2048)
    axes.plot(ours["ttft_s"]["p50"], 1e3 * ours["tpot_s"]["p50"], "*", color="black", markersize=13, label="bf_io")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_yticks([50, 100, 200, 500], labels=["50", "100", "200", "500"])
    axes.minorticks_off()
    axes.set_xlabel("median time to first token, s")
    axes.set_ylabel("median time per output token, ms")
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("docs/pictures"), help="folder for the pictures")
    parser.add_argument("--sim", default="build/bin/bfio_sim", help="path of bfio_sim")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    lone(arguments.out / "lone-prompt.svg")
    level(arguments.out / "level.svg")
    frontier(arguments.out / "frontier.svg", arguments.sim)


if __name__ == "__main__":
    main()
