#!/usr/bin/python3
"""Experiments of "A Universal Load Balancing Principle and Its Application to Large Language Model Serving" (BF-IO).

docs/research/papers.md has the results; T there is ../shared/traces. Unless an experiment has other settings: G = 16 workers of
B = 72 slots, a pool that is refilled to R = 128 requests before every decision, the authors' step time.
"""

import numpy as np

import bf_io_scaling  # noqa: F401 (its experiments)
import bf_io_window  # noqa: F401
from bf_io_common import (BURSTGPT, IMBALANCE, PAPER_BF_IO_0, PAPER_BF_IO_20, PAPER_FCFS, TABLE_1, TABLE_1_COLUMNS, drawn, label,
                          loads_of)
from bf_io_steps import FIG_1_MEAN, FIG_1_RULES, FIG_1_WORKERS
from common import bf_io, estimate, experiment, main

# ---------------------------------------------------------------------------------------------------------------------
# Table 1


@experiment("the paper's comparison of policies, its numbers beside ours", "burstgpt", traces=(BURSTGPT,), check="")
def table1(ctx):
    """As in the authors' script: averages over the steps until the pool empties, TPOT over all requests.

    The paper does not define its FCFS, its JSQ and its pool exactly, so the table has a row for each reading.
    """
    requests = ctx.shortened(100_000, 2_000)
    runs = ctx.simulate({name: {**flags, **drawn(ctx, requests)} for name, (flags, _) in TABLE_1.items()})
    ctx.parameter("requests", requests)
    ctx.parameter("energy", "100 W + 300 W (L_g / max L)^0.7 per worker")
    rows, against = [], []
    for name, (_, paper) in TABLE_1.items():
        row, change = {"strategy": name}, {"strategy": name}
        for i, (column, key, scale) in enumerate(TABLE_1_COLUMNS):
            row[column] = runs.mean(name, key, scale)
            row[f"{column}, paper"] = paper and paper[i]
            if key == IMBALANCE:
                change["imbalance, times less"] = runs.ratio("FCFS, most free slots", name, key)
                change["imbalance, paper"] = paper and PAPER_FCFS[0] / paper[0]
            else:
                change[f"{column}, change in %"] = runs.change(name, "FCFS, most free slots", key)
                change[f"{column}, paper"] = paper and 100 * (paper[i] / PAPER_FCFS[i] - 1)
        row["idle, %"] = runs.mean(name, "idle_fraction", 100)
        row["p99 wait, steps"] = runs.mean(name, "wait_steps_p99").mean
        row["longest wait, steps"] = runs.mean(name, "wait_steps_max").mean
        rows.append(row)
        against.append(change)
    ctx.table(
        "Table 1", rows, "The paper prints its imbalance without a unit; 10^4 tokens is what its other columns imply."
    )
    ctx.table(
        "Against FCFS, paired by seed", against[1:], "FCFS's imbalance varies by a third between seeds, ratios less."
    )
    ctx.bars(
        "Average imbalance", "10^4 tokens",
        {
            "here": {row["strategy"]: row["imbalance, 10^4 tokens"] for row in rows},
            "in the paper": {row["strategy"]: row["imbalance, 10^4 tokens, paper"] for row in rows},
        },
        log_y=True,
    )
    expect_table1(ctx, runs)


