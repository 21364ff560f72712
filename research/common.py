"""Library of the experiments: runs in parallel, estimates over seeds, tables, charts, a page, and assertions.

An experiment is a function in a file of this folder:

    from common import experiment, main

    @experiment("imbalance over slots", profile="burstgpt")
    def slots(ctx):
        runs = ctx.simulate({b: {"policy": "fcfs", "batch": b, **ctx.workload.flags} for b in (16, 64)})
        imbalance = {b: runs.mean(b, "avg_imbalance_tokens") for b in runs.variants}
        ctx.table("Imbalance", [{"slots": b, "imbalance, tokens": x} for b, x in imbalance.items()])
        ctx.lines("Imbalance", "slots", "tokens", {"FCFS": imbalance})
        ctx.expect("grows with the slots", imbalance[64].mean / imbalance[16].mean, 1.8, 2.2, small=(1.5, 2.5))

    if __name__ == "__main__":
        main(__doc__)

Run as FILE.py NAME --out=FOLDER, it leaves NAME.html, a CSV per table and an SVG per chart there, and exits 1 if a
value is out of its bounds. The same seeds give the same files, for any --jobs.
"""

import argparse
import html
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Callable, NamedTuple, Optional

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from scipy.stats import t as student_t  # noqa: E402

from simulation import Refused  # noqa: E402

plt.rcParams.update(
    {
        "svg.hashsalt": "bfio", "svg.fonttype": "none", "figure.figsize": (8, 4.5),
        "figure.constrained_layout.use": True, "axes.grid": True, "grid.alpha": 0.3, "legend.fontsize": 8,
        "axes.spines.top": False, "axes.spines.right": False,
    }
)

FULL_SEEDS = 5
PROFILE_ROWS = 100_000  # requests drawn to represent a profile


# ---------------------------------------------------------------------------------------------------------------------
# Estimates


class Estimate(NamedTuple):
    """A mean over samples and half the width of its 95 % interval (Student's t; 0 for fewer than two samples)."""

    mean: float
    half: float = 0.0

    @property
    def low(self):
        return self.mean - self.half

    @property
    def high(self):
        return self.mean + self.half

    def scaled(self, factor):
        return Estimate(self.mean * factor, self.half * abs(factor))

    def __str__(self):
        if not (self.half > 0 and math.isfinite(self.mean)):
            return number(self.mean)
        decimals = min(8, max(0, 1 - math.floor(math.log10(self.half))))
        return f"{self.mean:,.{decimals}f} ± {self.half:,.{decimals}f}"


def estimate(samples):
    """The mean of `samples`, as an Estimate."""
    samples = np.asarray(samples, dtype=float)
    n = len(samples)
    if n < 2:
        return Estimate(float(samples.mean()) if n else math.nan)
    half = student_t.ppf(0.975, n - 1) * samples.std(ddof=1) / math.sqrt(n)
    return Estimate(float(samples.mean()), float(half))


def log_log_slope(x, y):
    """Slope of log y on log x by least squares, with its 95 % interval."""
    x, y = np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float))
    dx = x - x.mean()
    slope = float(dx @ (y - y.mean()) / (dx @ dx))
    if len(x) < 3:
        return Estimate(slope)
    off = y - y.mean() - slope * dx
    return Estimate(slope, float(student_t.ppf(0.975, len(x) - 2) * math.sqrt(off @ off / (len(x) - 2) / (dx @ dx))))


def number(value, digits=4):
    """A number with `digits` significant digits, as text."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, (int, np.integer)):
        return f"{int(value):,}"
    if not math.isfinite(value):
        return "infinite"
    if value == 0 or 1e-3 <= abs(value) < 10**7:
        decimals = 0 if value == 0 else max(0, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{value:,.{decimals}f}"
    return f"{value:.{digits}g}"


# ---------------------------------------------------------------------------------------------------------------------
# Runs


class ProgramError(Exception):
    """A program failed; the message is the line it printed."""


class Runs:
    """The runs of some variants over the seeds: a row of `frame` for each, with the keys of the program's JSON."""

    def __init__(self, variants, seeds, frame, series):
        self.variants, self.seeds, self.frame, self._series = list(variants), seeds, frame, series
        self._rows = {name: frame.iloc[i * seeds : (i + 1) * seeds] for i, name in enumerate(self.variants)}

    def values(self, variant, key):
        """The values of a variant, by seed."""
        return self._rows[variant][key].to_numpy(dtype=float)

    def mean(self, variant, key, scale=1):
        return estimate(self.values(variant, key)).scaled(scale)

    def ratio(self, variant, base, key):
        """The ratio of one variant to another, paired by seed."""
        return estimate(self.values(variant, key) / self.values(base, key))

    def change(self, variant, base, key):
        """The change from `base` in per cent, paired by seed: -3.4 for 3.4 % less."""
        ratio = self.ratio(variant, base, key)
        return Estimate(100 * (ratio.mean - 1), 100 * ratio.half)

    def series(self, variant, seed):
        """The run's steps (`bfio_sim --steps_csv`), warm-up included; REQUIRES simulate(..., series=True)."""
        return pd.read_csv(self._series[self.variants.index(variant) * self.seeds + seed - 1])


