#!/usr/bin/python3
"""One run of a worker that waits for large batches, or of baselines that do not, as a JSON object; waits.py runs many.

  research/waiting.py --batching=nested_wait --types=20:10:20,40:10:40 --c=6.6e-3 --tl=2.57e-7

"Fluid-Based Online Scheduling under Memory Constraints": Poisson arrivals of requests of several types. An iteration takes
d0 + d1 times the tokens held by its batch and advances each of the batch's requests by one stage: stage 0 reads the prompt of l
tokens, and at stage k, up to the output length, a request holds l + k tokens. Equations have the paper's numbers. Sizes in
tokens, times in seconds. This is the paper's discrete model, not the engines' (worker/scheduler/engine_model.h).
Deterministic for the seed.
"""

import math
from collections import deque
from typing import NamedTuple

from simulation import Parser, Refused, Rng, run_main

MOST_RATE, MOST_STAGES, MOST_ARRIVALS = 1e6, 1e5, 1e8


class RequestType(NamedTuple):
    rate: float
    prompt: int
    output: int

    @property
    def tokens(self):
        """Held by a request, summed over its stages: (l' + 1)(l + l' / 2)."""
        return (self.output + 1) * (self.prompt + self.output / 2)


class Time(NamedTuple):
    d0: float
    d1: float

    def __call__(self, tokens):
        return self.d0 + self.d1 * tokens


# ---------------------------------------------------------------------------------------------------------------------
# The fluid benchmark, and thresholds from it


def load_of(types):
    return sum(of.rate * of.tokens for of in types)


def overloaded(share):
    return Refused(f"--types: the load is {share:.4g} times what any batch size can carry")


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
    """The largest with a batch of at most `memory` tokens; 1 at least."""
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
            # With n >= before, no more than n requests wait.
            if n < thresholds[i - 1]:
                decay = segment_decay(n, thresholds[i - 1], segments.survive[i])
                excess += (l + before_end) * math.log((count - 1) * iterations / delta) / decay
    return {"peak_tokens": segments.peak(thresholds), "printed_peak_tokens": printed, "printed_equal_peak_tokens": printed_equal,
            "queues_tokens": queues, "excess_tokens": excess}


class Tuner:
    """B.1: WAIT's thresholds from observed arrivals.

    Rates are exponentially weighted counts with a time constant. Thresholds are solved for the estimates plus two standard
    errors, and again when an estimate plus one standard error reaches the rate that was solved for, or when an estimate
    plus two is a fifth below it. A load that no batch sustains is scaled down to 0.97 of one that is sustained.
    """

    def __init__(self, types, time, time_constant, load=0.9):
        self.types, self.time, self.tau, self.load = types, time, time_constant, load
        self.rates, self.weights, self.last = [0] * len(types), [0] * len(types), [0] * len(types)
        self.solved, self.looked, self.now = 0, 0, [1] * len(types)

    def on_arrival(self, j, now):
        self.weights[j] = self.weights[j] * math.exp((self.last[j] - now) / self.tau) + 1 / self.tau
        self.last[j] = now

    def rate(self, j, now, errors=0):
        """The estimate plus so many standard errors."""
        seen = -math.expm1(-now / self.tau)
        rate = self.weights[j] * math.exp((self.last[j] - now) / self.tau) / seen if seen > 0 else 0
        return rate + errors * math.sqrt(rate / (2 * self.tau))

    def thresholds(self, now):
        """1 for each type until the first arrival."""
        if now < self.looked + self.tau / 20:
            return self.now
        self.looked = now
        if any(self.rate(j, now, 1) > rate or self.rate(j, now, 2) < 0.8 * rate for j, rate in enumerate(self.rates)):
            self.rates = [self.rate(j, now, 2) for j in range(len(self.types))]
            carried = [of._replace(rate=rate) for of, rate in zip(self.types, self.rates)]
            share = max(1, self.time.d1 * load_of(carried) / (self.load * 0.97))
            self.now = wait_thresholds([of._replace(rate=of.rate / share) for of in carried], self.time, self.load)
            self.solved += 1
        return self.now


