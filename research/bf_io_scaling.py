"""Theorems 1 to 3: how the improvement over FCFS grows with slots and workers (bf_io.py)."""

import math

import numpy as np

import theory
from bf_io_common import IMBALANCE
from common import Estimate, bf_io, estimate, experiment, log_log_slope

# ---------------------------------------------------------------------------------------------------------------------
# Theorems 1 to 3: how the improvement over FCFS grows with slots and workers

OUTPUT = 20  # tokens, of constant outputs
FAMILIES = {  # name: (theorem, drift, geometric outputs)
    "constant outputs": (1, "growth", False), "geometric outputs": (2, "growth", True),
    "geometric, constant loads": (3, "constant", True),
    "geometric, growth in every other step": (3, "throttled:0.5", True),
    "geometric, 1 to 4 tokens a step": (3, "speculative:3:0.7", True),
    "geometric, growth 0, 0, 5, 1": (3, "sequence:0,0,5,1", True),
}
SCALING_RULES = {
    "fcfs": {"policy": "fcfs"}, "bf_io paper H=0": bf_io(0, "paper"), "bf_io square": bf_io(0, "square"),
    "lpt": {"policy": "lpt"}, "bf_io_auto": {"policy": "bf_io_auto"},
}
SCALING_G, SCALING_B = 16, 72
BATCHES = (16, 32, 64, 128, 256)


def lengths_trace(ctx, geometric, rows):
    """Flags of a workload of theory.py, drawn independently for each seed."""

    def write(seed):
        name = f"{'geometric' if geometric else 'constant'}-{rows}-{seed}"
        if not (ctx.scratch / f"{name}.csv").exists():
            rng = np.random.default_rng([seed, geometric])
            prompts = rng.integers(1, theory.LARGEST_PROMPT + 1, rows)
            outputs = rng.geometric(theory.END_RATE, rows) if geometric else np.full(rows, OUTPUT)
            ctx.write_trace(name, {"num_prefill_tokens": prompts, "num_decode_tokens": outputs})
        return ctx.scratch / f"{name}.csv"

    return {"trace": write}


