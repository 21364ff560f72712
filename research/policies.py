#!/usr/bin/python3
"""Draws the pictures of docs/start/concepts.md: two workers and the steps to come; the best policy by workload and load.

    research/policies.py [--out=docs/pictures] [--sim=build/bin/bfio_sim | --grid=FILE,FILE]

The second picture runs `bfio_sim dominance` over all profiles and G 4, 16 and 64 (an hour of two cores), or uses its JSON files.
"""
import argparse
import json
import math
import pathlib
import subprocess

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

matplotlib.rcParams.update({"svg.hashsalt": "bfio", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
                            "axes.spines.right": False})
YOUNG, OLD = "#4477aa", "#ee7733"


def stays(age):
    """P(output > age) of the profile `reasoning`: lognormal(8, 0.6)."""
    return 0.5 * math.erfc((math.log(max(age, 1)) - 8) / (0.6 * math.sqrt(2)))


def expected(residents, prompt, age, ahead):
    """Tokens that residents of that age are expected to hold `ahead` steps from now."""
    return residents * stays(age + ahead) / stays(age) * (prompt + age + ahead)


def lowest(path):
    steps = range(0, 6001, 50)
    young = [expected(30, 150, 200, h) / 1e3 for h in steps]
    old = [expected(8, 150, 2000, h) / 1e3 for h in steps]
    figure, axes = plt.subplots(figsize=(5.6, 3.2))
    axes.plot(steps, young, color=YOUNG, label="30 requests that have generated 200 tokens each")
    axes.plot(steps, old, color=OLD, label="8 requests that have generated 2,000 tokens each")
    axes.plot([0, 0], [young[0], old[0]], "o", color="black", markersize=4, clip_on=False)
    axes.set_xlim(0, 6000)
    axes.set_ylim(0, None)
    axes.set_xlabel("steps from now")
    axes.set_ylabel("expected load, thousand tokens")
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


# A grid: the baselines that pass over no request, and runs long enough for the choice among rules to settle.
GRID = ["--groups=4,16,64", "--loads=20,40,60", "--depths=none", "--seeds=5", "--warmup=8000", "--steps=8000",
        "--policy=fcfs,round_robin,least_tokens,lpt,trtllm,vllm"]
# Per cent; larger values have the strongest colour.
STRONGEST = 15


def grid_settings(sim, files):
    """The settings (means over seeds) of every file, or of a grid that is run now."""
    if files:
        return [setting for path in files for setting in json.loads(path.read_text())["settings"]]
    return json.loads(subprocess.run([sim, "dominance", *GRID, "--json"], check=True, stdout=subprocess.PIPE).stdout)["settings"]


def regimes(path, settings):
    """A panel per number of workers: workloads by loads, steps against the best fair baseline, with its name."""
    settings = [s for s in settings if s["mode"] == "arrivals"]
    groups = sorted({s["workers"] for s in settings})
    loads = sorted({s["level"] for s in settings})
    workloads = list(dict.fromkeys(s["workload"] for s in settings))
    figure, panels = plt.subplots(1, len(groups), figsize=(1.6 + 2.4 * len(groups), 0.6 + 0.34 * len(workloads)), sharey=True, squeeze=False)
    for axes, workers in zip(panels[0], groups):
        cells = {(s["workload"], s["level"]): s for s in settings if s["workers"] == workers}
        per_cent = [[100 * cells[w, load]["fair_step_loss"] if (w, load) in cells else math.nan for load in loads] for w in workloads]
        axes.pcolormesh(per_cent, cmap="PuOr", vmin=-STRONGEST, vmax=STRONGEST)
        for row, workload in enumerate(workloads):
            for column, load in enumerate(loads):
                if (workload, load) not in cells:
                    continue
                cell = cells[workload, load]
                loss = round(100 * cell["fair_step_loss"], 1) + 0.0  # avoids -0
                axes.text(column + 0.5, row + 0.5, f"{loss:+.1f}\n{cell['best_fair']}", ha="center", va="center", fontsize=6.5,
                          color="white" if abs(loss) > 0.6 * STRONGEST else "black")
        axes.set_xticks([0.5 + i for i in range(len(loads))], [f"{load:g}" for load in loads])
        axes.set_yticks([0.5 + i for i in range(len(workloads))], [w.replace("_", " ") for w in workloads])
        axes.set_ylim(len(workloads), 0)
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.set_title(f"{workers} workers", fontsize=9)
        axes.set_xlabel("load, of 72 slots")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("docs/pictures"), help="folder for the pictures")
    parser.add_argument("--sim", default="build/bin/bfio_sim", help="path of bfio_sim")
    parser.add_argument("--grid", type=lambda text: [pathlib.Path(name) for name in text.split(",")],
                        help="JSON files of bfio_sim dominance --json, separated by commas, instead of a run")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    lowest(arguments.out / "lowest-worker.svg")
    regimes(arguments.out / "regimes.svg", grid_settings(arguments.sim, arguments.grid))


if __name__ == "__main__":
    main()
