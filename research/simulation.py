"""Library of the simulators of this folder (network.py, waiting.py): seeded random streams, and a command line.

A simulator prints one run as one JSON object, as bfio_sim does, and refuses bad input with one line and exit status 2.
"""

import argparse
import json
import math
import sys

import numpy as np

_GAMMA, _MASK, _BLOCK = 0x9E3779B97F4A7C15, (1 << 64) - 1, 4096


def _mix(x):
    x = (x + _GAMMA) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class Rng:
    """The same numbers as common/base/rng.h: SplitMix64, computed in blocks."""

    def __init__(self, seed):
        self._state = self._last = _mix(seed & _MASK)
        self._raw, self._uniform, self._next = np.empty(0, dtype=np.uint64), np.empty(0), 0

    def fork(self, stream):
        """An independent stream of the same seed. It does not depend on the draws from this stream."""
        return Rng(self._state ^ _mix(stream + 1))

    def _ahead(self, n):
        """Fills the buffer so that it has at least n more draws."""
        if self._next + n <= len(self._raw):
            return
        count = max(n, _BLOCK)
        with np.errstate(over="ignore"):
            x = np.uint64(self._last) + np.uint64(_GAMMA) * np.arange(2, count + 2, dtype=np.uint64)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x ^= x >> np.uint64(31)
        self._last = (self._last + _GAMMA * count) & _MASK
        self._raw = np.concatenate([self._raw[self._next:], x])
        self._uniform, self._next = (self._raw >> np.uint64(11)) * 2.0**-53, 0

    def uniform(self):
        if self._next == len(self._raw):
            self._ahead(1)
        self._next += 1
        return self._uniform.item(self._next - 1)

    def below(self, n):
        """Uniform in 0 .. n - 1."""
        self._ahead(1)
        self._next += 1
        return (self._raw.item(self._next - 1) * n) >> 64

    def exponential(self):
        return -math.log1p(-self.uniform())

    def poisson(self, mean):
        """Knuth: the number of uniforms until their product falls below exp(-mean); large means in pieces."""
        count = 0
        while mean > 0:
            piece = min(mean, 500)
            least, ahead = math.exp(-piece), int(piece + 8 * math.sqrt(piece)) + 16
            below = np.empty(0, dtype=bool)
            while not below.any():
                self._ahead(ahead)
                below = np.multiply.accumulate(self._uniform[self._next:self._next + ahead]) <= least
                ahead *= 2
            at = int(below.argmax())
            self._next += at + 1
            count += at
            mean -= 500
        return count


def quantile(samples, q):
    """Linear interpolation between the two samples around rank q (n - 1); None without samples."""
    return float(np.quantile(samples, q)) if len(samples) else None


class Refused(Exception):
    """Bad input; the message names the flag."""


class Parser(argparse.ArgumentParser):
    """Flags in the form of bfio_sim's; bad input raises Refused."""

    def __init__(self, description):
        super().__init__(description=description, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("--seed", type=int, default=1)
        self.add_argument("--json", action="store_true",
                          help="accepted for scripts that always give it; the output is always JSON")

    def error(self, message):
        raise Refused(message.replace("argument --", "--", 1))

    def number(self, flag, default, low, high, text, kind=float):
        """A flag of a number within low .. high."""

        def parse(value):
            number = kind(value)
            if not low <= number <= high:
                raise argparse.ArgumentTypeError(f"{value} must be within {low:g}..{high:g}")
            return number

        self.add_argument("--" + flag, type=parse, default=default, help=text)


def run_main(run):
    """Prints as JSON what `run` returns for the command line. Bad input: exit status 2 and one line."""
    try:
        cell = run(sys.argv[1:])
    except (Refused, OSError) as error:
        print(f"{sys.argv[0].rsplit('/', 1)[-1]}: {error}", file=sys.stderr)
        sys.exit(2)
    print(json.dumps(cell, default=float))
