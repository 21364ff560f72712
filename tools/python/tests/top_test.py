"""bfio-top, alone and against a real router: python3 tests/top_test.py BUILD_FOLDER (tools/python/check runs it)."""
import fcntl
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "testing"))
from processes import PATIENCE, Cluster, Program, programs_folder  # noqa: E402

import bfio  # noqa: E402
from bfio.top import screen  # noqa: E402
from bfio.top.measurements import History, Measurements  # noqa: E402
from bfio.top.terminal import ACTIONS, DELETE, ESCAPE, INTERRUPT, MAX_NAME, Prompt  # noqa: E402
from bfio.v1 import admin_pb2  # noqa: E402
from bfio.v1.admin_pb2 import WORKER_PHASE_DRAINING, WORKER_PHASE_JOINING, WORKER_PHASE_SERVING  # noqa: E402

FOLDER = None
ROOT = pathlib.Path(__file__).resolve().parents[3]


def reading(second, steps, epoch=3):
    """A state of three ranks, listed in another order, and a joining worker. Rank 1 was the slowest in all steps but 14."""
    state = admin_pb2.ClusterState(epoch=epoch)
    state.timestamp.seconds, state.uptime.seconds = 1000 + second, second
    state.groups.add(epoch=epoch)
    totals = state.steps
    totals.steps, totals.decisions, totals.generated_tokens = steps, steps, 10 * steps
    totals.max_load_tokens, totals.mean_load_tokens = 100.0 * steps, 80.0 * steps
    totals.barrier_wait_s, totals.rank_step_s, totals.decide_s = 0.002 * steps, 0.02 * steps, 0.001 * steps
    first = state.latencies.time_to_first_token_s
    first.upper_bounds.extend([1, 2])
    first.counts.extend([5, steps, 0])
    for rank in (2, 1, 0):
        state.workers.add(worker_id=f"w{rank}", rank=rank, phase=WORKER_PHASE_SERVING, slots=8, active_requests=2 - rank,
                          load_tokens=100 * (3 - rank), straggler_steps=steps if rank == 1 else 7)
    state.workers.add(worker_id="new", phase=WORKER_PHASE_JOINING)
    return state


class Measured(unittest.TestCase):
    def test_rates_cover_the_time_between_two_states(self):
        m = Measurements(reading(10, 100), reading(20, 300))
        self.assertEqual((m.steps_per_s, m.tokens_per_s), (20, 200))
        self.assertAlmostEqual(m.idle, 0.2)
        self.assertAlmostEqual(m.barrier_wait, 0.1)
        self.assertAlmostEqual(m.decide_s, 0.001)
        # The 200 new samples are in (1, 2]; the 5 older ones do not count.
        self.assertAlmostEqual(m.first_token_s[0], 1.5)
        self.assertAlmostEqual(m.first_token_s[1], 1.99)
        self.assertIsNone(m.inter_token_s)

    def test_ranks_in_order_and_the_slowest(self):
        m = Measurements(reading(10, 100), reading(20, 300))
        self.assertEqual([worker.worker_id for worker in m.workers], ["w0", "w1", "w2", "new"])
        self.assertEqual([worker.worker_id for worker in m.ranks], ["w0", "w1", "w2"])
        self.assertEqual(m.slowest, {"w0": 0, "w1": 1, "w2": 0})

    def test_no_rates_without_elapsed_time_or_from_another_router(self):
        for before, now in [(reading(10, 100), reading(10, 100)), (reading(100, 5000), reading(2, 20))]:
            m = Measurements(before, now)
            self.assertEqual([m.steps_per_s, m.tokens_per_s, m.idle, m.barrier_wait, m.decide_s, m.first_token_s], [None] * 6)
            self.assertEqual((m.slowest, len(m.ranks)), ({}, 3))
        self.assertEqual(Measurements(admin_pb2.ClusterState(), admin_pb2.ClusterState()).workers, [])

    def test_ranks_of_different_epochs_are_not_compared(self):
        self.assertEqual(Measurements(reading(10, 100, epoch=2), reading(20, 300)).slowest, {})

    def test_ranks_of_several_groups_are_kept_apart(self):
        def state(uptime, stragglers):
            cluster = admin_pb2.ClusterState()
            cluster.uptime.seconds = uptime
            for index, name in enumerate(("0", "blue")):
                cluster.groups.add(index=4 + index, name=name, epoch=3 + index)
                for rank in range(2):
                    cluster.workers.add(worker_id=f"{name}{rank}", group=name, rank=rank, load_tokens=10 * index + rank,
                                        straggler_steps=rank * stragglers * (1 + index))
            return cluster

        m = Measurements(state(1, 5), state(2, 9))
        self.assertEqual([worker.worker_id for worker in m.ranks], ["00", "01", "blue0", "blue1"])
        self.assertEqual(m.slowest, {"00": 0, "01": 1, "blue0": 0, "blue1": 1})
        text = "\n".join(screen.draw(m, columns=120, plain=True))
        self.assertIn("load max 11 (rank blue:1)", text)
        self.assertRegex(text, r"\n +0:1 01 ")

    def test_the_window_has_ten_seconds_and_one_router(self):
        history = History()
        for second in range(30):
            history.add(second, reading(second, second * second))
        self.assertEqual(history.measure().steps_per_s, (29 * 29 - 19 * 19) / 10)
        self.assertEqual(len(history.idle), 29)
        history.add(30, reading(1, 10))
        self.assertIsNone(history.measure().steps_per_s)
        history.add(31, reading(2, 17))
        self.assertEqual(history.measure().steps_per_s, 7)


