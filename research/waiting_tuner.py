"""Arrival rates estimated online, and WAIT's thresholds from them (B.1)."""

import math

from waiting_bounds import load_of, wait_thresholds


class ArrivalRate:
    """An exponentially weighted count of arrivals, with a time constant: common/stats/arrival_rate.h."""

    def __init__(self, tau):
        self.tau, self.weight, self.last = tau, 0, 0

    def on_arrival(self, now):
        self.weight = self.weight * math.exp((self.last - now) / self.tau) + 1 / self.tau
        self.last = now

    def bound(self, now, errors=0):
        """The estimate plus `errors` standard errors."""
        seen = -math.expm1(-now / self.tau)
        rate = self.weight * math.exp((self.last - now) / self.tau) / seen if seen > 0 else 0
        return rate + errors * math.sqrt(rate / (2 * self.tau))

    def solve(self, now):
        """The rate to solve thresholds for."""
        return self.bound(now, 2)

    def has_left(self, solved, now):
        """Whether a rate that thresholds were solved for is out of date."""
        return self.bound(now, 1) > solved or self.bound(now, 2) < 0.8 * solved


class Tuner:
    """WAIT's thresholds from observed arrivals.

    Thresholds are solved for the estimates plus two standard errors, and again when an estimate plus one standard error
    reaches the rate that was solved for, or when an estimate plus two is a fifth below it. A load that no batch sustains is
    scaled down to 0.97 of one that is sustained.
    """

    def __init__(self, types, time, time_constant, load=0.9):
        self.types, self.time, self.tau, self.load = types, time, time_constant, load
        self.arrivals = [ArrivalRate(time_constant) for _ in types]
        self.rates = [0] * len(types)
        self.solved, self.looked, self.now = 0, 0, [1] * len(types)

    def on_arrival(self, j, now):
        self.arrivals[j].on_arrival(now)

    def rate(self, j, now):
        return self.arrivals[j].bound(now)

    def thresholds(self, now):
        """The thresholds; 1 for each type until the first arrival."""
        if now < self.looked + self.tau / 20:
            return self.now
        self.looked = now
        if any(of.has_left(rate, now) for of, rate in zip(self.arrivals, self.rates)):
            self.rates = [of.solve(now) for of in self.arrivals]
            carried = [of._replace(rate=rate) for of, rate in zip(self.types, self.rates)]
            share = max(1, self.time.d1 * load_of(carried) / (self.load * 0.97))
            self.now = wait_thresholds([of._replace(rate=of.rate / share) for of in carried], self.time, self.load)
            self.solved += 1
        return self.now
