#!/usr/bin/python3
"""Waiting until a batch is worth running, and its figures.

"Fluid-Based Online Scheduling under Memory Constraints", Section 5: WAIT and Nested WAIT against the fluid benchmark and
against batching that does not wait, on the paper's synthetic loads and its real lengths; docs/admission.md says what came
out. An iteration takes 6.6 ms + 257 ns per token held (Llama-2-7B in fp16 on an A100 with 80 GB, by its bandwidth; the
paper does not give its own).
"""

from common import experiment, main

C, TL, MEMORY = 6.6e-3, 2.57e-7, 120_000

# Types of requests: (arrivals per second, prompt, output); prompts of 10 and 60 tokens are of the paper's code.
TWO_TYPES = [(1000, 10, 10), (1000, 10, 20)]
FOUR_TYPES = [(20, 10, 20), (40, 10, 40), (80, 10, 80), (160, 10, 160)]
LMSYS = [(rate, 60, 50 * (i + 1)) for i, rate in enumerate((23, 11, 8, 7, 6, 4, 3, 2, 1, 1))]

BATCHINGS = {
    "WAIT": {"batching": "wait", "threshold_load": 0.95},
    "Nested WAIT": {"batching": "nested_wait"},
    "prefill first (vLLM)": {"batching": "prefill_first", "token_budget": 4096, "kv_tokens": MEMORY},
    "chunked (Sarathi)": {"batching": "chunked", "token_budget": 512, "kv_tokens": MEMORY},
}


def load_of(types):
    """d1 times the tokens of all stages that arrive in a second: at 1 no batch size keeps up."""
    return TL * sum(rate * (output + 1) * (prompt + output / 2) for rate, prompt, output in types)


def scaled(types, factor):
    return [(rate * factor, prompt, output) for rate, prompt, output in types]


def at_load(types, load):
    return scaled(types, load / load_of(types))


def flags(types):
    return {"types": ",".join(f"{rate!r}:{prompt}:{output}" for rate, prompt, output in types), "c": C, "tl": TL}


def wait(ctx, variants):
    """`bfio_sim wait` for every variant and seed."""
    return ctx.simulate(variants, words=["wait"])


def share_of_fluid(runs, variant):
    fluid = runs.values(variant, "fluid_tokens_per_s")[0]
    return runs.mean(variant, "throughput_tokens_per_s", 1 / fluid)


def setting(ctx, seconds):
    ctx.parameter("iteration", f"{C:g} s + {TL:g} s per token")
    ctx.parameter("memory of the rules that do not wait", f"{MEMORY:,} tokens")
    ctx.parameter("arrivals", f"Poisson, for {seconds:g} s")


# ---------------------------------------------------------------------------------------------------------------------
# Every way of batching at shares of the load that the fluid benchmark says is the most


def sweep(ctx, name, types, seconds):
    loads = (0.05, 0.15, 0.3, 0.5, 0.7, 0.85)
    variants = {}
    for load in loads:
        for batching, own in BATCHINGS.items():
            # Margins multiply from segment to segment: near the limit there is little to spare.
            margin = 1.01 if load > 0.6 or len(types) > 4 else 1.1
            variants[load, batching] = {**flags(at_load(types, load)), **own, "seconds": seconds, "threshold_margin": margin}
    runs = wait(ctx, variants)
    ctx.table(name, [{
        "load": load, "batching": batching,
        "throughput, tokens/s": runs.mean((load, batching), "throughput_tokens_per_s"),
        "of the fluid's": share_of_fluid(runs, (load, batching)).mean,
        "latency, s": runs.mean((load, batching), "latency_s_mean"),
        "TTFT, s": runs.mean((load, batching), "ttft_s_mean").mean,
        "held, most, tokens": runs.mean((load, batching), "peak_kv_tokens").mean,
        "thrown out": runs.mean((load, batching), "evictions").mean,
        "thresholds": " ".join(map(str, runs.frame.iloc[list(variants).index((load, batching)) * runs.seeds]["thresholds"])),
    } for load, batching in variants], note="""Load: d1 times the tokens of all stages that arrive in a second; at 1 no batch
        size keeps up. Fluid: the long-run limit. A prompt counts as one token. Held: KV of all that has begun.""")
    ctx.lines(f"Throughput against the fluid benchmark: {name}", "load", "share of the fluid throughput",
              {batching: {load: share_of_fluid(runs, (load, batching)) for load in loads} for batching in BATCHINGS})
    ctx.lines(f"Mean latency: {name}", "load", "latency, s",
              {batching: {load: runs.mean((load, batching), "latency_s_mean") for load in loads} for batching in BATCHINGS},
              log_y=True)
    return runs