def cluster_of(ranks):
    state = admin_pb2.ClusterState(epoch=4, expected_workers=ranks, max_waiting_requests=4096, version="0.1.0")
    state.policy.name, state.uptime.seconds = "bf_io_auto", 7200
    for rank in range(ranks):
        state.workers.add(worker_id=f"node-{rank}", rank=rank, slots=72, kv_tokens=100000, load_tokens=1000 + 10 * rank,
                          reserved_kv_tokens=97000, phase=WORKER_PHASE_DRAINING if rank == 1 else WORKER_PHASE_SERVING)
    return state


def text_of(state, columns=120, rows=40, plain=True, **more):
    return "\n".join(screen.draw(Measurements(state, state), columns=columns, rows=rows, plain=plain, **more))


class Drawn(unittest.TestCase):
    IDLE = [0.01 * (i % 10) for i in range(100)]

    def test_four_workers_at_a_glance(self):
        text = text_of(cluster_of(4), message="q quit")
        self.assertTrue(text.startswith("bfio serving  policy bf_io_auto  epoch 4  ranks 4  up 2.00 h  version 0.1.0\n"), text)
        for part in ("load max 1,030 (rank 3)  mean 1,015  min 1,000  mean/max 0.985", "waiting 0 of 4,096",
                     "draining", "97.0 %", *(f"node-{rank} " for rank in range(4))):
            self.assertIn(part, text)
        self.assertTrue(text.endswith("\nq quit"))

    def test_the_served_models(self):
        state = cluster_of(1)
        for model in ("0123456789abcdef", "0123456789abcdef", "fedcba9876543210", ""):
            state.groups.add(model=model)
        self.assertIn("model 0123456789ab, fedcba987654", text_of(state))

    def test_no_wider_and_no_longer_than_the_screen(self):
        for ranks in (0, 1, 4, 256):
            m = Measurements(cluster_of(ranks), cluster_of(ranks))
            for columns in (1, 10, 40, 80, 81, 200):
                for rows in (1, 2, 5, 10, 24, 60):
                    for plain in (False, True):
                        lines = screen.draw(m, self.IDLE, "q quit", False, columns, rows, plain)
                        self.assertLessEqual(len(lines), rows)
                        self.assertLessEqual(max(len(re.sub("\x1b\\[\\d*m", "", line)) for line in lines), columns)

    def test_cells_are_whole(self):
        lines = text_of(cluster_of(4), columns=80).splitlines()
        self.assertTrue(lines[-5].endswith("     KV  slowest reserved"), lines)
        self.assertTrue(lines[-1].endswith("  1.0 %        -   97.0 %"), lines)
        self.assertTrue(text_of(cluster_of(4), columns=79).endswith("  1.0 %        -"))

    def test_a_wide_screen_shows_whole_names(self):
        state = cluster_of(2)
        state.workers[1].worker_id = "vllm://10.0.0.1:50100#1"
        self.assertRegex(text_of(state, columns=83), r"\n   1 vllm://10.0.0.1:50100#1 draining  .* 97.0 %\Z")
        self.assertRegex(text_of(state, columns=80), r"\n   1 vllm://10.0.0.1:5010 draining  .* 97.0 %\Z")

    def test_many_workers_get_a_mark_each_and_the_most_loaded_are_named(self):
        lines = text_of(cluster_of(256), columns=80).splitlines()
        self.assertEqual(sum(len(line) - 5 for line in lines if re.fullmatch(r" *\d+ [_.:=+*#-]+", line)), 256)
        text = "\n".join(lines)
        self.assertIn("node-255 ", text)
        self.assertIn("node-1 ", text, "it drains")
        self.assertNotIn("node-2 ", text)
        self.assertEqual(len(lines), 40)

    def test_plain_is_ascii_without_escape_sequences(self):
        self.assertRegex(text_of(cluster_of(40), rows=60, idle=self.IDLE), r"\A[ -~\n]*\Z")
        colourful = text_of(cluster_of(40), rows=60, plain=False)
        self.assertIn("\x1b[1m", colourful)
        self.assertIn("█", colourful)

    def test_the_history_of_the_idle_share_is_a_bar_for_each_reading(self):
        text = text_of(cluster_of(4), idle=[0.0, 0.1] * 8)
        self.assertIn("idle history " + "_#" * 8 + "\n", text)
        self.assertNotIn("idle history", text_of(cluster_of(4), idle=[0.1] * 7), "too few to show")

    def test_a_name_cannot_move_the_cursor(self):
        state = cluster_of(2)
        state.workers[0].worker_id, state.policy.name = "\x1b[2J\x07\n", "a\x1b]0;x\u202e"
        text = text_of(state, message="refused: \x1b[31m")
        self.assertRegex(text, r"\A[ -~\n]*\Z")
        self.assertIn(" ?[2J?? ", text)

    def test_no_workers_yet(self):
        state = cluster_of(0)
        state.expected_workers = 8
        text = text_of(state, columns=80, rows=24)
        self.assertTrue(text.startswith("bfio waiting for workers  policy bf_io_auto  epoch 4  ranks 0 of 8"), text)
        self.assertIn("load max 0 (rank -)  mean 0  min 0  mean/max -  slowest rank -", text)

    def test_faults_are_red(self):
        state = cluster_of(1)
        self.assertIn("failed\x1b[0m \x1b[1m0\x1b[0m", text_of(state, plain=False))
        state.requests.failed, state.requests.tokens_lost, state.requests.tokens_duplicated = 1, 2, 3
        text = text_of(state, plain=False)
        self.assertIn("failed\x1b[0m \x1b[31m1\x1b[0m", text)
        self.assertIn("tokens lost or duplicated\x1b[0m \x1b[31m5\x1b[0m", text)

    def test_numbers(self):
        for form, cases in {
                screen.count: {0: "0", 999: "999", 1234567: "1,234,567"},
                screen.short: {0: "0.00", 12.34: "12.3", 999.7: "1.00K", 65432: "65.4K", 4.2e7: "42.0M", -1234: "-1.23K",
                               5e15: "5000T"},
                screen.seconds: {0.0000123: "12.3 us", 0.0037: "3.70 ms", 0.0466: "46.6 ms", 0.2: "200 ms", 0.9999: "1.00 s",
                                 3.7: "3.70 s", 90: "90.0 s", 7000: "117 min", 7200: "2.00 h", 3 * 86400: "3.00 d"},
                screen.percent: {0.0123: "1.2 %"}}.items():
            for value, text in cases.items():
                self.assertEqual(form(value), text)