class Workload:
    """A trace or a built-in profile. `flags`: the flags of bfio_sim that select it."""

    def __init__(self, ctx, name, flags):
        self._ctx, self.name, self.flags = ctx, name, flags
        self._requests, self._summaries = None, {}

    def requests(self):
        """Columns num_prefill_tokens, num_decode_tokens and, where it has times, arrived_at (seconds)."""
        if self._requests is None:
            [text] = self._ctx.programs(
                [self._ctx.command("bfio_sim", "workload", requests=PROFILE_ROWS, **self.flags)]
            )
            self._requests = pd.read_csv(io.StringIO(text))
        return self._requests

    def summary(self, workers=16, batch=72):
        """Means, rates and whether it has arrival times: what `bfio_sim workload --json` prints."""
        key = (workers, batch)
        if key not in self._summaries:
            flags = {"requests": PROFILE_ROWS, "workers": workers, "batch": batch, **self.flags}
            [[self._summaries[key]]] = self._ctx.json_lines(
                [self._ctx.command("bfio_sim", "workload", "--json", **flags)]
            )
        return self._summaries[key]

    @property
    def has_arrivals(self):
        return self.summary()["has_arrivals"]

    @property
    def mean_output(self):
        """E[o] in tokens, which is the number of steps that a request stays."""
        return self.summary()["output_tokens_mean"]


def bf_io(horizon=0, objective="paper", discount=None):
    """Flags of the BF-IO program. With a horizon all lengths are known (oracle)."""
    return {
        "policy": "bf_io", "objective": objective, "horizon": horizon, "discount": discount,
        "lookahead": "oracle" if horizon else "none",
    }


# ---------------------------------------------------------------------------------------------------------------------
# Experiments


class Experiment(NamedTuple):
    """What `experiment` registers."""

    name: str
    function: Callable
    summary: str
    profile: Optional[str]
    seeds: int
    traces: tuple
    check: str


EXPERIMENTS = {}


def experiment(summary, profile=None, seeds=FULL_SEEDS, name=None, traces=(), check="--shorten=30 --seeds=2"):
    """Registers a function of one Context under its name, '_' read as '-'.

    profile: the built-in workloads it runs on when the command line names none, separated by commas; None for an
    experiment with its own workloads. traces: names of the traces for which its assertions hold; empty: any.
    check: flags with which tests/check_research runs it; empty: the full size.
    """

    def register(function):
        key = name or function.__name__.replace("_", "-")
        EXPERIMENTS[key] = Experiment(key, function, summary, profile, seeds, traces, check)
        return function

    return register