def scaling_cell(ctx, family, workers, batch):
    """Flags of a cell's runs: (FCFS's, the others'). Large groups run for fewer steps, because their mean over few steps is
    as exact and each step costs more. FCFS runs for more steps, because it is cheap and varies more."""
    theorem, drift, geometric = FAMILIES[family]
    slots = workers * batch

    def within(wanted, least, work):
        return min(max(work // slots, ctx.shortened(least, 2)), ctx.shortened(wanted, 2))

    if geometric:  # ages and the pool are stationary after some mean lengths
        warmup = min(max(5_000_000 // slots, 150), ctx.shortened(400, 150))
        fcfs, others = within(4000, 200, 20_000_000), within(2000, 120, 6_000_000)
        pool = math.ceil(4 * slots * theory.END_RATE)
    else:  # whole rounds; steps without completions cost almost no time
        warmup = OUTPUT * min(max(100_000 // slots, 2), 20)
        fcfs, others = OUTPUT * within(400, 10, 1_000_000), OUTPUT * within(50, 4, 200_000)
        pool = 3 * slots
    common = {
        "workers": workers, "batch": batch, "drift": drift, "reveal": pool, "warmup": warmup,
        **lengths_trace(ctx, geometric, 300_000 if slots > 10_000 else 60_000),
    }
    return {**common, "steps": fcfs}, {**common, "steps": others}


@experiment("improvement over FCFS and its bounds over B and G; lengths of its own", check="--shorten=30 --seeds=1")
def scaling(ctx):
    largest = max(64, round(1024 / ctx.shorten))
    cells = {}
    for family, (theorem, _, _) in FAMILIES.items():
        groups = (4, 8, 16, 32, 64, 128, 256, 512, 1024) if theorem < 3 else (4, 16, 64, 256)
        sizes = [(SCALING_G, batch) for batch in BATCHES] + [(group, SCALING_B) for group in groups if group <= largest]
        for size in dict.fromkeys(sizes):
            cells[(family, *size)] = scaling_cell(ctx, family, *size)
    runs = ctx.simulate(
        {
            (cell, rule): {**flags, **own[rule != "fcfs"]}
            for cell, own in cells.items()
            for rule, flags in SCALING_RULES.items()
        }
    )
    ctx.text(
        f"""Prompts uniform on 1 to {theory.LARGEST_PROMPT} tokens; outputs of {OUTPUT} tokens, or geometric with
        p = {theory.END_RATE}. Pool: 3 G B requests where outputs are constant, as all slots fall free together, else 4
        times the mean number of free slots. The improvement is FCFS's average imbalance over the policy's, paired by
        seed."""
    )
    deviations = {drift: theory.slot_deviation(drift) for _, drift, geometric in FAMILIES.values() if geometric}
    fcfs_rows, rows = [], []
    for cell, (fcfs_flags, flags) in cells.items():
        family, workers, batch = cell
        theorem, drift, geometric = FAMILIES[family]
        first = {"loads": family, "theorem": theorem, "G": workers, "B": batch}
        guess = theory.fcfs_estimate(workers, batch, deviations[drift] if geometric else theory.PROMPT_DEVIATION)
        lower, upper = theory.fcfs_lower_bound(workers, batch), theory.bf_io_upper_bound(
            workers, theory.END_RATE if geometric else 1
        )
        fcfs = runs.mean((cell, "fcfs"), IMBALANCE)
        fcfs_rows.append(
            {
                **first, "imbalance, tokens": fcfs, "normal estimate": guess,
                "measured / estimate": fcfs.scaled(1 / guess), "lower bound": lower,
                "measured / bound": fcfs.mean / lower, "warm-up": fcfs_flags["warmup"], "counted": fcfs_flags["steps"],
                "pool": fcfs_flags["reveal"],
            }
        )
        for rule in list(SCALING_RULES)[1:]:
            own = runs.mean((cell, rule), IMBALANCE)
            rows.append(
                {
                    **first, "policy": rule, "imbalance, tokens": own, "upper bound": upper,
                    "times less than FCFS": improvement(runs, cell, rule), "guaranteed": lower / upper,
                    "overloaded, %": runs.mean((cell, rule), "overloaded_fraction", 100).mean,
                    "longest wait, steps": runs.mean((cell, rule), "wait_steps_max").mean, "counted": flags["steps"],
                }
            )
    slopes = slope_rows(runs, cells)
    ctx.table(
        "Growth with B and G", slopes,
        f"""Slopes of logarithms: over B at G = {SCALING_G}; over G at B = {SCALING_B}, on
        sqrt(B log G). Theory: FCFS's imbalance has 0.5 in B; an improvement that is all the theorem's has 0.5 and 1 or
        more. Empty: some run had no imbalance at all.""",
    )
    ctx.table("FCFS beside theory", fcfs_rows, "Estimate: G m_G sqrt(B) times the deviation of a slot's load.")
    ctx.table(
        "Improvement over FCFS", rows,
        """Upper bound: of BF-IO with H = 0. Overloaded: decisions that met the theorems'
        condition.""",
    )
    for family, (theorem, _, _) in FAMILIES.items():
        for axis, pick in (("B", lambda row: row["G"] == SCALING_G), ("G", lambda row: row["B"] == SCALING_B)):
            own = [row for row in rows if row["loads"] == family and pick(row)]
            curves = {
                rule: {
                    row[axis]: row["times less than FCFS"]
                    for row in sorted(own, key=lambda row: row[axis])
                    if row["policy"] == rule and math.isfinite(row["times less than FCFS"].mean)
                }
                for rule in list(SCALING_RULES)[1:]
            }
            ctx.lines(
                f"Improvement over {axis}: {family}", axis, "times less imbalance than FCFS",
                {rule: curve for rule, curve in curves.items() if curve}, log_x=True, log_y=True,
            )
    expect_scaling(ctx, fcfs_rows, rows, slopes)


def improvement(runs, cell, rule):
    """FCFS's imbalance over the rule's. If a run of the rule has no imbalance: the ratio of the means, without an interval."""
    fcfs, own = runs.values((cell, "fcfs"), IMBALANCE), runs.values((cell, rule), IMBALANCE)
    if (own > 0).all():
        return estimate(fcfs / own)
    return Estimate(fcfs.mean() / own.mean() if own.any() else math.inf)


def slope_rows(runs, cells):
    rows = []
    for family in FAMILIES:
        over_b = sorted(cell for cell in cells if cell[0] == family and cell[1] == SCALING_G and cell[2] in BATCHES)
        over_g = sorted(cell for cell in cells if cell[0] == family and cell[2] == SCALING_B)
        for rule in SCALING_RULES:

            def slope(swept, xs):
                values = []
                for cell in swept:
                    fcfs, own = runs.values((cell, "fcfs"), IMBALANCE), runs.values((cell, rule), IMBALANCE)
                    if not (own > 0).all():
                        return None
                    values.append(fcfs / cell[1] if rule == "fcfs" else fcfs / own)
                return estimate([log_log_slope(xs, by_cell).mean for by_cell in np.transpose(values)])

            rows.append(
                {
                    "loads": family, "of": "FCFS's imbalance / G" if rule == "fcfs" else f"improvement, {rule}",
                    "rule": rule, "slope in B": slope(over_b, [batch for _, _, batch in over_b]),
                    "slope over G": slope(over_g, [theory.growth_law(group, batch) for _, group, batch in over_g]),
                }
            )
    return rows


def expect_scaling(ctx, fcfs_rows, rows, slopes):
    for count, tabled in ((2, 0.564190), (4, 1.029375), (16, 1.765991), (32, 2.069669)):  # Teichroew, 1956
        ctx.expect(
            f"largest of {count} normals", theory.largest_normal(count), tabled - 1e-6, tabled + 1e-6,
            small=(tabled - 1e-6, tabled + 1e-6),
        )
    growth = math.hypot(theory.PROMPT_DEVIATION, math.sqrt(1 - theory.END_RATE) / theory.END_RATE)
    ctx.expect(
        "a slot's deviation over its closed form", theory.slot_deviation("growth") / growth, 1 - 1e-7, 1 + 1e-7,
        small=(1 - 1e-7, 1 + 1e-7), paper=1,
    )
    ratios = [row["measured / estimate"].mean for row in fcfs_rows]
    ctx.expect("FCFS over the normal estimate, least", min(ratios), 0.93, 1.01, small=(0.75, 1.02), ours=0.964)
    ctx.expect("FCFS over the normal estimate, most", max(ratios), 0.99, 1.07, small=(0.98, 1.3), ours=1.040)
    ctx.expect(
        "FCFS over its lower bound, least", min(row["measured / bound"] for row in fcfs_rows), 11, 15, small=(9, 17),
        paper="above 1", ours=12.6,
    )
    paper_rows = [row for row in rows if row["policy"] == "bf_io paper H=0"]
    ctx.expect(
        "BF-IO H=0 over its upper bound, most",
        max(row["imbalance, tokens"].mean / row["upper bound"] for row in paper_rows), 0, 0.35, small=(0, 1),
        paper="below 1", ours=0.22,
    )
    ctx.expect(
        "constant outputs: imbalance of BF-IO H=0, most",
        max(row["imbalance, tokens"].mean for row in paper_rows if row["theorem"] == 1), 0, 0, small=(0, 0),
        paper="bounded", ours=0,
    )
    for row in slopes:
        if row["rule"] == "fcfs":
            ctx.expect(
                f"{row['loads']}: slope of FCFS's imbalance in B", row["slope in B"], 0.47, 0.53, small=(0.35, 0.65),
                paper=0.5,
            )
        elif row["loads"] == "geometric outputs" and row["rule"] in ("lpt", "bf_io_auto", "bf_io square"):
            low, high, ours = {
                "lpt": (0.95, 1.15, 1.05), "bf_io_auto": (1.25, 1.5, 1.38), "bf_io square": (0.45, 0.6, 0.52),
            }[row["rule"]]
            ctx.expect(
                f"geometric outputs: slope of {row['rule']}'s improvement in B", row["slope in B"], low, high,
                small=(0.3, 2), paper="0.5 or more", ours=ours,
            )
    at = {
        (row["policy"], row["G"]): row["times less than FCFS"].mean
        for row in rows
        if row["loads"] == "geometric outputs" and row["B"] == SCALING_B
    }
    ctx.expect(
        "geometric outputs: the improvement of BF-IO H=0 at G=4 over that at G=64",
        at["bf_io paper H=0", 4] / at["bf_io paper H=0", 64], 15, 70, small=(3, 300), ours=35,
    )
