#!/usr/bin/env python3
"""research/waiting.py and its parts against "Fluid-Based Online Scheduling under Memory Constraints": the fluid benchmark,
thresholds, the memory bound, and simulated workers that use them."""
import importlib.util
import json
import math
import pathlib
import subprocess
import sys
import unittest

if importlib.util.find_spec("numpy") is None:
    print("python3-numpy is not installed (deploy/install research)")
    sys.exit(77)
RESEARCH = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(RESEARCH))
import waiting_bounds as bounds  # noqa: E402
from simulation import Refused, Rng  # noqa: E402
from waiting_bounds import RequestType, Segments, Time  # noqa: E402
from waiting_tuner import Tuner  # noqa: E402
from waiting_workers import FcfsWorker, Options, Request, WaitWorker  # noqa: E402

# Llama-2-7B on an A100: bytes of weights and KV divided by the memory bandwidth.
TIME = Time(6.6e-3, 2.57e-7)
LOW = [RequestType(1000, 10, 10), RequestType(1000, 10, 20)]
NESTED = [RequestType(20, 10, 20), RequestType(40, 10, 40), RequestType(80, 10, 80), RequestType(160, 10, 160)]
HIGH = [RequestType(6000, 20, 100), RequestType(4000, 20, 200), RequestType(2000, 20, 300)]


def scaled(types, factor):
    return [of._replace(rate=of.rate * factor) for of in types]


def wait(n, horizon):
    return WaitWorker(LOW, [n, n], Options(TIME, horizon=horizon)).run()


def thresholds_of(segments, margin=1.1):
    return bounds.nested_thresholds(segments, TIME, margin, 0.95)


