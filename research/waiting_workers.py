"""One worker in the paper's discrete model: WAIT, Nested WAIT, and batching that does not wait.

waiting.py has the model and the command line.
"""

import math
from collections import Counter, deque
from typing import NamedTuple

import numpy as np

from simulation import Rng, quantile
from waiting_bounds import Time


class Options(NamedTuple):
    time: Time
    memory: int = 0  # C; 0: no bound
    watermark: float = 0.01  # share of the memory that starts leave free
    horizon: float = 100  # seconds during which requests arrive
    seed: int = 1
    intensity: object = None  # factor of at most 1 on the rates at a time
    streams: bool = False  # count the gaps between the tokens of a stream, and the memory of paused requests


class Request:
    __slots__ = ("arrived", "type", "prompt", "output", "started", "seen", "left", "ends", "sent", "last", "resumes")

    def __init__(self, arrived, j, of):
        self.arrived, self.type, self.prompt, self.output, self.started, self.seen = arrived, j, of.prompt, of.output, 0, False
        # sent: tokens that its client had when it was evicted last; last: when its client got the last one.
        self.sent, self.last = 0, 0.0


class Gaps:
    """Times between two tokens of a stream, each with how often it occurred."""

    def __init__(self):
        self.times, self.counts = [], []

    def add(self, seconds, count):
        if count:
            self.times.append(seconds)
            self.counts.append(count)

    def cell(self):
        if not self.times:
            return {"gap_s_mean": 0, "gap_s_p99": 0, "gap_s_max": 0}
        times, counts = np.array(self.times), np.array(self.counts)
        order = times.argsort(kind="stable")
        below = counts[order].cumsum()
        return {"gap_s_mean": float(times @ counts / below[-1]), "gap_s_max": float(times.max()),
                "gap_s_p99": float(times[order][np.searchsorted(below, 0.99 * below[-1])])}