def hold(ctx, name, runs, load, batching, share, latency):
    """Holds a cell to docs/admission.md: share of the fluid throughput, mean latency in s."""
    cell = (load, batching)
    ctx.expect(f"{name}, {load}, {batching}: of the fluid's", share_of_fluid(runs, cell), share - 0.01, share + 0.01, ours=share)
    ctx.expect(f"{name}, {load}, {batching}: latency, s", runs.mean(cell, "latency_s_mean"), latency * 0.93, latency * 1.07,
               ours=latency)


TEXT = """WAIT begins a batch when enough requests of a type wait, Nested WAIT when enough wait at the entry of a segment of
    lengths; the others run whatever is there. Waiting pays where an iteration costs much whatever is in it and memory is
    short; it costs latency where the load is light."""


@experiment("WAIT and Nested WAIT on synthetic loads against the fluid benchmark and batching that does not wait", seeds=3)
def wait_synthetic(ctx):
    seconds = max(4, 200 / ctx.shorten)
    setting(ctx, seconds)
    ctx.text(TEXT)
    two = sweep(ctx, "two types, known lengths", TWO_TYPES, seconds)
    four = sweep(ctx, "four types", FOUR_TYPES, seconds)
    for load, cells in ((0.15, ((1.001, 0.15), (1.001, 0.15), (0.977, 4.6), (1.001, 0.13))),
                        (0.5, ((1.000, 0.25), (0.999, 0.27), (0.953, 5.6), (0.378, 62))),
                        (0.85, ((0.997, 1.1), (0.997, 1.2), (0.563, 44), (0.222, 78)))):
        for batching, cell in zip(BATCHINGS, cells):
            hold(ctx, "two types", two, load, batching, *cell)
    for load, cells in ((0.5, ((0.993, 2.2), (0.980, 5.9), (0.893, 12), (0.989, 1.5))),
                        (0.85, ((0.974, 8.2), (0.959, 13), (0.547, 48), (0.692, 31)))):
        for batching, cell in zip(BATCHINGS, cells):
            hold(ctx, "four types", four, load, batching, *cell)
    ctx.expect("two types, 0.85: WAIT's throughput over vLLM's", share_of_fluid(two, (0.85, "WAIT")).mean /
               share_of_fluid(two, (0.85, "prefill first (vLLM)")).mean, 1.7, 1.85, ours=1.77, small=(0.9, 10))
    heavy_traffic(ctx, max(0.5, 10 / ctx.shorten))


def heavy_traffic(ctx, seconds):
    """Rates times zeta, iterations 1 / zeta as long."""
    zetas = (1, 2, 4, 8, 16, 32, 64)
    # Lengths known: two types; unknown: the four types of Nested WAIT.
    kinds = {"WAIT, 2 types": (TWO_TYPES, "WAIT"), "Nested WAIT, 2 types": (TWO_TYPES, "Nested WAIT"),
             "Nested WAIT, 4 types": (FOUR_TYPES, "Nested WAIT")}
    runs = wait(ctx, {(zeta, kind): {**flags(scaled(types, zeta)), **BATCHINGS[batching], "c": C / zeta, "tl": TL / zeta,
                                     "seconds": seconds}
                      for zeta in zetas for kind, (types, batching) in kinds.items()})

    def gap(zeta, kind):
        share = share_of_fluid(runs, (zeta, kind))
        return share._replace(mean=1 - share.mean).scaled(100)

    title = "Heavy traffic: rates times zeta, iterations 1 / zeta as long"
    ctx.table(title, [{"zeta": zeta} | {f"{kind}: {what}": value for kind in kinds for what, value in (
        ("gap, %", gap(zeta, kind)), ("latency, s", runs.mean((zeta, kind), "latency_s_mean").mean))} for zeta in zetas],
        note=f"Gap: 1 - throughput over the fluid throughput, over {seconds:g} s from an empty worker on.")
    ctx.lines("Gap to the fluid benchmark in heavy traffic", "zeta", "gap, %",
              {kind: {zeta: gap(zeta, kind) for zeta in zetas} for kind in kinds}, log_x=True)
    for zeta in (4, 64):
        ctx.expect(f"zeta {zeta}: WAIT's gap, %", gap(zeta, "WAIT, 2 types"), -1, 2)
    ctx.expect("zeta 64, lengths unknown: gap, %", gap(64, "Nested WAIT, 4 types"), -1, 5)
    ctx.expect("latency falls as 1 / zeta, 16 to 64", runs.mean((16, "WAIT, 2 types"), "latency_s_mean").mean /
               runs.mean((64, "WAIT, 2 types"), "latency_s_mean").mean, 3.6, 4.4, ours=4)