def typed(prompt, keys):
    """The actions that these keys confirm."""
    return [confirmed for key in keys if (confirmed := prompt.on_key(key))]


class Keys(unittest.TestCase):
    def test_an_action_needs_a_name_and_a_confirmation(self):
        for keys in ("p\r", "py", "p\ry", "d\ry", "pfcfs\rn", "pfcfs\r\r", "pfcfs\r\x1by", "dw1\rx", "x", "y", "\r",
                     "pfcfs\x1b\ry"):
            self.assertEqual(typed(Prompt(), keys), [], keys)

    def test_a_confirmed_action_is_returned(self):
        prompt = Prompt()
        self.assertEqual(typed(prompt, f"plptx{DELETE}"), [])
        self.assertEqual(str(prompt), "policy to switch to (Enter; Esc cancels): lpt")
        self.assertEqual(typed(prompt, "\r"), [])
        self.assertEqual(str(prompt), "switch to lpt from the next decision on (y/n)?")
        self.assertEqual(typed(prompt, "y"), [(ACTIONS["p"], "lpt")])
        self.assertTrue(str(prompt).startswith("q quit"))
        self.assertEqual(typed(prompt, "dhost:1#q\ry"), [(ACTIONS["d"], "host:1#q")])
        self.assertEqual(typed(prompt, "uw1\nY"), [(ACTIONS["u"], "w1")])
        self.assertEqual([hasattr(bfio.Admin, action.method) for action in ACTIONS.values()], [True] * 3)

    def test_q_quits_unless_a_name_is_typed(self):
        prompt = Prompt()
        self.assertTrue(prompt.quits("q"))
        typed(prompt, "pf")
        self.assertFalse(prompt.quits("q"))
        self.assertTrue(prompt.quits(INTERRUPT))
        typed(prompt, ESCAPE)
        self.assertTrue(prompt.quits("q"))

    def test_names_are_bounded_and_printable(self):
        self.assertEqual(typed(Prompt(), "d" + 1000 * "a" + "\x01\xff b\ry"), [(ACTIONS["d"], MAX_NAME * "a")])


