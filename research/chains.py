#!/usr/bin/python3
"""Experiments of "Serving Chain-structured Jobs with Large Memory Footprints with Application to Large Foundation Model
Serving": a model that is spread over servers.

docs/design/chains.md has the results. Unless an experiment has other settings: BLOOM-176B over 20 servers, of which a fifth is
fast, at places in Europe; 0.2 jobs/s, target load 0.7, c = 7. '-- --rtt=FILE' gives measured round-trip times in ms.
"""

import math

import numpy as np
import pandas as pd
from scipy.optimize import LinearConstraint, milp

from common import Runs, estimate, experiment, main

SERVERS, FAST = 20, 0.2


def chain_runs(ctx, study, variants):
    """Runs `bfio_chain_sim STUDY` for every variant (name -> flags) with every seed."""
    commands = [
        ctx.command("bfio_chain_sim", study, seed=seed, **flags) + ctx.extra
        for flags in variants.values() for seed in range(1, ctx.seeds + 1)
    ]
    return Runs(variants, ctx.seeds, pd.DataFrame([objects[0] for objects in ctx.json_lines(commands)]), [])


def column(runs, variant, key):
    """The printed values of all seeds; not only numbers."""
    first = runs.variants.index(variant) * runs.seeds
    return runs.frame[key].iloc[first : first + runs.seeds].tolist()


def values(runs, variant, key):
    """The finite values, of the seeds that have one."""
    found = runs.values(variant, key)
    return found[np.isfinite(found)]


def mean(runs, variant, key):
    return estimate(values(runs, variant, key))


def below(runs, own, rival):
    """How far the mean response of one variant is below another's, per cent."""
    return 100 * (1 - mean(runs, own, "response_s").mean / mean(runs, rival, "response_s").mean)


def finite(numbers):
    return [number for number in numbers if math.isfinite(number)]


# ---------------------------------------------------------------------------------------------------------------------
# Figure 3