@experiment("the same on ten bins of lengths of LMSYS", seeds=3)
def wait_real(ctx):
    seconds = max(4, 200 / ctx.shorten)
    setting(ctx, seconds)
    ctx.text(TEXT)
    runs = sweep(ctx, "LMSYS, ten bins of 50 tokens", LMSYS, seconds)
    for load, cells in ((0.5, ((0.774, 33), (0.905, 21), (0.967, 4.4), (0.985, 2.1))),
                        (0.85, ((0.665, 54), (0.655, 56), (0.801, 20), (0.835, 17)))):
        for batching, cell in zip(BATCHINGS, cells):
            hold(ctx, "LMSYS", runs, load, batching, *cell)


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
    setting(ctx, seconds)
    ctx.text("""Thresholds for rates that are not there any more either hold requests up (too high) or cannot carry the load
        (too low). Rates counted online give the thresholds of the known ones after a few time constants.""")
    for course, cells in (("constant", (0.997, 0.378, 0.997, 0.997, 0.997)),
                          ("a third, then all", (0.997, 0.533, 0.996, 0.997, 0.828)),
                          ("all, then a third", (0.996, 0.567, 0.996, 0.996, 0.996)),
                          ("waves of 30 s", (0.997, 0.567, 0.995, 0.994, 0.997))):
        for way, ours in zip(ways, cells):
            ctx.expect(f"{course}, {way}: of what is offered", share(course, way), ours - 0.015, ours + 0.015, ours=ours)
    ctx.expect("constant: online, 2 s over thresholds that are known", share("constant", "online, 2 s").mean /
               share("constant", "for the highest rates").mean, 0.99, 1.01, ours=1, small=(0.9, 1.1))


@experiment("WAIT and the batch cap that the paper's code sweeps, on the lengths of LMSYS", seeds=2)
def wait_caps(ctx):
    seconds = max(4, 30 / ctx.shorten)
    loads, caps = (0.3, 0.7), (100, 200, 400, 800, 1200, 2000)
    variants = {}
    for load in loads:
        types = at_load(LMSYS, load)
        every = sum(rate * (output + 1) for rate, _, output in types)
        for cap in caps:
            # As the paper's code: the cap in proportion to rate times stages, over stages.
            thresholds = [max(1, int(cap * rate / every)) for rate, _, _ in types]
            own = {"WAIT": {"thresholds": ",".join(map(str, thresholds))}, "prefill first (vLLM)": {"most_running": cap},
                   "chunked (Sarathi)": {"most_running": cap}}
            for name, more in own.items():
                variants[load, cap, name] = {**flags(types), **BATCHINGS[name], **more, "seconds": seconds}
    runs = wait(ctx, variants)
    names = ("WAIT", "prefill first (vLLM)", "chunked (Sarathi)")
    for load in loads:
        ctx.table(f"Lengths of LMSYS, load {load}, over the batch cap", [{"cap": cap} | {
            f"{name}: {what}": value for name in names for what, value in (
                ("of the fluid's", share_of_fluid(runs, (load, cap, name)).mean),
                ("latency, s", runs.mean((load, cap, name), "latency_s_mean").mean))} for cap in caps],
            note="""Cap: requests in a batch; WAIT's is shared out to types and stages as in the paper's code, at least one a
                stage.""")
        ctx.lines(f"Throughput over the batch cap, load {load}", "cap", "share of the fluid throughput",
                  {name: {cap: share_of_fluid(runs, (load, cap, name)) for cap in caps} for name in names}, y_lim=(0, None))
    setting(ctx, seconds)
    ctx.text("""The cap that the paper's code sweeps: WAIT and batching that does not wait with so many requests in a
        batch.""")
    for cap in caps:
        ctx.expect(f"0.7, cap {cap}: WAIT", share_of_fluid(runs, (0.7, cap, "WAIT")), 0.50, 0.54, ours="0.51 to 0.53")
    ctx.expect("0.7, cap 100: chunked", share_of_fluid(runs, (0.7, 100, "chunked (Sarathi)")), 0.53, 0.57, ours=0.55)
    ctx.expect("0.7, cap 400: chunked", share_of_fluid(runs, (0.7, 400, "chunked (Sarathi)")), 0.81, 0.85, ours=0.83)


if __name__ == "__main__":
    main(__doc__)