def expect_table1(ctx, runs):
    fcfs = "FCFS, most free slots"
    ctx.expect(
        "FCFS: imbalance, 10^4 tokens", runs.mean(fcfs, IMBALANCE, 1e-4), 25, 34, small=(10, 50), paper=27.9, ours=29.6
    )
    ctx.expect(
        "FCFS: throughput, 10^4 tokens/s", runs.mean(fcfs, "throughput_tokens_per_s", 1e-4), 7.8, 8.2, small=(6, 11),
        paper=8.00, ours=8.00,
    )
    ctx.expect("FCFS: TPOT, ms", runs.mean(fcfs, "tpot_s_mean", 1e3), 13.9, 14.7, paper=14.2, ours=14.3)
    ctx.expect("FCFS: energy, kJ", runs.mean(fcfs, "energy_j", 1e-3), 380, 400, paper=396, ours=390)
    ctx.expect(
        "FCFS by count and FCFS by most free slots differ only in ties",
        runs.ratio("JSQ by count", fcfs, "throughput_tokens_per_s"), 0.97, 1.03, small=(0.93, 1.07), paper=0.999,
        ours=0.99,
    )
    for name, imbalance, times in (
        (label(0), (2.5, 4.2), (7.5, 11)), (label(5), (1, 1.7), (18, 28)), (label(20), (2.3, 3.4), (9, 12.5)),
        (label(20, 0.7), (0.9, 1.5), (21, 32)), ("bf_io square", (0.7, 1.0), (28, 42)),
        ("bf_io_auto", (1.3, 2.2), (14, 21)), ("lpt", (2.4, 3.3), (9, 12.5)),
    ):
        paper = TABLE_1[name][1]
        ctx.expect(
            f"{name}: imbalance, 10^4 tokens", runs.mean(name, IMBALANCE, 1e-4), *imbalance, small=(0.3, 8),
            paper=paper and paper[0],
        )
        ctx.expect(
            f"{name}: times less imbalance than FCFS", runs.ratio(fcfs, name, IMBALANCE), *times, small=(2.5, 60),
            paper=paper and PAPER_FCFS[0] / paper[0],
        )
    for name, paper in ((label(0), PAPER_BF_IO_0), (label(20), PAPER_BF_IO_20)):
        for key, i, low, high, small in (
            ("throughput_tokens_per_s", 1, 12, 15.5, (6, 25)), ("tpot_s_mean", 2, -13, -10.5, (-22, -4)),
            ("energy_j", 3, -3, -1.7, (-5, 0)),
        ):
            ctx.expect(
                f"{name}: change of {key} against FCFS, %", runs.change(name, fcfs, key), low, high, small=small,
                paper=100 * (paper[i] / PAPER_FCFS[i] - 1),
            )


# ---------------------------------------------------------------------------------------------------------------------
# Table 1 and Figures 1, 2, 4, 6 and 7 in both plan modes

MODES = ("lockstep", "pipelined")
MODE_HORIZONS = (0, 1, 2, 5, 10, 20, 40, 80)
MODE_POWER_LAWS = ("energy_j", "energy_by_wait_j", "energy_by_mfu_j")