class FluidTest(unittest.TestCase):

    def test_equilibrium_of_the_low_load(self):
        memory, throughput = bounds.equilibrium(LOW, TIME)
        self.assertAlmostEqual(memory, 4544, delta=1)
        self.assertEqual(throughput, 32_000)
        # A batch of the equilibrium's numbers of requests takes M* tokens.
        self.assertAlmostEqual(sum(of.rate * TIME(memory) * of.tokens for of in LOW), memory)
        memory, throughput = bounds.equilibrium(NESTED, TIME)
        self.assertAlmostEqual(throughput, 34_300, delta=1)
        self.assertAlmostEqual(memory, 58_200, delta=200)

    def test_an_infeasible_load_is_refused(self):
        for solve in (lambda: bounds.equilibrium(HIGH, TIME), lambda: bounds.wait_thresholds(HIGH, TIME, 0.98),
                      lambda: thresholds_of(Segments(HIGH))):
            self.assertRaisesRegex(Refused, "any batch size", solve)

    def test_the_smallest_stable_thresholds(self):
        def iteration(n):
            return TIME(bounds.wait_peak(LOW, [n, n]))
        self.assertAlmostEqual(iteration(8), 7.803e-3, delta=1e-6)
        self.assertAlmostEqual(iteration(7), 7.652e-3, delta=1e-6)
        self.assertEqual(bounds.wait_thresholds(LOW, TIME, 1), [8, 8], "7 per 7.652 ms are fewer than come")
        for load in (0.5, 0.9, 0.98):
            n, _ = bounds.wait_thresholds(LOW, TIME, load)
            self.assertLessEqual(iteration(n) * 1000, load * n + 1e-9)

    def test_segments_of_types_and_merged(self):
        segments = Segments(NESTED)
        self.assertEqual((segments.last, segments.first, segments.rate), ([20, 40, 80, 160], [0, 21, 41, 81], 300))
        self.assertEqual(segments.survive, [1, 280 / 300, 240 / 280, 160 / 240])
        merged = bounds.merged(NESTED, 2)
        self.assertEqual((merged.last, merged.survive), ([80, 160], [1, 160 / 300]))

    def test_thresholds_within_memory_fill_it(self):
        segments = Segments(NESTED)
        peak = segments.peak(bounds.nested_thresholds_within(segments, 1.1, 120_000))
        self.assertTrue(0.9 * 120_000 < peak <= 120_000)
        self.assertLessEqual(bounds.wait_peak(NESTED, bounds.wait_thresholds_within(NESTED, 60_000)), 60_000)

    def test_decay_of_a_segments_queue(self):
        self.assertAlmostEqual(bounds.segment_decay(6, 10, 0.5), 0.822163, delta=1e-6)
        self.assertAlmostEqual(bounds.segment_decay(60, 100, 0.5), 0.822163, delta=1e-6)
        self.assertAlmostEqual(bounds.segment_decay(55, 100, 0.5), 0.402692, delta=1e-6)
        for n in (51, 60, 80, 99):
            self.assertGreaterEqual(bounds.segment_decay(n, 100, 0.5), 8 * (n - 50) / 100, "the lower bound of the lemma")

    def test_a_segments_queue_is_under_the_exponential_bound(self):
        # Lindley's recursion of the queue: W <- max(W - n, 0) + Binomial(n_before, p).
        theta, rng, w, steps = bounds.segment_decay(6, 10, 0.5), Rng(5), 0, 50_000
        at = [0] * 60
        for _ in range(steps):
            w = max(w - 6, 0) + sum(rng.uniform() < 0.5 for _ in range(10))
            at[min(w, 59)] += 1
        for c in range(6, 20):
            self.assertLessEqual(sum(at[c:]) / steps, math.exp(-theta * (c - 6)) + 2e-4)

    def test_the_first_term_of_the_bound_is_u_shaped_in_the_number_of_segments(self):
        # 500 lengths, exponential with mean 120, prompts of 62 tokens, 50 requests per second.
        shares = [math.exp(-k / 120) for k in range(1, 501)]
        types = [RequestType(50 * share / sum(shares), 62, k) for k, share in enumerate(shares, 1)]
        for count, peak in ((2, 81.0e3), (5, 16.3e3), (10, 11.9e3), (20, 11.0e3), (50, 13.3e3), (100, 24.3e3)):
            segments = bounds.merged(types, count)
            bound = bounds.nested_bound(segments, bounds.nested_fluid_thresholds(segments, TIME, 1.02, 1), 1e4, 0.1)
            self.assertAlmostEqual(bound["peak_tokens"] / peak, 1, delta=0.05)
            self.assertEqual(bound["excess_tokens"] > bound["peak_tokens"], count > 2, "the last term dominates")


class WaitTest(unittest.TestCase):

    def test_below_the_threshold_the_iteration_time_bounds_throughput(self):
        for n, throughput in ((6, 25_578), (7, 29_249)):
            self.assertAlmostEqual(n / TIME(bounds.wait_peak(LOW, [n, n])) * 32, throughput, delta=40)
            self.assertAlmostEqual(wait(n, 30).throughput, throughput, delta=0.008 * throughput)

    def test_above_it_throughput_is_the_arrival_rate_and_latency_grows(self):
        for n, latency, ttft in ((8, 0.150, 0.031), (9, 0.152, 0.0175), (12, 0.197, 0.0170), (24, 0.381, 0.021)):
            run = wait(n, 30)
            self.assertAlmostEqual(run.throughput, 32_000, delta=0.012 * 32_000)
            self.assertAlmostEqual(run.cell()["latency_s_mean"], latency, delta=0.1 * latency)
            self.assertAlmostEqual(run.cell()["ttft_s_mean"], ttft, delta=0.3 * ttft)
            self.assertLessEqual(run.peak_batch, n * 585)
            self.assertLessEqual(run.peak_held, n * 585, "a stage passes on as many requests as it gets")

    def test_the_queue_is_bounded_as_in_the_lemma(self):
        # E[W_0] <= 2 n + lambda DT / (2 (n - lambda DT)).
        run = wait(8, 100)
        for line in run.lines:
            self.assertLessEqual(line.waiting / run.looks, 2 * 8 + 7.803 / (2 * (8 - 7.803)))

    def test_the_gap_to_what_arrived_falls_as_one_over_the_time(self):
        def gap(horizon):
            run = wait(9, horizon)
            return 1 - run.throughput / run.offered
        hundred = gap(100)
        self.assertGreater(hundred, 0)
        self.assertLess(hundred, 0.005)
        self.assertAlmostEqual(gap(10) / hundred, 10, delta=3)

    def test_memory_holds_and_requests_still_end_when_it_is_short(self):
        # More arrives than memory sustains, and thresholds are too large for memory.
        types = scaled(NESTED, 2)
        options = Options(TIME, 60_000, horizon=10)
        within = bounds.wait_thresholds_within(types, 0.99 * 60_000)
        for run in (WaitWorker(types, [40] * 4, options), WaitWorker(types, within, options),
                    WaitWorker(types, [40] * 4, options, Segments(types)), FcfsWorker(types, True, 512, 0, options),
                    FcfsWorker(types, False, 4096, 0, options)):
            run.run()
            self.assertTrue(40_000 < run.peak_held <= 60_000)
            self.assertGreater(run.completed, 0)
            self.assertGreater(run.throughput, 0.3 * bounds.throughput_within(types, TIME, 60_000))
            if getattr(run, "thresholds", None) == within:
                self.assertEqual(run.evictions, 0)


