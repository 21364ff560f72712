#!/usr/bin/python3
"""Draws the picture of docs/concepts/policies.md: two workers and the steps to come.

    research/policies.py [--out=docs/concepts]
"""
import argparse
import math
import pathlib

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
    """Tokens that so many residents of that age are expected to hold `ahead` steps from now."""
    return residents * stays(age + ahead) / stays(age) * (prompt + age + ahead)


def lowest(path):
    steps = range(0, 6001, 50)
    young = [expected(30, 150, 200, h) / 1e3 for h in steps]
    old = [expected(8, 150, 2000, h) / 1e3 for h in steps]
    figure, axes = plt.subplots(figsize=(5.6, 3.2))
    axes.plot(steps, young, color=YOUNG, label="30 residents that have made 200 tokens each")
    axes.plot(steps, old, color=OLD, label="8 residents that have made 2,000 tokens each")
    axes.plot([0, 0], [young[0], old[0]], "o", color="black", markersize=4, clip_on=False)
    axes.set_xlim(0, 6000)
    axes.set_ylim(0, None)
    axes.set_xlabel("steps from now")
    axes.set_ylabel("expected load, thousand tokens")
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("docs/concepts"), help="folder of the picture")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    lowest(arguments.out / "lowest-worker.svg")


if __name__ == "__main__":
    main()