class Context:
    """The settings of the command line, and the findings of the experiment."""

    def __init__(self, entry, args, extra):
        self.name, self.args, self.extra = entry.name, args, extra
        profile, seeds, traces = entry.profile, entry.seeds, entry.traces
        self.seeds = args.seeds or seeds
        self.shorten = args.shorten
        self.folder = Path(args.out)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._keep = tempfile.TemporaryDirectory(prefix="bfio-research-")
        self.scratch = Path(self._keep.name)  # deleted when the experiment ends
        self.workloads = []
        for path in filter(None, (args.trace or "").split(",")):
            self.workloads.append(Workload(self, Path(path).stem, {"trace": path}))
        for profile_name in filter(None, (args.profile or ("" if args.trace else profile) or "").split(",")):
            self.workloads.append(Workload(self, f"profile {profile_name}", {"profile": profile_name}))
        # Whether the assertions' bounds for the full size apply: the full size, and real traces.
        known = profile is None or (bool(args.trace) and not args.profile)
        known = known and (not traces or all(workload.name in traces for workload in self.workloads))
        self.full = known and self.shorten == 1 and self.seeds >= seeds and not extra
        self.paragraphs, self.parameters, self.blocks = [], {}, []
        self.expectations, self._tables, self._charts, self._simulated = [], 0, 0, 0
        self.parameter("seeds", f"1 to {self.seeds}")
        self.parameter("intervals", "95 %, Student's t over the seeds")
        if self.shorten != 1:
            self.parameter("shortened", f"{self.shorten:g} times")

    @property
    def workload(self):
        return self.workloads[0]

    def shortened(self, value, least=1):
        """value / --shorten, a whole number."""
        return max(least, round(value / self.shorten))

    # --- running ---

    def command(self, program, *words, **flags):
        """The command line of a program of the build; flags of None are left out."""
        line = [str(Path(self.args.build) / "bin" / program), *map(str, words)]
        for flag, value in flags.items():
            if value is not None:
                line.append(f"--{flag}={str(value).lower() if isinstance(value, bool) else value}")
        return line

    def programs(self, commands):
        """Standard output of each command, in order; --jobs of them run at once. ProgramError at the first failure."""

        def run(command):
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode != 0:
                told = [line for line in done.stderr.splitlines() if line.strip()]
                raise ProgramError(told[-1] if told else f"{command[0]} exited with status {done.returncode}")
            return done.stdout

        return self._in_order(ThreadPoolExecutor(max_workers=self.args.jobs), run, commands)

    def _in_order(self, pool, run, commands):
        """The results of run(command), in order. Reports progress on standard error."""
        started, last, outputs = time.monotonic(), 0.0, []
        try:
            for output in pool.map(run, commands):
                outputs.append(output)
                now, tty = time.monotonic(), sys.stderr.isatty()
                if len(commands) > 1 and (now - last > (0.2 if tty else 5) or len(outputs) == len(commands)):
                    last = now
                    sys.stderr.write(
                        f"{chr(13) if tty else ''}{self.name}: {len(outputs)} of {len(commands)} runs, "
                        f"{now - started:.0f} s{'' if tty and len(outputs) < len(commands) else chr(10)}"
                    )
                    sys.stderr.flush()
        finally:
            pool.shutdown(cancel_futures=True)
        return outputs

    def json_lines(self, commands):
        """The JSON objects that each command prints, one a line: a list of dicts for each command."""
        return [
            [json.loads(line) for line in text.splitlines() if line.startswith("{")] for text in self.programs(commands)
        ]

    def simulate(self, variants, series=False, words=(), seeds=None, run=None, program="bfio_sim"):
        """Runs `bfio_sim --json`, or another program, for every variant with every seed.

        variants: a dict of name -> flags. A flag's value may be a function of the seed. `words`: a subcommand. `run`:
        run_cell of a simulator of this folder instead of bfio_sim.
        series: keep every step, for Runs.series.
        """
        commands, files = [], []
        self._simulated += 1
        seeds = seeds or self.seeds
        for flags in variants.values():
            for seed in range(1, seeds + 1):
                own = {flag: value(seed) if callable(value) else value for flag, value in flags.items()}
                own.setdefault("seed", seed)
                if series:
                    files.append(self.scratch / f"steps-{self._simulated}-{len(files)}.csv")
                    own["steps_csv"] = files[-1]
                commands.append(self.command(program, *words, "--json", **own) + self.extra)
        if run:
            pool = ProcessPoolExecutor(max_workers=self.args.jobs)
            lines = self._in_order(pool, run, [command[1:] for command in commands])
        else:
            lines = [objects[0] for objects in self.json_lines(commands)]
        return Runs(variants, seeds, pd.DataFrame(lines), files)

    def write_trace(self, name, frame):
        """Writes requests (with the columns of Workload.requests) to a file for bfio_sim; returns its path."""
        path = self.scratch / f"{name}.csv"
        pd.DataFrame(frame).to_csv(path, index=False)
        return path

    # --- findings ---

    def text(self, paragraph):
        self.paragraphs.append(" ".join(paragraph.split()))

    def parameter(self, name, value):
        self.parameters[name] = value

    def table(self, title, rows, note=""):
        """Prints a table, writes it as CSV and puts it on the page.

        rows: dicts, or a DataFrame. Cells: text, numbers, Estimates (two columns in the CSV), None.
        """
        if isinstance(rows, pd.DataFrame):
            rows = rows.to_dict("records")
        columns = list(dict.fromkeys(column for row in rows for column in row))
        cells = [[_cell(row.get(column)) for column in columns] for row in rows]
        widths = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]
        text_columns = [any(isinstance(row.get(column), str) for row in rows) for column in columns]
        print(f"\n{title}")
        for line in [columns, *cells]:
            print(
                "  ".join(
                    cell.ljust(width) if left else cell.rjust(width)
                    for cell, width, left in zip(line, widths, text_columns)
                ).rstrip()
            )
        self._tables += 1
        flat = []
        for row in rows:
            plain = {}
            for column in columns:
                value = row.get(column)
                if isinstance(value, Estimate):
                    plain[column], plain[f"{column} ±"] = value.mean, value.half
                else:
                    plain[column] = value
            flat.append(plain)
        suffix = "" if self._tables == 1 else f"_{self._tables}"
        pd.DataFrame(flat).to_csv(self.folder / f"{self.name}{suffix}.csv", index=False, float_format="%.10g")
        self.blocks.append(_html_table(title, note, columns, cells, text_columns))

    def figure(self, title, figure, note=""):
        """Writes a matplotlib figure and puts it on the page."""
        self._charts += 1
        file = f"{self.name}_{self._charts}.svg"
        figure.savefig(self.folder / file, metadata={"Date": None})
        plt.close(figure)
        self.blocks.append(
            f"<figure><figcaption>{html.escape(title)}</figcaption><img src={file!r} "
            f"alt={html.escape(title)!r}><p class=note>{html.escape(note)}</p></figure>"
        )

    def lines(
        self, title, x, y, series, *, log_x=False, log_y=False, levels=None, dashed=(), steps=(), strong=(), note="",
        x_lim=None, y_lim=None,
    ):
        """A chart of lines. series: name -> {x: y}, or (xs, ys); a y may be an Estimate and then has a band.

        levels: name -> y of a horizontal line. dashed, steps, strong: names of series that are drawn in that style.
        """
        figure, axes = plt.subplots()
        for name, points in series.items():
            xs, ys = (list(points), list(points.values())) if isinstance(points, dict) else points
            banded = len(ys) > 0 and all(isinstance(value, Estimate) for value in ys)
            means = [value.mean for value in ys] if banded else ys
            [line] = axes.plot(
                xs, means, "--" if name in dashed else "-", label=str(name), linewidth=2.4 if name in strong else 1.3,
                marker="." if len(xs) <= 40 else None, drawstyle="steps-post" if name in steps else "default",
            )
            if banded:
                axes.fill_between(
                    xs, [value.low for value in ys], [value.high for value in ys], alpha=0.15, color=line.get_color(),
                    linewidth=0,
                )
        for index, (name, level) in enumerate((levels or {}).items()):
            axes.axhline(level, color=f"C{9 - index % 5}", linestyle=":", linewidth=1.2, label=str(name))
        axes.set(
            xlabel=x, ylabel=y, title=title, xscale="log" if log_x else "linear", yscale="log" if log_y else "linear"
        )
        if x_lim:
            axes.set_xlim(*x_lim)
        if y_lim:
            axes.set_ylim(*y_lim)
        axes.legend()
        self.figure(title, figure, note)

    def bars(self, title, y, series, *, log_y=False, note=""):
        """Grouped bars. series: name -> {category: number or Estimate or None}."""
        figure, axes = plt.subplots()
        categories = list(dict.fromkeys(category for values in series.values() for category in values))
        width = 0.8 / len(series)
        for index, (name, values) in enumerate(series.items()):
            ys = [values.get(category) for category in categories]
            bars = [
                value if isinstance(value, Estimate) else Estimate(math.nan if value is None else value) for value in ys
            ]
            at = np.arange(len(categories)) + (index - (len(series) - 1) / 2) * width
            halves = [bar.half for bar in bars]
            axes.bar(
                at, [bar.mean for bar in bars], width, label=str(name), yerr=halves if any(halves) else None, capsize=2,
                error_kw={"linewidth": 1},
            )
        axes.set_xticks(
            np.arange(len(categories)), [str(category) for category in categories],
            rotation=30 if len(categories) > 4 else 0, ha="right" if len(categories) > 4 else "center",
        )
        axes.set(ylabel=y, title=title, yscale="log" if log_y else "linear")
        axes.legend()
        self.figure(title, figure, note)

    # --- assertions ---

    def expect(self, name, value, low, high, *, small=None, paper=None, ours=None):
        """Asserts low <= value <= high (an Estimate stands for its mean).

        The bounds apply to the experiment at its full size on the traces of docs/research/papers.md. `small`: the bounds for
        any other run (shortened, fewer seeds, a profile, other flags); without it such a run asserts nothing here.
        paper, ours: the paper's value, and our value when the bounds were set; shown beside the result.
        """
        value = value.mean if isinstance(value, Estimate) else value
        if not self.full:
            if small is None:
                return
            low, high = small
        self.expectations.append(
            {
                "figure": name, "value": float(value), "from": float(low), "to": float(high), "paper": _cell(paper),
                "ours": _cell(ours), "holds": "yes" if low <= value <= high else "NO",
            }
        )

    def finish(self, title):
        """Writes the page; returns the values that are out of their bounds."""
        if self.expectations:
            self.table("Assertions", self.expectations, "Expected ranges of this run's results. ours: the value when the "
                                                        "bounds were set.")
        rows = "".join(f"<tr><th>{html.escape(str(k))}<td>{html.escape(str(v))}" for k, v in self.parameters.items())
        body = "".join(f"<p>{html.escape(p)}" for p in self.paragraphs) + "".join(self.blocks)
        page = self.folder / f"{self.name}.html"
        page.write_text(_PAGE.format(title=html.escape(title), body=body, parameters=rows))
        print(f"\nwrote {page}")
        return [
            f"{e['figure']}: {number(e['value'])} is not within {number(e['from'])} to {number(e['to'])}"
            for e in self.expectations
            if e["holds"] == "NO"
        ]