class NestedWaitTest(unittest.TestCase):

    def test_unknown_lengths_reach_the_fluid_throughput(self):
        for segments, margin in ((Segments(NESTED), 1.1), (bounds.merged(NESTED, 8), 1.02)):
            thresholds = thresholds_of(segments, margin)
            self.assertTrue(bounds.nested_stable(segments, thresholds, TIME))
            run = WaitWorker(NESTED, thresholds, Options(TIME, horizon=200), segments).run()
            self.assertTrue(0.95 < run.throughput / 34_300 < 1.02, run.throughput)

    def test_memory_stays_under_its_bound_in_all_but_delta_of_runs(self):
        # If the bound holds, more than delta n + 3 sd violations in n runs have a probability of at most 1 in 700.
        segments, runs, deltas = Segments(NESTED), 20, (0.02, 0.1, 0.5)
        for margin in (1.02, 1.1):
            thresholds, above, largest = thresholds_of(segments, margin), dict.fromkeys(deltas, 0), 0
            for seed in range(1, runs + 1):
                run = WaitWorker(NESTED, thresholds, Options(TIME, horizon=8, seed=seed), segments).run()
                for delta in deltas:
                    bound = bounds.nested_bound(segments, thresholds, run.iterations, delta)
                    total = bound["peak_tokens"] + bound["queues_tokens"] + bound["excess_tokens"]
                    above[delta] += run.peak_held > total
                    largest = max(largest, run.peak_held / total)
            for delta, count in above.items():
                self.assertLessEqual(count, delta * runs + 3 * math.sqrt(delta * (1 - delta) * runs))
            self.assertGreater(largest, 0.2, "a bound that says something")

    def test_the_largest_batch_is_the_exact_sum_and_not_the_printed_ones(self):
        # Types of equal spacing: the form of B.2 for segments of equal width applies.
        types = [RequestType(60, 10, output) for output in (40, 80, 120, 160)]
        segments = Segments(types)
        thresholds = thresholds_of(segments)
        run = WaitWorker(types, thresholds, Options(TIME, horizon=60), segments).run()
        bound = bounds.nested_bound(segments, thresholds, 1e4, 0.1)
        self.assertEqual(run.peak_batch, bound["peak_tokens"])
        self.assertLess(bound["printed_equal_peak_tokens"], 0.85 * bound["peak_tokens"], "B.2's form")
        self.assertGreater(bound["printed_peak_tokens"], 1.1 * bound["peak_tokens"], "the form of Theorem 5.1's proof")


