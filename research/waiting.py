#!/usr/bin/python3
"""Simulates a worker that waits for large batches, or a baseline, and prints a run as a JSON object; waits.py runs many.

  research/waiting.py --batching=nested_wait --types=20:10:20,40:10:40 --c=6.6e-3 --tl=2.57e-7

"Fluid-Based Online Scheduling under Memory Constraints": Poisson arrivals of requests of several types. An iteration takes
d0 + d1 times the tokens held by its batch and advances each of the batch's requests by one stage: stage 0 reads the prompt of l
tokens, and at stage k, up to the output length, a request holds l + k tokens. Equations have the paper's numbers. Sizes in
tokens, times in seconds. This is the paper's discrete model, not the engines' (worker/scheduler/batch_planner.h).
Deterministic for the seed.
"""

import math

from simulation import Parser, Refused, run_main
from waiting_bounds import (RequestType, Segments, Time, equilibrium, merged, nested_bound, nested_fluid_thresholds,
                            nested_thresholds, nested_thresholds_within, throughput_within, wait_peak, wait_thresholds,
                            wait_thresholds_within)
from waiting_tuner import Tuner
from waiting_workers import FcfsWorker, Options, WaitWorker

MOST_RATE, MOST_STAGES, MOST_ARRIVALS = 1e6, 1e5, 1e8


def numbers_of(flag, text, separator=","):
    try:
        return [float(item) for item in text.split(separator) if item]
    except ValueError:
        raise Refused(f"--{flag}={text}: must be numbers separated by commas") from None


def types_of(text):
    types = []
    for item in filter(None, text.split(",")):
        of = numbers_of("types", item, ":")
        if len(of) != 3 or not (0 < of[0] <= MOST_RATE and 0 <= of[1] <= 1e9 and 1 <= of[2] <= MOST_STAGES):
            raise Refused(f"--types: '{item}' is not RATE:PROMPT:OUTPUT")
        types.append(RequestType(of[0], int(of[1]), int(of[2])))
    if not types:
        raise Refused("--types is empty")
    if any(a.output >= b.output for a, b in zip(types, types[1:])):
        raise Refused("--types must be in ascending order of OUTPUT")
    return types


def intensity_of(text, horizon):
    """The factor on the rates at a time: SHARE,SHARE,.. over equal parts of the run, or wave:LOW:HIGH:SECONDS."""
    if not text:
        return None
    wave = text.startswith("wave:")
    of = numbers_of("intensity", text[5:] if wave else text, ":" if wave else ",")
    if not of or (wave and (len(of) != 3 or of[2] <= 0)) or not all(0 <= share <= 1 for share in (of[:2] if wave else of)):
        raise Refused(f"--intensity={text}: shares must be within 0..1")
    if wave:
        low, high, period = of
        return lambda at: (low + high) / 2 + (high - low) / 2 * math.sin(2 * math.pi * at / period)
    return lambda at: of[min(int(at / horizon * len(of)), len(of) - 1)]


def thresholds_of(args, types, options, segments):
    """--thresholds if set; else those that carry the load, or, where their batch does not fit, the largest that do."""
    given = numbers_of("thresholds", args.thresholds)
    if given:
        if len(given) != len(segments.last if segments else types) or min(given) < 1:
            raise Refused("--thresholds must give a number of at least 1 for each type or segment")
        return [int(n) for n in given]
    types = [of._replace(rate=of.rate * args.threshold_rates) for of in types]
    usable, solved = (1 - options.watermark) * options.memory, None
    if segments:
        segments = Segments(types, segments.last)
    try:
        solved = (nested_thresholds(segments, options.time, args.threshold_margin, args.threshold_load) if segments
                  else wait_thresholds(types, options.time, args.threshold_load))
    except Refused:
        if not options.memory:
            raise
    if solved and (not options.memory or (segments.peak(solved) if segments else wait_peak(types, solved)) <= usable):
        return solved
    return nested_thresholds_within(segments, args.threshold_margin, usable) if segments else wait_thresholds_within(types, usable)


