#!/usr/bin/python3
"""Simulates agents in a network of engines and prints a run as a JSON object; engines.py runs many.

  research/network.py --network=rybko_stolyar --load=0.9 --order=exit_first --seconds=8000

"Throughput-Optimal Scheduling Algorithms for LLM Inference and AI Agents", Section 4: an agent is a set of calls, each to one
engine, some of which depend on others. Every engine forms its own batches under a token budget. Agents arrive by Poisson
processes. Deterministic for the seed. Time is in seconds, or in slots for networks whose batches take a slot each.
"""

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Callable, Optional

import numpy as np

from simulation import Parser, Refused, Rng, quantile, run_main


def batch_seconds(tokens):
    """Llama-3-70B on two A100 (common/cost/batch_time.h): 45.5 ms, and 0.30 ms for each token beyond 64."""
    return 45.5e-3 + 0.30e-3 * max(0, tokens - 64)


@dataclass
class CallType:
    """Engines engine .. engine + choices - 1 can run it. `after`: earlier calls of the agent that it waits for."""

    engine: int
    prefill: float
    decode: float
    after: tuple = ()
    choices: int = 1


@dataclass
class AgentType:
    name: str
    rate: float
    calls: list
    evenly: bool = False  # arrivals 1 / rate apart in place of Poisson


@dataclass
class Network:
    engines: int
    budget: int  # tokens of a batch
    types: list
    seconds: Optional[Callable] = batch_seconds  # time of a batch by its tokens; None: every batch takes one slot
    poisson: bool = True  # lengths: Poisson with these means, or the means

    def batch_time(self, tokens):
        return self.seconds(tokens) if self.seconds else 1

    def load(self, engine):
        """Tokens that arrive at this engine during a full batch, over the tokens of a full batch; stable below 1."""
        tokens = 0
        for of in self.types:
            for call in of.calls:
                if call.engine <= engine < call.engine + call.choices:
                    tokens += of.rate * (call.prefill + call.decode) / call.choices
        return tokens * self.batch_time(self.budget) / self.budget

    def scaled(self, load):
        """Rates multiplied so that the busiest engine has this load."""
        factor = load / max(self.load(engine) for engine in range(self.engines))
        for of in self.types:
            of.rate *= factor
        return self


# ---------------------------------------------------------------------------------------------------------------------
# Example networks: the paper's, and others


def rybko_stolyar(load):
    """Two engines, 768 tokens a slot. A: a short call at engine 0, then a long one at engine 1; B: the reverse. Under
    exit_first the two long classes are never served at once, which is unstable above a load of
    (32 + 32 + 512 + 32) / (2 (512 + 32)) = 0.559."""
    types = [AgentType(name, 1, [CallType(first, 32, 32), CallType(1 - first, 512, 32, (0,))])
             for name, first in (("A", 0), ("B", 1))]
    return Network(2, 768, types, seconds=None).scaled(load)


def fork_join(load):
    """Section 4.3: engine 0, then 1 and 2 in parallel, then 3 when both have ended."""
    calls = [CallType(0, 100, 50), CallType(1, 200, 100, (0,)), CallType(2, 150, 80, (0,)), CallType(3, 250, 40, (1, 2))]
    return Network(4, 512, [AgentType("fork-join", 1, calls)]).scaled(load)


def cycles(load):
    """Planner 0, coder 1, planner again, and a debate of five turns between them."""
    plan = [CallType(0, 200, 60), CallType(1, 300, 200, (0,)), CallType(0, 500, 30, (1,))]
    debate = [CallType(1 - i % 2, 50 + 80 * i, 80, (i - 1,) if i else ()) for i in range(5)]
    return Network(2, 512, [AgentType("plan, code, review", 1, plan), AgentType("debate", 1, debate)]).scaled(load)


def long_and_short(load):
    """Agents of one, three and twelve calls in sequence on two engines, each of which can serve any call; each call's
    prompt includes the answers of the calls before it."""
    types = [AgentType(name, rate, [CallType(0, prompt + i * answer, answer, (i - 1,) if i else (), 2) for i in range(calls)])
             for name, rate, calls, prompt, answer in (("one call", 6, 1, 200, 60), ("three calls", 3, 3, 200, 60),
                                                       ("twelve calls", 1, 12, 100, 40))]
    return Network(2, 512, types, seconds=None).scaled(load)


