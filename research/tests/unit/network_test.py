#!/usr/bin/env python3
"""research/network.py: exact small cases, rules that every batch must meet, verdicts on growth, limits of schedulers."""
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
import network  # noqa: E402
from network import AgentType, CallType, Network, Simulation, peak_growth, second_half_slope, verdict  # noqa: E402
from simulation import Rng  # noqa: E402

# The smallest growth that verdicts must detect, as a share of an engine's throughput.
SHARE = 0.005
CAPACITY = 512 / network.batch_seconds(512)


def rises(make, seeds, **options):
    return [peak_growth(Simulation(make(), seed=seed, **options).run().tokens) for seed in range(1, seeds + 1)]


def one_engine(rate, **lengths):
    """(100, 100)-token requests at this rate per second: capacity is 14.230."""
    of = network.parallel(1)
    of.types[0].rate = rate
    for key, value in lengths.items():
        setattr(of.types[0].calls[0], key, value)
    return of


def decodes(batch):
    return sum(n for _, n in batch.decodes)


class WatchedEngine(network.Engine):
    """Checks every batch of a run, from accounts of its own."""

    watch = None

    def start(self):
        before = {id(call): call.resident for lane in self.lanes.values() for _, _, call in lane.prompts}
        started = super().start()
        if started:
            type(self).watch(self, before)
        return started


class Watched:
    """Runs a simulation with every batch shown to `watch(engine, residents before it)`."""

    def __init__(self, watch):
        WatchedEngine.watch = staticmethod(watch)

    def run(self, *args, **options):
        plain, network.Engine = network.Engine, WatchedEngine
        try:
            return Simulation(*args, **options).run()
        finally:
            network.Engine = plain


class RngTest(unittest.TestCase):

    def test_draws_are_those_of_the_programs(self):
        def mix(x):
            mask = (1 << 64) - 1
            x = (x + 0x9E3779B97F4A7C15) & mask
            x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
            x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
            return x ^ (x >> 31)

        # SplitMix64 of the seed's mix, one at a time, beyond the end of a block.
        state, rng = mix(mix(5) ^ mix(3)), Rng(5).fork(2)
        for _ in range(5000):
            state = (state + 0x9E3779B97F4A7C15) & ((1 << 64) - 1)
            self.assertEqual(rng.uniform(), (mix(state) >> 11) * 2.0**-53)
        state = (state + 0x9E3779B97F4A7C15) & ((1 << 64) - 1)
        self.assertEqual(rng.below(1000), mix(state) * 1000 >> 64)

    def test_poisson_numbers_have_their_mean_and_variance(self):
        for mean in (0.3, 5.0, 1200.0):
            rng, n = Rng(7), 1000
            drawn = [rng.poisson(mean) for _ in range(n)]
            average = sum(drawn) / n
            # Five standard errors each.
            self.assertAlmostEqual(average, mean, delta=5 * math.sqrt(mean / n))
            self.assertAlmostEqual(sum(x * x for x in drawn) / n - average**2, mean, delta=5 * math.sqrt((2 * mean**2 + mean) / n))


