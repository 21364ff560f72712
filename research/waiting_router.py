"""WAIT and Nested WAIT as the router has them: requests are held back before they start, and never pause.

A copy of router/core/admission/wait_admission.cc for one worker, in seconds instead of tokens, without the change of its cost:
a class, or all requests together (nested), is released when its threshold is reached, after a number of steps, or when nothing
runs. Thresholds follow the rates and lengths that are observed. The router plans a step or two ahead; here a request that is
released may start at once.
"""

import math
from collections import deque

from waiting_bounds import RequestType, Segments
from waiting_tuner import ArrivalRate

CLASSES, RATE_STEPS, LOOKS, LOAD, MOST_CARRIED, MARGIN, LENGTHS = 9, 256, 20, 0.9, 0.97, 1.1, 256


def class_of(tokens):
    """The class of a request with `tokens` tokens of output. A class spans a factor of four."""
    return min(CLASSES - 1, (max(1, tokens).bit_length() - 1) // 2)


class Class:
    def __init__(self, tau):
        self.waiting, self.rate = deque(), ArrivalRate(tau)
        self.solved = self.prompt = self.output = self.ends = 0
        self.seen = False

    def take_lengths(self, prompt, tokens):
        self.prompt += (prompt - self.prompt) / LENGTHS if self.seen else prompt
        self.output += (tokens - self.output) / LENGTHS if self.seen else tokens
        self.seen = True


class Release:
    """most_steps: steps after which a request is released regardless of its class. memory: tokens that thresholds may fill."""

    def __init__(self, nested, time, most_steps, memory=0):
        self.memory = memory or math.inf
        self.nested, self.time, self.most_steps = nested, time, most_steps or math.inf
        self.tau = RATE_STEPS * 2 * time.d0
        self.classes = [Class(self.tau) for _ in range(CLASSES)]
        self.rate, self.solved = ArrivalRate(self.tau), 0
        self.thresholds = [1] * (1 if nested else CLASSES)
        self.now = self.looked = self.solved_at = self.step = 0
        self.fresh = True  # not solved yet

    def add(self, request):
        tokens = request.output + 1
        of = self.classes[0 if self.nested else class_of(tokens)]
        of.waiting.append((request, self.step))
        if not self.nested:
            of.take_lengths(request.prompt, tokens)
        if self.now > 0:
            (self.rate if self.nested else of.rate).on_arrival(self.now)

    def take(self, idle):
        """The requests that may start now."""
        if (self.fresh and self.now > 0) or self.now >= self.looked + self.tau / LOOKS:
            self.solve()
        released = []
        for of, threshold in zip(self.classes, self.thresholds):
            every = idle or len(of.waiting) >= threshold
            while of.waiting and (every or self.step - of.waiting[0][1] >= self.most_steps):
                released.append(of.waiting.popleft()[0])
        return released

    def on_step(self, seconds):
        self.now += seconds
        self.step += 1

    def on_end(self, request):
        if not self.nested:
            return
        for of in self.classes:
            of.ends *= 1 - 1 / LENGTHS
        of = self.classes[class_of(request.output + 1)]
        of.ends += 1
        of.take_lengths(request.prompt, request.output + 1)

    def solve(self):
        self.looked = self.now
        changed = self.fresh or self.now >= self.solved_at + self.tau
        changed = changed or (self.rate.has_left(self.solved, self.now) if self.nested else
                              any(of.rate.has_left(of.solved, self.now) for of in self.classes))
        if not changed:
            return
        self.solved_at, self.fresh, self.solved = self.now, False, self.rate.solve(self.now)
        for of in self.classes:
            of.solved = of.rate.solve(self.now)
        self.thresholds = [1] * len(self.thresholds)
        types, classes = self.types()
        if not types:
            return
        if self.nested:
            segments = Segments(types)
            reach, tokens = segments.rate, 0
            for i, (survive, held) in enumerate(zip(segments.survive, segments.tokens)):
                reach *= min(1, MARGIN * survive) if i else 1
                tokens += reach * held
        else:
            tokens = sum(of.rate * of.tokens for of in types)
        load = self.time.d1 * tokens
        share = max(1, load / (LOAD * MOST_CARRIED))
        seconds = self.time.d0 / (LOAD - load / share)

        # Tokens that batches of the thresholds hold, if every stage has equally many requests.
        held = tokens * seconds / share
        filling = min(1, self.memory / held)

        def threshold(rate):
            n = rate * seconds / share
            return max(1, math.ceil(n - 1e-9) if filling == 1 else math.floor(n * filling + 1e-9))

        if self.nested:
            self.thresholds[0] = threshold(segments.rate)
        else:
            for of, j in zip(types, classes):
                self.thresholds[j] = threshold(of.rate)

    def types(self):
        """The classes that have arrivals, as types, and their indices."""
        ends, types, classes = sum(of.ends for of in self.classes), [], []
        for j, of in enumerate(self.classes):
            rate = of.solved if not self.nested else self.solved * of.ends / ends if ends else 0
            if rate <= 0:
                continue
            output = max(1 if self.nested else 0, math.floor(of.output + 0.5) - 1)
            if self.nested and types and types[-1].output >= output:
                types[-1] = types[-1]._replace(rate=types[-1].rate + rate)
            else:
                types.append(RequestType(rate, math.floor(of.prompt + 0.5), output))
                classes.append(j)
        return types, classes