def parallel(load, engines=1):
    """Proposition 1: requests of one call, 100 prefill and 100 decode tokens, to any of `engines`."""
    call = CallType(0, 100, 100, choices=engines)
    return Network(engines, 512, [AgentType("request", 1, [call])], poisson=False).scaled(load)


def two_types(load):
    """Section 4.2: two types of requests on one engine, at the same rate."""
    types = [AgentType("short prompts, long answers", 1, [CallType(0, 50, 350)]),
             AgentType("long prompts, short answers", 1, [CallType(0, 600, 60)])]
    return Network(1, 512, types, poisson=False).scaled(load)


NETWORKS = {of.__name__: of for of in (rybko_stolyar, fork_join, cycles, long_and_short, parallel, two_types)}

# ---------------------------------------------------------------------------------------------------------------------
# Engines and their batches


class Call:
    """A call while it is at an engine. `prefill`: its prompt tokens left. `entry` orders a lane: (senior step, joined)."""

    __slots__ = ("agent", "index", "engine", "prefill", "decode", "lane", "senior", "entry", "resident")


class Lane:
    """Calls of one urgency, by seniority: those with prompt tokens left, and those that decode, whose tokens left are in
    `left` at the same index."""

    def __init__(self):
        self.prompts, self.decodes, self.left = [], [], np.zeros(16, dtype=np.int64)

    def add_decode(self, call):
        n, at = len(self.decodes), bisect_left(self.decodes, call.entry)
        if n == len(self.left):
            self.left = np.concatenate([self.left, self.left])
        self.left[at + 1:n + 1] = self.left[at:n].copy()
        self.left[at] = call.decode
        self.decodes.insert(at, call.entry)

    def finish_decodes(self, n):
        """The first n have generated a token each. Removes and returns those that have ended."""
        self.left[:n] -= 1
        ended = (self.left[:n] == 0).nonzero()[0].tolist()
        calls = [self.decodes[at][2] for at in ended]
        for at in reversed(ended):
            self.left[at:len(self.decodes) - 1] = self.left[at + 1:len(self.decodes)].copy()
            del self.decodes[at]
        return calls


def add_decodes(engine, lane, batch):
    n = min(len(lane.decodes), engine.left)
    engine.left -= n
    if n:
        batch.decodes.append((lane, n))


def add_prompts(engine, lane, batch, whole=False):
    """Prompt tokens of one call after the other. A call without a slot holds back all later ones that have not begun.
    whole: stops at the first prompt that exceeds the budget. Returns whether some prompt had a slot."""
    waits = held_back = False
    for _, _, call in lane.prompts:
        if engine.left == 0:
            break
        held_back = held_back or not (call.resident or engine.free > 0)
        if held_back and not call.resident:
            continue
        waits = True
        if whole and call.prefill > engine.left:
            break
        rows = min(call.prefill, engine.left)
        if not call.resident:
            call.resident, engine.free = True, engine.free - 1
        batch.prompts.append((lane, call, rows))
        engine.left -= rows
    return waits


def sarathi(engine, lane, batch):
    add_decodes(engine, lane, batch)
    add_prompts(engine, lane, batch)


def orca(engine, lane, batch):
    add_prompts(engine, lane, batch)
    add_decodes(engine, lane, batch)


def vllm_v0(engine, lane, batch):
    if not add_prompts(engine, lane, batch, whole=True):
        add_decodes(engine, lane, batch)


def faster_transformer(engine, lane, batch):
    if lane.decodes:
        add_decodes(engine, lane, batch)
    else:
        add_prompts(engine, lane, batch, whole=True)


# The paper's rules; workers have the first (worker/scheduler/batch_planner.h).
SCHEDULERS = {of.__name__: of for of in (sarathi, orca, vllm_v0, faster_transformer)}
WORK_CONSERVING = ("sarathi", "orca")


@dataclass
class Batch:
    decodes: list = field(default_factory=list)  # (lane, number of its first decodes)
    prompts: list = field(default_factory=list)  # (lane, call, tokens)
    tokens: int = 0