class RunTest(unittest.TestCase):

    def test_fork_and_join_take_the_expected_slots(self):
        # Engine 0: 2 prompt tokens in a slot and a decode, 2 slots. Engine 1: 8 prompt tokens in 2 slots and 3 decodes, 5
        # slots; engine 2 at the same time. Engine 3: 1 + 1, 2 slots.
        calls = [CallType(0, 2, 1), CallType(1, 8, 3, (0,)), CallType(2, 1, 1, (0,)), CallType(3, 1, 1, (1, 2))]
        run = Simulation(Network(4, 4, [AgentType("agent", 1 / 20, calls, evenly=True)], seconds=None, poisson=False)).run()
        self.assertEqual((run.arrived, run.ended), (49, 49), "from slot 20 on; the run ends before slot 1000")
        self.assertEqual(run.finished, [(0, 2 + 5 + 2, 1 + 3 + 1)] * 25)

    def test_every_batch_meets_the_rules_and_no_token_is_lost(self):
        cases = [(scheduler, order, 30) for scheduler in network.WORK_CONSERVING for order in network.ORDERS]
        for scheduler, order, seconds in (*cases, ("vllm_v0", "parent_due", 60), ("faster_transformer", "parent_due", 60)):
            batches, short = 0, 0

            def watch(engine, residents):
                nonlocal batches, short
                batches += 1
                batch = engine.batch
                self.assertEqual(batch.tokens, decodes(batch) + sum(rows for _, _, rows in batch.prompts))
                self.assertLessEqual(batch.tokens, 512)
                self.assertEqual(len({id(call) for _, call, _ in batch.prompts}), len(batch.prompts))
                self.assertTrue(all(n <= len(lane.decodes) for lane, n in batch.decodes))
                for _, call, rows in batch.prompts:
                    self.assertTrue(0 < rows <= call.prefill)
                for lane in engine.lanes.values():
                    for calls in (lane.prompts, lane.decodes):
                        self.assertEqual(calls, sorted(calls))
                available = sum(call.prefill for lane in engine.lanes.values() for _, _, call in lane.prompts) + sum(
                    len(lane.decodes) for lane in engine.lanes.values())
                short += batch.tokens < min(512, available)

            run = Watched(watch).run(network.cycles(0.9), order, scheduler=scheduler, horizon=seconds)
            with self.subTest(f"{scheduler} {order}"):
                self.assertEqual(run.tokens_joined, run.tokens_computed + sum(engine.count_left() for engine in run.engines))
                self.assertEqual([engine.tokens_left for engine in run.engines], [engine.count_left() for engine in run.engines])
                self.assertEqual(run.arrived, run.ended + run.present)
                self.assertGreater(run.present, 0)
                self.assertGreater(run.tokens_computed, 10_000)
                self.assertGreater(batches, 100)
                self.assertEqual(short == 0, scheduler in network.WORK_CONSERVING)

    def test_slots_bound_running_calls_and_go_to_the_most_urgent(self):
        most = begun = overtaken = 0

        def watch(engine, residents):
            nonlocal most, begun, overtaken
            [lane] = engine.lanes.values()
            running = len(lane.decodes) + sum(call.resident for _, _, call in lane.prompts)
            self.assertLessEqual(running, 20)
            most = max(most, running)
            waits, earliest = False, min((joined for _, joined, call in lane.prompts if not call.resident), default=math.inf)
            for _, joined, call in lane.prompts:
                begins = call.resident and not residents[id(call)]
                self.assertFalse(waits and begins, "a more urgent one waits")
                waits = waits or not call.resident
                begun += begins
                overtaken += begins and joined > earliest

        tight = Watched(watch).run(network.rybko_stolyar(0.9), slots=20, horizon=500)
        self.assertEqual(most, 20)
        self.assertGreater(begun, 200)
        self.assertGreater(overtaken, 0, "first come, first served would do")
        # More slots than the load needs make no difference; with too few, engines cannot fill their batches.
        free = Simulation(network.rybko_stolyar(0.9), horizon=500).run()
        self.assertEqual(Simulation(network.rybko_stolyar(0.9), slots=1000, horizon=500).run().tokens, free.tokens)
        self.assertGreater(tight.tokens[-1], 3 * free.tokens[-1])

    def test_calls_begin_in_the_order_of_their_rule(self):
        # One slot, batches of one token. While a call of 20 tokens holds the slot from 51 to 71, "long" arrives at 52 and
        # "short" at 53. After long's first call 50 decodes follow, so its latest start is counted from 52 + 50, short's from 53.
        def begun(order):
            types = [AgentType("holds the slot", 1 / 51, [CallType(0, 10, 10)], True),
                     AgentType("long", 1 / 52, [CallType(0, 2, 1), CallType(0, 3, 50, (0,))], True),
                     AgentType("short", 1 / 53, [CallType(0, 1, 1)], True)]
            prompts = []

            def watch(engine, residents):
                prompts.extend(call.prefill for _, call, _ in engine.batch.prompts if not residents[id(call)])

            Watched(watch).run(Network(1, 1, types, seconds=None, poisson=False), order, slots=1, horizon=101)
            return prompts

        for order, expected in (("parent_due", [10, 1, 2, 3]), ("exit_first", [10, 1, 2, 3]), ("call_age", [10, 2, 1, 3]),
                                ("entry_first", [10, 2, 1, 3]), ("parent_age", [10, 2, 3])):
            self.assertEqual(begun(order), expected, order)

    def test_parameters_are_the_papers(self):
        self.assertAlmostEqual(network.batch_seconds(512), 0.1799)
        self.assertAlmostEqual(CAPACITY / 1000, 2.846, delta=5e-4)
        self.assertAlmostEqual(network.parallel(1).types[0].rate, 14.230, delta=5e-4)
        rybko = network.rybko_stolyar(0.9)
        self.assertAlmostEqual(rybko.types[0].rate, 1.1368, delta=1e-4)
        self.assertAlmostEqual(rybko.load(0), 0.9)
        self.assertAlmostEqual(rybko.load(1), 0.9)