# ---------------------------------------------------------------------------------------------------------------------
# One worker


class Options(NamedTuple):
    time: Time
    memory: int = 0  # C; 0: no bound
    watermark: float = 0.01  # share of the memory that starts leave free
    horizon: float = 100  # seconds during which requests arrive
    seed: int = 1
    intensity: object = None  # factor of at most 1 on the rates at a time


class Request:
    __slots__ = ("arrived", "type", "prompt", "output", "started", "seen", "left", "ends")

    def __init__(self, arrived, j, of):
        self.arrived, self.type, self.prompt, self.output, self.started, self.seen = arrived, j, of.prompt, of.output, 0, False


class Worker:
    """What both kinds of workers count. The run starts with an empty worker."""

    def __init__(self, types, options):
        self.types, self.options, self.rng = types, options, Rng(options.seed)
        self.memory = options.memory or math.inf
        self.usable = int((1 - options.watermark) * options.memory) if options.memory else math.inf
        self.now = self.latency = self.ttft = 0.0
        self.made = self.arrived = self.held = self.first_tokens = 0
        self.completed = self.iterations = self.evictions = self.peak_batch = self.peak_held = 0
        self.next = [self.arrival(j, 0) for j in range(len(types))]

    def arrival(self, j, after):
        rate, intensity = self.types[j].rate, self.options.intensity
        if rate <= 0:
            return math.inf
        at = after + self.rng.exponential() / rate
        # Thinning: a share given by the intensity at that time is kept.
        while intensity and at < self.options.horizon and self.rng.uniform() >= intensity(at):
            at += self.rng.exponential() / rate
        return at

    def take_arrival(self, j):
        request = Request(self.next[j], j, self.types[j])
        self.arrived += request.output + 1
        self.next[j] = self.arrival(j, self.next[j])
        return request

    def saw_first_token(self, request):
        if not request.seen:
            request.seen = True
            self.ttft += self.now - request.arrived
            self.first_tokens += 1

    def ended(self, request):
        self.latency += self.now - request.arrived
        self.completed += 1

    def run(self):
        while self.now < self.options.horizon:
            self.arrivals()
            tokens = self.form_batch()
            if tokens is None:
                self.now = min(self.next)  # only an arrival may change that
                continue
            self.now += self.options.time(tokens)
            self.iterations += 1
            self.peak_batch = max(self.peak_batch, tokens)
            self.finish()
            self.peak_held = max(self.peak_held, self.held)
        return self

    def cell(self):
        return {"latency_s_mean": self.latency / self.completed if self.completed else 0,
                "ttft_s_mean": self.ttft / self.first_tokens if self.first_tokens else 0, "completed": self.completed,
                "iterations": self.iterations, "peak_batch_tokens": self.peak_batch, "peak_kv_tokens": self.peak_held,
                "evictions": self.evictions}

    @property
    def throughput(self):
        """A prompt counts as one token."""
        return self.made / self.now

    @property
    def offered(self):
        return self.arrived / self.now


class Line:
    """A sequence of stages from `first` on; requests advance in order of arrival, from the last stage to `next`."""

    def __init__(self, first, last):
        self.first, self.stages, self.next = first, [[] for _ in range(first, last + 1)], None
        self.waiting = 0  # requests at the first stage, summed over the batches