class TunerTest(unittest.TestCase):

    def test_rates_are_counted_with_the_stated_time_constant(self):
        tuner = Tuner(LOW, TIME, 2)
        for i in range(1, 4001):
            tuner.on_arrival(0, i * 0.01)
        self.assertAlmostEqual(tuner.rate(0, 40), 100, delta=0.5)
        self.assertEqual(tuner.rate(1, 40), 0)
        self.assertAlmostEqual(tuner.rate(0, 42), 100 / math.e, delta=0.5, msg="a time constant of silence")
        young = Tuner(LOW, TIME, 2)
        for i in range(1, 21):
            young.on_arrival(0, i * 0.01)
        self.assertAlmostEqual(young.rate(0, 0.2), 100, delta=6, msg="the first seconds count in full")

    def test_unknown_rates_converge_to_the_thresholds_of_known_ones(self):
        tuner = Tuner(LOW, TIME, 5)
        run = WaitWorker(LOW, None, Options(TIME, horizon=40), tuner=tuner).run()
        self.assertAlmostEqual(run.throughput, 32_000, delta=0.02 * 32_000)
        self.assertLess(run.cell()["latency_s_mean"], 0.3)
        self.assertLessEqual(tuner.solved, 12, "noise alone is no drift")
        for n, known in zip(tuner.thresholds(40), bounds.wait_thresholds(LOW, TIME, 0.9)):
            self.assertAlmostEqual(n, known, delta=4)

    def test_thresholds_follow_a_tripling_of_rates(self):
        # B.1: a third of the load, then all of it. Thresholds for the first half are too small for the second.
        types = scaled(LOW, 3)
        options = Options(TIME, horizon=80, intensity=lambda at: 1 / 3 if at < 40 else 1)
        offered = 3000 * (11 + 21) * 2 / 3
        fixed = WaitWorker(types, bounds.wait_thresholds(LOW, TIME, 0.9), options).run()
        self.assertLess(fixed.throughput, 0.75 * offered)
        tuner = Tuner(types, TIME, 5)
        tuned = WaitWorker(types, None, options, tuner=tuner).run()
        self.assertAlmostEqual(tuned.throughput, offered, delta=0.04 * offered)
        self.assertGreater(tuner.solved, 1)

    def test_an_infeasible_load_gets_the_largest_feasible_thresholds(self):
        tuner = Tuner(LOW, TIME, 5)
        for i in range(1, 100_001):
            tuner.on_arrival(0, i * 1e-4)
            tuner.on_arrival(1, i * 2e-5)
        self.assertTrue(100 < tuner.thresholds(10)[0] < 1_000_000)


class StreamTest(unittest.TestCase):

    def test_a_type_that_pauses_holds_memory_and_its_streams_wait_for_the_threshold(self):
        # Alone, a type of rate r with threshold n runs once in n / r seconds: all its streams have that gap.
        one, options = [RequestType(100, 10, 20)], Options(TIME, horizon=60, streams=True)
        paused = WaitWorker(one, [10], options).run().cell()
        self.assertAlmostEqual(paused["gap_s_mean"], 0.1, delta=0.003)
        self.assertGreater(paused["gap_s_max"], 0.2)
        # 10 requests before each of 20 stages, paused except for the 7 ms of a batch.
        self.assertEqual(paused["peak_paused_kv_tokens"], 10 * sum(10 + stage for stage in range(20)))
        self.assertAlmostEqual(paused["paused_kv_tokens"] / 3900, 0.93, delta=0.03)

    def test_without_pauses_a_gap_is_a_batch(self):
        options = Options(TIME, horizon=5, streams=True)
        run = WaitWorker(LOW, [20, 20], options, pause=False).run()
        self.assertEqual(run.peak_paused, 0)
        self.assertLessEqual(run.cell()["gap_s_max"], TIME(run.peak_batch) + 1e-9)
        self.assertGreater(WaitWorker(LOW, [20, 20], options).run().peak_paused, 0)

    def test_no_type_or_segment_pauses_for_more_steps_than_the_bound(self):
        for segments in (None, Segments(LOW)):
            # The second threshold is never reached: without a bound its requests would not end.
            options = Options(TIME, horizon=5, streams=True)
            run = WaitWorker(LOW, [9, 10**6], options, segments, most_steps=4).run()
            self.assertGreater(run.completed, 5000)
            self.assertLessEqual(run.cell()["gap_s_max"], 5 * TIME(run.peak_batch) + 1e-9)

    def test_gaps_of_evicted_streams_last_until_their_next_new_token(self):
        # Twice what memory sustains: running requests are evicted and start again.
        types, seconds = scaled(NESTED, 2), 10
        for run in (WaitWorker(types, [40] * 4, Options(TIME, 60_000, horizon=seconds, streams=True), Segments(types)),
                    FcfsWorker(types, True, 8192, 0, Options(TIME, 60_000, horizon=seconds, streams=True))):
            run.run()
            self.assertGreater(run.evictions, 0)
            longest = run.cell()["gap_s_max"]
            self.assertTrue(10 * TIME(60_000) < longest < seconds, longest)
            # Each token but a request's first follows one gap, however often it was computed.
            self.assertLessEqual(sum(run.gaps.counts), run.arrived)
            self.assertGreaterEqual(sum(run.gaps.counts), sum(of.output for of in types) / 4 * run.completed / 4)


