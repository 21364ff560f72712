"""Figures 4 and 5: the length of the window, and the lengths of outputs (bf_io.py)."""

import math

import numpy as np

from bf_io_common import AZURE, BURSTGPT, IMBALANCE, drawn
from common import bf_io, estimate, experiment

# ---------------------------------------------------------------------------------------------------------------------
# Figure 4: imbalance against the length H of the window

HORIZONS = (0, 1, 2, 5, 10, 20, 40, 60, 80, 120, 200, 300, 500)


@experiment("imbalance by the number of steps of lookahead", "burstgpt", traces=(BURSTGPT,), check="--shorten=10 --seeds=2")
def fig4(ctx):
    """60,000 requests instead of the 100,000 of Table 1, because H = 500 is slow."""
    requests = ctx.shortened(60_000, 1_000)
    curves = {
        "the paper's J": {h: bf_io(h, "paper") for h in HORIZONS},
        # 0.7^40 is 6e-7, so a longer horizon changes nothing.
        "J, weights 0.7^h": {h: bf_io(h, "paper", 0.7) for h in HORIZONS if h <= 40},
        "square": {None: bf_io(0, "square")},
        "bf_io_auto": {None: {"policy": "bf_io_auto"}}, "FCFS": {None: {"policy": "fcfs"}},
    }
    paper = {("the paper's J", 0): 2.92, ("the paper's J", 20): 1.65, ("FCFS", None): 27.9}
    runs = ctx.simulate(
        {(name, h): {**flags, **drawn(ctx, requests)} for name, curve in curves.items() for h, flags in curve.items()}
    )
    ctx.text(
        """Average imbalance of BF-IO against the steps H that it looks ahead, every length being known, until the
        pool is empty. The paper says that a moderate window strikes the right balance, without saying how many requests
        or which discount its figure is of."""
    )
    ctx.parameter("requests", requests)
    imbalance = {key: runs.mean(key, IMBALANCE, 1e-4) for key in runs.variants}
    ctx.table(
        "Imbalance by window",
        [
            {
                "objective or policy": key[0], "H, steps": key[1], "imbalance, 10^4 tokens": imbalance[key],
                "idle, %": runs.mean(key, "idle_fraction", 100),
                "throughput, 10^4 tokens/s": runs.mean(key, "throughput_tokens_per_s", 1e-4),
                "p99 wait, steps": runs.mean(key, "wait_steps_p99").mean,
                "longest wait, steps": runs.mean(key, "wait_steps_max").mean, "imbalance, paper": paper.get(key),
            }
            for key in runs.variants
        ],
    )
    for longest in (500, 40):
        ctx.lines(
            f"Imbalance by window, H up to {longest}", "H, steps", "imbalance, 10^4 tokens",
            {
                name: {h: imbalance[name, h] for h in curve if h <= longest}
                for name, curve in curves.items()
                if None not in curve
            },
            levels={name: imbalance[name, None].mean for name in ("square", "bf_io_auto")}, y_lim=(0, None),
        )
    J = {h: imbalance["the paper's J", h].mean for h in HORIZONS}
    ctx.expect("J: H with the least imbalance", min(J, key=J.get), 2, 10, paper="moderate", ours=5)
    ctx.expect("J: imbalance at H = 0, 10^4 tokens", J[0], 2.2, 3.9, paper=2.92, ours="3.02 ± 0.86")
    ctx.expect("J: imbalance at H = 20, 10^4 tokens", J[20], 2.3, 3.4, paper=1.65, ours="2.83 ± 0.3")
    ctx.expect("J: imbalance at H = 500 over the least", J[500] / min(J.values()), 2.5, 4.5, small=(1.2, 6), ours=3.4)
    ctx.expect(
        "0.7^h: imbalance at H = 20 over that at H = 0", imbalance["J, weights 0.7^h", 20].mean / J[0], 0.25, 0.5,
        small=(0.1, 2), paper=1.65 / 2.92, ours=0.36,
    )
    ctx.expect("FCFS: imbalance, 10^4 tokens", imbalance["FCFS", None], 24, 36, paper=27.9, ours="29.8 ± 5.7")


# ---------------------------------------------------------------------------------------------------------------------
# Figure 5: the lengths of outputs, compared with a geometric distribution