@experiment("GBP-CR's reserved jobs against random orders of the servers (Figure 3)", name="chain-placement", check="")
def placement(ctx):
    """c K(c) of GBP-CR and of 100 random orders of the servers that are grouped the same way. Smaller is better."""
    orders = 100
    cases = [(fast, demand) for fast in (0, FAST) for demand in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)]
    runs = chain_runs(
        ctx, "placement", {case: {"fast": case[0], "demand": case[1], "orders": orders} for case in cases}
    )
    rows, beaten, charts = [], 0, {fast: {} for fast, _ in cases}
    for fast, demand in cases:
        own = runs.values((fast, demand), "gbp_cr")
        random = column(runs, (fast, demand), "random")
        met = [(greedy, orders) for greedy, orders in zip(own, random) if math.isfinite(greedy) and orders]
        # A random order also counts as better if it meets the demand and GBP-CR does not.
        worse = sum(bool(orders) and not orders[0] >= greedy for greedy, orders in zip(own, random))
        beaten += worse
        picks = {
            "GBP-CR": [greedy for greedy, _ in met], "random, least": [orders[0] for _, orders in met],
            "random, median": [orders[len(orders) // 2] for _, orders in met],
            "random, most": [orders[-1] for _, orders in met],
        }
        rows.append(
            {
                "share fast": fast, "demand, jobs/s": demand, **{name: estimate(x).mean for name, x in picks.items()},
                "random fails, %": 100 * (1 - sum(map(len, random)) / (orders * ctx.seeds)),
                "GBP-CR fails, seeds": int(np.isnan(own).sum()), "above the least, seeds": worse,
            }
        )
        for name, x in picks.items():
            if x:
                charts[fast].setdefault(name, {})[demand] = estimate(x)
    ctx.table(
        "c K(c) of GBP-CR and of 100 random orders of the servers, c = 7", rows,
        "Means over the seeds where GBP-CR meets the demand. Above the least: seeds in which some random order needs "
        "fewer chains than GBP-CR.",
    )
    for fast, series in charts.items():
        ctx.lines(
            f"c K(c) over demand, share of fast servers {fast}", "demand, jobs/s", "c K(c), jobs", series,
            strong=("GBP-CR",),
        )
    ctx.expect("pools and demands in which an order beats GBP-CR", beaten, 0, 0, small=(0, 0), ours="0 of 70")


# ---------------------------------------------------------------------------------------------------------------------
# Figure 4


ROUNDING = 1e-9  # tolerated shortfall, as a share of the needed rate


def fastest_first(times, capacities, needed):
    """Concurrent jobs needed to reach a rate if the fastest chains are filled first; None if all chains cannot reach it."""
    missing, jobs = needed * (1 - ROUNDING), 0
    for time, capacity in zip(times, capacities):
        if missing <= 0:
            break
        taken = min(capacity, math.ceil(missing * time))
        jobs, missing = jobs + taken, missing - taken / time
    return jobs if missing <= 0 else None


def fewest_jobs(times, hops, slots, needed):
    """Problem (7) with placement and chains given: min sum c_k with sum mu_k c_k >= needed, sum_k c_k m_jk <= slots of each
    server j, c_k integer. None if the solver (HiGHS) proves no optimum."""
    blocks = np.zeros((len(slots), len(times)))
    for k, of in enumerate(hops):
        for server, count in of:
            blocks[server, k] += count
    limits = [LinearConstraint(1 / np.array(times), lb=needed * (1 - ROUNDING)), LinearConstraint(blocks, ub=slots)]
    solved = milp(np.ones(len(times)), constraints=limits, integrality=np.ones(len(times)))
    return round(solved.fun) if solved.status == 0 else None


def jobs_at_once(pool, share):
    """Concurrent jobs needed for a share of the rate of all of GCA's chains, by method; None where a method cannot reach it."""
    times, capacities, hops = ([chain[key] for chain in pool["chains"]] for key in ("time_s", "capacity", "hops"))
    needed = share * sum(capacity / time for time, capacity in zip(times, capacities))
    disjoint, rate = 0, 0
    for time in pool["disjoint_s"]:
        if rate < needed:
            disjoint, rate = disjoint + pool["reserved"], rate + pool["reserved"] / time
    return {
        "disjoint": disjoint if rate >= needed else None, "gca": fastest_first(times, capacities, needed),
        "program": fewest_jobs(times, hops, pool["slots"], needed), "bound": math.ceil(needed * times[0] - 1e-9),
    }


@experiment("concurrent jobs for a rate, by GCA, bounds and the integer program (Figure 4)", name="chain-cache", check="")
def cache(ctx):
    """Cache allocation for GBP-CR's placement on all servers with c = 7: how many jobs must be served at once for a
    rate, by GCA's chains filled fastest first, by GBP-CR's disjoint chains alone, and at the optimum over GCA's chains.
    The bound assumes that every job is on the fastest chain."""
    ways = {"disjoint": "disjoint chains, c each", "gca": "GCA", "program": "integer program", "bound": "lower bound"}
    shares = [round(0.1 * share, 1) for share in range(1, 10)]
    pools = chain_runs(ctx, "chains", {"": {}}).frame.to_dict("records")
    cells = {share: pd.DataFrame([jobs_at_once(pool, share) for pool in pools]) for share in shares}

    def by_seed(share, way):
        return estimate(cells[share][way].dropna())

    rows, equal_all = [], 0
    for share in shares:
        equal = int((cells[share]["gca"] == cells[share]["program"]).sum())
        equal_all += equal
        rows.append(
            {
                "rate, %": 100 * share, **{name: by_seed(share, key).mean for key, name in ways.items()},
                "equal, seeds": equal, "not proven, seeds": ctx.seeds - int(cells[share]["program"].notna().sum()),
            }
        )
    ctx.table(
        "Concurrent jobs needed for a rate", rows,
        "The rate is a share of that of all of GCA's chains. Empty: the disjoint chains cannot serve it. Equal: seeds "
        "in which GCA needs as many as the integer program.",
    )
    ctx.lines(
        "Concurrent jobs over the needed rate", "rate, % of all chains", "concurrent jobs",
        {
            name: {100 * share: by_seed(share, key) for share in shares if cells[share][key].notna().any()}
            for key, name in ways.items()
        },
        strong=("GCA",),
    )
    optimal = 100 * equal_all / (len(shares) * ctx.seeds)
    ctx.expect("cases in which GCA is optimal, %", optimal, 100, 100, small=(90, 100), ours="45 of 45")
    gca = [by_seed(share, "gca").mean for share in shares]
    disjoint = finite(by_seed(share, "disjoint").mean for share in shares)
    ctx.expect("GCA's jobs at the least rate", min(gca), 1.5, 2.5, ours=2)
    ctx.expect("GCA's jobs at the largest rate", max(gca), 19, 23, ours=21)
    ctx.expect("disjoint chains' jobs at the least rate", min(disjoint), 6.5, 7.5, ours=7)
    ctx.expect("disjoint chains' jobs at the largest rate", max(disjoint), 19, 23, ours=21)


# ---------------------------------------------------------------------------------------------------------------------
# Figure 5

RULES = ("jffc", "sa_jsq", "sed", "jsq", "jiq")
AGAINST = {"sa_jsq": (4, 41), "sed": (0, 16), "jiq": (4, 59), "jsq": (53, 82)}  # per cent above jffc over the loads


@experiment("JFFC against four other rules over load, and its bounds (Figure 5)", name="chain-dispatch", check="")
def dispatch(ctx):
    """Rules over the chains of one composition (GBP-CR with c = 7 on all servers, GCA), under Poisson arrivals and
    exponential sizes: all rules get the same jobs."""
    loads = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)
    jobs = ctx.shortened(60_000, 500)
    ctx.parameter("jobs of a run", jobs)
    runs = chain_runs(
        ctx, "serve",
        {(rule, load): {"rule": rule, "load": load, "jobs": jobs} for load in loads for rule in RULES},
    )
    share = {
        load: 100 * estimate(runs.values(("jffc", load), "service_s") / runs.values(("jffc", load), "response_s")).mean
        for load in loads
    }
    above = {
        rule: {load: runs.change((rule, load), ("jffc", load), "response_s") for load in loads} for rule in AGAINST
    }
    ctx.table(
        "Mean response by rule and load",
        [
            {
                "load": load, **{f"{rule}, s": runs.mean((rule, load), "response_s").mean for rule in RULES},
                **{f"{rule} above jffc, %": above[rule][load] for rule in AGAINST},
                "lower bound, s": runs.mean(("jffc", load), "lower_s").mean,
                "upper bound, s": runs.mean(("jffc", load), "upper_s").mean, "service of jffc's, %": share[load],
            }
            for load in loads
        ],
        "Above jffc: pool by pool.",
    )
    ctx.lines(
        "Mean response over load", "load", "mean response, s",
        {rule: {load: runs.mean((rule, load), "response_s") for load in loads} for rule in RULES}, strong=("jffc",),
    )
    ctx.lines(
        "JFFC between its bounds", "load", "mean response, s",
        {
            name: {load: runs.mean(("jffc", load), key) for load in loads}
            for name, key in (("lower bound", "lower_s"), ("jffc", "response_s"), ("upper bound", "upper_s"))
        },
    )
    for rule, (least, most) in AGAINST.items():
        over_loads = [above[rule][load].mean for load in loads]
        ctx.expect(f"{rule} above jffc, least over the loads, %", min(over_loads), least - 1, least + 1, ours=least)
        ctx.expect(
            f"{rule} above jffc, most over the loads, %", max(over_loads), most - 3, most + 3, small=(-10, 500),
            ours=most,
        )
    for load, ours in ((0.5, 100), (0.7, 99), (0.9, 81)):
        ctx.expect(
            f"share of service at load {load}, %", share[load], ours - 1, min(100, ours + 1), small=(30, 100), ours=ours
        )


# ---------------------------------------------------------------------------------------------------------------------
# Figures 6 and 7


def chosen_c(candidates, goal):
    """The c whose bound is least, of those that meet the demand at the target load if any do, or whose surrogate is."""
    key = "surrogate" if goal == "surrogate" else f"{goal}_s"
    meet = [one for one in candidates if one["meets"]] if goal != "surrogate" else []
    return min((one for one in meet or candidates if one[key] is not None), key=lambda one: one[key], default={"c": None})["c"]


@experiment("which c the surrogate and the bounds choose, and which is best (Figures 6, 7)", name="chain-tuning")
def tuning(ctx):
    """Small c gives short chains, large c many concurrent jobs. Compares the c that the surrogate (14) and Theorem 3.7's
    bounds choose with the best c when the jobs are simulated."""
    demands = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    goals = {"surrogate": "surrogate", "lower": "lower bound", "upper": "upper bound"}
    jobs = ctx.shortened(20_000, 200)
    ctx.parameter("jobs of a run", jobs)
    runs = chain_runs(ctx, "tuning", {demand: {"demand": demand, "jobs": jobs} for demand in demands})
    rows, series, near_all, pools_all = [], {}, 0, 0
    costs = {goal: [] for goal in goals}
    for demand in demands:
        picked, cost, near, pools = {name: [] for name in ("best", *goals)}, {goal: [] for goal in goals}, 0, 0
        for candidates in column(runs, demand, "candidates"):
            response = {one["c"]: one["response_s"] for one in candidates if one["response_s"] is not None}
            if not response:
                continue
            pools += 1
            choice = {goal: chosen_c(candidates, goal) for goal in goals}
            best = min(response, key=response.get)
            picked["best"].append(best)
            for goal in goals:
                if choice[goal] is not None:
                    picked[goal].append(choice[goal])
                    cost[goal].append(100 * (response.get(choice[goal], math.inf) / response[best] - 1))
            near += choice["lower"] is not None and abs(choice["lower"] - best) <= 1
        near_all, pools_all = near_all + near, pools_all + pools
        row = {"demand, jobs/s": demand, "simulated best c": estimate(picked["best"]).mean}
        for goal, name in goals.items():
            row[f"{name}'s c"], row[f"{name} costs, %"] = estimate(picked[goal]).mean, estimate(cost[goal]).mean
            costs[goal].append(estimate(cost[goal]).mean)
        rows.append({**row, "lower within one": near, "pools": pools})
        for name, label in {"best": "simulated best", **goals}.items():
            if picked[name]:
                series.setdefault(label, {})[demand] = estimate(picked[name])
    ctx.table(
        "Choices of c and their cost", rows,
        "Mean c over the seeds, and how far the simulated response at it is above the least. Within one: pools where the "
        "lower bound's c is at most one from the simulated best.",
    )
    ctx.lines(
        "The chosen c over demand", "demand, jobs/s", "c, jobs per block", series, strong=("simulated best",)
    )
    drawn = column(runs, 0.2, "candidates")[0]
    for one in drawn:
        one["surrogate_s"] = None if one["surrogate"] is None else one["surrogate"] / 0.2
    ctx.table(
        "Over c, 0.2 jobs/s, seed 1",
        [
            {
                "c": one["c"], "K(c)": one["disjoint_chains"], "c K(c) / demand, s": one["surrogate_s"],
                "lower bound, s": one["lower_s"], "simulated, s": one["response_s"], "upper bound, s": one["upper_s"],
            }
            for one in drawn
        ],
    )
    ctx.lines(
        "Mean response over c, 0.2 jobs/s, seed 1", "c, jobs per block", "mean response, s",
        {
            name: {one["c"]: one[key] for one in drawn if one[key] is not None}
            for name, key in (
                ("simulated", "response_s"), ("lower bound", "lower_s"), ("upper bound", "upper_s"),
                ("c K(c) / demand", "surrogate_s"),
            )
        },
        strong=("simulated",),
    )
    ctx.expect("pools whose c the lower bound misses by more than one", pools_all - near_all, 0, 2, ours="1 of 40")
    for goal, least, most, ours in (("lower", 0, 1, 0.6), ("upper", 8, 16, 12), ("surrogate", 45, 57, 51)):
        ctx.expect(f"most that the {goals[goal]} costs, %", max(finite(costs[goal])), least, most, ours=ours)


# ---------------------------------------------------------------------------------------------------------------------
# Not in the paper: a demand that changes

# By (servers, share of fast ones): the largest rate, in jobs/s, that a composition reaches with each of five seeds.
LARGEST = {(10, 0.2): 0.86, (20, 0.1): 1.38, (20, 0.2): 1.9, (20, 0.4): 2.73, (40, 0.2): 3.94}


@experiment("cost of a composition that keeps its c when the demand changes", name="chain-drift")
def drift(ctx):
    """Every composition is tuned for one demand (the lower bound picks c, blocks on all servers). The same jobs then run
    on the compositions for the other demands."""
    shares = (0.2, 0.5, 0.9)
    jobs = ctx.shortened(20_000, 500)
    ctx.parameter("jobs of a run", jobs)

    def serve(cases):
        commands = [
            ctx.command(
                "bfio_chain_sim", "serve", servers=pool[0], fast=pool[1], use_all=True, jobs=jobs, seed=seed, reserve=c,
                demand=share * LARGEST[pool],
            ) + ctx.extra
            for pool, share, seed, c in cases
        ]
        return [objects[0] for objects in ctx.json_lines(commands)]

    pools = [(pool, seed) for pool in LARGEST for seed in range(1, ctx.seeds + 1)]
    tuned = [(pool, share, seed) for pool, seed in pools for share in shares]
    picked = {case: one["c"] for case, one in zip(tuned, serve([(*case, 0) for case in tuned]))}
    pairs = [(pool, seed, own, share) for pool, seed in pools for own in shares for share in shares]
    ran = serve([(pool, share, seed, picked[pool, own, seed]) for pool, seed, own, share in pairs])
    response = {pair: math.inf if one["response_s"] is None else one["response_s"] for pair, one in zip(pairs, ran)}

    def above(pool, own, share):
        """By seed: per cent by which the response at `share` is longer with the composition for `own` than with its own."""
        return [
            100 * (response[pool, seed, own, share] / response[pool, seed, share, share] - 1)
            for seed in range(1, ctx.seeds + 1)
        ]

    rows, low_carries, slower = [], 0, []
    for pool in LARGEST:
        for share in shares:
            row = {
                "servers": pool[0], "share fast": pool[1], "demand, % of the largest rate": 100 * share,
                "c tuned for it": estimate([picked[pool, share, seed] for seed in range(1, ctx.seeds + 1)]).mean,
            }
            for own in shares:
                costs = finite(above(pool, own, share))
                row[f"tuned for {100 * own:.0f} %: above, %"] = estimate(costs).mean if costs else None
            rows.append(row)
        low_carries += len(finite(above(pool, shares[0], shares[-1])))
        slower.append(estimate(above(pool, shares[-1], shares[0])).mean)
    ctx.table(
        "Mean response of compositions for other demands above that of the one for the demand", rows,
        "Empty: the composition cannot serve the demand, so its queue grows without bound.",
    )
    ctx.expect("pools whose composition for the low demand carries the high one", low_carries, 0, 0, small=(0, 0), ours=0)
    ctx.expect(
        "composition for the high demand at the low one, least above over the mixes, %", min(slower), 12.5,
        16.5, small=(0, 100), ours=14.5,
    )
    ctx.expect(
        "composition for the high demand at the low one, most above over the mixes, %", max(slower), 38,
        44, small=(0, 150), ours=41,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Figure 8

# By number of servers: per cent by which the composition on all servers is below PETALS, with 10, 20, 30, 40 % fast servers.
BELOW_PETALS = {10: (89, 62, 39, 13), 20: (11, 14, 8.1, 3.5), 30: (14, 7.7, 3.9, 2.7), 40: (9.3, 3.5, 2.5, 2.8)}
SYSTEMS = {
    "composed, c tuned": {"reserve": 0}, "composed, c = 7": {},
    "composed on all servers, c tuned": {"reserve": 0, "use_all": True}, "PETALS-like": {"system": "petals"},
    "PETALS-like, four blocks a slice": {"system": "petals_slices"}, "BPRR-like": {"system": "bprr"},
}


@experiment("composed chains against PETALS and BPRR over servers and their mix (Figure 8)", name="chain-overall")
def overall(ctx):
    """Whole systems on the same pools and jobs: composed chains (GBP-CR, GCA, JFFC) against our readings of PETALS'
    and BPRR's placement and routing."""
    shares = (0.1, 0.2, 0.3, 0.4)
    mixes = [(servers, fast) for servers in BELOW_PETALS for fast in shares]
    jobs = ctx.shortened(5_000, 200)
    ctx.parameter("jobs of a run", jobs)
    runs = chain_runs(
        ctx, "serve",
        {
            (name, mix): {"servers": mix[0], "fast": mix[1], "jobs": jobs, **flags}
            for mix in mixes for name, flags in SYSTEMS.items()
        },
    )
    tuned, _, everywhere, petals, slices, bprr = SYSTEMS
    gains = {
        (own, rival): {mix: below(runs, (own, mix), (rival, mix)) for mix in mixes}
        for own in (tuned, everywhere) for rival in (petals, slices, bprr)
    }
    ctx.table(
        "Mean response by servers and mix, 0.2 jobs/s, in seconds",
        [
            {
                "servers": mix[0], "share fast": mix[1],
                **{name: mean(runs, (name, mix), "response_s") for name in SYSTEMS},
                "below PETALS, %": gains[tuned, petals][mix], "below BPRR, %": gains[tuned, bprr][mix],
                "all below PETALS, %": gains[everywhere, petals][mix],
                "all below BPRR, %": gains[everywhere, bprr][mix],
                "all below slices, %": gains[everywhere, slices][mix],
            }
            for mix in mixes
        ],
        "Empty: the system cannot serve the demand on any of the pools. Below: how much lower the response of the "
        "tuned composition, and of the one on all servers, is than the other system's, over the means.",
    )
    for x, of, fixed in (("servers, a fifth of them fast", 0, FAST), ("share fast of 20 servers", 1, SERVERS)):
        drawn = [mix for mix in mixes if mix[1 - of] == fixed]
        ctx.lines(
            f"Mean response over {x}", x, "mean response, s",
            {
                name: {
                    mix[of]: mean(runs, (name, mix), "response_s")
                    for mix in drawn if len(values(runs, (name, mix), "response_s"))
                }
                for name in SYSTEMS
            },
            log_y=True, strong=(tuned,),
        )
    rows, most = [], {}
    for mix in mixes:
        least, rival = mean(runs, (petals, mix), "least_s").mean, mean(runs, (petals, mix), "response_s").mean
        own = mean(runs, (everywhere, mix), "response_s").mean
        most[mix] = 100 * (1 - least / rival)
        rows.append({
            "servers": mix[0], "share fast": mix[1], "bound, s": least, "composed above it, %": 100 * (own / least - 1),
            "below PETALS, %": gains[everywhere, petals][mix], "at most, %": most[mix],
        })
    ctx.table(
        "What limits the gain", rows,
        "Bound: no placement and routing on these pools has a lower mean response (research/chains/response_bound.h). At most: "
        "how far it is below PETALS. Composed: on all servers, c tuned.",
    )
    small = [mix for mix in mixes if gains[everywhere, petals][mix] < 8]
    ctx.expect("mixes with a gain below 8 %", len(small), 7, 7, small=(1, 16), paper=0, ours=7)
    hopeless = sum(most[mix] < 8 for mix in small)
    ctx.expect("of these, mixes where no system can gain 8 %", hopeless, 6, 6, small=(0, 16), ours=6)
    above = [row["composed above it, %"] for row, mix in zip(rows, mixes) if mix in small]
    ctx.expect("composed above the bound there, most, %", max(above), 4, 6, small=(0, 20), ours=5.1)
    for servers, ours in BELOW_PETALS.items():
        for fast, figure in zip(shares, ours):
            gain = gains[everywhere, petals][servers, fast]
            ctx.expect(
                f"on all servers below PETALS, {servers} servers, {fast} fast, %", gain, figure - 1, figure + 1,
                paper="8 to 83", ours=figure,
            )
    printed = finite(gains[tuned, petals].values())
    ctx.expect("as printed below PETALS, least, %", min(printed), -5, -3, ours=-4)
    ctx.expect("as printed below PETALS, most, %", max(printed), 84, 94, small=(10, 100), paper=83, ours=89)
    for own in (tuned, everywhere):
        against = finite(gains[own, bprr].values())
        ctx.expect(f"{own}: below BPRR, least, %", min(against), 0, 1, ours=0.3)
        ctx.expect(f"{own}: below BPRR, most, %", max(against), 29, 39, small=(1, 100), ours=34)
    held = finite(gains[everywhere, slices].values())
    ctx.expect("below PETALS on slices, least, %", min(held), 3.7, 5.7, ours=4.7)
    ctx.expect("below PETALS on slices, most, %", max(held), 97, 100, ours=99)
    ctx.expect("mixes that PETALS on slices serves", len(held), 15, 15, ours=15)


# ---------------------------------------------------------------------------------------------------------------------
# Table 1

TRACE_SYSTEMS = {
    "petals": "PETALS-like", "petals_slices": "PETALS-like, four blocks a slice, all memory cache",
    "bprr": "BPRR-like", "whole": "JFFC, whole model everywhere", "composed": "composed, c = 35, all servers",
    "tuned": "composed, tuned for the mean rate", "bursts": "composed, all servers, tuned for bursts",
}
FIGURES = {
    "response": "response_s", "median": "p50_s", "p95": "p95_s", "p99": "p99_s", "wait": "wait_s",
    "service": "service_s",
}


@experiment("LLaMA-2-7B on nine GPU slices with bursty requests (Table 1)", name="chain-trace", check="")
def trace(ctx):
    """LLaMA-2-7B on three 40 GB and six 20 GB GPU slices; lengths drawn from the workload (the Azure code profile),
    gaps as those of the Azure code trace: bursts of about 150 requests at 11 a second, then silence."""
    requests = ctx.shortened(1000, 100)
    workload = ctx.workload.flags if ctx.workloads else {}
    means = {}
    for compute, communication in ((1, 1), (3, 3), (9, 0)):
        setting = {"compute": compute, "communication": communication, "jobs": requests, **workload}
        runs = chain_runs(ctx, "slices", {system: {"system": system, **setting} for system in TRACE_SYSTEMS})
        found = means[compute] = {
            system: {name: runs.mean(system, key) for name, key in FIGURES.items()} for system in TRACE_SYSTEMS
        }
        title = f"compute x {compute}, communication x {communication}"
        ctx.table(
            f"{requests} requests in bursts, 2.57 a second on average, in seconds; {title}",
            [
                {
                    "system": name, "response": found[system]["response"],
                    **{figure: found[system][figure].mean for figure in FIGURES if figure != "response"},
                    "of PETALS', %": runs.ratio(system, "petals", "response_s").scaled(100).mean,
                }
                for system, name in TRACE_SYSTEMS.items()
            ],
        )
        ctx.bars(
            f"Mean wait and service, {title}", "s",
            {
                part: {name: found[system][part].mean for system, name in TRACE_SYSTEMS.items()}
                for part in ("wait", "service")
            },
        )
    if workload:
        return
    for system, ours, paper in (
        ("tuned", 6.9, 7.3), ("whole", 6.9, 10.0), ("bprr", 13.5, 19.8), ("petals", 34.5, 31.4),
        ("composed", 12.6, 7.3),
    ):
        ctx.expect(
            f"response, x 3, {TRACE_SYSTEMS[system]}, s", means[3][system]["response"], 0.97 * ours, 1.03 * ours,
            small=(0.2 * ours, 3 * ours), paper=paper, ours=ours,
        )
    ctx.expect("PETALS' wait, x 3, s", means[3]["petals"]["wait"], 24.5, 26.5, paper=24.2, ours=25.5)
    for system, ours in (("composed", 5.590), ("whole", 5.593), ("bprr", 6.01), ("petals", 18.8)):
        ctx.expect(
            f"response, computing x 9 and hops free, {TRACE_SYSTEMS[system]}, s", means[9][system]["response"],
            0.99 * ours, 1.01 * ours, ours=ours,
        )


if __name__ == "__main__":
    main(__doc__)
