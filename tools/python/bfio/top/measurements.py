"""Measurements of a cluster between two readings of its state. Averages since the router's start would hide the present."""
from __future__ import annotations

import collections
from typing import Optional

from bfio.v1.admin_pb2 import ClusterState, Distribution

WINDOW = 10.0  # Rates are computed over this many seconds before the newest state.
MAX_IDLE = 400  # How many idle shares are kept for the screen.


def ratio(part: float, whole: float) -> Optional[float]:
    return part / whole if whole > 0 else None


def quantile(bounds: list[float], counts: list[int], share: float) -> float:
    """Interpolated within its bucket; at most the last bound, as in Prometheus' histogram_quantile."""
    wanted, below = share * sum(counts), 0
    for i, (high, count) in enumerate(zip(bounds, counts)):
        if count and below + count >= wanted:
            low = bounds[i - 1] if i else min(0.0, high)
            return low + (high - low) * (wanted - below) / count
        below += count
    return bounds[-1]


def quantiles(before: Distribution, now: Distribution) -> Optional[tuple[float, float]]:
    """p50 and p99 of the samples between two readings."""
    old = before.counts if len(before.counts) == len(now.counts) else [0] * len(now.counts)
    counts = [max(0, b - a) for a, b in zip(old, now.counts)]
    if not sum(counts) or not now.upper_bounds:
        return None
    return quantile(now.upper_bounds, counts, 0.5), quantile(now.upper_bounds, counts, 0.99)


def idle_share(before: ClusterState, now: ClusterState) -> Optional[float]:
    a, b = before.steps, now.steps
    mean = ratio(b.mean_load_tokens - a.mean_load_tokens, b.max_load_tokens - a.max_load_tokens)
    return None if mean is None else max(0.0, 1 - mean)


def same_router(before: ClusterState, now: ClusterState) -> bool:
    """The counters of one router never decrease; those of two routers cannot be compared."""
    a, b = before.steps, now.steps
    return (before.uptime.seconds <= now.uptime.seconds and a.steps <= b.steps and a.decisions <= b.decisions
            and a.generated_tokens <= b.generated_tokens)


class Measurements:
    """Values are None, or missing in the dicts, where nothing of the kind happened between the two states. `before`: an earlier
    state of the same router, or else there are no rates."""

    def __init__(self, before: ClusterState, now: ClusterState):
        if not same_router(before, now):
            before = now
        self.state, a, b = now, before.steps, now.steps
        seconds = (now.timestamp.ToNanoseconds() - before.timestamp.ToNanoseconds()) * 1e-9
        self.tokens_per_s = ratio(b.generated_tokens - a.generated_tokens, seconds)
        self.steps_per_s = ratio(b.steps - a.steps, seconds)
        self.idle = idle_share(before, now)
        self.barrier_wait = ratio(b.barrier_wait_s - a.barrier_wait_s, b.rank_step_s - a.rank_step_s)
        self.decide_s = ratio(b.decide_s - a.decide_s, b.decisions - a.decisions)
        self.first_token_s = quantiles(before.latencies.time_to_first_token_s, now.latencies.time_to_first_token_s)
        self.inter_token_s = quantiles(before.latencies.inter_token_s, now.latencies.inter_token_s)
        # Group by group in the order of ranks. Joining workers have no rank and come last.
        self.workers = sorted(now.workers, key=lambda worker: (not worker.HasField("rank"), worker.group, worker.rank))
        self.ranks = [worker for worker in self.workers if worker.HasField("rank")]
        self.slowest = self._slowest(before)

    def _slowest(self, before) -> dict[str, float]:
        """By worker: the share of its group's steps in which it was the slowest. The router's counts restart in every epoch."""
        epochs = {(group.name, group.epoch) for group in before.groups}
        lasting = {group.name for group in self.state.groups if (group.name, group.epoch) in epochs}
        old = {worker.worker_id: worker.straggler_steps for worker in before.workers}
        counts, total = {}, collections.Counter()
        for worker in self.ranks:
            if worker.group in lasting:
                counts[worker.worker_id] = max(0, worker.straggler_steps - old.get(worker.worker_id, 0))
                total[worker.group] += counts[worker.worker_id]
        return {worker.worker_id: counts[worker.worker_id] / total[worker.group]
                for worker in self.ranks if total[worker.group]}


class History:
    """The states of the last `WINDOW` seconds, and the idle shares between them. Times by time.monotonic()."""

    def __init__(self):
        self._states, self.idle = collections.deque(), collections.deque(maxlen=MAX_IDLE)

    def add(self, now: float, state: ClusterState) -> None:
        if self._states and not same_router(self._states[-1][1], state):
            self._states.clear()
        if self._states and (idle := idle_share(self._states[-1][1], state)) is not None:
            self.idle.append(idle)
        self._states.append((now, state))
        while len(self._states) > 2 and now - self._states[1][0] >= WINDOW:
            self._states.popleft()

    def measure(self) -> Measurements:
        return Measurements(self._states[0][1], self._states[-1][1])
