#!/usr/bin/python3
"""Studies: simulations of questions that the papers leave open.

docs/research/papers.md has the results, for --trace=AzureLLMInferenceTrace_conv.csv,burstgpt_sample_8000.csv. G = 16 workers of
B = 72 slots; 3,000 steps after a warm-up of five mean output lengths, 500 steps at least.
"""

import math

import numpy as np

import theory
from common import bf_io, estimate, experiment, main

AZURE, BURSTGPT = "AzureLLMInferenceTrace_conv", "burstgpt_sample_8000"
TRACES = (AZURE, BURSTGPT)
SMALL = "--shorten=10 --seeds=1"
IMBALANCE, STEP, THROUGHPUT, SLOTS = (
    "avg_imbalance_tokens", "step_s_mean", "throughput_tokens_per_s", "slots_taken_fraction",
)
METRICS = {
    "imbalance, 10^4 tokens": (IMBALANCE, 1e-4), "idle, %": ("idle_fraction", 100), "step, ms": (STEP, 1e3),
    "throughput, 10^4 tokens/s": (THROUGHPUT, 1e-4), "slots taken, %": (SLOTS, 100), "TTFT p50, s": ("ttft_s_p50", 1),
    "TTFT p99, s": ("ttft_s_p99", 1), "p99 wait, steps": ("wait_steps_p99", 1),
    "longest wait, steps": ("wait_steps_max", 1),
}


def metrics(runs, variant, *left_out):
    return {name: runs.mean(variant, key, scale) for name, (key, scale) in METRICS.items() if name not in left_out}


def lengths(ctx, workload):
    """Flags for the length of a run. The warm-up lasts as long as five requests of mean length, one after the other in a slot."""
    warmup, steps = ctx.shortened(max(500, math.ceil(5 * workload.mean_output)), 20), ctx.shortened(3000, 50)
    ctx.parameter(f"steps, {workload.name}", f"{steps} after a warm-up of {warmup}")
    return {"warmup": warmup, "steps": steps}


def arriving(ctx, workload, share):
    """Flags for arrivals at a share of saturation, the requests per second that a perfectly balanced group would serve with
    every slot taken. The arrival times of a trace are scaled. Without such times arrivals are Poisson."""
    saturation = workload.summary()["saturation_requests_per_s"]
    if workload.has_arrivals:
        return {**workload.flags, "mode": "arrivals", "load": share * saturation / workload.summary()["requests_per_s"]}

    def write(seed):
        name = f"{workload.name}-{seed}"
        if not (ctx.scratch / f"{name}.csv").exists():
            rows = workload.requests()
            gaps = np.random.default_rng(seed).exponential(size=len(rows))
            ctx.write_trace(name, rows.assign(arrived_at=np.cumsum(gaps) - gaps[0]))
        return ctx.scratch / f"{name}.csv"

    return {"trace": write, "mode": "arrivals", "load": share * saturation}


# ---------------------------------------------------------------------------------------------------------------------
# Every load

SHARES = (10, 25, 40, 55, 70, 80, 90, 95, 100, 110)
POLICIES = (
    "fcfs", "round_robin", "least_requests", "power_of_two", "least_tokens", "lpt", "vllm", "trtllm", "bf_io",
    "bf_io_auto",
)
INSTANT = (
    "round_robin", "least_requests", "power_of_two", "least_tokens", "vllm",
)  # rules that place one request at a time


def fair(runs, variant, first):
    """Whether waits are as fair as the first rule's: a p99 of at most 1.2 times, or one step more."""
    ours, theirs = runs.mean(variant, "wait_steps_p99").mean, runs.mean(first, "wait_steps_p99").mean
    return ours <= max(1.2 * theirs, theirs + 1)


