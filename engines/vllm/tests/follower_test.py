"""bfio_vllm without vLLM: a small scheduler of the same kind, and a scripted router (engines/vllm/check runs it)."""
import concurrent.futures
import os
import queue
import random
import threading
import time
import types
import unittest

import grpc

from bfio_vllm import budget, follower, link
from bfio_vllm.engine_steps_pb2 import Allotment, EngineStep

PATIENCE = 60

# The router is inside the cluster: a proxy for traffic that leaves it must not hide it. Nothing listens at this one.
os.environ.update(http_proxy="http://127.0.0.1:1", no_proxy="", no_grpc_proxy="")


class Request:
    def __init__(self, name, prompt, output):
        self.request_id, self.num_prompt_tokens, self.max_tokens = name, prompt, output
        self.num_tokens = self.num_tokens_with_spec = prompt
        self.num_computed_tokens = self.num_output_placeholders = self.next_decode_eligible_step = 0
        self.is_prefill_chunk = False


class Scheduler:
    """vLLM's rules for tokens: running requests in order, then waiting ones; chunked prefill; asynchronous outputs."""

    def __init__(self, own=512, slots=8, model_len=10_000):
        self.running, self.waiting, self.requests = [], [], {}
        self.max_num_scheduled_tokens, self.current_step, self.max_model_len = own, 0, model_len
        self.num_sampled_tokens_per_step, self.slots = 1, slots
        self.scheduler_config = types.SimpleNamespace(enable_chunked_prefill=True)
        parallel = types.SimpleNamespace(data_parallel_index=1, data_parallel_rank=0)
        self.vllm_config = types.SimpleNamespace(parallel_config=parallel, cache_config=types.SimpleNamespace(block_size=16))
        self.kv_cache_manager = types.SimpleNamespace(usage=0.25, block_pool=types.SimpleNamespace(num_gpu_blocks=101))
        self.throttled, self.closed = [], False

    def add(self, request):
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def schedule(self, throttle_prefills=False):
        self.current_step += 1
        self.throttled.append(throttle_prefills)
        left, new, scheduled = self.max_num_scheduled_tokens, [], {}
        for request in self.running:
            done = request.num_computed_tokens + 2 - request.num_output_placeholders
            if request.num_output_placeholders > 0 and done >= request.num_prompt_tokens + request.max_tokens:
                continue
            rows = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
            rows = min(rows, left)
            if rows > 0:
                scheduled[request.request_id] = rows
                left -= rows
        while self.waiting and left > 0 and len(self.running) < self.slots:
            request = self.waiting.pop(0)
            self.running.append(request)
            new.append(types.SimpleNamespace(num_computed_tokens=request.num_computed_tokens))
            scheduled[request.request_id] = min(left, request.num_tokens - request.num_computed_tokens)
            left -= scheduled[request.request_id]
        assert left >= 0
        for name, tokens in scheduled.items():
            request = self.requests[name]
            request.num_computed_tokens += tokens
            request.is_prefill_chunk = request.num_computed_tokens < request.num_tokens + request.num_output_placeholders
            if not request.is_prefill_chunk:
                request.num_output_placeholders += 1
        return types.SimpleNamespace(num_scheduled_tokens=scheduled, total_num_scheduled_tokens=sum(scheduled.values()),
                                     scheduled_new_reqs=new)

    def update_from_output(self, output):
        for name in output.num_scheduled_tokens:
            request = self.requests.get(name)
            if request is None or request.num_output_placeholders == 0 or request.is_prefill_chunk and not (
                    request.num_tokens > request.num_prompt_tokens):
                continue
            request.num_output_placeholders -= 1
            request.num_tokens += 1
            request.num_tokens_with_spec += 1
            if request.num_tokens - request.num_prompt_tokens >= request.max_tokens:
                self.running.remove(request)
                del self.requests[name]

    def get_request_counts(self):
        return len(self.running), len(self.waiting)

    def shutdown(self):
        self.closed = True


class Following(follower.FollowsRouter, Scheduler):
    vllm_version = "0.32.0+cpu"