@experiment(
    "Table 1 and the figures in lockstep, as the paper has them, and in pipelined mode, the router's default", "burstgpt",
    seeds=3, traces=(BURSTGPT,), check="--shorten=10 --seeds=2",
)
def plan_modes(ctx):
    """A pipelined plan is made from the reports of one step earlier, so a slot stays empty for one more step."""
    size = drawn(ctx, ctx.shortened(60_000, 2_000))
    warmup, fcfs = ctx.shortened(1000, 5), "FCFS, most free slots"
    rules = {name: flags for name, (flags, _) in TABLE_1.items()}
    table = ctx.simulate(
        {(name, mode): {**flags, **size, "plan_mode": mode} for name, flags in rules.items() for mode in MODES}, series=True
    )
    sweep = ctx.simulate(
        {(h, mode): {**bf_io(h, "paper"), **size, "plan_mode": mode} for h in MODE_HORIZONS for mode in MODES}
    )
    idle = ctx.simulate(
        {
            (rule, mode): {
                "policy": policy, **drawn(ctx, 200_000), "workers": FIG_1_WORKERS, "warmup": ctx.shortened(500, 20),
                "steps": ctx.shortened(3000, 60), "plan_mode": mode,
            }
            for rule, policy in FIG_1_RULES.items() for mode in MODES
        }
    )
    ctx.parameter("requests", size["requests"])

    def gap(name, mode):
        settled = [table.series((name, mode), seed) for seed in range(1, ctx.seeds + 1)]
        settled = [loads_of(steps[(steps["waiting"] > 0) & (steps["step"] > warmup)]) for steps in settled]
        return estimate([np.ptp(one, axis=1).mean() / 1000 for one in settled])

    ctx.table(
        "Table 1 in both modes",
        [
            {
                "strategy": name, "mode": mode,
                **{column: table.mean((name, mode), key, scale) for column, key, scale in TABLE_1_COLUMNS},
                "slots taken, %": table.mean((name, mode), "slots_taken_fraction", 100).mean,
                "longest wait, steps": table.mean((name, mode), "wait_steps_max").mean,
                "gap, 10^3 tokens (Figure 6)": gap(name, mode),
            }
            for name in rules for mode in MODES
        ],
        f"Gap: heaviest less lightest worker of a step, from step {warmup} until none waits.",
    )
    gains, times = {}, {}
    for mode in MODES:
        for name in (label(0), label(20), "bf_io_auto"):
            gains[name, mode] = {
                key: table.change((name, mode), (fcfs, mode), key) for key in ("throughput_tokens_per_s", *MODE_POWER_LAWS)
            }
            times[name, mode] = table.ratio((fcfs, mode), (name, mode), IMBALANCE)
    ctx.table(
        "Against FCFS in the same mode, paired by seed (Figures 2 and 7: energy by three power laws)",
        [
            {
                "strategy": name, "mode": mode, "imbalance, times less": times[name, mode],
                **{f"{key}, change in %": change for key, change in gains[name, mode].items()},
            }
            for name, mode in gains
        ],
    )
    ctx.table(
        "Pipelined over lockstep, paired by seed",
        [
            {
                "strategy": name, "imbalance": table.ratio((name, "pipelined"), (name, "lockstep"), IMBALANCE),
                "throughput": table.ratio((name, "pipelined"), (name, "lockstep"), "throughput_tokens_per_s"),
            }
            for name in rules
        ],
    )
    imbalance = {(h, mode): sweep.mean((h, mode), IMBALANCE, 1e-4) for h in MODE_HORIZONS for mode in MODES}
    ctx.table(
        "Imbalance by window, 10^4 tokens (Figure 4)",
        [{"H": h, **{mode: imbalance[h, mode] for mode in MODES}} for h in MODE_HORIZONS],
    )
    ctx.lines(
        "Imbalance by window (Figure 4)", "H", "imbalance, 10^4 tokens",
        {mode: {h: imbalance[h, mode] for h in MODE_HORIZONS} for mode in MODES},
    )
    ctx.table(
        "Idle share of 32 workers (Figure 1)",
        [{"policy": rule, **{f"{mode}, %": idle.mean((rule, mode), "idle_fraction", 100) for mode in MODES}} for rule in FIG_1_RULES],
    )
    for mode, taken, of_fcfs, of_auto in (("lockstep", 99.8, 22.9, 1.65), ("pipelined", 98.0, 23.9, 2.08)):
        ctx.expect(f"{mode}: slots taken, %", table.mean((fcfs, mode), "slots_taken_fraction", 100), taken - 0.3, taken + 0.2,
                   small=(90, 100), ours=taken)
        ctx.expect(f"{mode}: idle of 32 under FCFS, %", idle.mean(("FCFS", mode), "idle_fraction", 100), 19, 28,
                   small=(10, 40), paper=FIG_1_MEAN, ours=of_fcfs)
        ctx.expect(f"{mode}: idle of 32 under bf_io_auto, %", idle.mean(("bf_io_auto", mode), "idle_fraction", 100),
                   of_auto - 0.4, of_auto + 0.4, small=(0.5, 8), ours=of_auto)
        least = min(MODE_HORIZONS, key=lambda h: imbalance[h, mode].mean)
        ctx.expect(f"{mode}: the best window, steps", least, 5, 5, small=(0, 80), ours=5)
    for name, lockstep, pipelined, low, high in (
        (fcfs, 35, 33, 0.75, 1.3), (label(0), 6.9, 8.8, 0.75, 1.3), (label(20), 3.87, 4.2, 0.8, 1.25),
        ("bf_io_auto", 2.0, 3.63, 0.75, 1.3),
    ):
        for mode, ours in zip(MODES, (lockstep, pipelined)):
            ctx.expect(f"{name}, {mode}: gap, 10^3 tokens", gap(name, mode), low * ours, high * ours,
                       small=(0.2 * ours, 5 * ours), ours=ours)
    for name, lockstep, pipelined, paper in (
        (label(0), 10.0, 7.8, PAPER_BF_IO_0), (label(20), 10.3, 9.2, PAPER_BF_IO_20), ("bf_io_auto", 16.8, 12.0, None),
    ):
        for mode, ours in zip(MODES, (lockstep, pipelined)):
            ctx.expect(f"{name}, {mode}: times less imbalance than FCFS", times[name, mode], 0.8 * ours, 1.2 * ours,
                       small=(1.5, 40), paper=paper and PAPER_FCFS[0] / paper[0], ours=ours)
            for key, low, high, at in (("throughput_tokens_per_s", 11, 16, 1), ("energy_j", -3, -1.5, 3)):
                ctx.expect(f"{name}, {mode}: change of {key} against FCFS, %", gains[name, mode][key], low, high,
                           small=(1, 40) if low > 0 else (-8, 4), paper=paper and 100 * (paper[at] / PAPER_FCFS[at] - 1))
    for name in (label(0), label(5), label(20), "lpt", "bf_io square", "bf_io_auto"):
        ctx.expect(f"{name}: throughput, pipelined over lockstep",
                   table.ratio((name, "pipelined"), (name, "lockstep"), "throughput_tokens_per_s"), 0.98, 0.995,
                   small=(0.9, 1.03), ours=0.99)


if __name__ == "__main__":
    main(__doc__)
