"""The fluid benchmark of WAIT, the thresholds that it gives, and the memory bound of Nested WAIT.

Equations have the numbers of "Fluid-Based Online Scheduling under Memory Constraints". Sizes in tokens, times in seconds.
"""

import math
from typing import NamedTuple

from simulation import Refused


class RequestType(NamedTuple):
    rate: float
    prompt: int
    output: int

    @property
    def tokens(self):
        """Tokens held by a request, summed over its stages: (l' + 1)(l + l' / 2)."""
        return (self.output + 1) * (self.prompt + self.output / 2)


class Time(NamedTuple):
    d0: float
    d1: float

    def __call__(self, tokens):
        return self.d0 + self.d1 * tokens


def load_of(types):
    return sum(of.rate * of.tokens for of in types)


def overloaded(share):
    return Refused(f"--types: the load is {share:.4g} times what any batch size can serve")


def equilibrium(types, time):
    """(M*, tokens per second): the batch in equilibrium, and the long-run upper bound of every policy, where a prompt counts as
    one token. Refused where the load is too high for any memory."""
    load = load_of(types)
    if time.d1 * load >= 1:
        raise overloaded(time.d1 * load)
    return time.d0 * load / (1 - time.d1 * load), sum(of.rate * (of.output + 1) for of in types)


def throughput_within(types, time, memory):
    """Tokens per second of this mix of types that batches of `memory` tokens sustain."""
    throughput = sum(of.rate * (of.output + 1) for of in types)
    return throughput * min(1, memory / (time(memory) * load_of(types)))


def wait_peak(types, thresholds):
    """Tokens of WAIT's largest batch, which is also the most that it ever holds."""
    return sum(n * of.tokens for n, of in zip(thresholds, types))


def wait_thresholds(types, time, load):
    """Thresholds in proportion to the rates, the smallest with DT(n) at most `load` times n_j / lambda_j (equation 7)."""
    share = time.d1 * load_of(types) / load
    if share >= 1:
        raise overloaded(share)
    # n_j = x rate_j: DT = d0 + d1 x load must stay below load x. Rounding up can require a larger x.
    x = time.d0 / (load - time.d1 * load_of(types))
    while True:
        thresholds = [math.floor(x * of.rate) + 1 for of in types]
        iteration = time(wait_peak(types, thresholds))
        longest = max(iteration * of.rate / (load * n) for of, n in zip(types, thresholds))
        if longest <= 1:
            return thresholds
        x *= max(longest, 1.001)


def wait_thresholds_within(types, memory):
    """Thresholds in proportion to the rates, the largest with a batch of at most `memory` tokens; 1 at least."""
    x = memory / load_of(types)
    while True:
        thresholds = [max(1, int(x * of.rate)) for of in types]
        if max(thresholds) == 1 or wait_peak(types, thresholds) <= memory:
            return thresholds
        x *= 0.999


class Segments:
    """For Nested WAIT: segment i has the stages first[i] .. last[i]; a share survive[i] of segment i - 1's requests reach it.
    Types have one prompt length (the mean over the rates, rounded up) and are sorted by output."""

    def __init__(self, types, last=None):
        self.last = last or [of.output for of in types]
        self.first = [0] + [end + 1 for end in self.last[:-1]]
        self.rate = sum(of.rate for of in types)
        self.prompt = math.ceil(sum(of.rate * of.prompt for of in types) / self.rate - 1e-9)
        arrive = [sum(of.rate for of in types if of.output > before) for before in [0, *self.last[:-1]]]
        self.survive = [1] + [now / before for before, now in zip(arrive, arrive[1:])]
        self.tokens = [(last - first + 1) * (self.prompt + (first + last) / 2) for first, last in zip(self.first, self.last)]

    def peak(self, thresholds):
        """Tokens of the largest batch."""
        return sum(n * tokens for n, tokens in zip(thresholds, self.tokens))


