"""One worker in the paper's discrete model: WAIT, Nested WAIT, and batching that does not wait.

waiting.py has the model and the command line.
"""

import math
from collections import deque
from typing import NamedTuple

from simulation import Rng
from waiting_bounds import Time


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
