"""WAIT's thresholds where rates are not known in advance (B.1)."""

import math

from waiting_bounds import load_of, wait_thresholds


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
