"""The measurements of a cluster as lines of a terminal: the same picture on a screen, in a pipe and in a test.

No line is wider than the screen, and there are no more lines than rows. What does not fit is left out, the least important
first. Names come from other machines: `harmless` replaces what could move the cursor.
"""
from __future__ import annotations

import re
from typing import Callable, Iterable, Sequence

from bfio.top.measurements import Measurements
from bfio.v1.admin_pb2 import WORKER_PHASE_DRAINING, WORKER_PHASE_JOINING, WORKER_PHASE_SERVING

STYLES = {"strong": "\x1b[1m", "soft": "\x1b[2m", "good": "\x1b[32m", "bad": "\x1b[31m"}
BLOCKS, MARKS = "▁▂▃▄▅▆▇█", "_.-:=+*#"
PHASES = {WORKER_PHASE_JOINING: "joining", WORKER_PHASE_SERVING: "serving", WORKER_PHASE_DRAINING: "draining"}
# With rank, name and state, they take the 80 columns of the smallest usual terminal.
COLUMNS = {"load": 10, "running": 9, "KV": 8, "slowest": 9, "reserved": 9}
MAP_FROM = 12  # For more ranks than this, a map has a mark for each: the table may not fit.
MODEL_DIGITS = 12  # Characters of a model's digest, as logs show it.
# Times below a limit in seconds are shown in this unit, which has that many seconds.
TIMES = ((9.995e-4, 1e-6, "us"), (0.9995, 1e-3, "ms"), (120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h"),
         (float("inf"), 86400, "d"))


def harmless(name: str) -> str:
    return re.sub(r"[^ -~]", "?", name)


def count(value: float) -> str:
    return f"{round(value):,}"


def digits(value: float) -> str:
    return f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"


def short(value: float) -> str:
    for unit in ("", "K", "M", "G"):
        if abs(value) < 999.5:
            return digits(value) + unit
        value /= 1000
    return digits(value) + "T"


def seconds(value: float) -> str:
    return next(f"{digits(value / length)} {unit}" for limit, length, unit in TIMES if value < limit)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def known(value, form: Callable[[float], str]) -> str:
    return "-" if value is None else form(value)


class Line:
    """One line, never wider than the screen."""

    def __init__(self, columns: int, plain: bool):
        self.room, self._plain, self._parts = columns, plain, []

    def __str__(self) -> str:
        return "".join(self._parts)

    def text(self, text: str, style: str = "") -> Line:
        """Every character of `text` must take one column."""
        text = text[:max(0, self.room)]
        self.room -= len(text)
        self._parts.append(f"{STYLES[style]}{text}\x1b[0m" if text and style and not self._plain else text)
        return self

    def marks(self, shares: Sequence[float], style: str = "") -> Line:
        """For each share of 0 to 1 a bar one column wide."""
        marks = MARKS if self._plain else BLOCKS
        return self.text("".join(marks[min(len(marks) - 1, int(share * len(marks)))] for share in shares), style)

    def pairs(self, *pairs: tuple) -> Line:
        """Names, values and optionally styles. A pair that does not fit is left out, because a cut value is misleading."""
        for name, value, *style in pairs:
            gap = "  " if self._parts else ""
            if len(gap) + len(name) + 1 + len(value) <= self.room:
                self.text(gap).text(name, "soft").text(" ").text(value, *style or ["strong"])
        return self

    def cells(self, texts: Iterable[str], style: str = "") -> Line:
        """A row of the table: as many of its columns as fit."""
        for width, text in zip(COLUMNS.values(), texts):
            if width > self.room:
                break
            self.text(f"{text:>{width}}", style)
        return self


def draw(m: Measurements, idle: Sequence[float] = (), message: str = "", alarm: bool = False, columns: int = 80, rows: int = 24,
         plain: bool = False) -> list[str]:
    """`idle`: shares of earlier readings, oldest first. `message`: the lowest line. `plain`: ASCII without escape sequences."""
    line = lambda: Line(columns, plain)  # noqa: E731
    lines = [*summary(m, list(idle), line), line()]
    if len(m.ranks) > MAP_FROM:
        lines += [*rank_map(m, max(8, (columns - 5) // 8 * 8), line), line()]
    rows -= bool(message)
    workers, fit = m.workers, max(0, rows - len(lines) - 1)
    if len(workers) > fit:
        # Workers that do not serve need attention; the most loaded ones set the pace.
        workers = sorted(workers, key=lambda worker: (worker.phase == WORKER_PHASE_SERVING, -worker.load_tokens))[:fit]
    if workers:
        lines += table(m, workers, line)
    del lines[max(0, rows):]
    if message:
        lines.append(line().text(harmless(message), "bad" if alarm else "soft"))
    return [str(each) for each in lines]


def most_loaded(m: Measurements) -> int:
    return max((worker.load_tokens for worker in m.ranks), default=0)


def rank_of(worker, m: Measurements) -> str:
    """The rank, with its group where there are several."""
    if worker is None or not worker.HasField("rank"):
        return "-"
    return f"{harmless(worker.group)}:{worker.rank}" if len(m.state.groups) > 1 else str(worker.rank)


def summary(m: Measurements, idle: list[float], line: Callable[[], Line]) -> list[Line]:
    state, requests, loads = m.state, m.state.requests, [worker.load_tokens for worker in m.ranks] or [0]
    top = max(m.ranks, key=lambda worker: worker.load_tokens, default=None)
    slowest = max((w for w in m.ranks if m.slowest.get(w.worker_id)), key=lambda w: m.slowest[w.worker_id], default=None)
    models = sorted({harmless(group.model[:MODEL_DIGITS]) for group in state.groups if group.model})
    refused = requests.refused_pool_full + requests.refused_invalid + requests.refused_tenant + requests.refused_memory
    both = lambda pair: " / ".join(map(seconds, pair))  # noqa: E731
    fault = lambda value: (count(value), "bad" if value else "strong")  # noqa: E731
    head = line().text("bfio ", "strong").text(*("serving", "good") if m.ranks else ("waiting for workers", "bad"))
    head.pairs(("policy", harmless(state.policy.name)), ("epoch", str(state.epoch)),
               ("ranks", str(len(m.ranks)) + f" of {state.expected_workers}" * (len(m.ranks) < state.expected_workers)),
               ("up", seconds(state.uptime.seconds)), *[("model", ", ".join(models))] * bool(models),
               ("version", harmless(state.version)))
    rates = line().pairs(
        ("idle", known(m.idle, percent)), ("barrier wait", known(m.barrier_wait, percent)),
        ("tokens/s", known(m.tokens_per_s, short)), ("steps/s", known(m.steps_per_s, short)),
        ("decision", known(m.decide_s, seconds)))
    label = "  idle history "
    wide = min(len(idle), rates.room - len(label))
    if wide >= 8:
        rates.text(label, "soft").marks([share / max(0.05, *idle[-wide:]) for share in idle[-wide:]])
    return [head, rates] + [line().pairs(*pairs) for pairs in [
        (("TTFT p50 / p99", known(m.first_token_s, both)), ("ITL", known(m.inter_token_s, both)),
         ("waiting", f"{count(state.waiting_requests)} of {count(state.max_waiting_requests)}"),
         ("running", f"{count(sum(w.active_requests for w in m.ranks))} of {count(sum(w.slots for w in m.ranks))}")),
        (("load max", f"{count(max(loads))} (rank {rank_of(top, m)})"), ("mean", count(sum(loads) / len(loads))),
         ("min", count(min(loads))), ("mean/max", f"{sum(loads) / len(loads) / max(loads):.3f}" if max(loads) else "-"),
         ("slowest rank", rank_of(slowest, m))),
        (("accepted", count(requests.accepted)), ("completed", count(requests.completed)), ("failed", *fault(requests.failed)),
         ("tokens lost or duplicated", *fault(requests.tokens_lost + requests.tokens_duplicated)),
         ("refused", count(refused)), ("cancelled", count(requests.cancelled + requests.aborted)),
         ("replayed", count(requests.replayed)))]]


def rank_map(m: Measurements, wide: int, line: Callable[[], Line]) -> list[Line]:
    """A mark for each rank: its share of the largest load."""
    most, lines = most_loaded(m), []
    for first in range(0, len(m.ranks), wide):
        lines.append(line().text(f"{first:4} ", "soft"))
        for worker in m.ranks[first:first + wide]:
            lines[-1].marks([worker.load_tokens / max(1, most)], "bad" if 0 < most == worker.load_tokens else "")
    return lines


def table(m: Measurements, workers: Sequence, line: Callable[[], Line]) -> list[Line]:
    most, wide = most_loaded(m), 12 if len(m.state.groups) > 1 else 4
    # Names get the columns that the cells leave: 20 of 80.
    names = max(20, min(line().room - 56 - wide, max(len(worker.worker_id) for worker in workers)))
    lines = [line().text(f"{'rank':>{wide}} {'worker':{names}} {'state':9}", "soft").cells(COLUMNS, "soft")]
    for worker in workers:
        of_kv = [percent(tokens / worker.kv_tokens) if worker.kv_tokens else "-"
                 for tokens in (worker.load_tokens, worker.reserved_kv_tokens)]
        row = line().text(f"{rank_of(worker, m):>{wide}} {harmless(worker.worker_id)[:names]:{names}} ")
        row.text(f"{PHASES.get(worker.phase, '-'):9}", "" if worker.phase == WORKER_PHASE_SERVING else "bad")
        row.cells((count(worker.load_tokens), f"{worker.active_requests}/{worker.slots}", of_kv[0],
                   known(m.slowest.get(worker.worker_id), percent), of_kv[1]))
        bar = min(60, row.room - 1)
        if bar >= 8:
            share = worker.load_tokens / max(1, most)
            row.text(" ").marks([1.0] * round(bar * share), "bad" if share == 1 else "")
        lines.append(row)
    return lines