class Router:
    """Answers every report with the next of `answers`, or the last one: a number of prompt tokens, or None: no limit."""

    def __init__(self, *answers, port=0):
        self.answers, self.reports, self.mute = list(answers), queue.Queue(), threading.Event()
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
        handler = grpc.stream_stream_rpc_method_handler(self.follow, EngineStep.FromString, Allotment.SerializeToString)
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("bfio.v1.EngineSteps", {"Follow": handler}),))
        self.port = self.server.add_insecure_port(f"127.0.0.1:{port}")
        self.server.start()

    def follow(self, messages, _):
        number = 0
        for message in messages:
            self.reports.put(message)
            if self.mute.is_set():
                continue
            number += 1
            yield Allotment(number=number, prompt_tokens=self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])

    def next(self, condition=lambda report: True):
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up:
            report = self.reports.get(timeout=PATIENCE)
            if condition(report):
                return report
        raise AssertionError("no such report")

    def stop(self):
        self.server.stop(0).wait()


def until(condition):
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, "never"
        time.sleep(0.005)


class Case(unittest.TestCase):
    silence_s = "3600"

    def follow(self, *answers, **sizes):
        router = Router(*answers)
        self.addCleanup(router.stop)
        os.environ.update(BFIO_ROUTER=f"127.0.0.1:{router.port}", BFIO_ROUTER_SILENCE_S=self.silence_s)
        self.addCleanup(os.environ.pop, "BFIO_ROUTER", None)
        scheduler = Following(**sizes)
        self.addCleanup(scheduler.shutdown)
        until(lambda: scheduler._bfio.allotment()[0] > 0)
        return router, scheduler


