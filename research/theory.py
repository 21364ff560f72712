"""Imbalance in tokens, by the theorems of the BF-IO paper and by the normal distribution.

Prompts are uniform on 1 .. LARGEST_PROMPT, outputs constant or geometric with END_RATE, every slot is taken.
"""

import math

import numpy as np
from scipy.stats import norm

LARGEST_PROMPT, END_RATE = 100, 0.05
PROMPT_MEAN = (LARGEST_PROMPT + 1) / 2
PROMPT_DEVIATION = math.sqrt((LARGEST_PROMPT**2 - 1) / 12)


def expected_of_largest_normal(count, function):
    """E[function(largest of `count` standard normals)], by the midpoint rule over the density of the largest."""
    width = 1e-3
    x = np.arange(-10 + width / 2, 10, width)
    return float(np.sum(function(x) * count * norm.pdf(x) * norm.cdf(x) ** (count - 1)) * width)


def largest_normal(count):
    """m_G: 1.029 of 4, 1.766 of 16, 2.070 of 32."""
    return expected_of_largest_normal(count, lambda x: x)


def increments(drift, steps, seed=1):
    """(growth, tokens) of a resident request in each of `steps` steps, under a --drift of bfio_sim."""
    kind, _, rest = drift.partition(":")
    ones = np.ones(steps)
    if kind == "growth":
        return ones, ones
    if kind == "constant":
        return np.zeros(steps), ones
    if kind == "throttled":
        return np.diff(np.floor(float(rest) * np.arange(steps + 1))), ones
    if kind == "sequence":
        return np.resize(np.array(rest.split(","), dtype=float), steps), ones
    if kind == "speculative":
        draft, accept = rest.split(":")
        accepted = np.random.default_rng(seed).random((steps, int(draft))) < float(accept)
        tokens = 1.0 + np.cumprod(accepted, axis=1).sum(axis=1)
        return tokens, tokens
    raise ValueError(f"drift {drift}")


def slot_deviation(drift):
    """Standard deviation of the tokens in one slot under a rule that ignores lengths; outputs are geometric.

    The request in a slot has survived the tokens generated since it began, so the distribution of its age is known.
    Averaged over 1,000 steps; a drift moves all slots together, which is not imbalance.
    """
    oldest = math.ceil(math.log(1e-12) / math.log1p(-END_RATE))  # no request is older: a step generates at least a token
    growth, tokens = increments(drift, oldest + 1002)
    grown, made = np.append(0, np.cumsum(growth)), np.append(0, np.cumsum(tokens))
    deviations = []
    for step in range(oldest + 2, oldest + 1002):
        first = np.arange(step, step - oldest, -1)
        # A request ended in the step before `first`, and the successor has survived to `step`.
        ended = -np.expm1((made[first - 1] - made[first - 2]) * math.log1p(-END_RATE))
        share = ended * (1 - END_RATE) ** (made[step - 1] - made[first - 1])
        held = grown[step - 1] - grown[first - 1]
        deviations.append(math.sqrt(PROMPT_DEVIATION**2 + share @ held**2 - (share @ held) ** 2))
    return float(np.mean(deviations))


def fcfs_estimate(workers, batch, deviation):
    """G m_G sqrt(B) times the deviation of a slot: sums of B slots are taken to be normal."""
    return workers * largest_normal(workers) * math.sqrt(batch) * deviation


def growth_law(workers, batch):
    return math.sqrt(batch * math.log(workers))


def fcfs_lower_bound(workers, batch):
    """c2 G sigma_s sqrt(B log G), c2 = 0.0671 (proof of Theorem 1)."""
    c2 = -math.expm1(-1 / (4 * math.sqrt(2 * math.pi))) / math.sqrt(2)
    return c2 * workers * PROMPT_DEVIATION * growth_law(workers, batch)


def bf_io_upper_bound(workers, end_rate):
    """(G - 1) s_max / p; end_rate 1 for constant outputs."""
    return (workers - 1) * LARGEST_PROMPT / end_rate