class Engine:
    """Forms a batch lane by lane, the urgent lane first; each gets what the lanes before it left of the budget."""

    def __init__(self, scheduler, budget, slots):
        self.scheduler, self.budget, self.free = SCHEDULERS[scheduler], budget, slots or math.inf
        self.lanes, self.batch, self.tokens_left, self.calls, self.left = {}, None, 0, 0, 0

    def join(self, call):
        if call.lane not in self.lanes:
            self.lanes[call.lane] = Lane()
            self.lanes = dict(sorted(self.lanes.items()))
        insort(self.lanes[call.lane].prompts, call.entry)
        call.resident = False
        self.tokens_left += call.prefill + call.decode
        self.calls += 1

    def start(self):
        """Starts the next batch; False: there is no work."""
        batch, self.left = Batch(), self.budget
        for lane in self.lanes.values():
            if self.left == 0:
                break
            self.scheduler(self, lane, batch)
        batch.tokens = self.budget - self.left
        self.batch = batch if batch.tokens else None
        return self.batch is not None

    def finish(self, ended):
        """The batch has been computed; calls that have ended are removed and appended to `ended`."""
        batch, self.batch = self.batch, None
        before = len(ended)
        for lane, n in batch.decodes:
            ended += lane.finish_decodes(n)
        for lane, call, rows in batch.prompts:
            call.prefill -= rows
            if call.prefill == 0:
                del lane.prompts[bisect_left(lane.prompts, call.entry)]
                lane.add_decode(call)
        self.calls -= len(ended) - before
        self.free += len(ended) - before
        self.tokens_left -= batch.tokens

    def count_left(self):
        """tokens_left, computed as a sum over all calls."""
        return sum(sum(call.prefill + call.decode for _, _, call in lane.prompts) + int(lane.left[:len(lane.decodes)].sum())
                   for lane in self.lanes.values())


# ---------------------------------------------------------------------------------------------------------------------
# Agents, orders and a run

# exit_first, entry_first: priorities of classes by the number of calls that follow; call_age: first come, first served at
# the engine; parent_age: the agent that has been in the network longest; parent_due: the router's rule.
ORDERS = ("exit_first", "entry_first", "call_age", "parent_age", "parent_due")
ROUTINGS = ("random", "fewest_calls", "fewest_tokens")

# router/core/agents/parents.h: the due date of a call, and how far a call can be moved by it.
MOST_TOKENS, MOST_YOUNGER, MOST_OLDER = 4096, 64, 1024


def senior_step(first_step, made, after):
    return first_step + 2 * min(made, MOST_TOKENS) + min(after, MOST_TOKENS)


def longest_after(calls, weights):
    """For each call, the largest total weight of a path of calls after it."""
    after = [0] * len(calls)
    for i in reversed(range(len(calls))):
        for before in calls[i].after:
            after[before] = max(after[before], weights[i] + after[i])
    return after


class Agent:
    """A request of several calls, from its arrival to the end of the last."""

    __slots__ = ("type", "arrived", "calls", "waits_for", "left", "path_tokens")