class WaitWorker(Worker):
    """WAIT: a type is ready when its threshold is reached at stage 0. Nested WAIT, with segments: a request enters a segment
    when it outlives the one before.

    Memory, where it is bounded: a request starts only while memory suffices with the batch's new tokens. The paper leaves open
    what happens beyond. Here, as long as memory refuses a start, no request that has started pauses, because requests that
    end release memory. If the batch's new tokens do not fit, those of its requests that started last are evicted and start
    again.
    """

    def __init__(self, types, thresholds, options, segments=None, tuner=None):
        super().__init__(types, options)
        self.nested, self.thresholds, self.tuner = segments is not None, thresholds, tuner
        if segments:
            self.lines = [Line(first, last) for first, last in zip(segments.first, segments.last)]
            for line, after in zip(self.lines, self.lines[1:]):
                line.next = after
        else:
            self.lines = [Line(0, of.output) for of in types]
        self.ends = {of.output for of in types}
        prompts = {of.prompt for of in types}
        self.prompt = prompts.pop() if len(prompts) == 1 else None
        self.started = self.looks = 0
        self.moved = []  # (line, index of the stage, requests)

    def entry(self, request):
        return self.lines[0 if self.nested else request.type].stages[0]

    def prompts(self, requests):
        return self.prompt * len(requests) if self.prompt is not None else sum(request.prompt for request in requests)

    def arrivals(self):
        for j in range(len(self.types)):
            while self.next[j] <= self.now:
                request = self.take_arrival(j)
                self.entry(request).append(request)
                if self.tuner:
                    self.tuner.on_arrival(j, request.arrived)

    def ready(self):
        """(line, most requests of a stage) of the lines that take part in the next batch."""
        thresholds = self.tuner.thresholds(self.now) if self.tuner else self.thresholds
        self.looks += 1
        ready = []
        for line in self.lines:
            line.waiting += len(line.stages[0])
        for line, threshold in zip(self.lines, thresholds):
            if len(line.stages[0]) >= threshold:
                ready.append((line, threshold))
            elif self.nested:
                break
        return ready

    def form_batch(self):
        ready = self.ready()
        starts = [(line, most) for line, most in ready if line.first == 0]
        for line, most in ready:
            self.advance(line, most)
        count = sum(len(requests) for _, _, requests in self.moved)
        if self.held + count + sum(self.prompts(line.stages[0][:most]) for line, most in starts) > self.usable:
            for line in self.lines:
                self.advance(line, None)
        self.fit()
        after = self.held + sum(len(requests) for _, _, requests in self.moved)
        for line, most in starts:
            queue, n = line.stages[0], 0
            # One starts if nothing else is held.
            while n < min(most, len(queue)) and (after == 0 or after + queue[n].prompt <= self.usable):
                after += queue[n].prompt
                queue[n].started = self.started
                self.started += 1
                n += 1
            full = n < min(most, len(queue))
            if n:
                self.moved.append((line, 0, queue[:n]))
                del queue[:n]
            if full:
                break
        if not self.moved:
            return None
        return sum(self.prompts(requests) + len(requests) * (line.first + i) for line, i, requests in self.moved)

    def advance(self, line, most):
        """Takes up to `most` requests that have started of each stage; None: all."""
        for i, queue in enumerate(line.stages):
            if queue and (i or line.first):
                self.moved.append((line, i, queue[:most]))
                del queue[:most]

    def fit(self):
        """Evicts requests of the batch until its new tokens fit."""
        count = sum(len(requests) for _, _, requests in self.moved)
        if self.held + count <= self.memory:
            return
        moves = [(line, i, [request]) for line, i, requests in self.moved for request in requests]
        moves.sort(key=lambda move: move[2][0].started)
        while len(moves) > 1 and self.held + len(moves) > self.memory:
            line, i, [newest] = moves.pop()
            self.held -= newest.prompt + line.first + i - 1
            self.made -= line.first + i
            self.entry(newest).insert(0, newest)
            self.evictions += 1
        self.moved = moves

    def finish(self):
        for line, i, requests in self.moved:
            stage = line.first + i
            self.made += len(requests)
            self.held += len(requests) if stage else self.prompts(requests)
            if stage == 0:
                for request in requests:
                    self.saw_first_token(request)
            elif stage in self.ends:
                for request in requests:
                    if request.output == stage:
                        self.ended(request)
                        self.held -= request.prompt + stage
                requests = [request for request in requests if request.output != stage]
            if requests:
                (line.stages[i + 1] if i + 1 < len(line.stages) else line.next.stages[0]).extend(requests)
        self.moved = []