@experiment(
    "idle share, step time, TTFT and waits of policies by load", "conversation", traces=TRACES, check=SMALL
)
def regimes(ctx):
    ctx.text(
        """Load is a share of saturation. In the overload rows the pool is refilled to 128 requests before every
        decision instead. Above saturation queues grow for as long as the run lasts, so waits there depend on its length."""
    )
    loads = [f"{share} %" for share in SHARES] + ["overload"]
    rules = [(policy, "pool") for policy in POLICIES] + [(policy, "instant") for policy in INSTANT]
    for workload in ctx.workloads:
        sizes = lengths(ctx, workload)
        at = {f"{share} %": arriving(ctx, workload, share / 100) for share in SHARES} | {"overload": workload.flags}
        runs = ctx.simulate(
            {
                (load, policy, dispatch): {"policy": policy, "dispatch": dispatch, **sizes, **at[load]}
                for load in loads
                for policy, dispatch in rules
            }
        )
        best_steps, rows = {}, []
        for load in loads:
            ours, first = (load, "bf_io_auto", "pool"), (load, "fcfs", "pool")
            others = [(load, policy, "pool") for policy in POLICIES[:-1] if fair(runs, (load, policy, "pool"), first)]
            row = {"load": load}
            for column, key in (("step", STEP), ("TTFT p99", "ttft_s_p99")):
                best = min(others, key=lambda variant: runs.mean(variant, key).mean)
                row[f"least {column}"], row[f"{column} of bf_io_auto, %"] = best[1], runs.change(ours, best, key)
            best_steps[load] = row["step of bf_io_auto, %"]
            rows.append(
                {
                    **row, "p99 wait of bf_io_auto, steps": runs.mean(ours, "wait_steps_p99").mean,
                    "of fcfs": runs.mean(first, "wait_steps_p99").mean,
                }
            )
        ctx.table(
            f"bf_io_auto and the best of the others at each load: {workload.name}", rows,
            """The others: pool dispatch,
            p99 wait at most 1.2 times that of fcfs or one step more. Paired by seed; below 0 bf_io_auto is better.""",
        )
        ctx.table(
            f"All loads and policies: {workload.name}",
            [
                {
                    "load": load, "policy": policy, "dispatch": dispatch,
                    **metrics(runs, (load, policy, dispatch), "imbalance, 10^4 tokens"),
                    "mean wait, steps": runs.mean((load, policy, dispatch), "wait_steps_mean"),
                }
                for load in loads
                for policy, dispatch in rules
            ],
            "Waits include requests that still wait at the end, but for the mean.",
        )
        for name in ("idle, %", "throughput, 10^4 tokens/s", "TTFT p50, s", "TTFT p99, s", "p99 wait, steps"):
            key, scale = METRICS[name]
            ctx.lines(
                f"{name.split(',')[0]} over load: {workload.name}", "load, % of saturation", name,
                {
                    policy: {share: runs.mean((f"{share} %", policy, "pool"), key, scale) for share in SHARES}
                    for policy in POLICIES
                },
                log_y="TTFT" in name, strong=("bf_io_auto",),
            )
        key, scale = METRICS["TTFT p99, s"]
        ctx.lines(
            f"Pool and instant dispatch: {workload.name}", "load, % of saturation", "TTFT p99, s",
            {
                f"{policy}, {dispatch}": {
                    share: runs.mean((f"{share} %", policy, dispatch), key, scale) for share in SHARES
                }
                for policy, dispatch in rules
                if policy in INSTANT
            },
            log_y=True, dashed=[f"{policy}, instant" for policy in INSTANT],
            note="Dashed: instant dispatch, where requests wait at the worker to which they were sent.",
        )
        expect_regimes(ctx, workload, runs, best_steps)