class Simulation:
    """A run. After run(): tokens and agents in the network at times 0, 1, 2, ..; `finished`: (type, latency, decoded tokens on
    the longest path) of agents that arrived in the second half and ended; counts of agents and tokens."""

    def __init__(self, network, order="parent_due", routing="fewest_tokens", scheduler="sarathi", slots=0, horizon=1000, seed=1):
        if order in ("exit_first", "entry_first") and scheduler not in WORK_CONSERVING:
            raise Refused(f"--scheduler={scheduler} with --order={order}: this order needs a scheduler that fills every "
                          f"batch, one of {', '.join(WORK_CONSERVING)}")
        self.network, self.order, self.routing, self.horizon = network, order, routing, horizon
        self.gaps, self.lengths, self.routes = (Rng(seed).fork(stream) for stream in (1, 2, 3))
        self.engines = [Engine(scheduler, network.budget, slots) for _ in range(network.engines)]
        self.ends = [math.inf] * network.engines
        self.step = network.batch_time(network.budget)  # the unit of seniority
        self.next = [self.arrival(of, 0) for of in network.types]
        self.tokens, self.agents, self.finished = [], [], []
        self.present = self.arrived = self.ended = self.joined = self.peak = self.tokens_joined = self.tokens_computed = 0

    def arrival(self, of, after):
        return after + (1 if of.evenly else self.gaps.exponential()) / of.rate if of.rate > 0 else math.inf

    def effective(self, arrival):
        return arrival if self.network.seconds or arrival == math.inf else math.ceil(arrival)

    def run(self):
        while True:
            now = min(min(self.ends), min(map(self.effective, self.next)))
            self.sample(min(now, self.horizon))
            if now >= self.horizon:
                return self
            ended = []
            for e, engine in enumerate(self.engines):
                if self.ends[e] <= now:
                    self.ends[e] = math.inf
                    self.tokens_computed += engine.batch.tokens
                    engine.finish(ended)
            for call in ended:
                self.on_ended(call, now)
            for t, of in enumerate(self.network.types):
                while self.effective(self.next[t]) <= now:
                    self.arrive(t, self.next[t])
                    self.next[t] = self.arrival(of, self.next[t])
            for e, engine in enumerate(self.engines):
                if self.ends[e] == math.inf and engine.start():
                    self.ends[e] = now + self.network.batch_time(engine.batch.tokens)

    def sample(self, until):
        tokens = sum(engine.tokens_left for engine in self.engines)
        self.peak = max(self.peak, tokens)
        while len(self.tokens) < until:
            self.tokens.append(tokens)
            self.agents.append(self.present)

    def on_ended(self, call, now):
        agent = call.agent
        for i, of in enumerate(self.network.types[agent.type].calls):
            if call.index in of.after:
                agent.waits_for[i] -= 1
                if agent.waits_for[i] == 0:
                    self.join(agent, i, now)
        agent.left -= 1
        if agent.left:
            return
        self.ended += 1
        self.present -= 1
        if agent.arrived >= self.horizon / 2:
            self.finished.append((agent.type, now - agent.arrived, agent.path_tokens))

    def draw(self, mean):
        return max(1, self.lengths.poisson(mean) if self.network.poisson else round(mean))

    def arrive(self, t, when):
        self.arrived += 1
        self.present += 1
        calls = self.network.types[t].calls
        agent = Agent()
        agent.type, agent.arrived, agent.left = t, when, len(calls)
        agent.waits_for = [len(of.after) for of in calls]
        agent.calls = [Call() for _ in calls]
        for i, (call, of) in enumerate(zip(agent.calls, calls)):
            call.agent, call.index, call.lane, call.senior = agent, i, 0, 0
            call.prefill, call.decode = self.draw(of.prefill), self.draw(of.decode)
        self.rank(agent, calls)
        for i, waits in enumerate(agent.waits_for):
            if waits == 0:
                self.join(agent, i, when)

    def rank(self, agent, calls):
        """Sets lanes and seniority of an agent's calls. With call_age the order of joining decides."""
        calls_after = longest_after(calls, [1] * len(calls))
        tokens_after = longest_after(calls, [call.decode for call in agent.calls])
        first_step = math.floor(agent.arrived / self.step)
        made, agent.path_tokens = [0] * len(calls), 0
        for i, (call, of) in enumerate(zip(agent.calls, calls)):
            made[i] = max((made[before] + agent.calls[before].decode for before in of.after), default=0)
            agent.path_tokens = max(agent.path_tokens, made[i] + call.decode)
            if self.order == "exit_first":
                call.lane = calls_after[i]
            elif self.order == "entry_first":
                call.lane = -calls_after[i]
            elif self.order == "parent_age":
                call.senior = senior_step(first_step, 0, 0)
            elif self.order == "parent_due":
                call.senior = senior_step(first_step, made[i], tokens_after[i])

    def join(self, agent, index, now):
        call = agent.calls[index]
        if self.order in ("parent_age", "parent_due"):
            step = math.floor(now / self.step)
            call.senior = step - min(max(step - call.senior, -MOST_YOUNGER), MOST_OLDER)
        call.engine = self.route(self.network.types[agent.type].calls[index])
        call.entry = (call.senior, self.joined, call)
        self.joined += 1
        self.tokens_joined += call.prefill + call.decode
        self.engines[call.engine].join(call)

    def route(self, of):
        if of.choices == 1:
            return of.engine
        if self.routing == "random":
            return of.engine + self.routes.below(of.choices)
        key = "calls" if self.routing == "fewest_calls" else "tokens_left"
        return min(range(of.engine, of.engine + of.choices), key=lambda e: getattr(self.engines[e], key))