def cell_of(args):
    types, time = types_of(args.types), Time(args.c, args.tl)
    largest, fcfs = max(of.prompt + of.output for of in types), args.batching in ("prefill_first", "chunked")
    if (args.kv_tokens or fcfs) and args.kv_tokens < largest:
        raise Refused(f"--kv_tokens={args.kv_tokens}: must be at least {largest}, the size of the largest request")
    if args.seconds > MOST_ARRIVALS / sum(of.rate for of in types):
        raise Refused(f"--seconds={args.seconds:g}: more than {MOST_ARRIVALS:g} arrivals")
    options = Options(time, args.kv_tokens, horizon=args.seconds, seed=args.seed,
                      intensity=intensity_of(args.intensity, args.seconds), streams=args.streams == 1)
    if args.batching == "prefill_first" and args.streams:
        raise Refused("--streams cannot be used with --batching=prefill_first")
    try:
        fluid = equilibrium(types, time)[1]
    except Refused:
        fluid = None
        if not args.kv_tokens:
            raise
    thresholds, bound, fluid_bound = [], None, None
    if fcfs:
        run = FcfsWorker(types, args.batching == "chunked", args.token_budget, args.most_running, options).run()
    else:
        segments = None
        if args.batching == "nested_wait":
            segments = merged(types, args.segments) if args.segments else Segments(types)
        if args.tuner:
            if segments:
                raise Refused("--tuner can be used only with --batching=wait")
            run = WaitWorker(types, None, options, None, Tuner(types, time, args.tuner), args.most_steps, args.pause == 1).run()
        else:
            thresholds = thresholds_of(args, types, options, segments)
            run = WaitWorker(types, thresholds, options, segments, None, args.most_steps, args.pause == 1).run()
        if segments:
            # An iteration takes d0 at least.
            iterations = math.ceil(args.seconds / args.c)
            bound = nested_bound(segments, thresholds, iterations, args.delta)
            exact = nested_fluid_thresholds(segments, time, args.threshold_margin, args.threshold_load)
            fluid_bound = nested_bound(segments, exact, iterations, args.delta) if exact else None
    return {"throughput_tokens_per_s": run.throughput, "fluid_tokens_per_s": fluid,
            "sustained_tokens_per_s": throughput_within(types, time, args.kv_tokens or 1e302), **run.cell(),
            "thresholds": thresholds, "bound": bound, "fluid_bound": fluid_bound}


def run_cell(arguments):
    """One run, by the flags of the command line."""
    parser = Parser(__doc__)
    parser.add_argument("--batching", choices=("wait", "nested_wait", "prefill_first", "chunked"), default="wait",
                        help="batching rule; prefill_first: vLLM's first version; chunked: Sarathi")
    parser.add_argument("--types", default="", help="request types RATE:PROMPT:OUTPUT, separated by commas, in ascending "
                                                    "order of OUTPUT")
    parser.number("c", 4.8875e-3, 1e-9, 1e6, "d0, fixed seconds per iteration")
    parser.number("tl", 1.00525e-7, 0, 1e6, "d1, seconds per token of an iteration's batch")
    parser.number("kv_tokens", 0, 0, 1e12, "KV cache capacity in tokens; 0: no limit", int)
    parser.number("seconds", 100, 1e-6, 1e12, "duration of the arrivals, in seconds")
    parser.number("threshold_load", 0.95, 1e-3, 1, "iteration time for which thresholds are solved, as a share of the time "
                                                   "in which as many requests arrive")
    parser.number("threshold_rates", 1, 1e-6, 1e6, "factor on the rates that thresholds are solved for")
    parser.number("threshold_margin", 1.1, 1, 1e3, "nested_wait: threshold of a segment as a multiple of the requests that "
                                                   "reach it")
    parser.number("segments", 0, 0, MOST_STAGES, "nested_wait: maximum number of segments, of equal width; 0: one for each "
                                                 "type", int)
    parser.number("delta", 0.1, 1e-12, 1, "nested_wait: probability with which memory may exceed the printed bound")
    parser.add_argument("--thresholds", default="", help="thresholds by type or segment, separated by commas, instead of "
                                                         "solved ones")
    parser.number("tuner", 0, 0, 1e9, "time constant of the online estimate of the rates, in seconds; 0: the rates are "
                                      "known")
    parser.add_argument("--intensity", default="", help="rates over time as shares of those of --types: SHARE,SHARE,.. "
                                                        "over equal parts of --seconds, or wave:LOW:HIGH:SECONDS; empty: "
                                                        "constant")
    parser.number("token_budget", 512, 1, 1e9, "token budget of a batch (with prefill_first: of a batch of prompts)", int)
    parser.number("most_running", 0, 0, 1e9, "prefill_first, chunked: maximum number of requests in a batch; 0: as many as "
                                             "fit into memory", int)
    parser.number("most_steps", 0, 0, 1e9, "steps after which a request starts, or a type or segment continues, below its "
                                           "threshold; 0: no limit", int)
    parser.number("pause", 1, 0, 1, "wait, nested_wait: 1: started requests may pause; 0: they never pause", int)
    parser.number("streams", 0, 0, 1, "1: also reports the gaps between the tokens of a stream and the memory of paused "
                                      "requests", int)
    return cell_of(parser.parse_args(arguments))


if __name__ == "__main__":
    run_main(run_cell)