def merged(types, count):
    """B.2: at most `count` segments of about equal width instead of one for each length."""
    longest = types[-1].output
    return Segments(types, sorted({(longest * i + count - 1) // count for i in range(1, count + 1)}))


def nested_from(segments, margin, first):
    """n_i = margin p_i n_(i-1), rounded up."""
    thresholds = [first]
    for share in segments.survive[1:]:
        thresholds.append(math.floor(margin * share * thresholds[-1]) + 1)
    return thresholds


def firsts():
    first = 1
    while first < 1e9:
        yield first
        first = math.ceil(first * 1.01)


def nested_stable(segments, thresholds, time):
    """DT * rate < n_1 and n_i > p_i n_(i-1)."""
    pairs = zip(thresholds, thresholds[1:], segments.survive[1:])
    return time(segments.peak(thresholds)) * segments.rate < thresholds[0] and all(n > p * before for before, n, p in pairs)


def nested_thresholds(segments, time, margin, load):
    """The smallest n_1 that is stable with DT at most `load` times n_1 / rate."""
    for first in firsts():
        thresholds = nested_from(segments, margin, first)
        share = time(segments.peak(thresholds)) * segments.rate / (load * first)
        if share <= 1 and nested_stable(segments, thresholds, time):
            return thresholds
    raise overloaded(share)


def nested_thresholds_within(segments, margin, memory):
    """The largest n_1 with a batch of at most `memory` tokens; at least 1."""
    best = nested_from(segments, margin, 1)
    for first in firsts():
        more = nested_from(segments, margin, first)
        if first > 1 and segments.peak(more) > memory:
            break
        best = more
    return best


def nested_fluid_thresholds(segments, time, margin, load):
    """The same without rounding: for loads of less than a request per iteration. None where no memory suffices."""
    thresholds = [1]
    for share in segments.survive[1:]:
        thresholds.append(margin * share * thresholds[-1])
    left = load / segments.rate - time.d1 * segments.peak(thresholds)
    return [n * time.d0 / left for n in thresholds] if left > 0 else None


def segment_decay(n, before, p):
    """Equation (13): the positive root of n theta = before ln(1 - p + p e^theta). REQUIRES: p before < n < before."""

    def excess(theta):
        return before * math.log1p(p * math.expm1(theta)) - n * theta

    # Convex, 0 and falling at 0, and eventually rising because n < before.
    low, high = 0, 1
    while excess(high) < 0 and high < 500:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return high


def nested_bound(segments, thresholds, iterations, delta):
    """Equation (12): peak + queues + excess tokens are not exceeded in `iterations` iterations with probability 1 - delta.

    The paper prints the largest batch (peak) in two forms: with l + (l'_1 + .. + l'_i) / 2 tokens per stage in Theorem 5.1's
    proof, which is too large from the third segment on (the mean stage is (l'_(i-1) + l'_i) / 2), and with l + i DL / 2 in B.2,
    which is too small from the second on ((i - 1/2) DL). Queues: the mean of requests between segments; excess: what is added
    to hold with the probability.
    """
    l, count = segments.prompt, len(thresholds)
    width, ends, end = segments.last[-1] / count, 0, 0
    printed = printed_equal = queues = excess = 0
    for i, (n, last) in enumerate(zip(thresholds, segments.last)):
        before_end, end = end, last
        ends += end
        printed += n * (l + ends / 2) * (end - before_end)
        printed_equal += n * (l + (i + 1) * width / 2) * width
        if i > 0:
            queues += (l + before_end) * n
            # If n >= before, at most n requests wait.
            if n < thresholds[i - 1]:
                decay = segment_decay(n, thresholds[i - 1], segments.survive[i])
                excess += (l + before_end) * math.log((count - 1) * iterations / delta) / decay
    return {"peak_tokens": segments.peak(thresholds), "printed_peak_tokens": printed, "printed_equal_peak_tokens": printed_equal,
            "queues_tokens": queues, "excess_tokens": excess}