class GrowthTest(unittest.TestCase):

    def test_slope_and_peaks_of_a_ramp_and_of_a_cycle(self):
        ramp = [1000 + 6 * i for i in range(100)]
        self.assertAlmostEqual(second_half_slope([0] * 50 + ramp[50:]), 6)
        self.assertEqual(peak_growth(ramp), 6)
        self.assertEqual(peak_growth(ramp[::-1]), 0)
        saw = [i % 10 for i in range(100)]
        self.assertEqual(peak_growth(saw), 0)
        self.assertEqual(peak_growth(saw[:-1] + [99]), 1)

    def test_a_growing_oscillation_deceives_the_slope_but_not_the_peaks(self):
        # Rises to t at t = 1, 4, 16, 64 ... and falls to half of that in between.
        tokens = []
        for peak in (4**k for k in range(7)):
            tokens += [max(peak // 2 - t, 2 * t - peak) for t in range(len(tokens), peak + 1)]
        ends = range(64, len(tokens) + 1, 16)
        self.assertGreater(min(peak_growth(tokens[:end]) for end in ends), 0.1)
        self.assertGreater(sum(second_half_slope(tokens[:end]) < 0 for end in ends), len(ends) / 4)

    def test_a_verdict_needs_all_runs(self):
        self.assertEqual([verdict(of, 2) for of in ([3, 4, 5], [1, 0, -5], [1, 3, 3])], ["grows", "bounded", "undecided"])

    def test_verdicts_are_right_on_both_sides_of_capacity(self):
        # Requests of 2 + 2 tokens to an engine with 16 tokens a slot. 3 % below capacity peaks grow as peak_growth says:
        # s = 4 / (2 x 0.03) = 67 tokens, 2.6 s / 6,000 slots = 0.029.
        def all_rises(load):
            def make():
                return Network(1, 16, [AgentType("request", 4 * load, [CallType(0, 2, 2)])], seconds=None, poisson=False)
            self.assertAlmostEqual(make().load(0), load)
            return rises(make, 5, order="call_age", horizon=6000)

        stable, threshold = all_rises(0.97), 0.005 * 16
        self.assertLessEqual(sum(rise > threshold for rise in stable), 1)
        self.assertAlmostEqual(sum(stable) / len(stable), 0.029, delta=0.015)
        self.assertGreaterEqual(sum(rise > threshold for rise in all_rises(1.02)), 4)


class StabilityTest(unittest.TestCase):
    """What the experiments of research/engines.py do not assert: each scheduler's own limit."""

    def verdict(self, make, scheduler, seconds, seeds, share=SHARE):
        return verdict(rises(make, seeds, order="call_age", scheduler=scheduler, horizon=seconds), share * CAPACITY)

    def test_vllm_v0_has_its_own_limit_near_13_per_second(self):
        self.assertEqual(self.verdict(lambda: one_engine(12), "vllm_v0", 1500, 2), "bounded")
        self.assertEqual(self.verdict(lambda: one_engine(13), "vllm_v0", 4000, 1), "grows")

    def test_faster_transformer_has_its_own_limit(self):
        # 5 prompts in one batch and 100 batches of 5 decodes each: 1.06 requests/s. Each request beyond it adds 200 tokens.
        self.assertAlmostEqual(5 / (network.batch_seconds(500) + 100 * network.batch_seconds(5)), 1.058, delta=1e-3)
        share = 4 / CAPACITY
        self.assertEqual(self.verdict(lambda: one_engine(0.98), "faster_transformer", 3000, 1, share), "bounded")
        self.assertEqual(self.verdict(lambda: one_engine(1.12), "faster_transformer", 3000, 1, share), "grows")

    def test_whole_prompts_that_do_not_fill_a_batch_cost_throughput(self):
        # Prompts of 300 tokens, of which a batch of 512 holds one: 1 / (t_300 + 100 / 512 t_512) = 6.60 requests per second
        # instead of 7.115.
        self.assertAlmostEqual(1 / (network.batch_seconds(300) + 100 * network.batch_seconds(512) / 512), 6.60, delta=0.01)
        for scheduler, rate, expected in (("vllm_v0", 6.3, "bounded"), ("vllm_v0", 6.9, "grows"), ("sarathi", 6.9, "bounded"),
                                          ("sarathi", 7.4, "grows")):
            self.assertEqual(self.verdict(lambda: one_engine(rate, prefill=300), scheduler, 1000, 1, 2 * SHARE), expected)

    def test_the_papers_vertex_c(self):
        # CodeLlama-34B, a staircase of 128 tokens: a request of 290 + 990 tokens every 467.5 ms, 100 slots. Ten batches of 128
        # tokens take that time and compute exactly one request: 29 prompt tokens and 99 decodes each.
        def run(scheduler, budget, seconds):
            batches = settled = 0

            def watch(engine, _):
                nonlocal batches, settled
                batches += 1
                settled += sum(rows for _, _, rows in engine.batch.prompts) == 29 and decodes(engine.batch) == 99

            types = [AgentType("request", 1 / 0.4675, [CallType(0, 290, 990)], evenly=True)]
            of = Network(1, budget, types, lambda tokens: 11.28e-3 + 35.47e-3 * -(-tokens // 128), poisson=False)
            if budget == 128:
                self.assertAlmostEqual(of.load(0), 1)
            return Watched(watch).run(of, "call_age", scheduler=scheduler, slots=100, horizon=seconds), settled / max(1, batches)

        settles, share = run("sarathi", 128, 1500)
        self.assertGreater(share, 0.9)
        self.assertLessEqual(max(settles.tokens[1000:]), max(settles.tokens[500:1000]) + 128)
        # In tokens/s; 2,738 tokens/s arrive.
        self.assertGreater(peak_growth(run("orca", 128, 500)[0].tokens), 400)
        self.assertGreater(peak_growth(run("sarathi", 1024, 500)[0].tokens), 400)
        self.assertEqual(run("vllm_v0", 128, 100)[0].tokens_computed, 0, "290 > 128: no prompt ever starts")


class CommandTest(unittest.TestCase):

    def run_command(self, *arguments):
        return subprocess.run([sys.executable, str(RESEARCH / "network.py"), *arguments], capture_output=True, text=True, check=False)

    def test_a_run_is_one_json_object_that_depends_on_the_seed_alone(self):
        command = ["--network=cycles", "--load=0.9", "--seconds=100", "--samples=10"]
        cells = [json.loads(self.run_command(*command, f"--seed={seed}").stdout) for seed in (3, 3, 4)]
        self.assertEqual(cells[0], cells[1])
        self.assertNotEqual(cells[0], cells[2])
        self.assertEqual([of["type"] for of in cells[0]["types"]], ["plan, code, review", "debate"])
        self.assertEqual(cells[0]["sample_time"], list(range(0, 100, 10)))

    def test_bad_input_ends_with_one_line_that_names_it(self):
        for arguments, named in ((["--network=ring"], "--network"), (["--order=last"], "--order"), (["--seconds=1"], "--seconds"),
                                 (["--load=-1"], "--load"), (["--load=nan"], "--load"), (["--scheduler=none"], "none"),
                                 (["--slots=-1"], "--slots"), (["--rate=1"], "--rate"),
                                 (["--order=exit_first", "--scheduler=vllm_v0"], "--order=exit_first")):
            done = self.run_command(*arguments)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
            self.assertIn(named, done.stderr)


if __name__ == "__main__":
    unittest.main()