# ---------------------------------------------------------------------------------------------------------------------
# Growth of the backlog


def second_half_slope(tokens):
    """Least-squares slope over the second half of the samples (one per unit of time): the rate of a steady growth. Unsuitable
    for verdicts: it is negative in the falling part of an oscillation, growing or not, and positive while a stable system
    fills up."""
    half = tokens[len(tokens) // 2:]
    n, mean = len(half), sum(half) / len(half)
    offsets = [i - (n - 1) / 2 for i in range(n)]
    return sum(x * (y - mean) for x, y in zip(offsets, half)) / sum(x * x for x in offsets)


def peak_growth(tokens):
    """The largest of all samples minus the largest of their first tenth, per unit of time of the rest. Verdicts use it.

    If the backlog grows, steadily or in an oscillation whose peaks and periods grow by the same factor (Rybko-Stolyar: up to
    8.5), the result tends to a positive constant, in whatever phase the run ends. If the backlog does not grow, its largest
    value still rises with the logarithm of time: within [T/10, T] by 2.3 s for levels with an exponential tail of scale s, so
    by 2.6 s / T per unit of time. Just below capacity s = m / (2 (1 - load)) for Poisson arrivals of m tokens each. T must be
    so long that 2.6 s / T is well below the threshold of a verdict.
    """
    tenth = len(tokens) // 10
    return (max(tokens) - max(tokens[:tenth])) / (len(tokens) - tenth)


def verdict(growths, threshold):
    """A sign test over independent runs. "grows": all are above the threshold. "bounded": all are below. Else "undecided".

    If the median of the growths is at most the threshold, the result is "grows" with probability at most 2^-n for n runs. If it
    is at least the threshold, "bounded" has the same bound. No distribution is assumed.
    """
    return "grows" if min(growths) > threshold else "bounded" if max(growths) < threshold else "undecided"


def latencies(of):
    return {"latency_mean": sum(of) / len(of) if of else None, "latency_p99": quantile(of, 0.99)}


def run_cell(arguments):
    """One run, by the flags of the command line."""
    parser = Parser(__doc__)
    parser.add_argument("--network", choices=NETWORKS, default="rybko_stolyar")
    parser.number("load", 1, 1e-6, 1e3, "load of the busiest engine, as a share of its capacity")
    parser.number("engines", 1, 1, 10_000, "--network=parallel: number of engines", int)
    parser.add_argument("--order", choices=ORDERS, default="parent_due", help="order of the calls that wait at an engine")
    parser.add_argument("--routing", choices=ROUTINGS, default="fewest_tokens",
                        help="rule that chooses among several engines")
    parser.add_argument("--scheduler", choices=SCHEDULERS, default="sarathi",
                        help="batch scheduler")
    parser.number("slots", 0, 0, 1e9, "slots of an engine (max_num_seqs); 0: no limit", int)
    parser.number("seconds", 100, 20, 1e7, "length of the run in seconds, or in slots for networks whose batches take a "
                                           "slot")
    parser.number("samples", 0, 0, 1e7, "approximate number of samples over time in the output; 0: none", int)
    args = parser.parse_args(arguments)
    network = NETWORKS[args.network](args.load, *([args.engines] if args.network == "parallel" else []))
    run = Simulation(network, args.order, args.routing, args.scheduler, args.slots, args.seconds, args.seed).run()
    cell = {"engine_tokens_per_time": network.budget / network.batch_time(network.budget), "engines": network.engines,
            "growth_slope": second_half_slope(run.tokens), "peak_growth": peak_growth(run.tokens), "peak_tokens": run.peak,
            "agents_at_half_time": run.agents[len(run.agents) // 2], **latencies([latency for _, latency, _ in run.finished]),
            "types": [{"type": of.name, **latencies([latency for type, latency, _ in run.finished if type == t])}
                      for t, of in enumerate(network.types)]}
    if args.samples:
        stride = max(1, len(run.tokens) // args.samples)
        cell["sample_time"] = list(range(0, len(run.tokens), stride))
        cell["sample_tokens"] = run.tokens[::stride]
    return cell


if __name__ == "__main__":
    run_main(run_cell)