class FcfsWorker(Worker):
    """The baselines run all available requests. chunked (Sarathi): one token for each that decodes, then chunks of prompts, up
    to the budget in all. prefill_first (vLLM's first version): waiting prompts first, whole and alone, up to the budget,
    otherwise one token for each.

    Requests start in the order of arrival while the tokens held, and those that the running requests add, stay within the
    memory minus a watermark. When these exceed the memory, the newest request is evicted and starts again. An iteration
    takes d0 + d1 times the prompt tokens that it computes and the tokens held by its decodes.
    """

    def __init__(self, types, chunked, budget, most_running, options):
        super().__init__(types, options)
        self.chunked, self.budget, self.most_running = chunked, budget, most_running or math.inf
        self.waiting, self.running = deque(), {}  # `running`: in the order of their start
        self.reading, self.unread = [], 0  # those with prompt tokens left, and these tokens
        # Every decode is in every batch that decodes, so `steps`, the number of such batches, tells when requests end.
        self.steps, self.decodes, self.decode_held, self.ends = 0, 0, 0, {}
        self.just_read, self.just_ended = [], []

    def arrivals(self):
        while (at := min(self.next)) <= self.now:
            self.waiting.append(self.take_arrival(self.next.index(at)))

    def form_batch(self):
        if not self.running and not self.waiting:
            return None
        self.free_memory()
        after = self.held + self.unread + self.decodes
        while (self.waiting and len(self.running) < self.most_running
               and (after + self.waiting[0].prompt <= self.usable or not self.running)):
            request = self.waiting.popleft()
            after += request.prompt
            request.left = request.prompt
            self.unread += request.prompt
            self.running[request] = None
            self.reading.append(request)
        budget = self.budget - self.decodes if self.chunked else max(self.budget, self.reading[0].left if self.reading else 0)
        decode, n = self.chunked or not self.reading, 0
        tokens = self.decode() if decode else 0
        for request in self.reading:
            if budget <= 0 or (not self.chunked and request.left > budget):
                break
            rows = min(request.left, budget)
            request.left -= rows
            budget, tokens, self.held, self.unread = budget - rows, tokens + rows, self.held + rows, self.unread - rows
            if request.left == 0:
                n += 1
        for request in self.reading[:n]:
            self.just_read.append(request)
            self.made += 1
            request.ends = self.steps + request.output
            self.ends.setdefault(request.ends, []).append(request)
            self.decodes += 1
            self.decode_held += request.prompt
        del self.reading[:n]
        return tokens

    def decode(self):
        """One token for each request that decodes; returns the tokens that they hold then."""
        self.steps += 1
        self.held += self.decodes
        self.made += self.decodes
        self.decode_held += self.decodes
        held = self.decode_held
        self.just_ended = self.ends.pop(self.steps, [])
        for request in self.just_ended:
            self.decodes -= 1
            self.decode_held -= request.prompt + request.output
        return held

    def free_memory(self):
        """Evicts the newest requests until prompts that have begun and one token of each decode fit."""
        while self.held + self.unread + self.decodes > self.memory and len(self.running) > 1:
            newest, _ = self.running.popitem()
            if newest.left:
                self.reading.pop()
                self.unread -= newest.left
                self.held -= newest.prompt - newest.left
            else:
                decoded = newest.output - (newest.ends - self.steps)
                self.ends[newest.ends].remove(newest)
                self.decodes -= 1
                self.decode_held -= newest.prompt + decoded
                self.held -= newest.prompt + decoded
                self.made -= 1 + decoded
            self.waiting.appendleft(newest)
            self.evictions += 1

    def finish(self):
        for request in self.just_read:
            self.saw_first_token(request)
        for request in self.just_ended:
            self.ended(request)
            self.held -= request.prompt + request.output
            del self.running[request]
        self.just_read, self.just_ended = [], []


# ---------------------------------------------------------------------------------------------------------------------
# The command line


def numbers_of(flag, text, separator=","):
    try:
        return [float(item) for item in text.split(separator) if item]
    except ValueError:
        raise Refused(f"--{flag}={text}: is no list of numbers") from None


def types_of(text):
    types = []
    for item in filter(None, text.split(",")):
        of = numbers_of("types", item, ":")
        if len(of) != 3 or not (0 < of[0] <= MOST_RATE and 0 <= of[1] <= 1e9 and 1 <= of[2] <= MOST_STAGES):
            raise Refused(f"--types: '{item}' is not RATE:PROMPT:OUTPUT")
        types.append(RequestType(of[0], int(of[1]), int(of[2])))
    if not types:
        raise Refused("--types names none")
    if any(a.output >= b.output for a, b in zip(types, types[1:])):
        raise Refused("--types must stand by output, ascending")
    return types