class CommandTest(unittest.TestCase):

    TWO = ["--types=1000:10:10,1000:10:20", "--c=6.6e-3", "--tl=2.57e-7", "--seconds=4"]

    def run_command(self, *arguments):
        return subprocess.run([sys.executable, str(RESEARCH / "waiting.py"), *arguments], capture_output=True, text=True, check=False)

    def cell(self, *arguments):
        done = self.run_command(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_a_run_is_one_json_object_that_depends_on_the_seed_alone(self):
        cells = [self.cell(*self.TWO, f"--seed={seed}") for seed in (3, 3, 4)]
        self.assertEqual(cells[0], cells[1])
        self.assertNotEqual(cells[0], cells[2])

    def test_no_batching_beats_the_fluid_benchmark_and_thresholds_are_printed(self):
        for batching in ("wait", "nested_wait", "prefill_first", "chunked"):
            cell = self.cell(*self.TWO, "--batching=" + batching, "--kv_tokens=120000")
            self.assertLess(cell["throughput_tokens_per_s"], 1.02 * cell["fluid_tokens_per_s"], batching)
            self.assertEqual(len(cell["thresholds"]), 2 if "wait" in batching else 0)
        self.assertEqual(self.cell(*self.TWO, "--thresholds=30,40")["thresholds"], [30, 40])

    def test_merged_segments_have_bounds(self):
        cell = self.cell(*self.TWO, "--batching=nested_wait", "--segments=1")
        bound = cell["bound"]
        self.assertEqual((len(cell["thresholds"]), bound["queues_tokens"], bound["excess_tokens"]), (1, 0, 0))
        self.assertLessEqual(cell["peak_kv_tokens"], bound["peak_tokens"])

    def test_bad_input_ends_with_one_line_that_names_it(self):
        for arguments, named in (([], "--types"), (["--types=1:2"], "RATE:PROMPT:OUTPUT"), (["--types=1:1:9,1:1:5"], "ascending"),
                                 ([*self.TWO, "--batching=never"], "--batching"), ([*self.TWO, "--thresholds=1"], "--thresholds"),
                                 ([*self.TWO, "--intensity=2"], "--intensity"), ([*self.TWO, "--batching=chunked"], "--kv_tokens"),
                                 (["--types=1e6:1000:1000", "--seconds=1"], "any batch size"),
                                 ([*self.TWO, "--seconds=1e9"], "--seconds"),
                                 ([*self.TWO, "--batching=prefill_first", "--kv_tokens=9999", "--streams=1"], "--streams"),
                                 ([*self.TWO, "--c=nan"], "--c")):
            done = self.run_command(*arguments)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
            self.assertIn(named, done.stderr)


if __name__ == "__main__":
    unittest.main()
