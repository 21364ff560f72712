#!/usr/bin/python3
"""Experiments with WAIT and Nested WAIT: batches that start when enough requests wait.

"Fluid-Based Online Scheduling under Memory Constraints", Section 6 and B: WAIT and Nested WAIT against the fluid benchmark
and against batching that does not wait, on the paper's synthetic loads and its real lengths. docs/design/admission.md has the
results. All have the same memory, and each its best setting in hindsight. An iteration takes 6.6 ms + 257 ns per token
held (Llama-2-7B in fp16 on an A100 with 80 GB, by its bandwidth; the paper does not give its own).
"""

import math

import waiting
from common import experiment, main

C, TL, MEMORY = 6.6e-3, 2.57e-7, 120_000

# Types of requests: (arrivals per second, prompt, output); prompts of 10, 20 and 60 tokens are of the paper's code.
TWO_TYPES = [(1000, 10, 10), (1000, 10, 20)]
HIGH_DEMAND = [(6000, 20, 100), (4000, 20, 200), (2000, 20, 300)]
FOUR_TYPES = [(20, 10, 20), (40, 10, 40), (80, 10, 80), (160, 10, 160)]
LMSYS = [(rate, 60, 50 * (i + 1)) for i, rate in enumerate((23, 11, 8, 7, 6, 4, 3, 2, 1, 1))]

VLLM, SARATHI = "prefill first (vLLM)", "chunked (Sarathi)"
BATCHINGS = ("WAIT", "Nested WAIT", VLLM, SARATHI)


def mean_running(types):
    """Number of requests that fit into memory in the stages' mix of the fluid model."""
    return MEMORY * sum(rate * (output + 1) for rate, _, output in types) / stage_tokens(types)


