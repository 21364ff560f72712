"""The cost of steps, fitted to workers' step logs (bfio_worker --step_log) by least squares without outliers."""

import csv

import numpy as np

ROUNDS = 4
CUT = 4  # robust standard deviations beyond which a step is an outlier of the next round
KNEES = range(0, 513, 32)  # candidates for B0


def read(paths):
    """Columns by name, of all files; absent values are NaN. The worker's name is not read."""
    rows = []
    for path in paths:
        with open(path, newline="", encoding="utf-8") as file:
            rows += [row for row in csv.DictReader(file) if row["decode_context"]]  # not a last line that was cut off
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0] if name != "worker"}


def fit(terms, seconds):
    """Coefficients >= 0 of the columns `terms`, of which the first is constant, and the median relative error. A column that
    does not vary, or would be negative, is left out, as 0. Errors are relative, so short steps count as much as long ones."""
    terms = np.column_stack(terms)
    used, inside = np.ptp(terms, axis=0) > 0, np.full(len(seconds), True)
    used[0] = True
    value = np.zeros(len(used))
    for _ in range(ROUNDS):
        while True:
            scaled = terms[inside][:, used] / seconds[inside, None]
            value[:] = 0
            value[used] = np.linalg.lstsq(scaled, np.ones(len(scaled)), rcond=None)[0]
            if np.all(value >= 0):
                break
            used &= value >= 0
        error = np.abs(terms @ value / seconds - 1)
        inside = error <= CUT * 1.4826 * np.median(error) + 1e-6
    return value, np.median(error)


def load_cost(paths):
    """bfio_sim's flags for C + t_l load + c_p prompt tokens, and the seconds between steps that they contain."""
    steps = read(paths)
    (c, tl, prefill), _ = fit((np.ones_like(steps["step"]), steps["load_tokens"], steps["prefill_tokens"]),
                              steps["local_ns"] * 1e-9)
    # The rank that arrives last waits only for the barrier's messages.
    _, at = np.unique(np.column_stack((steps["epoch"], steps["step"])), axis=0, return_inverse=True)
    barrier = np.full(at.max() + 1, np.inf)
    np.minimum.at(barrier, at.ravel(), steps["barrier_wait_ns"])
    overhead = 1e-9 * float(np.median(barrier) + np.nanmedian(steps["gap_ns"]))
    return {"overhead_s": overhead,
            "sim_flags": [f"--c={c:.6g}", f"--tl={tl:.6g}", f"--prefill={prefill:.6g}", f"--overhead={overhead:.6g}"]}


def batch_cost(steps):
    """(c, a, k1, k2), b0 and the median relative error of c + a max(0, tokens - b0) + k1 pairs + k2 context."""

    def at(knee):
        terms = (np.ones_like(steps["step"]), np.maximum(0, steps["batch_tokens"] - knee), steps["prefill_pairs"],
                 steps["decode_context"])
        return fit(terms, steps["local_ns"] * 1e-9)

    best = min(KNEES, key=lambda knee: at(knee)[1])
    value, error = at(best)
    return value, best, error