def top(*arguments):
    """The exit code, standard output and standard error of a run without a terminal."""
    run = subprocess.run([sys.executable, "-m", "bfio.top", *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                         text=True, timeout=PATIENCE, check=False)
    return run.returncode, run.stdout, run.stderr


class BadInput(unittest.TestCase):
    def test_one_line_that_names_the_flag(self):
        with tempfile.NamedTemporaryFile("w", suffix=".token") as file:
            file.write("two words\n")
            file.flush()
            for arguments, message in {
                    (): "standard input and output must be a terminal; use --once to print the screen once",
                    ("--onc",): "unrecognized arguments: --onc",
                    ("--once", "more"): "unrecognized arguments: more",
                    ("--admin=router",): "--admin: 'router' must be HOST:PORT",
                    ("--admin=router:65536",): "--admin: 'router:65536' must be HOST:PORT",
                    ("--interval=50ms",): "--interval: '50ms' must be within 100ms..1m",
                    ("--interval=1",): "--interval: '1' must be within 100ms..1m",
                    ("--columns=-1",): "--columns: '-1' must be within 0..10000",
                    ("--admin-tls=ca=/none",): "--admin_tls: cannot read /none: No such file or directory",
                    ("--admin_tls=cert=/none,key=/none",):
                        "--admin_tls: 'cert=/none,key=/none' must be ca=FILE or ca=FILE,cert=FILE,key=FILE",
                    (f"--admin_token_file={file.name}",): f"--admin_token_file: {file.name}: expected a single line with the bearer token",
            }.items():
                self.assertEqual(top(*arguments), (2, "", f"bfio-top: {message}\n"))
            code, _, error = top("--once", f"--admin_tls=ca={file.name}")
            self.assertEqual((code, error.count("\n")), (2, 1), error)
            self.assertIn("--admin_tls", error)

    def test_no_router_answers(self):
        run = top("--admin=127.0.0.1:1", "--once", "--admin_tls=", "--admin_token_file=")
        self.assertEqual(run, (1, "", "bfio-top: no router answers at 127.0.0.1:1 (--admin)\n"))

    def test_the_installed_command(self):
        script = pathlib.Path(sys.executable).with_name("bfio-top")
        for flag, output in {"--version": f"bfio-top {bfio.__version__}\n", "--help": "usage: bfio-top"}.items():
            run = subprocess.run([script, flag], capture_output=True, text=True, check=True)
            self.assertTrue(run.stdout.startswith(output), run.stdout)


class OnTerminal:
    """bfio-top on a pseudo-terminal."""

    def __init__(self, admin, *flags):
        self._master, self._slave = pty.openpty()
        self.resize(110, 30)
        self.settings = termios.tcgetattr(self._slave)
        self.process = subprocess.Popen([sys.executable, "-m", "bfio.top", f"--admin={admin}", "--interval=100ms", *flags],
                                        stdin=self._slave, stdout=self._slave, stderr=self._slave, start_new_session=True)
        self._output = ""

    def resize(self, columns, rows):
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys):
        os.write(self._master, keys.encode())

    def wait_for(self, condition):
        """Until `condition` holds for the last complete picture, which is returned."""
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up:
            pictures = re.findall("\x1b\\[H(.*?)\x1b\\[J", self._output, re.S)
            if pictures and condition(pictures[-1]):
                return pictures[-1]
            self._output = self._output[-100_000:]
            if select.select([self._master], [], [], 0.1)[0]:
                self._output += os.read(self._master, 1 << 16).decode(errors="replace")
            elif self.process.poll() is not None:
                break
        raise AssertionError(f"waited in vain: {self._output}")

    def shows(self, pattern):
        return self.wait_for(lambda picture: re.search(pattern, re.sub("\x1b\\[\\d*[mK]", "", picture)))

    def end(self):
        """The exit code and the last output."""
        code = self.process.wait(PATIENCE)
        while select.select([self._master], [], [], 0)[0]:
            self._output += os.read(self._master, 1 << 16).decode(errors="replace")
        return code, self._output

    def restored(self):
        return self.settings == termios.tcgetattr(self._slave)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