_PAGE = """<!doctype html>
<html lang=en><meta charset=utf-8><title>{title}</title>
<style>
  body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem }}
  table {{ border-collapse: collapse; font-size: 13px; margin: 1rem 0 }}
  caption {{ text-align: left; font-weight: 600 }}
  th, td {{ padding: .15rem .6rem; border-bottom: 1px solid #ddd; text-align: right }} .l {{ text-align: left }}
  figure {{ margin: 2rem 0 }} figcaption {{ font-weight: 600 }} img {{ max-width: 100% }}
  .wide {{ overflow-x: auto }} .note {{ color: #666; font-size: 13px }}
</style>
<h1>{title}</h1>
{body}
<h2>Parameters</h2>
<table>{parameters}</table>
</html>
"""


def _cell(value):
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, (Estimate, bool)) else number(value)


def _html_table(title, note, columns, cells, left):
    def line(row, tag):
        return "<tr>" + "".join(
            f"<{tag}{' class=l' if is_left else ''}>{html.escape(cell)}" for cell, is_left in zip(row, left)
        )

    body = "".join(line(row, "td") for row in cells)
    return (
        f"<div class=wide><table><caption>{html.escape(title)}</caption>{line(columns, 'th')}{body}</table></div>"
        f"<p class=note>{html.escape(note)}</p>"
    )