def settings(batching, types):
    """The settings of a batching, name -> flags. The best of them in hindsight counts."""
    if batching == "WAIT":
        filling = (max(1, round(MEMORY / stage_tokens(types) * rate)) for rate, _, _ in types)
        return {f"threshold load {load}": {"batching": "wait", "threshold_load": load} for load in (0.7, 0.9, 0.99)} | {
            "thresholds that fill memory": {"batching": "wait", "thresholds": ",".join(map(str, filling))}}
    if batching == "Nested WAIT":
        return {f"{count or len(types)} segments, margin {margin}": {"batching": "nested_wait", "segments": count,
                                                                     "threshold_margin": margin}
                for count in (0, len(types) // 2) for margin in (1.01, 1.1)}
    mode, budgets, shares = {VLLM: ("prefill_first", (4096, 16384), (0.1, 0.3, 0.6, 0.8)),
                             SARATHI: ("chunked", (512, 8192, 32768), (0.7, 0.8, 0.9))}[batching]
    # The limit on running requests (vLLM: max_num_seqs), as a share of mean_running; 0: no limit.
    limits = {"": 0} | {f", {share:g} of the requests": max(1, round(share * mean_running(types))) for share in shares}
    return {f"{budget:,} tokens{limit}": {"batching": mode, "token_budget": budget, "most_running": most}
            for budget in budgets for limit, most in limits.items()}


def stage_tokens(types):
    """Tokens of all stages that arrive in a second."""
    return sum(rate * (output + 1) * (prompt + output / 2) for rate, prompt, output in types)


def load_of(types):
    """d1 times the tokens of all stages that arrive in a second: at 1 no batch size keeps up."""
    return TL * stage_tokens(types)


def scaled(types, factor):
    return [(rate * factor, prompt, output) for rate, prompt, output in types]


def at_load(types, load):
    return scaled(types, load / load_of(types))


def flags(types):
    return {"types": ",".join(f"{rate!r}:{prompt}:{output}" for rate, prompt, output in types), "c": C, "tl": TL,
            "kv_tokens": MEMORY}


def wait(ctx, variants):
    """A run of waiting.py for every variant and seed."""
    return ctx.simulate(variants, run=waiting.run_cell)


def share_of_sustained(runs, variant):
    """Throughput over what batches of the memory sustain: the fluid benchmark, where its batch fits."""
    return runs.mean(variant, "throughput_tokens_per_s", 1 / runs.values(variant, "sustained_tokens_per_s")[0])


def parameters(ctx, seconds):
    ctx.parameter("iteration", f"{C:g} s + {TL:g} s per token")
    ctx.parameter("memory of every rule", f"{MEMORY:,} tokens")
    ctx.parameter("arrivals", f"Poisson, for {seconds:g} s")


# ---------------------------------------------------------------------------------------------------------------------
# Every batching at its best setting in hindsight, at shares of the load that any batch size sustains


def best_setting(runs, load, batching, names):
    """The setting with the least latency among those within half a per cent of the highest throughput."""
    shares = {name: share_of_sustained(runs, (load, batching, name)).mean for name in names}
    good = [name for name in names if shares[name] >= max(shares.values()) - 0.005]
    return min(good, key=lambda name: runs.mean((load, batching, name), "latency_s_mean").mean)


def sweep(ctx, name, loads, seconds):
    """loads: load -> types. Returns (share of what memory sustains, latency in s, share with the worst setting, evictions)
    by load and batching."""
    ways = {(load, batching): settings(batching, types) for load, types in loads.items() for batching in BATCHINGS}
    runs = wait(ctx, {(load, batching, way): {**flags(loads[load]), **own, "seconds": seconds}
                      for (load, batching), some in ways.items() for way, own in some.items()})
    cells, rows = {}, []
    for load in loads:
        for batching in BATCHINGS:
            way = best_setting(runs, load, batching, ways[load, batching])
            cell = (load, batching, way)
            shares = [share_of_sustained(runs, (load, batching, other)).mean for other in ways[load, batching]]
            cells[load, batching] = (share_of_sustained(runs, cell), runs.mean(cell, "latency_s_mean"), min(shares),
                                     runs.mean(cell, "evictions"))
            rows.append({
                "load": load, "batching": batching, "setting": way,
                "of what memory sustains": cells[load, batching][0], "with the worst setting": min(shares),
                "latency, s": cells[load, batching][1], "TTFT, s": runs.mean(cell, "ttft_s_mean").mean,
                "held, most, tokens": runs.mean(cell, "peak_kv_tokens").mean,
                "evicted, of completed": runs.mean(cell, "evictions").mean / max(1, runs.mean(cell, "completed").mean),
            })
    ctx.table(name, rows, note="""Load: d1 times the tokens of all stages that arrive in a second; at 1 no batch size is
        sufficient, and batches that fit into memory sustain up to 0.824. A prompt counts as one token. Setting: the best in
        hindsight.""")
    if len(loads) > 1:
        ctx.lines(f"Throughput: {name}", "load", "share of what memory sustains",
                  {batching: {load: cells[load, batching][0] for load in loads} for batching in BATCHINGS})
        ctx.lines(f"Mean latency: {name}", "load", "latency, s",
                  {batching: {load: cells[load, batching][1] for load in loads} for batching in BATCHINGS}, log_y=True)
    return cells


LOADS = (0.15, 0.5, 0.7, 0.85, 1.2)


def hold(ctx, name, cells, ours):
    """Expects the values of docs/design/admission.md. ours: load -> (share of what memory sustains, mean latency in s) by batching."""
    for load, row in ours.items():
        for batching, (share, latency) in zip(BATCHINGS, row):
            got = cells[load, batching]
            ctx.expect(f"{name}, {load}, {batching}: of what memory sustains", got[0], share - 0.01, share + 0.01, ours=share)
            ctx.expect(f"{name}, {load}, {batching}: latency, s", got[1], latency * 0.93, latency * 1.07, ours=latency)


def over(cells, load, batching, other, what=0):
    """The ratio of one batching to another, of throughput (what = 0) or latency (1)."""
    return cells[load, batching][what].mean / cells[load, other][what].mean


TEXT = """WAIT starts a batch when enough requests of a type wait, Nested WAIT when enough wait at the entry of a segment of
    lengths; the others run all requests that are present. All have the same memory, and each has its best setting in
    hindsight."""


@experiment("WAIT and Nested WAIT on synthetic loads, against the fluid benchmark and batching that does not wait", seeds=3,
            check="--shorten=10 --seeds=1")
def wait_synthetic(ctx):
    seconds = {"two types": max(2, 20 / ctx.shorten), "four types": max(2, 60 / ctx.shorten)}
    parameters(ctx, seconds["four types"])
    ctx.text(TEXT)
    two = sweep(ctx, "two types, known lengths", {load: at_load(TWO_TYPES, load) for load in LOADS}, seconds["two types"])
    four = sweep(ctx, "four types", {load: at_load(FOUR_TYPES, load) for load in LOADS}, seconds["four types"])
    hold(ctx, "two types", two, {
        0.15: ((0.994, 0.149), (0.994, 0.148), (0.988, 0.327), (0.995, 0.128)),
        0.5: ((0.994, 0.235), (0.993, 0.253), (0.989, 0.368), (0.995, 0.217)),
        0.7: ((0.990, 0.389), (0.989, 0.454), (0.984, 0.551), (0.991, 0.359)),
        0.85: ((0.982, 0.877), (0.933, 1.39), (0.883, 1.89), (0.971, 0.937)),
        1.2: ((0.991, 3.47), (0.934, 3.88), (0.888, 4.22), (0.977, 3.54))})
    hold(ctx, "four types", four, {
        0.15: ((0.965, 4.60), (0.984, 2.29), (0.992, 1.47), (0.998, 0.894)),
        0.5: ((0.981, 2.16), (0.975, 2.74), (0.961, 4.18), (0.990, 1.51)),
        0.7: ((0.972, 2.91), (0.962, 4.18), (0.890, 6.50), (0.977, 2.42)),
        0.85: ((0.953, 4.86), (0.933, 5.29), (0.767, 10.7), (0.958, 4.32)),
        1.2: ((0.989, 10.8), (0.953, 12.0), (0.798, 15.2), (0.976, 11.4))})
    for name, cells, ours in (("two types", two, 1.01), ("four types", four, 1.00)):
        ctx.expect(f"{name}, 0.85: WAIT over chunked", cells[0.85, "WAIT"][0].mean / cells[0.85, SARATHI][0].mean,
                   ours - 0.02, ours + 0.02, ours=ours, small=(0.7, 1.05))
    # Ratios settle early in a run, although it starts with an empty worker.
    for name, cells, load, what, batching, other, full, small, ours in (
            ("two types", two, 0.85, 0, SARATHI, VLLM, (1.07, 1.13), (1.07, 1.35), 1.10),
            ("two types", two, 1.2, 0, SARATHI, VLLM, (1.07, 1.13), (1.07, 1.35), 1.10),
            ("four types", four, 0.85, 0, SARATHI, VLLM, (1.2, 1.3), (1.2, 1.8), 1.25),
            ("four types", four, 1.2, 0, SARATHI, VLLM, (1.17, 1.27), (1.17, 1.8), 1.22),
            ("two types", two, 1.2, 0, "WAIT", SARATHI, (0.99, 1.04), (0.9, 1.04), 1.014),
            ("four types", four, 1.2, 0, "WAIT", SARATHI, (0.99, 1.04), (0.7, 1.04), 1.013),
            ("two types", two, 0.15, 1, "WAIT", SARATHI, (1.1, 1.25), (1.1, 1.3), 1.16),
            ("four types", four, 0.15, 1, "WAIT", SARATHI, (4.5, 6), (3.5, 8), 5.1),
            ("two types", two, 0.5, 1, "WAIT", SARATHI, (1.04, 1.13), (1.03, 1.2), 1.08),
            ("four types", four, 0.5, 1, "WAIT", SARATHI, (1.3, 1.6), (1.2, 2.1), 1.43),
            ("two types", two, 0.85, 1, VLLM, SARATHI, (1.8, 2.3), (1.3, 2.3), 2.0),
            ("four types", four, 0.85, 1, VLLM, SARATHI, (2.2, 2.8), (1.15, 2.8), 2.5)):
        ctx.expect(f"{name}, {load}: {('throughput', 'latency')[what]}, {batching} over {other}",
                   over(cells, load, batching, other, what), *full, small=small, ours=ours)
    ctx.expect("two types, 0.85: chunked with 512 tokens a step", two[0.85, SARATHI][2], 0.21, 0.25, small=(0.21, 0.25),
               ours=0.23)


@experiment("the paper's high demand: three types, sixty times what any batch size can serve", seeds=3,
            check="--shorten=10 --seeds=1")
def wait_high(ctx):
    seconds = max(2, 100 / ctx.shorten)
    parameters(ctx, seconds)
    ctx.text(TEXT)
    cells = sweep(ctx, "high demand", {round(load_of(HIGH_DEMAND)): HIGH_DEMAND}, seconds)
    hold(ctx, "high demand", cells, {62: ((1.000, 50.2), (0.854, 50.2), (0.900, 49.6), (0.938, 49.9))})
    for batching, other, full, small, ours in (("WAIT", SARATHI, (1.05, 1.09), (1.02, 1.12), 1.066),
                                               ("WAIT", VLLM, (1.09, 1.13), (1.03, 1.15), 1.11),
                                               ("Nested WAIT", "WAIT", (0.83, 0.88), (0.78, 0.88), 0.854)):
        ctx.expect(f"throughput, {batching} over {other}", over(cells, 62, batching, other), *full, small=small, ours=ours)
    ctx.expect("WAIT's evictions", cells[62, "WAIT"][3], 0, 0, small=(0, 0), ours=0)


@experiment("heavy traffic: rates times zeta, iterations 1 / zeta as long", seeds=3, check="--shorten=5 --seeds=1")
def wait_heavy(ctx):
    ctx.text("""WAIT's gap to the fluid benchmark with memory that holds its thresholds' largest batch.""")
    heavy_traffic(ctx, max(0.5, 10 / ctx.shorten))


def heavy_traffic(ctx, seconds):
    """Rates times zeta, iterations 1 / zeta as long."""
    zetas = (1, 2, 4, 8, 16, 32, 64)
    # Lengths known: two types; unknown: the four types of Nested WAIT.
    kinds = {"WAIT, 2 types": (TWO_TYPES, "wait"), "Nested WAIT, 2 types": (TWO_TYPES, "nested_wait"),
             "Nested WAIT, 4 types": (FOUR_TYPES, "nested_wait")}
    runs = wait(ctx, {(zeta, kind): {**flags(scaled(types, zeta)), "batching": batching, "c": C / zeta, "tl": TL / zeta,
                                     "seconds": seconds}
                      for zeta in zetas for kind, (types, batching) in kinds.items()})

    def gap(zeta, kind):
        share = share_of_sustained(runs, (zeta, kind))
        return share._replace(mean=1 - share.mean).scaled(100)

    title = "Heavy traffic: rates times zeta, iterations 1 / zeta as long"
    ctx.table(title, [{"zeta": zeta} | {f"{kind}: {what}": value for kind in kinds for what, value in (
        ("gap, %", gap(zeta, kind)), ("latency, s", runs.mean((zeta, kind), "latency_s_mean").mean))} for zeta in zetas],
        note=f"Gap: 1 - throughput over the fluid throughput, over {seconds:g} s from an empty worker on.")
    ctx.lines("Gap to the fluid benchmark in heavy traffic", "zeta", "gap, %",
              {kind: {zeta: gap(zeta, kind) for zeta in zetas} for kind in kinds}, log_x=True)
    for zeta in (4, 64):
        ctx.expect(f"zeta {zeta}: WAIT's gap, %", gap(zeta, "WAIT, 2 types"), -1, 2, small=(-2, 4))
    nested = {zeta: gap(zeta, "Nested WAIT, 4 types").mean for zeta in zetas}
    for zeta, low, high, ours in ((1, 22, 26, 24), (4, 4.5, 6.5, 5.5), (64, -0.7, 1.3, 0.3)):
        ctx.expect(f"zeta {zeta}, lengths unknown: gap, %", nested[zeta], low, high, ours=ours)
    ctx.expect("lengths unknown: gap at zeta 4 over that at 1", nested[4] / nested[1], 0.18, 0.28, ours=0.23, small=(0.15, 0.6))
    ctx.expect("lengths unknown: gap at zeta 64 over that at 1", nested[64] / nested[1], -0.03, 0.06, ours=0.01,
               small=(-0.03, 0.08))
    ctx.expect("latency falls as 1 / zeta, 16 to 64", runs.mean((16, "WAIT, 2 types"), "latency_s_mean").mean /
               runs.mean((64, "WAIT, 2 types"), "latency_s_mean").mean, 3.6, 4.4, ours=4, small=(3.8, 4.2))


@experiment("WAIT and Nested WAIT on ten bins of lengths of LMSYS", seeds=3, check="--shorten=10 --seeds=1")
def wait_real(ctx):
    seconds = max(4, 200 / ctx.shorten)
    parameters(ctx, seconds)
    ctx.text(TEXT)
    cells = sweep(ctx, "LMSYS, ten bins of 50 tokens", {load: at_load(LMSYS, load) for load in LOADS}, seconds)
    hold(ctx, "LMSYS", cells, {
        0.15: ((0.866, 28.5), (0.941, 12.8), (1.000, 1.45), (1.001, 1.24)),
        0.5: ((0.960, 9.42), (0.982, 5.38), (0.983, 4.43), (0.992, 2.08)),
        0.7: ((0.947, 14.5), (0.747, 27.4), (0.954, 8.79), (0.986, 3.36)),
        0.85: ((0.837, 29.8), (0.637, 40.6), (0.864, 18.8), (0.971, 8.3)),
        1.2: ((0.802, 44.8), (0.636, 57.7), (0.868, 42.1), (0.981, 33.9))})
    waiting = ("WAIT", "Nested WAIT")
    ctx.expect("most throughput of a rule that waits over chunked's, all loads",
               max(over(cells, load, batching, SARATHI) for load in LOADS for batching in waiting), 0.97, 1, ours=0.99,
               small=(0.7, 1))
    ctx.expect("least latency of another rule over chunked's, all loads",
               min(over(cells, load, batching, SARATHI, 1) for load in LOADS for batching in (*waiting, VLLM)), 1.1, 1.25,
               ours=1.17, small=(1.05, 1.4))
    ctx.expect("Nested WAIT: throughput at 0.85 over that at 0.5", cells[0.85, "Nested WAIT"][0].mean /
               cells[0.5, "Nested WAIT"][0].mean, 0.62, 0.68, ours=0.65, small=(0.6, 0.85))


# ---------------------------------------------------------------------------------------------------------------------
# WAIT's starts in batches, without its pauses

PAPER, NESTED, BOUNDED, NESTED_BOUNDED = "WAIT", "Nested WAIT", "WAIT, pauses <= 32 steps", "Nested WAIT, pauses <= 32 steps"
STARTS, NESTED_STARTS = "WAIT, no pauses", "Nested WAIT, first segment, no pauses"
NO_WAITING = "chunked, no waiting"
PAUSE_RULES = (PAPER, BOUNDED, STARTS, NESTED, NESTED_BOUNDED, NESTED_STARTS, NO_WAITING)
BOUND_STEPS = 32  # the bound on a pause, in steps


def pause_settings(types, filling, segments, shares):
    """rule -> setting -> flags. filling: thresholds that fill memory instead of the smallest stable ones. shares: limits on
    running requests, as shares of mean_running; 0: no limit."""
    wait_rule = {"batching": "wait", "threshold_load": 0.99}
    if filling:
        fill = (max(1, round(MEMORY / stage_tokens(types) * rate)) for rate, _, _ in types)
        wait_rule = {"batching": "wait", "thresholds": ",".join(map(str, fill))}
    nested = {"batching": "nested_wait", "segments": segments, "threshold_margin": 1.01}
    chunked = {f"32,768 tokens{f', {share:g} of the requests' if share else ''}": {
        "batching": "chunked", "token_budget": 32_768, "most_running": round(share * mean_running(types))} for share in shares}
    bound = {"most_steps": BOUND_STEPS}
    both = {PAPER: {}, BOUNDED: bound, STARTS: {**bound, "pause": 0}}
    return {**{rule: {"thresholds that fill memory" if filling else "threshold load 0.99": {**wait_rule, **more}}
               for rule, more in both.items()},
            **{rule: {f"{segments} segments": {**nested, **more}}
               for rule, more in zip((NESTED, NESTED_BOUNDED, NESTED_STARTS), both.values())},
            NO_WAITING: chunked}


@experiment("cost and gain of pauses: full WAIT and Nested WAIT, without pauses, and no waiting", seeds=3,
            check="--shorten=2 --seeds=1")
def wait_pauses(ctx):
    # Types, seconds, and the best settings of the runs above: thresholds that fill memory, segments, shares.
    scenes = {"two types, 0.5": (at_load(TWO_TYPES, 0.5), 10, False, 2, (0,)),
              "two types, 0.85": (at_load(TWO_TYPES, 0.85), 10, True, 2, (0.9,)),
              "high demand, 62": (HIGH_DEMAND, 20, True, 3, (0.6, 0.7)),
              "LMSYS, 0.5": (at_load(LMSYS, 0.5), 40, False, 5, (0,)),
              "LMSYS, 0.85": (at_load(LMSYS, 0.85), 40, False, 5, (0, 0.9))}
    ways = {scene: pause_settings(types, *settings) for scene, (types, _, *settings) in scenes.items()}
    runs = wait(ctx, {(scene, rule, way): {**flags(scenes[scene][0]), **own, "streams": 1,
                                           "seconds": max(2, scenes[scene][1] / ctx.shorten)}
                      for scene, rules in ways.items() for rule, some in rules.items() for way, own in some.items()})
    ctx.parameter("iteration", f"{C:g} s + {TL:g} s per token")
    ctx.parameter("memory of every rule", f"{MEMORY:,} tokens")
    ctx.text("""A request of WAIT pauses until enough requests of its type wait at its first stage, and one of Nested WAIT
        until enough wait at the entry of its segment. Each rule has its
        best setting in hindsight. A paused request holds memory, but costs no time, because its KV is not read.""")
    got = {}
    for scene in scenes:
        rows = []
        for rule, some in ways[scene].items():
            way = best_setting(runs, scene, rule, list(some))

            def of(key, scale=1):
                return runs.mean((scene, rule, way), key, scale)  # noqa: B023

            got[scene, rule] = row = {
                "of what memory sustains": share_of_sustained(runs, (scene, rule, way)),
                "latency, s": of("latency_s_mean"), "latency p99, s": of("latency_s_p99"), "TTFT, s": of("ttft_s_mean"),
                "gap, ms": of("gap_s_mean", 1e3), "gap p99, ms": of("gap_s_p99", 1e3), "gap, longest, ms": of("gap_s_max", 1e3),
                "paused, % of memory": of("paused_kv_tokens", 100 / MEMORY),
                "paused, most, % of memory": of("peak_paused_kv_tokens", 100 / MEMORY),
                "evicted, of completed": of("evictions").mean / max(1, of("completed").mean)}
            rows.append({"rule": rule, "setting": way, **row})
        ctx.table(scene, rows, note="""Gap: between two tokens of a stream. Paused: memory of requests that have started and are not
            in the batch, mean over time and most. Runs begin with an empty worker, so shares contain the requests in progress.""")
    hold_pauses(ctx, got)


SHARE, LATENCY, GAP_P99, LONGEST, PAUSED, MOST_PAUSED = (
    "of what memory sustains", "latency, s", "gap p99, ms", "gap, longest, ms", "paused, % of memory", "paused, most, % of memory")


def hold_pauses(ctx, got):
    """Expects the tables of docs/design/admission.md."""
    for scene, rows in {  # share, latency in s and 99th percentile of gaps in ms, by rule
            "two types, 0.5": ((0.986, 0.234, 22.9), (0.986, 0.235, 23.6), (0.985, 0.226, 13.4), (0.984, 0.253, 32.0),
                               (0.983, 0.253, 31.2), (0.986, 0.223, 13.8), (0.986, 0.215, 13.7)),
            "two types, 0.85": ((0.966, 0.723, 43), (0.967, 0.707, 39.2), (0.972, 0.647, 37.1), (0.919, 0.974, 89.6),
                                (0.923, 0.899, 88.8), (0.970, 0.656, 37.1), (0.961, 0.670, 34.6)),
            "high demand, 62": ((1.028, 10.7, 37.4), (1.028, 10.7, 37.4), (1.028, 10.7, 37.4), (0.861, 10.6, 130),
                                (0.861, 10.6, 130), (0.854, 10.6, 23.5), (0.971, 10.7, 37.1)),
            "LMSYS, 0.5": ((0.738, 9.28, 586), (0.811, 9.18, 374), (0.960, 1.98, 14.9), (0.910, 3.42, 205),
                           (0.911, 3.45, 205), (0.957, 2.02, 14.3), (0.964, 1.98, 14.5)),
            "LMSYS, 0.85": ((0.742, 9.22, 296), (0.744, 9.23, 277), (0.916, 4.47, 35.2), (0.633, 8.65, 192),
                            (0.633, 8.63, 212), (0.627, 8.40, 14.9), (0.926, 3.91, 36.9))}.items():
        for rule, (share, latency, gap) in zip(PAUSE_RULES, rows):
            cell = got[scene, rule]
            ctx.expect(f"{scene}, {rule}: of what memory sustains", cell[SHARE], share - 0.01, share + 0.01, ours=share)
            ctx.expect(f"{scene}, {rule}: latency, s", cell[LATENCY], latency * 0.95, latency * 1.05, ours=latency)
            ctx.expect(f"{scene}, {rule}: gap p99, ms", cell[GAP_P99], gap * 0.9, gap * 1.1, ours=gap)

    def ratio(scene, rule, other, what):
        return got[scene, rule][what].mean / got[scene, other][what].mean

    # Pauses against the same starts without pauses, and starts against no waiting. low, high: bounds for short runs.
    for scene, rule, other, what, low, high, ours in (
            ("two types, 0.5", PAPER, STARTS, SHARE, 0.985, 1.015, 1.001),
            ("two types, 0.5", PAPER, STARTS, LATENCY, 1, 1.1, 1.034),
            ("two types, 0.5", PAPER, STARTS, GAP_P99, 1.3, 2.2, 1.71), ("two types, 0.85", PAPER, STARTS, SHARE, 0.97, 1, 0.993),
            ("two types, 0.85", PAPER, STARTS, LATENCY, 1.03, 1.3, 1.118),
            ("two types, 0.85", NESTED, NESTED_STARTS, LATENCY, 1.15, 1.8, 1.48),
            ("two types, 0.85", STARTS, NO_WAITING, SHARE, 0.99, 1.04, 1.012),
            ("two types, 0.85", STARTS, NO_WAITING, LATENCY, 0.9, 1.1, 0.966),
            ("high demand, 62", PAPER, STARTS, SHARE, 1, 1, 1), ("high demand, 62", STARTS, NO_WAITING, SHARE, 1.02, 1.1, 1.058),
            ("LMSYS, 0.5", PAPER, STARTS, SHARE, 0.25, 0.9, 0.769), ("LMSYS, 0.5", PAPER, STARTS, LATENCY, 1.5, 7, 4.69),
            ("LMSYS, 0.5", PAPER, STARTS, GAP_P99, 15, 90, 39.3), ("LMSYS, 0.85", PAPER, STARTS, SHARE, 0.5, 0.95, 0.81),
            ("LMSYS, 0.85", PAPER, STARTS, LATENCY, 1.2, 3, 2.06), ("LMSYS, 0.85", PAPER, STARTS, GAP_P99, 4, 30, 8.4),
            ("LMSYS, 0.85", STARTS, NO_WAITING, LATENCY, 1, 1.4, 1.143)):
        within = {SHARE: 0.01, LATENCY: 0.03, GAP_P99: 0.1}[what]
        ctx.expect(f"{scene}: {what}, {rule} over {other}", ratio(scene, rule, other, what), ours * (1 - within),
                   ours * (1 + within), small=(low, high), ours=ours)
    for scene, rule, what, low, high, ours in (
            ("two types, 0.85", PAPER, MOST_PAUSED, 50, 95, 74), ("high demand, 62", PAPER, MOST_PAUSED, 0, 0, 0),
            ("LMSYS, 0.5", PAPER, PAUSED, 20, 50, 37), ("LMSYS, 0.5", PAPER, MOST_PAUSED, 60, 100, 98.7),
            ("LMSYS, 0.85", PAPER, MOST_PAUSED, 90, 100, 98.7), ("LMSYS, 0.85", BOUNDED, MOST_PAUSED, 90, 100, 98.1),
            ("LMSYS, 0.5", PAPER, LONGEST, 2_000, 15_000, 8_706), ("LMSYS, 0.85", BOUNDED, LONGEST, 2_000, 15_000, 9_455)):
        ctx.expect(f"{scene}, {rule}: {what}", got[scene, rule][what], ours * 0.9, ours * 1.1, small=(low, high), ours=ours)


# ---------------------------------------------------------------------------------------------------------------------
# Figures 4 to 6: the memory bound of Nested WAIT over the number of segments, 500 types


def five_hundred(rate):
    """Outputs of 1 to 500 tokens, exponential with mean 120 in place of the paper's frequencies, which it does not print."""
    shares = [math.exp(-k / 120) for k in range(1, 501)]
    return [(rate * share / sum(shares), 62, k) for k, share in enumerate(shares, 1)]


@experiment("the memory bound of Nested WAIT over the number of segments (Figures 4 to 6), 500 types", seeds=1)
def wait_memory(ctx):
    counts = (2, 5, 10, 20, 50, 100)
    # Figure: (requests per second, seconds, delta, factor on the length of iterations). 500 per second are 2.3 times what
    # any batch size sustains with our constants, so iterations are a tenth as long there.
    figures = {"4, left": (50, 200, 0.1, 1), "4, right": (50, 200, 1e-5, 1), "5, left": (500, 200, 0.1, 0.1),
               "5, right": (500, 200, 1e-5, 0.1), "6, left": (50, 20, 0.001, 1), "6, right": (50, 2000, 0.001, 1)}
    # Margins multiply from segment to segment: with many, only small ones are feasible.
    counts_at = {1.02: counts, 1.2: counts[:3]}
    runs = wait(ctx, {(figure, margin, count): {
        **flags(five_hundred(rate)), "c": C * factor, "tl": TL * factor, "kv_tokens": 0, "batching": "nested_wait",
        "segments": count, "threshold_margin": margin, "threshold_load": 0.999, "delta": delta,
        "seconds": max(2, seconds / ctx.shorten)}
        for figure, (rate, seconds, delta, factor) in figures.items() for margin, some in counts_at.items() for count in some})

    def bound(figure, margin, count, kind="fluid_bound"):
        found = runs.frame.iloc[list(runs.variants).index((figure, margin, count)) * runs.seeds]
        return found[kind] | {"held": found["peak_kv_tokens"]}

    for margin, some in counts_at.items():
        ctx.table(f"Terms of the bound, thresholds {margin} times what reaches a segment, 10^3 tokens", [{
            "figure": figure, "segments": count, "largest batch": of["peak_tokens"] / 1e3,
            "as printed in B.2": of["printed_equal_peak_tokens"] / 1e3, "waiting": of["queues_tokens"] / 1e3,
            "probable excess": of["excess_tokens"] / 1e3,
            "first term, of all": of["peak_tokens"] / total(of),
            "bound, whole thresholds": total(whole) / 1e3, "held, whole thresholds": whole["held"] / 1e3,
        } for figure in figures for count in some
            for of, whole in [(bound(figure, margin, count), bound(figure, margin, count, "bound"))]],
            note="""Thresholds are not rounded, except in the last two columns: at 50 requests per second less than one request
                arrives in an iteration.""")
        ctx.lines(f"The bound over the number of segments, thresholds {margin} times", "segments", "10^3 tokens",
                  {f"{what}, figure {figure}": {count: bound(figure, margin, count)[key] / 1e3 for count in some}
                   for figure in ("4, left",) for what, key in (("largest batch", "peak_tokens"), ("waiting", "queues_tokens"),
                                                                ("probable excess", "excess_tokens"))}, log_x=True, log_y=True)
    for count, ours in zip(counts, (81.0, 16.3, 11.9, 11.0, 13.3, 24.3)):
        ctx.expect(f"largest batch with {count} segments, 10^3 tokens", bound("4, left", 1.02, count)["peak_tokens"] / 1e3,
                   ours * 0.95, ours * 1.05, ours=ours, small=(ours * 0.95, ours * 1.05))
    for figure in figures:
        for margin, some in counts_at.items():
            for count in some:
                whole = bound(figure, margin, count, "bound")
                ctx.expect(f"figure {figure}, {count} segments, margin {margin}: held over the bound",
                           whole["held"] / total(whole), 0, 1, small=(0, 1))


def total(bound):
    return bound["peak_tokens"] + bound["queues_tokens"] + bound["excess_tokens"]


# ---------------------------------------------------------------------------------------------------------------------
# Where the paper gives no constants: rates that change and are estimated online (B.1), and the batch cap of its code


@experiment("WAIT with rates that change: thresholds from rates estimated online", seeds=3)
def wait_online(ctx):
    seconds = max(4, 60 / ctx.shorten)
    # The highest rates are a load of 0.45.
    high = at_load(TWO_TYPES, 0.45)
    # Rates over time as shares of the highest, and their mean.
    courses = {"constant": ("1", 1), "a third, then all": (f"{1 / 3!r},1", 2 / 3),
               "all, then a third": (f"1,{1 / 3!r}", 2 / 3), "waves of 30 s": (f"wave:{1 / 3!r}:1:30", 2 / 3)}
    ways = {"for the highest rates": {}, "for a third of them": {"threshold_rates": 1 / 3},
            "online, 2 s": {"tuner": 2}, "online, 5 s": {"tuner": 5}, "online, 20 s": {"tuner": 20}}
    runs = wait(ctx, {(course, way): {**flags(high), "batching": "wait", "threshold_load": 0.9, "seconds": seconds,
                                      "intensity": intensity, **own}
                      for course, (intensity, _) in courses.items() for way, own in ways.items()})
    offered = sum(rate * (output + 1) for rate, _, output in high)

    def share(course, way):
        return runs.mean((course, way), "throughput_tokens_per_s", 1 / (offered * courses[course][1]))

    ctx.table("WAIT with rates that change: thresholds fixed, and from rates estimated online", [{
        "rates": course, "thresholds": way, "of what is offered": share(course, way),
        "latency, s": runs.mean((course, way), "latency_s_mean"), "TTFT, s": runs.mean((course, way), "ttft_s_mean").mean,
    } for course in courses for way in ways], note="""Two types; the highest rates are a load of 0.45. Online: the time
        constant of the estimate. Of what is offered: a prompt counts as one token.""")
    parameters(ctx, seconds)
    ctx.text("""Thresholds for outdated rates either delay requests (too high) or cannot serve the load (too low). Rates
        estimated online give the same thresholds as known rates after a few time constants.""")
    for course, cells in (("constant", (0.997, 0.378, 0.997, 0.997, 0.997)),
                          ("a third, then all", (0.997, 0.533, 0.996, 0.997, 0.828)),
                          ("all, then a third", (0.996, 0.567, 0.996, 0.996, 0.996)),
                          ("waves of 30 s", (0.997, 0.567, 0.995, 0.994, 0.997))):
        for way, ours in zip(ways, cells):
            ctx.expect(f"{course}, {way}: of what is offered", share(course, way), ours - 0.015, ours + 0.015, ours=ours)
    ctx.expect("constant: online, 2 s over thresholds that are known", share("constant", "online, 2 s").mean /
               share("constant", "for the highest rates").mean, 0.99, 1.01, ours=1, small=(0.9, 1.1))


@experiment("WAIT and the batch cap that the paper's code sweeps, on the lengths of LMSYS", seeds=3, check="--shorten=3 --seeds=1")
def wait_caps(ctx):
    seconds = max(4, 30 / ctx.shorten)
    loads, caps = (0.3, 0.7), (100, 200, 400, 800, 1200, 2000)
    variants = {}
    for load in loads:
        types = at_load(LMSYS, load)
        every = sum(rate * (output + 1) for rate, _, output in types)
        for cap in caps:
            # As in the paper's code: a type's share of the cap is in proportion to rate times stages, divided by its stages.
            thresholds = [max(1, int(cap * rate / every)) for rate, _, _ in types]
            own = {"WAIT": {"batching": "wait", "thresholds": ",".join(map(str, thresholds))},
                   VLLM: {"batching": "prefill_first", "token_budget": 4096, "most_running": cap},
                   SARATHI: {"batching": "chunked", "token_budget": 8192, "most_running": cap}}
            for name, more in own.items():
                variants[load, cap, name] = {**flags(types), **more, "seconds": seconds}
    runs = wait(ctx, variants)
    names = ("WAIT", VLLM, SARATHI)
    for load in loads:
        ctx.table(f"Lengths of LMSYS, load {load}, over the batch cap", [{"cap": cap} | {
            f"{name}: {what}": value for name in names for what, value in (
                ("of what memory sustains", share_of_sustained(runs, (load, cap, name)).mean),
                ("latency, s", runs.mean((load, cap, name), "latency_s_mean").mean))} for cap in caps],
            note="""Cap: requests in a batch; WAIT's is divided among types and stages as in the paper's code, with at least
                one per stage.""")
        ctx.lines(f"Throughput over the batch cap, load {load}", "cap", "share of what memory sustains",
                  {name: {cap: share_of_sustained(runs, (load, cap, name)) for cap in caps} for name in names}, y_lim=(0, None))
    parameters(ctx, seconds)
    ctx.text("""The cap that the paper's code sweeps: the largest number of requests in a batch, for WAIT and for batching
        that does not wait.""")
    ctx.expect("0.7: WAIT, lowest", min(share_of_sustained(runs, (0.7, cap, "WAIT")).mean for cap in caps),
               0.65, 0.69, ours=0.67)
    ctx.expect("0.7: WAIT, highest", max(share_of_sustained(runs, (0.7, cap, "WAIT")).mean for cap in caps),
               0.74, 0.79, ours=0.76)
    ctx.expect("0.7, cap 100: chunked", share_of_sustained(runs, (0.7, 100, SARATHI)), 0.56, 0.60, ours=0.58)
    ctx.expect("0.7, cap 400: chunked", share_of_sustained(runs, (0.7, 400, SARATHI)), 0.90, 0.94, ours=0.92)
    at = {(cap, name): share_of_sustained(runs, (0.7, cap, name)).mean for cap in caps for name in names}
    ctx.expect("0.7: chunked at a cap of 400 over 100", at[400, SARATHI] / at[100, SARATHI], 1.5, 1.67, ours=1.58, small=(1.3, 1.67))
    ctx.expect("0.7, cap 100: WAIT over chunked", at[100, "WAIT"] / at[100, SARATHI], 1.08, 1.23, ours=1.15, small=(0.45, 1.23))
    for cap in caps[1:]:
        ctx.expect(f"0.7, cap {cap}: WAIT over chunked", at[cap, "WAIT"] / at[cap, SARATHI], 0.6, 1, small=(0.25, 1))
        ctx.expect(f"0.7, cap {cap}: prefill first over chunked", at[cap, VLLM] / at[cap, SARATHI], 0.5, 1, small=(0.7, 0.9))


if __name__ == "__main__":
    main(__doc__)