class Allotments(Case):
    def test_every_step_holds_its_decodes_and_the_allotment(self):
        for allotment in (16, 64, 256):
            router, scheduler = self.follow(allotment)
            for i in range(4):
                scheduler.add(Request(f"decodes-{i}", 1, 10_000))
            scheduler.update_from_output(scheduler.schedule())
            scheduler.add(Request("bfio-1-2-3-abcdef", 1000, 2))
            computed = []
            while any(r.num_computed_tokens < r.num_prompt_tokens for r in scheduler.requests.values()):
                output = scheduler.schedule(throttle_prefills=True)
                computed.append(output.num_scheduled_tokens["bfio-1-2-3-abcdef"])
                self.assertTrue(all(output.num_scheduled_tokens[f"decodes-{i}"] == 1 for i in range(4)))
                scheduler.update_from_output(output)
            self.assertEqual(computed[:-1], [allotment] * (1000 // allotment))
            self.assertEqual(sum(computed), 1000)
            # vLLM's own cadence of prompts is off.
            self.assertFalse(any(scheduler.throttled))
            last = router.next(lambda report: report.prompts and report.prompts[0].left == 0)
            self.assertEqual((last.decodes, last.followed, last.prompts[0].computed), (4, True, computed[-1]))

    def test_zero_leaves_prompts_waiting_while_something_decodes(self):
        _, scheduler = self.follow(0)
        scheduler.add(Request("a", 3, 6))
        steps = [scheduler.schedule() for _ in range(3)]
        # Nothing decodes: a token at a time, so that the engine never waits for itself.
        self.assertEqual([s.num_scheduled_tokens for s in steps], [{"a": 1}] * 3)
        for step in steps:
            scheduler.update_from_output(step)
        scheduler.add(Request("b", 5, 1))
        scheduled = []
        while "a" in scheduler.requests:
            output = scheduler.schedule()
            scheduled.append(output.num_scheduled_tokens)
            scheduler.update_from_output(output)
        self.assertEqual(scheduled, [{"a": 1}] * 5)
        self.assertEqual(scheduler.schedule().num_scheduled_tokens, {"b": 1})

    def test_no_limit_is_vllms_own_step(self):
        _, scheduler = self.follow(None)
        scheduler.add(Request("a", 700, 5))
        self.assertEqual(scheduler.schedule(throttle_prefills=True).num_scheduled_tokens, {"a": 512})
        self.assertEqual(scheduler.throttled, [True])

    def test_an_allotment_above_vllms_limit_is_that_limit(self):
        _, scheduler = self.follow(10_000)
        scheduler.add(Request("a", 700, 5))
        self.assertEqual(scheduler.schedule().num_scheduled_tokens, {"a": 512})
        self.assertEqual(scheduler.max_num_scheduled_tokens, 512)

    def test_random_requests_two_steps_at_a_time(self):
        draw = random.Random(7)
        router, scheduler = self.follow(24)
        under_way, names = [], 0
        formed = []
        for _ in range(600):
            if draw.random() < 0.2:
                names += 1
                scheduler.add(Request(f"bfio-{names}", draw.randint(1, 150), draw.randint(1, 30)))
            before = {r.request_id for r in scheduler.running if not budget.is_prompt(r)}
            prompts_left = any(r.num_computed_tokens < r.num_tokens for r in scheduler.running if budget.is_prompt(r)
                               ) or (scheduler.waiting and len(scheduler.running) < scheduler.slots)
            output = scheduler.schedule()
            prompts = sum(n for name, n in output.num_scheduled_tokens.items() if name not in before)
            self.assertLessEqual(prompts, 24)
            pending = sum(follower._left(r) for r in scheduler.running)
            if prompts_left and pending and len(scheduler.running) < scheduler.slots and output.num_scheduled_tokens:
                self.assertEqual(prompts, 24, "prompts are left, and so is some of the allotment")
            under_way.append(output)
            if output.num_scheduled_tokens:
                formed.append((prompts, len(before & set(output.num_scheduled_tokens))))
            if len(under_way) == 2 or not output.num_scheduled_tokens:
                scheduler.update_from_output(under_way.pop(0))
        while under_way:
            scheduler.update_from_output(under_way.pop(0))
        last = router.next(lambda report: report.step == len(formed))
        self.assertEqual((last.prompt_tokens, last.decodes), formed[-1])


class Reports(Case):
    def test_a_step_is_reported_when_it_has_ended(self):
        router, scheduler = self.follow(40)
        hello = router.next().hello
        self.assertEqual((hello.engine, hello.rank, hello.token_budget), ("vllm 0.32.0+cpu", 1, 512))
        cached = Request("bfio-7-8-9-x", 100, 3)
        cached.num_computed_tokens = 30
        scheduler.add(cached)
        scheduler.add(Request("another's", 50, 3))
        first, second = scheduler.schedule(), scheduler.schedule()
        self.assertTrue(all(r.step == 0 for r in list(router.reports.queue)))
        scheduler.update_from_output(first)
        report = router.next(lambda r: r.step == 1)
        self.assertEqual((report.prompt_tokens, report.cached_tokens, report.decodes), (40, 30, 0))
        self.assertEqual((report.running, report.waiting, report.kv_tokens, report.kv_capacity_tokens), (2, 0, 400, 1600))
        self.assertEqual([(p.request_id, p.done, p.computed, p.left) for p in report.prompts],
                         [("bfio-7-8-9-x", 30, 40, 30)])
        self.assertEqual(report.pending_prompt_tokens, 30 + 50)
        scheduler.update_from_output(second)
        report = router.next(lambda r: r.step == 2)
        self.assertEqual([(p.done, p.computed, p.left) for p in report.prompts], [(70, 30, 0)])
        self.assertEqual((report.prompt_tokens, report.pending_prompt_tokens), (40, 40))
        scheduler.update_from_output(scheduler.schedule())
        report = router.next(lambda r: r.step == 3)
        self.assertEqual((report.decodes, report.decode_tokens, report.decode_context), (1, 1, 100))
        self.assertGreater(report.step_ns, 0)

    def test_steps_that_compute_nothing_or_are_thrown_away_are_not_reported(self):
        router, scheduler = self.follow(40)
        scheduler.update_from_output(scheduler.schedule())
        scheduler.add(Request("a", 100, 3))
        scheduler.schedule()
        scheduler.update_from_output(scheduler.schedule())
        scheduler.update_from_output(scheduler.schedule())
        report = router.next(lambda r: r.step == 2)
        self.assertEqual(report.prompt_tokens, 20)


class Silence(Case):
    silence_s = "0.4"

    def test_a_silent_router_is_followed_no_longer_and_again_when_it_speaks(self):
        router, scheduler = self.follow(10)
        scheduler.add(Request("a", 10_000, 5))
        # The last report is repeated, so that an engine that has been idle follows at once.
        until(lambda: scheduler._bfio.allotment()[0] > 5)
        self.assertEqual(scheduler.schedule().num_scheduled_tokens, {"a": 10})
        router.mute.set()
        until(lambda: scheduler._bfio.allotment()[1] is None)
        self.assertEqual(scheduler.schedule().num_scheduled_tokens, {"a": 512})
        router.mute.clear()
        until(lambda: scheduler._bfio.allotment()[1] is not None)
        self.assertEqual(scheduler.schedule().num_scheduled_tokens, {"a": 10})

    def test_a_router_that_is_gone_and_comes_back(self):
        router, scheduler = self.follow(10)
        scheduler.add(Request("a", 10_000, 5))
        router.stop()
        until(lambda: scheduler._bfio.allotment()[1] is None)
        self.assertEqual(scheduler.schedule().num_scheduled_tokens, {"a": 512})
        again = Router(33, port=router.port)
        self.addCleanup(again.stop)
        until(lambda: scheduler._bfio.allotment()[1] == 33)
        self.assertTrue(again.next().HasField("hello"))

    def test_reports_that_nobody_takes_are_bounded(self):
        made = link.RouterLink("127.0.0.1:1", link.EngineHello(), 1.0)
        self.addCleanup(made.close)
        for i in range(10_000):
            made.report(EngineStep(step=i))
        self.assertLessEqual(len(made._reports), made.KEPT)


class Settings(unittest.TestCase):
    def test_what_the_environment_says(self):
        self.assertIsNone(follower.settings({}))
        self.assertEqual(follower.settings({"BFIO_ROUTER": "r:1"}), ("r:1", 1.0, {}))
        self.assertEqual(follower.settings({"BFIO_ROUTER": "r:1", "BFIO_ROUTER_SILENCE_S": "2.5", "BFIO_ROUTER_TLS": "ca=F"}),
                         ("r:1", 2.5, {"ca": "F"}))
        for wrong in ("0", "x", "nan", "1e9"):
            with self.assertRaisesRegex(ValueError, "BFIO_ROUTER_SILENCE_S"):
                follower.settings({"BFIO_ROUTER": "r:1", "BFIO_ROUTER_SILENCE_S": wrong})
        for wrong in ({"cert": "x"}, {"ca": "x", "cert": "y"}, {"ca": "x", "crt": "y"}):
            with self.assertRaisesRegex(ValueError, "TLS"):
                link._credentials(wrong)

    def test_without_a_router_it_is_vllms_scheduler(self):
        scheduler = Following()
        scheduler.add(Request("a", 700, 5))
        output = scheduler.schedule(throttle_prefills=True)
        self.assertEqual(output.num_scheduled_tokens, {"a": 512})
        scheduler.update_from_output(output)
        self.assertEqual(scheduler.throttled, [True])
        scheduler.shutdown()
        self.assertTrue(scheduler.closed)

    def test_versions(self):
        follower.check_version("0.32.0+cpu", Scheduler())
        with self.assertLogs("bfio_vllm", "WARNING"):
            follower.check_version("0.33.0", Scheduler())
        other = Scheduler()
        del other.num_sampled_tokens_per_step
        with self.assertRaisesRegex(RuntimeError, "num_sampled_tokens_per_step"):
            follower.check_version("0.9.0", other)
        whole = Scheduler()
        whole.scheduler_config.enable_chunked_prefill = False
        with self.assertRaisesRegex(RuntimeError, "chunked prefill"):
            follower.check_version("0.32.0", whole)


class Budget(unittest.TestCase):
    def test_a_decode_behind_a_prompt_comes_first(self):
        prompt, decode, late = (Request(name, 10, 5) for name in "abc")
        prompt.is_prefill_chunk = True
        self.assertEqual(budget.decodes_first([prompt, decode, late]), [decode, late, prompt])
        ordered = [decode, late, prompt]
        self.assertIs(budget.decodes_first(ordered), ordered)

    def test_rows_of_a_decode(self):
        request = Request("a", 10, 3)
        request.num_computed_tokens, request.num_output_placeholders = 10, 1
        self.assertEqual(budget.decode_rows(request, 5, 100, 1), 1)
        self.assertEqual(budget.decode_rows(request, 5, 11, 1), 0)  # the longest sequence
        request.next_decode_eligible_step = 6
        self.assertEqual(budget.decode_rows(request, 5, 100, 1), 0)
        self.assertEqual(budget.decode_rows(request, 6, 100, 1), 1)
        request.num_tokens_with_spec += 3
        self.assertEqual(budget.decode_rows(request, 6, 100, 1), 4)
        request.num_computed_tokens, request.num_output_placeholders = 12, 1
        self.assertEqual(budget.decode_rows(request, 6, 100, 1), 0)  # its last token is on its way


if __name__ == "__main__":
    unittest.main()