def intensity_of(text, horizon):
    """The factor on the rates at a time: SHARE,SHARE,.. over equal parts of the run, or wave:LOW:HIGH:SECONDS."""
    if not text:
        return None
    wave = text.startswith("wave:")
    of = numbers_of("intensity", text[5:] if wave else text, ":" if wave else ",")
    if not of or (wave and (len(of) != 3 or of[2] <= 0)) or not all(0 <= share <= 1 for share in (of[:2] if wave else of)):
        raise Refused(f"--intensity={text}: shares lie between 0 and 1")
    if wave:
        low, high, period = of
        return lambda at: (low + high) / 2 + (high - low) / 2 * math.sin(2 * math.pi * at / period)
    return lambda at: of[min(int(at / horizon * len(of)), len(of) - 1)]


def thresholds_of(args, types, options, segments):
    """--thresholds if set; else those that carry the load, or, where their batch does not fit, the largest that do."""
    given = numbers_of("thresholds", args.thresholds)
    if given:
        if len(given) != len(segments.last if segments else types) or min(given) < 1:
            raise Refused("--thresholds must name one of at least 1 for each type or segment")
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
        raise Refused(f"--kv_tokens={args.kv_tokens}: the largest request has {largest}")
    if args.seconds > MOST_ARRIVALS / sum(of.rate for of in types):
        raise Refused(f"--seconds={args.seconds:g}: more than {MOST_ARRIVALS:g} arrivals")
    options = Options(time, args.kv_tokens, horizon=args.seconds, seed=args.seed,
                      intensity=intensity_of(args.intensity, args.seconds))
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
                raise Refused("--tuner is for --batching=wait")
            run = WaitWorker(types, None, options, tuner=Tuner(types, time, args.tuner)).run()
        else:
            thresholds = thresholds_of(args, types, options, segments)
            run = WaitWorker(types, thresholds, options, segments).run()
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
                        help="prefill_first: vLLM's first version; chunked: Sarathi")
    parser.add_argument("--types", default="", help="RATE:PROMPT:OUTPUT each, separated by commas, by output ascending")
    parser.number("c", 4.8875e-3, 1e-9, 1e6, "d0, seconds of an iteration")
    parser.number("tl", 1.00525e-7, 0, 1e6, "d1, seconds per token of its batch")
    parser.number("kv_tokens", 0, 0, 1e12, "memory; 0: no bound", int)
    parser.number("seconds", 100, 1e-6, 1e12, "how long requests come")
    parser.number("threshold_load", 0.95, 1e-3, 1, "share of an iteration's time to carry what comes that thresholds are solved for")
    parser.number("threshold_rates", 1, 1e-6, 1e6, "thresholds are solved for so many times the rates")
    parser.number("threshold_margin", 1.1, 1, 1e3, "nested_wait: a segment's threshold over what reaches it")
    parser.number("segments", 0, 0, MOST_STAGES, "nested_wait: at most so many segments of equal width; 0: one for each type", int)
    parser.number("delta", 0.1, 1e-12, 1, "nested_wait: probability with which the printed bound of memory may be exceeded")
    parser.add_argument("--thresholds", default="", help="by type or segment in place of solved ones, separated by commas")
    parser.number("tuner", 0, 0, 1e9, "seconds of the time constant of rates estimated online; 0: rates are known")
    parser.add_argument("--intensity", default="", help="rates over time as shares of --types': SHARE,SHARE,.. over equal parts of "
                        "--seconds, or wave:LOW:HIGH:SECONDS; constant when empty")
    parser.number("token_budget", 512, 1, 1e9, "tokens of a batch (of a batch of prompts with prefill_first)", int)
    parser.number("most_running", 0, 0, 1e9, "prefill_first, chunked: requests in a batch; 0: what memory holds", int)
    return cell_of(parser.parse_args(arguments))


if __name__ == "__main__":
    run_main(run_cell)