class Worker:
    """The counters of both kinds of workers. A run starts with an empty worker."""

    def __init__(self, types, options):
        self.types, self.options, self.rng = types, options, Rng(options.seed)
        self.memory = options.memory or math.inf
        self.usable = int((1 - options.watermark) * options.memory) if options.memory else math.inf
        self.now = self.ttft = self.duration = self.paused = 0.0  # paused: tokens times seconds
        self.latencies, self.gaps, self.peak_paused = [], Gaps() if options.streams else None, 0
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
        self.latencies.append(self.now - request.arrived)
        self.completed += 1

    def paused_tokens(self):
        """Tokens held by requests that have started and are not in the batch."""
        return 0

    def count_paused(self, tokens, seconds):
        self.paused += tokens * seconds
        self.peak_paused = max(self.peak_paused, tokens)

    def run(self):
        while self.now < self.options.horizon:
            self.arrivals()
            tokens = self.form_batch()
            if tokens is None:
                arrival = min(self.next)  # no batch can form before the next arrival
                if self.gaps:
                    self.count_paused(self.held, arrival - self.now)
                self.now = arrival
                continue
            self.duration = self.options.time(tokens)
            self.now += self.duration
            self.iterations += 1
            if self.gaps:
                self.count_paused(self.paused_tokens(), self.duration)
            self.peak_batch = max(self.peak_batch, tokens)
            self.finish()
            self.peak_held = max(self.peak_held, self.held)
        return self

    def cell(self):
        streams = {"paused_kv_tokens": self.paused / self.now, "peak_paused_kv_tokens": self.peak_paused,
                  **self.gaps.cell()} if self.gaps else {}
        return {"latency_s_mean": math.fsum(self.latencies) / self.completed if self.completed else 0,
                "latency_s_p99": quantile(self.latencies, 0.99), **streams,
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
        self.passed = 0  # batches with requests here in which it took no part, since it last took part


class WaitWorker(Worker):
    """WAIT: a type is ready when its threshold is reached at stage 0. Nested WAIT, with segments: a request enters a segment
    when it outlives the one before.

    Memory, where it is bounded: a request starts only while memory suffices with the batch's new tokens. The paper does not
    specify what happens otherwise. Here, as long as memory refuses a start, no started request pauses, because requests that
    end release memory. If the batch's new tokens do not fit, its requests that started last are evicted and start again. Not
    in the paper: with `most_steps` a type or segment pauses for at most that many batches; with `pause` False all started
    requests advance in every batch, so that only starts wait.
    """

    def __init__(self, types, thresholds, options, segments=None, tuner=None, most_steps=0, pause=True):
        super().__init__(types, options)
        self.most_steps, self.pause = most_steps or math.inf, pause
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
        ready, blocked = [], False
        for line in self.lines:
            line.waiting += len(line.stages[0])
        for line, threshold in zip(self.lines, thresholds):
            if not blocked and len(line.stages[0]) >= threshold:
                ready.append((line, threshold))
                line.passed = 0
                continue
            blocked = self.nested
            line.passed += any(line.stages)
            if line.passed >= self.most_steps:
                ready.append((line, threshold))
                line.passed = 0
        return ready

    def form_batch(self):
        ready = self.ready()
        starts = [(line, most) for line, most in ready if line.first == 0]
        for line, most in ready if self.pause else [(line, None) for line in self.lines]:
            self.advance(line, most)
        count = sum(len(requests) for _, _, requests in self.moved)
        if self.held + count + sum(self.prompts(line.stages[0][:most]) for line, most in starts) > self.usable:
            for line in self.lines:
                self.advance(line, None)
        self.fit()
        after = self.held + sum(len(requests) for _, _, requests in self.moved)
        for line, most in starts:
            queue, n = line.stages[0], 0
            # Without any other held tokens, one request starts even if it exceeds the memory.
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
            newest.sent = max(newest.sent, line.first + i)
            self.entry(newest).insert(0, newest)
            self.evictions += 1
        self.moved = moves

    def paused_tokens(self):
        return self.held - sum(self.prompts(requests) + len(requests) * (line.first + i - 1)
                               for line, i, requests in self.moved if line.first + i > 0)

    def sent_tokens(self, stage, requests):
        """Delivers a token to the clients of these requests, unless they had it before an eviction."""
        if self.evictions:
            requests = [request for request in requests if stage >= request.sent]
        if stage:
            for last, count in Counter(request.last for request in requests).items():
                self.gaps.add(self.now - last, count)
        for request in requests:
            request.last = self.now

    def finish(self):
        for line, i, requests in self.moved:
            stage = line.first + i
            if self.gaps:
                self.sent_tokens(stage, requests)
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
        # Number of requests that decode tokens which their clients had before an eviction; by step, those that have caught up.
        self.silent, self.resumed, self.resumes, self.streams = 0, [], {}, 0

    def arrivals(self):
        while (at := min(self.next)) <= self.now:
            request = self.take_arrival(self.next.index(at))
            self.waiting.append(request)

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
            if request.sent:
                self.silent += 1
                request.resumes = self.steps + request.sent
                self.resumes.setdefault(request.resumes, []).append(request)
        del self.reading[:n]
        return tokens

    def decode(self):
        """One token for each request that decodes; returns the tokens that they hold then."""
        self.steps += 1
        self.held += self.decodes
        self.made += self.decodes
        self.decode_held += self.decodes
        held = self.decode_held
        self.resumed = self.resumes.pop(self.steps, [])
        self.streams = self.decodes - self.silent
        self.silent -= len(self.resumed)
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
                self.stop_stream(newest, 1 + decoded)
            self.waiting.appendleft(newest)
            self.evictions += 1

    def stop_stream(self, request, tokens):
        """The request is evicted when its client has `tokens` tokens."""
        if request.sent and request.resumes > self.steps:
            self.resumes[request.resumes].remove(request)
            self.silent -= 1
        else:
            request.sent, request.last = tokens, self.now

    def finish(self):
        if self.gaps:  # every batch decodes
            self.gaps.add(self.duration, self.streams)
            for request in self.resumed:
                self.gaps.add(self.now - request.last, 1)
        for request in self.just_read:
            self.saw_first_token(request)
        for request in self.just_ended:
            self.ended(request)
            self.held -= request.prompt + request.output
            del self.running[request]
        self.just_read, self.just_ended = [], []