def expect_regimes(ctx, workload, runs, best_steps):
    name = workload.name
    for load, change in best_steps.items():
        # One of 22 cells is lost: 110 % on BurstGPT, +2.2 % ± 0.7.
        high = 3.5 if (name, load) == (BURSTGPT, "110 %") else 0.3
        ctx.expect(
            f"{name}, {load}: step of bf_io_auto against the best fair other, %", change, -3, high, small=(-8, 6)
        )
    for share, low, high in ((55, 0.9, 1.1), (95, 0.85, 1.1)):
        ours, fcfs = (runs.mean((f"{share} %", policy, "pool"), THROUGHPUT).mean for policy in ("bf_io_auto", "fcfs"))
        ctx.expect(
            f"{name}: throughput of fcfs over bf_io_auto's at {share} %", fcfs / ours, low, high, small=(0.7, 1.3)
        )
    levels = {
        AZURE: {
            ("fcfs", "55 %"): (16.9, 1.2), ("bf_io_auto", "55 %"): (6.6, 0.6), ("fcfs", "95 %"): (10.8, 1.1),
            ("lpt", "95 %"): (2.9, 0.4), ("bf_io_auto", "95 %"): (2.1, 0.3),
        },
        BURSTGPT: {
            ("fcfs", "55 %"): (30.2, 2.5), ("bf_io_auto", "55 %"): (6.7, 0.9), ("fcfs", "95 %"): (19.8, 2.4),
            ("lpt", "95 %"): (2.6, 0.5), ("bf_io_auto", "95 %"): (2.1, 0.5),
        },
    }
    for (policy, load), (ours, off) in levels.get(name, {}).items():
        ctx.expect(
            f"{name}, {load}: idle share of {policy}, %", runs.mean((load, policy, "pool"), "idle_fraction", 100),
            ours - off, ours + off, ours=ours,
        )
    ctx.expect(
        f"{name}, 95 %: TTFT p99 of round_robin, instant over pool",
        runs.mean(("95 %", "round_robin", "instant"), "ttft_s_p99").mean
        / runs.mean(("95 %", "round_robin", "pool"), "ttft_s_p99").mean, 1.2, 4.5, small=(0.8, 10),
        ours={AZURE: 1.49, BURSTGPT: 3.36}.get(name),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Late reports

DELAYS = (0, 1, 2, 4, 8, 16, 32)


@experiment(
    "cost of late reports and pipelined plans, with a pool and with instant dispatch", "conversation",
    traces=TRACES, check="--shorten=10 --seeds=4",
)
def staleness(ctx):
    ctx.text(
        """A slot that falls free stands empty until the router has heard of it: with a pool, the delay of the reports,
        and one step more when plans are pipelined. With instant dispatch the next request waits at the worker, but
        where a request is sent rests on loads as old as the reports. First with requests that never run out, then at
        70 % load."""
    )
    full = [
        (policy, "pool", mode)
        for policy in ("fcfs", "lpt", "bf_io", "bf_io_auto")
        for mode in ("lockstep", "pipelined")
    ]
    spare = [
        (policy, "instant", "lockstep")
        for policy in ("round_robin", "least_requests", "power_of_two", "least_tokens", "lpt", "bf_io_auto")
    ]
    spare += [
        (policy, "pool", mode) for policy in ("least_tokens", "lpt", "bf_io_auto") for mode in ("lockstep", "pipelined")
    ]
    for workload in ctx.workloads:
        sizes, mean = lengths(ctx, workload), workload.mean_output
        ctx.parameter(f"E[o], {workload.name}", f"{mean:.4g} steps")
        for where, ways, flags in (
            (f"overload, {workload.name}", full, workload.flags),
            (f"70 % load, {workload.name}", spare, arriving(ctx, workload, 0.7)),
        ):
            runs = ctx.simulate(
                {
                    (way, delay): {
                        "policy": way[0], "dispatch": way[1], "plan_mode": way[2], "report_delay": delay, **sizes,
                        **flags,
                    }
                    for way in ways
                    for delay in DELAYS
                }
            )
            names = {
                way: ", ".join([way[0]] + [word for word in way[1:] if word in ("instant", "pipelined")])
                for way in ways
            }
            late = {(way, delay): delay + (way[2] == "pipelined") for way in ways for delay in DELAYS}
            expected = {variant: 100 * mean / (mean + steps) for variant, steps in late.items()}
            ctx.table(
                f"Late reports: {where}",
                [
                    {
                        "way": names[way], "report delay, steps": delay,
                        "throughput change, %": runs.change((way, delay), (way, 0), THROUGHPUT),
                        "step change, %": runs.change((way, delay), (way, 0), STEP),
                        "slots taken, expected, %": expected[way, delay] if ways is full else None,
                        **metrics(runs, (way, delay)),
                    }
                    for way in ways
                    for delay in DELAYS
                ],
                """Changes: against the same dispatch without delay, paired by seed. Expected: E[o] /
                (E[o] + steps until a free slot is known), where requests never run out.""",
            )
            for name in ("imbalance, 10^4 tokens", "slots taken, %") if ways is full else ("imbalance, 10^4 tokens",):
                key, scale = METRICS[name]
                ctx.lines(
                    f"{name.split(',')[0]} over report delay, {where}", "report delay, steps", name,
                    {names[way]: {delay: runs.mean((way, delay), key, scale) for delay in DELAYS} for way in ways},
                    dashed=[names[way] for way in ways if way[1] == "instant" or way[2] == "pipelined"],
                )
            key = THROUGHPUT if ways is full else STEP
            ctx.lines(
                f"{'Throughput' if ways is full else 'Step time'} against no delay, {where}", "report delay, steps",
                "change, %",
                {names[way]: {delay: runs.change((way, delay), (way, 0), key) for delay in DELAYS} for way in ways},
            )
            expect_staleness(ctx, workload, where, runs, ways, expected if ways is full else None)


def expect_staleness(ctx, workload, where, runs, ways, expected):
    azure = workload.name == AZURE
    if expected is None:
        ctx.expect(
            f"{where}: round robin uses no reports", runs.change((ways[0], 32), (ways[0], 0), STEP), 0, 0,
            small=(0, 0), ours=0,
        )
        for policy, low, high in (
            ("least_requests", 1, 6), ("least_tokens", 4, 9), ("lpt", 4.5, 10), ("bf_io_auto", 5, 10),
        ):
            way = (policy, "instant", "lockstep")
            ctx.expect(
                f"{where}: step of {policy}, instant, 32 steps late, change in %",
                runs.change((way, 32), (way, 0), STEP), low, high, small=(-2, 15),
            )
        return
    off = max(abs(runs.mean(variant, SLOTS, 100).mean - taken) for variant, taken in expected.items())
    ctx.expect(f"{where}: slots taken, largest difference from expected, points", off, 0, 0.8, small=(0, 14), ours=0.4)
    auto, lpt = ("bf_io_auto", "pool", "lockstep"), ("lpt", "pool", "lockstep")
    ctx.expect(
        f"{where}: throughput of bf_io_auto 32 steps late, change in %", runs.change((auto, 32), (auto, 0), THROUGHPUT),
        *((-11, -9) if azure else (-23, -20)), small=(-40, -2), ours=-10.0 if azure else -21.5,
    )
    ctx.expect(
        f"{where}: imbalance of lpt over bf_io_auto's, 32 steps late", runs.ratio((lpt, 32), (auto, 32), IMBALANCE),
        0.95, 1.25, small=(0.8, 1.6), ours=1.04 if azure else 1.11,
    )
    ctx.expect(
        f"{where}: imbalance pipelined over one step late, bf_io_auto",
        runs.ratio((("bf_io_auto", "pool", "pipelined"), 0), (auto, 1), IMBALANCE), 0.93, 1.07, small=(0.8, 1.25),
        ours=0.99,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Distance from perfect balance

MACHINES = {
    "equal": {}, "speeds 1, 1, 0.7, told": {"speeds": "1,1,0.7"},
    "speeds 1, 1, 0.7, not told": {"speeds": "1,1,0.7", "tell_speeds": False}, "jitter 0.05": {"jitter": 0.05},
}
BALANCE_RULES = {name: {"policy": name} for name in ("fcfs", "round_robin", "least_tokens", "lpt", "trtllm", "br0")} | {
    "BF-IO H=0": bf_io(0, "paper"), "BF-IO H=20, weights 0.7^h": bf_io(20, "paper", 0.7),
    "bf_io square": bf_io(0, "square"), "bf_io_auto": {"policy": "bf_io_auto"},
}


@experiment(
    "share of the possible gain over FCFS, with equal and unequal workers", "conversation,burstgpt",
    traces=TRACES, check=SMALL,
)
def speedup_bound(ctx):
    ctx.text(
        """Every slot taken. Each rule is compared with the balanced step of the requests that it admitted, so that a rule
        gains nothing by leaving large requests waiting: C + t_l times the mean load for equal workers; for unequal ones,
        the step time at which all would end at the same time. The excess of FCFS over this time is the possible
        gain."""
    )
    for workload in ctx.workloads:
        sizes = lengths(ctx, workload)
        runs = ctx.simulate(
            {
                (machines, rule): {**flags, **own, **sizes, **workload.flags}
                for machines, own in MACHINES.items()
                for rule, flags in BALANCE_RULES.items()
            }
        )

        def excess(variant):
            return runs.values(variant, STEP) - runs.values(variant, "balanced_step_s_mean")

        share, over, attainable, rows = {}, {}, {}, []
        for machines, own in MACHINES.items():
            fcfs, jitter = (machines, "fcfs"), own.get("jitter", 0)
            # No policy can avoid the wait for the slowest worker that jitter causes.
            luck = theory.expected_of_largest_normal(16, lambda x: np.exp(jitter * x - jitter**2 / 2)) - 1
            attainable[machines] = estimate(100 * (1 - luck * runs.values(fcfs, "balanced_step_s_mean") / excess(fcfs)))
            for rule in BALANCE_RULES:
                variant = (machines, rule)
                share[variant] = estimate(100 * (1 - excess(variant) / excess(fcfs)))
                over[variant] = estimate(100 * excess(variant) / runs.values(variant, "balanced_step_s_mean"))
                rows.append(
                    {
                        "workers": machines, "policy": rule, "share of the gain, %": share[variant],
                        "attainable, %": attainable[machines].mean, "excess, %": over[variant],
                        "throughput against FCFS, %": runs.change(variant, fcfs, THROUGHPUT),
                        "step, ms": runs.mean(variant, STEP, 1e3),
                        "p99 wait, steps": runs.mean(variant, "wait_steps_p99"),
                    }
                )
        ctx.table(
            f"Steps beside perfect balance: {workload.name}", rows,
            """Excess: step time over the balanced step of the same work. Share of the gain: 1 - excess / FCFS's
            excess, paired by seed; attainable: the same for perfect balance.""",
        )
        rules = list(BALANCE_RULES)
        ctx.bars(
            f"Share of the possible gain over FCFS: {workload.name}", "share of the gain, %",
            {machines: {rule: share[machines, rule] for rule in rules[1:]} for machines in MACHINES},
        )
        ctx.bars(
            f"Step time over the balanced step: {workload.name}", "excess, %",
            {machines: {rule: over[machines, rule] for rule in rules} for machines in MACHINES},
        )
        expect_speedup(ctx, workload, share, over, attainable)


def expect_speedup(ctx, workload, share, over, attainable):
    name, azure = workload.name, workload.name == AZURE
    ctx.expect(
        f"{name}, equal: excess of fcfs, %", over["equal", "fcfs"], *((7.2, 9.2) if azure else (12.5, 17.5)),
        small=(4, 30), ours=8.2 if azure else 15.1,
    )
    for machines, rule, azures, burstgpts, small, ours in (
        ("equal", "lpt", (74, 80), (88, 93), (40, 97), (77, 91)),
        ("equal", "BF-IO H=0", (65, 77), (87, 93), (30, 97), (71, 90)),
        ("equal", "bf_io square", (89, 93), (95.5, 98), (75, 99.5), (91, 97)),
        ("equal", "bf_io_auto", (85, 90), (92, 96), (70, 99), (87.5, 94.1)),
        ("speeds 1, 1, 0.7, told", "lpt", (11, 18), (20, 30), (2, 40), (14, 25)),
        ("speeds 1, 1, 0.7, told", "bf_io_auto", (87, 93), (91, 96), (45, 99), (90, 94)),
        ("speeds 1, 1, 0.7, not told", "bf_io_auto", (13, 20), (21, 31), (2, 45), (16, 26)),
        ("jitter 0.05", "bf_io_auto", (22, 29), (44, 53), (8, 75), (25.8, 48.3)),
    ):
        ctx.expect(
            f"{name}, {machines}: share of {rule}, %", share[machines, rule], *(azures if azure else burstgpts),
            small=small, ours=ours[0 if azure else 1],
        )
    ctx.expect(
        f"{name}, jitter 0.05: attainable less bf_io_auto's, points",
        attainable["jitter 0.05"].mean - share["jitter 0.05", "bf_io_auto"].mean, 0, 2, small=(-1, 8),
        ours=0.5 if azure else 0.3,
    )


# ---------------------------------------------------------------------------------------------------------------------
# How accurate a prediction must be to pay off

PREDICTORS = {"oracle": {"lookahead": "oracle"}}
PREDICTORS |= {
    f"oracle ±{100 * error:.0f} %": {"lookahead": "oracle", "prediction_error": error} for error in (0.1, 0.25, 0.5, 1)
}
PREDICTORS |= {"survival": {"lookahead": "survival"}}
PREDICTORS |= {
    f"hint {lead}, noise {noise}": {"lookahead": "hint", "hint_lead": lead, "hint_noise": noise}
    for lead, noise in ((4, 0.5), (8, 0), (8, 0.5), (8, 2), (32, 0.5))
}
LOOKING = {
    f"{objective} H={horizon}" + (f", {discount}^h" if discount else ""): bf_io(horizon, objective, discount)
    for objective, horizon, discount in (
        ("paper", 5, 0.7), ("paper", 20, 0.7), ("paper", 10, 0.7), ("paper", 5, None),
        ("paper", 10, None), ("paper", 20, None), ("square", 10, 0.7),
    )
}
BLIND = {
    "fcfs": {"policy": "fcfs"}, "lpt": {"policy": "lpt"}, "paper H=0": bf_io(0, "paper"),
    "square H=0": bf_io(0, "square"), "bf_io_auto": {"policy": "bf_io_auto"},
}
LINE = ("bf_io_auto", "none")  # the baseline of predictions


@experiment(
    "known, inaccurate, learned and hinted lengths against no prediction", "conversation", traces=TRACES, check=SMALL
)
def predictors(ctx):
    ctx.text(
        """oracle ±x: every length has an error factor drawn uniformly from 1 - x to 1 + x. survival: learned from completed
        requests. hint L, noise N: a request shows exp(-(tokens left - 1) / L) times a lognormal factor of deviation N. The
        baseline is bf_io_auto, which uses no prediction."""
    )
    for workload in ctx.workloads:
        sizes = lengths(ctx, workload)
        for where, looking, flags in (
            (f"every slot taken, {workload.name}", list(LOOKING), workload.flags),
            (f"70 % load, {workload.name}", list(LOOKING)[:3], arriving(ctx, workload, 0.7)),
        ):
            variants = {(rule, "none"): {**own, **sizes, **flags} for rule, own in BLIND.items()}
            variants |= {
                (rule, name): {**LOOKING[rule], **predictor, **sizes, **flags}
                for rule in looking
                for name, predictor in PREDICTORS.items()
            }
            runs = ctx.simulate(variants)
            against = {variant: runs.ratio(variant, LINE, IMBALANCE) for variant in variants}
            shown = IMBALANCE if looking == list(LOOKING) else STEP
            beaten = sum(against[variant].high < 1 for variant in variants if variant[1] != "none")
            shortest = min(
                (variant for variant in variants if variant[1] != "none"),
                key=lambda variant: runs.mean(variant, STEP).mean,
            )
            ctx.text(
                f"""{where}: {beaten} of {len(variants) - len(BLIND)} cells have significantly less imbalance than
                bf_io_auto (95 %). The shortest steps: {', '.join(shortest)}, {runs.change(shortest, LINE, STEP)} % against
                bf_io_auto's."""
            )
            ctx.table(
                f"Imbalance against bf_io_auto, by predictor: {where}",
                [{"predictor": name, **{rule: against[rule, name] for rule in looking}} for name in PREDICTORS],
                "Paired by seed, below 1 is better. Without a prediction: "
                + ", ".join(f"{rule} {against[rule, 'none']}" for rule in BLIND)
                + ".",
            )
            ctx.table(
                f"Rules and predictors: {where}",
                [
                    {
                        "rule": rule, "predictor": name,
                        **metrics(runs, (rule, name), "slots taken, %", "TTFT p50, s", "TTFT p99, s"),
                        "step against bf_io_auto, %": runs.change((rule, name), LINE, STEP),
                    }
                    for rule, name in variants
                ],
            )
            errors = {0: "oracle", **{error: f"oracle ±{error} %" for error in (10, 25, 50, 100)}}
            ctx.lines(
                f"Inaccurate lengths: {where}", "largest error of the lengths, %",
                f"{'imbalance' if shown == IMBALANCE else 'step time'}, change against bf_io_auto, %",
                {
                    rule: {error: runs.change((rule, name), LINE, shown) for error, name in errors.items()}
                    for rule in looking
                },
                levels={
                    f"{rule}, no prediction": runs.change((rule, "none"), LINE, shown).mean for rule in list(BLIND)[1:]
                },
            )
            ctx.bars(
                f"By predictor: {where}",
                f"{'imbalance' if shown == IMBALANCE else 'step time'}, change against bf_io_auto, %",
                {rule: {name: runs.change((rule, name), LINE, shown) for name in PREDICTORS} for rule in looking[:4]},
            )
            if shown == IMBALANCE:
                expect_predictors(ctx, workload, against)
            else:
                steps = [runs.change((rule, name), LINE, STEP).mean for rule in looking for name in PREDICTORS]
                ctx.expect(
                    f"{where}: step of the best prediction against bf_io_auto, %", min(steps), -0.4, 1, small=(-5, 4),
                    ours=-0.06,
                )


def expect_predictors(ctx, workload, against):
    ours = {
        AZURE: {
            ("square H=0", "none"): 0.71, ("paper H=20, 0.7^h", "oracle"): 0.63,
            ("paper H=20, 0.7^h", "oracle ±10 %"): 1.02, ("paper H=20, 0.7^h", "survival"): 1.06,
            ("paper H=10, 0.7^h", "hint 8, noise 0.5"): 0.83, ("paper H=20", "oracle"): 1.52,
            ("square H=10, 0.7^h", "survival"): 0.81,
        },
        BURSTGPT: {
            ("square H=0", "none"): 0.49, ("paper H=20, 0.7^h", "oracle"): 0.74,
            ("paper H=20, 0.7^h", "oracle ±10 %"): 1.03, ("paper H=20, 0.7^h", "survival"): 1.18,
            ("paper H=10, 0.7^h", "hint 8, noise 0.5"): 0.88, ("paper H=20", "oracle"): 1.67,
            ("square H=10, 0.7^h", "survival"): 0.79,
        },
    }
    for (rule, name), value in ours.get(workload.name, {}).items():
        ctx.expect(
            f"{workload.name}: imbalance of {rule}, {name}, against bf_io_auto", against[rule, name], 0.82 * value,
            1.2 * value, ours=value,
        )
    ctx.expect(
        f"{workload.name}: an error of 10 % against known lengths, paper H=20, 0.7^h",
        against["paper H=20, 0.7^h", "oracle ±10 %"].mean / against["paper H=20, 0.7^h", "oracle"].mean, 1.2, 2,
        small=(0.8, 3),
    )


if __name__ == "__main__":
    main(__doc__)