class Live(unittest.TestCase):
    def cluster(self, workers, *router_flags):
        cluster = Cluster(FOLDER, workers, ("--policy=lpt", *router_flags), ("--c=0.001", "--slots=8"))
        self.addCleanup(cluster.close)
        load = Program(FOLDER, "bfio_loadgen", f"--target={cluster.address}", "--concurrency=16", "--requests=0",
                       "--duration=600", "--resume")
        self.addCleanup(load.kill)
        return cluster

    def on_terminal(self, cluster, *flags):
        terminal = OnTerminal(cluster.admin, *flags)
        self.addCleanup(terminal.close)
        return terminal

    def test_one_picture_in_a_pipe(self):
        cluster = self.cluster(2)
        with bfio.Admin(cluster.admin) as admin:
            next(step for step in admin.watch_steps(timeout=PATIENCE) if step.step > 100)
        code, output, error = top(f"--admin={cluster.admin}", "--once", "--interval=300ms", "--columns=120")
        self.assertEqual((code, error), (0, ""))
        self.assertRegex(output, r"\A[ -~\n]*\Z")
        self.assertTrue(output.startswith("bfio serving  policy lpt  epoch 1  ranks 2  up "), output)
        self.assertRegex(output, r"steps/s [\d.]*[1-9]")
        self.assertRegex(output, r"\n   0 .*\n   1 ")
        reader, writer = os.pipe()
        os.close(reader)
        closed = subprocess.run([sys.executable, "-m", "bfio.top", f"--admin={cluster.admin}", "--once", "--interval=100ms"],
                                stdout=writer, stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
        os.close(writer)
        self.assertEqual((closed.returncode, closed.stderr), (0, b""))

    def test_switches_and_drains_from_a_terminal_and_leaves_it_as_it_was(self):
        cluster = self.cluster(1)
        second = Program(FOLDER, "bfio_worker", f"--router={cluster.address}", "--c=0.001", "--slots=8", "--worker_id=second")
        self.addCleanup(second.kill)
        with bfio.Admin(cluster.admin) as admin:
            terminal = self.on_terminal(cluster)
            terminal.shows(r"second +serving +[\d,]+ +\d+/8 +[\d.]+ % +[\d.]+ % +[\d.]+ %")
            self.assertFalse(terminal.restored())
            terminal.type("pfcfs\rn")
            terminal.type("pnosuch\ry")
            terminal.shows("refused: ")
            self.assertEqual(admin.state().policy.name, "lpt", "'n' was the answer")
            terminal.type("pfcfs\ry")
            terminal.shows("switched to fcfs")
            terminal.shows("policy fcfs")
            self.assertEqual(admin.state().policy.name, "fcfs")
            terminal.resize(60, 7)
            terminal.wait_for(lambda picture: picture.count("\r\n") == 6)
            terminal.type("dsecond\ry")
            terminal.shows("second is draining")
            terminal.shows("ranks 1 ")
        self.assertEqual(second.process.wait(PATIENCE), 0)
        terminal.type("q")
        code, output = terminal.end()
        self.assertEqual(code, 0)
        self.assertTrue(output.endswith("\x1b[?25h\x1b[?1049l"), output)
        self.assertTrue(terminal.restored())

    def test_a_signal_ends_it_and_restores_the_terminal(self):
        cluster = self.cluster(1)
        for end in (lambda terminal: terminal.process.send_signal(signal.SIGTERM),
                    lambda terminal: terminal.process.send_signal(signal.SIGINT), lambda terminal: terminal.type(INTERRUPT)):
            terminal = self.on_terminal(cluster)
            terminal.shows("bfio serving")
            end(terminal)
            code, output = terminal.end()
            self.assertEqual(code, 0, output)
            self.assertTrue(output.endswith("\x1b[?25h\x1b[?1049l"), output)
            self.assertTrue(terminal.restored())

    def test_flags_replace_colours_and_size(self):
        cluster = self.cluster(1)
        self.on_terminal(cluster).wait_for(lambda picture: "\x1b[1m" in picture and "█" in picture)
        self.on_terminal(cluster, "--plain", "--columns=40", "--rows=9").wait_for(lambda picture: re.fullmatch(
            "([ -~]{,40}\x1b\\[K\r+\n){8}[ -~]{,40}\x1b\\[K", picture))

    def test_a_router_goes_away_and_comes_back(self):
        cluster = self.cluster(1)
        terminal = self.on_terminal(cluster)
        terminal.shows("steps/s [0-9]")
        cluster.router.kill()
        terminal.shows(r"serving +[\d,]+ +\d+/8 +[\d.]+ % +(-|[\d.]+ %) +[\d.]+ % ")
        terminal.shows(rf"no answer from the router: no router answers at {cluster.admin} \(--admin\)")
        terminal.type("d")
        terminal.shows(r"worker to drain \(Enter; Esc cancels\): \Z")
        terminal.type(ESCAPE)
        cluster.start_router()
        terminal.shows(r"bfio serving(.|\n)*steps/s [0-9](.|\n)*\nq quit")

    def test_tls_and_tokens(self):
        with tempfile.TemporaryDirectory() as certs:
            subprocess.run([ROOT / "deploy" / "make_certs", f"--out={certs}", "--workers=w0", "--for-tests"], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for name, text in {"tokens": "boss token:oper-s3cr3t-oper-s3cr3t\n", "token": "oper-s3cr3t-oper-s3cr3t\n",
                               "wrong": "nope-s3cr3t-nope-s3cr3t\n"}.items():
                pathlib.Path(certs, name).write_text(text)
                pathlib.Path(certs, name).chmod(0o600)
            router = Program(FOLDER, "bfio_router", "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0", "--http_listen=",
                             f"--admin_tls=cert={certs}/admin-server.crt,key={certs}/admin-server.key,ca={certs}/admin-ca.crt",
                             f"--admin_tokens={certs}/tokens")
            self.addCleanup(router.kill)
            admin = "--admin=" + router.wait_for(r"admin on (\S+),").group(1)
            tls = f"ca={certs}/admin-ca.crt,cert={certs}/admin.crt,key={certs}/admin.key"

            def once(tls, token):
                return top(admin, "--once", "--interval=100ms", f"--admin_tls={tls}",
                           f"--admin_token_file={certs}/{token}" if token else "--admin_token_file=")

            code, output, error = once(tls, "token")
            self.assertEqual((code, error), (0, ""))
            self.assertTrue(output.startswith("bfio waiting for workers"), output)
            for files, token, message in [
                    (tls, "wrong", "unknown bearer token"), (tls, "", "no bearer token"),
                    (f"ca={certs}/worker-ca.crt", "token", f"no router answers at {admin[8:]} (--admin): "),
                    ("", "", f"no router answers at {admin[8:]} (--admin): ")]:
                code, output, error = once(files, token)
                self.assertEqual((code, output, error.count("\n")), (1, "", 1), error)
                self.assertIn(f"bfio-top: {message}", error)
            code, _, error = once(tls.replace("admin.key", "admin-server.key"), "token")
            self.assertEqual((code, error.count("\n")), (2, 1), error)
            self.assertIn("--admin_tls", error)


if __name__ == "__main__":
    FOLDER = programs_folder(sys.argv.pop(1))
    unittest.main(verbosity=2)