def parse(description, argv):
    parser = argparse.ArgumentParser(
        description=(description or "").strip().split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="experiments:\n"
        + "\n".join(f"  {name:18} {entry.summary}" for name, entry in EXPERIMENTS.items())
        + "\n\nArguments after '--' are added to the command line of every simulation (-- --workers=32).",
    )
    parser.add_argument("experiment", choices=EXPERIMENTS, metavar="EXPERIMENT")
    parser.add_argument("--trace", help="trace files to simulate, separated by commas")
    parser.add_argument("--profile", help="built-in workloads to simulate (bfio_sim --help lists them), separated by "
                                          "commas")
    parser.add_argument("--out", default="results", help="output directory for the page, tables and charts (default: "
                                                         "%(default)s)")
    parser.add_argument("--seeds", type=int, default=0,
                        help=f"number of seeds, from 1 up; 0: the experiment's own number, mostly {FULL_SEEDS} (default: "
                             f"%(default)s)")
    parser.add_argument("--shorten", type=float, default=1,
                        help="factor by which the runs are shortened, for a quick look (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(),
                        help="simulations to run in parallel (default: %(default)s)")
    parser.add_argument("--build", default="build", help="build directory (default: %(default)s)")
    own, extra = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    args = parser.parse_args(own)
    if args.shorten < 1 or args.seeds < 0 or args.jobs < 1:
        parser.error("--shorten and --jobs must be at least 1 and --seeds at least 0")
    return args, extra


def main(description=None, argv=None):
    """Runs the experiment that the command line names, and exits: 0, or 1 with a line for each value out of its bounds."""
    argv = sys.argv[1:] if argv is None else argv
    if argv == ["--list"]:  # for tests/check_research
        for entry in EXPERIMENTS.values():
            print(json.dumps({"name": entry.name, "traces": entry.traces, "check": entry.check}))
        return
    args, extra = parse(description, argv)
    entry = EXPERIMENTS[args.experiment]
    try:
        ctx = Context(entry, args, extra)
        entry.function(ctx)
        missed = ctx.finish(f"{entry.name}: {entry.summary}")
    except (ProgramError, Refused, OSError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    for line in missed:
        print(f"assertion failed: {line}", file=sys.stderr)
    sys.exit(1 if missed else 0)