def describe(lengths):
    """The lengths' survival function at 0 and every length that occurs, and its distance from a geometric fit."""
    values, counts = np.unique(lengths, return_counts=True)
    k = np.append(0, values)
    survival = 1 - np.append(0, np.cumsum(counts)) / len(lengths)
    mean = estimate(lengths)
    fit = 1 - 1 / mean.mean  # 1 - p
    # Between two lengths that occur only the fit decreases, so the largest distance is at one or just before the next.
    at = np.append(k, k[1:] - 1)
    distance = np.abs(np.append(survival, survival[:-1]) - fit**at)
    # Slope of ln P(o > k), least squares over every k up to the 99 % point.
    seen = survival >= 0.01
    every = np.arange(k[np.argmin(seen)])
    slope = np.polyfit(every, np.log(survival[np.searchsorted(k, every, side="right") - 1]), 1)[0]
    return (
        {
            "requests": len(lengths), "mean, tokens": mean, "median": int(np.median(lengths)),
            "coefficient of variation": lengths.std(ddof=1) / mean.mean, "of the fit": math.sqrt(fit),
            "p of the fit, 10^-3": 1000 * (1 - fit), "slope of the fit, 1/1000 tokens": 1000 * math.log(fit),
            "measured slope": 1000 * slope, "distance": distance.max(),
            "largest at, tokens": int(at[distance.argmax()]), "most common, tokens": int(values[counts.argmax()]),
            "its share, %": 100 * counts.max() / len(lengths),
        },
        k, survival,
    )


@experiment(
    "how close to geometric the lengths of answers are", "conversation,burstgpt", traces=(AZURE, BURSTGPT), check=""
)
def fig5(ctx):
    ctx.text(
        """Lengths of the answers, and a geometric distribution on 1, 2, .. fitted by maximum likelihood (p = 1 /
        mean). The paper shows four traces (OpenChat, BurstGPT, LMSYS, WildChat), says that their lengths exhibit the
        geometric pattern and prints no figures; only BurstGPT is among ours, as the sample of the authors'
        simulator."""
    )
    rows, over_mean = [], {}
    for workload in ctx.workloads:
        lengths = workload.requests()["num_decode_tokens"].to_numpy()
        row, k, survival = describe(lengths)
        rows.append({"workload": workload.name, **row})
        mean, p = row["mean, tokens"].mean, row["p of the fit, 10^-3"] / 1000
        over_mean[workload.name] = (k / mean, survival)
        end = min(k[-1], math.log(0.5 / len(lengths)) / math.log(1 - p))
        fitted = np.linspace(0, end, 51)
        ctx.lines(
            f"Share of longer answers: {workload.name}", "decode length k, tokens", "P(o > k)",
            {workload.name: (k[:-1], survival[:-1]), f"geometric, p = {p:.3g}": (fitted, (1 - p) ** fitted)},
            log_y=True, steps=(workload.name,), dashed=(f"geometric, p = {p:.3g}",),
            note="A geometric distribution is a straight line here.",
        )
    ctx.table(
        "Decode lengths and their geometric fits", rows,
        """Slope: of ln P(o > k) up to the 99 % point. Distance: the
        largest difference of the two distribution functions (Kolmogorov-Smirnov).""",
    )
    longest = np.linspace(0, 12, 51)
    ctx.lines(
        "All workloads, lengths over their mean", "decode length over its mean", "share of longer answers",
        {**over_mean, "exponential": (longest, np.exp(-longest))}, log_y=True, dashed=("exponential",),
        y_lim=(1e-5, 1.2),
    )
    expected = {
        AZURE: (
            ("mean, tokens", 208, 214), ("distance", 0.155, 0.161), ("largest at, tokens", 372, 372),
            ("measured slope", -7.4, -7.1), ("coefficient of variation", 0.76, 0.78),
        ),
        BURSTGPT: (
            ("mean, tokens", 53, 61), ("distance", 0.418, 0.424), ("largest at, tokens", 7, 7),
            ("measured slope", -5.5, -5.3), ("coefficient of variation", 2.68, 2.74),
        ),
    }
    for row in rows:
        for column, low, high in expected.get(row["workload"], ()):
            ctx.expect(f"{row['workload']}: {column}", row[column], low, high)
        ctx.expect(f"{row['workload']}: distance from geometric", row["distance"], 0.1, 0.5, small=(0.05, 0.6))
