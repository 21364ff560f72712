#!/usr/bin/env python3
"""Tests bfio_research_sim: a JSON object per run, one line for bad input.

usage: commands_test.py BUILD
"""
import json
import subprocess
import sys
import tempfile
import unittest

SIM = sys.argv.pop(1) + "/bin/bfio_research_sim" if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "build/bin/bfio_research_sim"
ADMIT = ["admit", "--requests=400", "--kv_tokens=7629"]


def run(*arguments):
    return subprocess.run([SIM, *arguments], capture_output=True, text=True, timeout=120, check=False)


def cells(*arguments):
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


class CellsTest(unittest.TestCase):

    def test_the_same_seed_gives_the_same_run_and_another_does_not(self):
        self.assertEqual(cells(*ADMIT, "--seed=3"), cells(*ADMIT, "--seed=3"))
        self.assertNotEqual(cells(*ADMIT, "--seed=3"), cells(*ADMIT, "--seed=4"))

    def test_mc_sf_loses_no_request_and_stays_within_memory(self):
        [cell] = cells(*ADMIT, "--rule=mc_sf")
        self.assertEqual((cell["completed"], cell["evictions"], cell["preemptions"], cell["overflows"]), (400, 0, 0, 0))
        self.assertLessEqual(cell["peak_kv_tokens"], 7629)

    def test_a_believed_length_that_is_too_short_costs_preemptions(self):
        [known] = cells(*ADMIT, "--max_new_tokens=2000")
        [short] = cells(*ADMIT, "--max_new_tokens=2000", "--belief=half_to_all")
        self.assertEqual(known["preemptions"], 0)
        self.assertGreater(short["preemptions"], 0)

    def test_hindsight_finds_the_papers_counterexample(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            requests = [[0, 1, output] for output in (2, 2, 3, 3)]
            file.write(json.dumps({"kv_tokens": 6, "requests": requests}) + "\n")
            file.flush()
            self.assertEqual(cells("hindsight", "--instances=" + file.name, "--rule=mc_sf,mc_fcfs"),
                             [{"optimum": 16, "mc_sf": 18, "mc_fcfs": 18}])
            [given_up] = cells("hindsight", "--instances=" + file.name, "--most_places=3")
            self.assertIsNone(given_up["optimum"])

    def test_bad_input_ends_with_one_line_that_names_it(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write('{"kv_tokens": 3, "requests": [[0, 1, 5]]}\n')
            file.flush()
            bad = [(["admit"], "--requests"), ([*ADMIT, "--rule=best"], "best"), ([*ADMIT, "--belief=hope"], "--belief"),
                   ([*ADMIT, "--belief=limit"], "--max_new_tokens"), ([*ADMIT, "--rate=nan"], "--rate"),
                   ([*ADMIT, "--trace=/none"], "/none"), (["hindsight"], "--instances"),
                   (["hindsight", "--instances=" + file.name], file.name + ":1"),
                   ([*ADMIT, "--policy=fcfs"], "--policy"), ([*ADMIT, "--requests=1.5"], "--requests")]
            for arguments, named in bad:
                done = run(*arguments)
                with self.subTest(" ".join(arguments)):
                    self.assertEqual((done.returncode, done.stdout), (2, ""))
                    self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                    self.assertIn(named, done.stderr)


if __name__ == "__main__":
    unittest.main()
