"""The Python package against a real router: python3 tests/client_test.py BUILD_FOLDER (tools/python/check runs it)."""
import asyncio
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "testing"))
from processes import PATIENCE, Cluster, Program, programs_folder  # noqa: E402

import bfio  # noqa: E402
from bfio.channel import Login  # noqa: E402
from bfio.request import Request, Retry, build, retry_after  # noqa: E402
from bfio.v1 import inference_pb2, inference_pb2_grpc  # noqa: E402

# A proxy for traffic that leaves the cluster must not hide the router. Nothing listens at this one.
os.environ.update(http_proxy="http://127.0.0.1:1", no_proxy="", no_grpc_proxy="")
FOLDER = None
ROOT = pathlib.Path(__file__).resolve().parents[3]


def options(**more):
    return {"max_new_tokens": 60, "ignore_eos": True, "sampling": bfio.Sampling(seed=5), "timeout": PATIENCE, **more}


class Live(unittest.TestCase):
    workers = 1
    router_flags = ()
    worker_flags = ("--c=0.005", "--tl=0", "--slots=4")

    def setUp(self):
        self.cluster = Cluster(FOLDER, self.workers, self.router_flags, self.worker_flags)
        self.addCleanup(self.cluster.close)
        self.client = bfio.Client(self.cluster.address)
        self.addCleanup(self.client.close)
        self.admin = bfio.Admin(self.cluster.admin)
        self.addCleanup(self.admin.close)

    def wait_for(self, condition):
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up:
            state = self.admin.state()
            if condition(state):
                return state
            time.sleep(0.02)
        self.fail(f"waited in vain: {state}")

    def active(self, state):
        return state.waiting_requests + sum(w.active_requests + w.inflight_requests for w in state.workers)


class Basics(Live):
    def test_a_stream_and_a_complete_result(self):
        stream, seen = self.client.generate(10, **options()), []
        for tokens in stream:
            self.assertEqual(tokens.first_index, len(seen))
            seen += tokens.ids
        self.assertEqual(len(seen), 60)
        self.assertEqual((stream.finish.reason, stream.finish.prompt_tokens, stream.finish.completion_tokens), ("length", 10, 60))
        self.assertEqual(stream.finish.dp_rank, 0)
        self.assertGreater(stream.finish.end_to_end_s, stream.finish.time_to_first_token_s)
        whole = self.client.complete(10, **options())
        self.assertEqual(whole.token_ids, seen)

        async def main():
            async with bfio.aio.Client(self.cluster.address) as client:
                one = await client.complete(10, **options())
                many = await asyncio.gather(*(client.complete([1, n], **options()) for n in range(10)))
                return one, many, await client.loads(), await client.abort("nobody")

        one, many, loads, found = asyncio.run(main())
        self.assertEqual(one.token_ids, seen)
        self.assertEqual([len(r.token_ids) for r in many], [60] * 10)
        self.assertEqual(len({tuple(r.token_ids) for r in many}), 10)
        self.assertEqual((loads.dp_rank_count, found), (1, False))
        stopped = self.client.complete(10, **options(stop_token_ids=[seen[7]]))
        self.assertEqual((stopped.token_ids, stopped.finish.reason), (seen[:8], "stop"))

    def test_agent_calls_and_abort_permission(self):
        before = self.admin.state().requests.agent_calls
        self.client.complete(10, **options(max_new_tokens=3, priority=5, parent_id="agent", stage=0, remaining_tokens=4))
        self.assertEqual(self.admin.state().requests.agent_calls, before + 1)
        with self.assertRaises(bfio.Error) as caught:
            self.client.complete(10, **options(stage=1))
        self.assertEqual(caught.exception.code, grpc.StatusCode.INVALID_ARGUMENT)
        stream = self.client.generate(10, **options(max_new_tokens=60000, request_id="held", resumable=True, resume_token=b"mine"))
        next(stream)
        self.assertFalse(self.client.abort("held"))
        self.assertFalse(self.client.abort("held", resume_token=b"yours"))
        self.assertTrue(self.client.abort("held", resume_token=b"mine"))
        for _ in stream:
            pass
        self.assertEqual(stream.finish.reason, "abort")

    def test_errors_carry_code_and_message(self):
        with self.assertRaises(bfio.Error) as caught:
            self.client.complete(0, max_new_tokens=5)
        self.assertEqual(caught.exception.code, grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("prompt_length", caught.exception.message)
        with self.assertRaises(bfio.Error) as caught:
            self.client.complete(10, **options(max_new_tokens=60000, timeout=0.3))
        self.assertEqual(caught.exception.code, grpc.StatusCode.DEADLINE_EXCEEDED)
        self.assertRaises(ValueError, self.client.generate, 10, max_new_tokens=5, unheard_of=1)
        self.assertRaises(ValueError, bfio.Client, "10.0.0.1:1", token="x" * 20)

    def test_cancelled_requests_free_their_slots(self):
        stream = self.client.generate(10, **options(max_new_tokens=60000))
        resumable = self.client.generate(10, **options(max_new_tokens=60000, resume=True))
        next(stream), next(resumable)
        threading.Timer(0.05, stream.cancel).start()
        with self.assertRaises(bfio.Error) as caught:
            for _ in stream:
                pass
        self.assertEqual(caught.exception.code, grpc.StatusCode.CANCELLED)
        resumable.cancel()
        self.assertRaises(bfio.Error, next, resumable)
        with self.client.generate(10, **options(max_new_tokens=60000)) as dropped:
            next(dropped)
        for _ in self.client.generate(10, **options(max_new_tokens=60000)):
            break
        state = self.wait_for(lambda s: self.active(s) == 0)
        self.assertEqual((state.requests.cancelled, state.requests.aborted), (3, 1))

        async def main():
            async with bfio.aio.Client(self.cluster.address) as client:
                begun = asyncio.Event()

                async def read(resume):
                    async for _ in client.generate(10, **options(max_new_tokens=60000, resume=resume)):
                        begun.set()

                task = asyncio.create_task(read(False))
                await begun.wait()
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                stream = client.generate(10, **options(max_new_tokens=60000, resume=True))
                await stream.__anext__()
                asyncio.get_running_loop().call_later(0.05, stream.cancel)
                with self.assertRaises(bfio.Error) as caught:
                    async for _ in stream:
                        pass
                self.assertEqual(caught.exception.code, grpc.StatusCode.CANCELLED)
                early = client.generate(10, **options(max_new_tokens=60000))
                early.cancel()
                with self.assertRaises(bfio.Error) as caught:
                    await early.__anext__()
                self.assertEqual(caught.exception.code, grpc.StatusCode.CANCELLED)
                async for _ in client.generate(10, **options(max_new_tokens=60000)):
                    break
                async with client.generate(10, **options(max_new_tokens=60000)) as left:
                    await left.__anext__()
                while self.active(await asyncio.to_thread(self.admin.state)) > 0:
                    await asyncio.sleep(0.02)  # the client is still open, so closing it is not what ends the requests

        asyncio.run(main())
        state = self.wait_for(lambda s: self.active(s) == 0)
        self.assertEqual((state.requests.cancelled, state.requests.aborted), (6, 2))

    def test_admin(self):
        self.admin.set_policy("bf_io", horizon=0, objective="paper")
        state = self.admin.state()
        self.assertEqual((state.policy.name, state.policy.objective), ("bf_io", "paper"))
        with self.assertRaises(bfio.Error) as caught:
            self.admin.set_policy("nonsense")
        self.assertEqual(caught.exception.code, grpc.StatusCode.INVALID_ARGUMENT)
        with self.assertRaises(bfio.Error) as caught:
            self.admin.drain("nobody")
        self.assertEqual(caught.exception.code, grpc.StatusCode.NOT_FOUND)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            steps = self.admin.watch_steps(timeout=PATIENCE)
            done = pool.submit(self.client.complete, 10, **options(max_new_tokens=400))
            seen = [next(steps).step for _ in range(10)]
            steps.close()
            self.assertEqual(seen, sorted(set(seen)))
            self.assertEqual(len(done.result().token_ids), 400)
        self.admin.drain(state.workers[0].worker_id)
        self.assertEqual(self.cluster.workers[0].process.wait(PATIENCE), 0)


class Ends(Live):
    router_flags = ("--client_timeout=600s",)

    def test_only_requests_ended_at_the_client_end_at_the_router(self):
        stream = self.client.generate(10, **options(max_new_tokens=60000, resume=True, request_id="same"))
        next(stream)
        with self.assertRaises(bfio.Error) as caught:
            self.client.complete(10, **options(resume=True, request_id="same"))
        self.assertEqual(caught.exception.code, grpc.StatusCode.ALREADY_EXISTS)
        for _ in range(20):
            next(stream)
        with self.assertRaises(bfio.Error) as caught:
            self.client.complete(10, **options(max_new_tokens=60000, timeout=0.3, resume=True))
        self.assertEqual(caught.exception.code, grpc.StatusCode.DEADLINE_EXCEEDED)
        self.wait_for(lambda s: self.active(s) == 1)


class Overload(Live):
    router_flags = ("--max_waiting=1",)
    worker_flags = ("--c=0.005", "--tl=0", "--slots=1")

    def test_a_refused_request_is_retried_after_the_retry_info(self):
        running = self.client.generate(10, **options(max_new_tokens=60000))
        next(running)
        waiting = self.client.generate(10, **options(max_new_tokens=60000))
        waits = threading.Thread(target=lambda: self.assertRaises(bfio.Error, next, waiting))
        waits.start()
        self.wait_for(lambda s: s.waiting_requests == 1)
        with self.assertRaises(bfio.Error) as caught:
            self.client.complete(10, **options(retry=bfio.Retry(max_retries=0)))
        self.assertEqual(caught.exception.code, grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertGreater(caught.exception.retry_after, 0)

        async def patient():
            async with bfio.aio.Client(self.cluster.address) as client:
                stream = client.generate(10, **options(retry=bfio.Retry(max_retries=1000)))

                async def free_the_slot():
                    while not stream.retries:
                        await asyncio.sleep(0.01)
                    running.cancel(), waiting.cancel()

                task = asyncio.create_task(free_the_slot())
                ids = [i async for tokens in stream for i in tokens.ids]
                await task
                return ids

        self.assertEqual(len(asyncio.run(patient())), 60)
        waits.join()


class Broken(Live):
    workers = 2
    router_flags = ("--step_timeout=3s",)
    worker_flags = ("--c=0.01", "--tl=0", "--slots=8")

    def test_no_token_is_lost_when_router_and_worker_are_killed(self):
        wanted = [self.client.complete(10 + n, **options(max_new_tokens=400)).token_ids for n in range(2)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            def collect(n):
                stream = self.client.generate(10 + n % 2, **options(max_new_tokens=400, resume=True))
                return [i for tokens in stream for i in tokens.ids], stream.resumes

            async def collect_aio():
                async with bfio.aio.Client(self.cluster.address) as client:
                    return await asyncio.gather(*(client.complete(10 + n, **options(max_new_tokens=400, resume=True))
                                                  for n in range(2)))

            blocking = [pool.submit(collect, n) for n in range(4)]
            other = pool.submit(asyncio.run, collect_aio())
            begun = self.wait_for(lambda s: sum(w.active_requests for w in s.workers) == 6).steps.generated_tokens
            self.wait_for(lambda s: s.steps.generated_tokens >= begun + 6 * 10)
            self.cluster.restart_router()
            self.wait_for(lambda s: s.requests.resumed == 6)
            self.cluster.workers[0].kill()
            for n, future in enumerate(blocking):
                ids, resumes = future.result()
                self.assertEqual(ids, wanted[n % 2])
                self.assertGreaterEqual(resumes, 1)
            self.assertEqual([r.token_ids for r in other.result()], wanted)
        self.assertGreater(self.admin.state().requests.replayed, 0)

    def test_no_router_at_the_address(self):
        with bfio.Client("127.0.0.1:1", retry=bfio.Retry(max_retries=1)) as client:
            with self.assertRaises(bfio.Error) as caught:
                client.complete(10, **options())
            self.assertEqual(caught.exception.code, grpc.StatusCode.UNAVAILABLE)


class Security(unittest.TestCase):
    def test_certificate_and_token(self):
        with tempfile.TemporaryDirectory() as certs:
            subprocess.run([ROOT / "deploy" / "make_certs", f"--out={certs}", "--workers=w0", "--for-tests"], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            token = "acme-token-acme-token"
            pathlib.Path(certs, "tokens").write_text(f"acme token:{token}\n")
            router = Program(FOLDER, "bfio_router", "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0", "--http_listen=",
                             "--worker_listen=127.0.0.1:0",
                             f"--client_tls=cert={certs}/client-server.crt,key={certs}/client-server.key",
                             f"--client_tokens={certs}/tokens")
            self.addCleanup(router.kill)
            address = router.wait_for(r"serving on (\S+),").group(1)
            with bfio.Client(address, ca=f"{certs}/client-ca.crt", token=token) as client:
                self.assertFalse(client.abort("nobody"))
            for login, code in [({}, grpc.StatusCode.UNAUTHENTICATED), ({"token": "x" * 20}, grpc.StatusCode.UNAUTHENTICATED),
                                ({"ca": f"{certs}/worker-ca.crt", "token": token}, grpc.StatusCode.UNAVAILABLE)]:
                with bfio.Client(address, **{"ca": f"{certs}/client-ca.crt", **login}) as client:
                    with self.assertRaises(bfio.Error) as caught:
                        client.abort("nobody")
                    self.assertEqual(caught.exception.code, code)


class Headers(unittest.TestCase):
    """Headers that reach a router, checked by a test server."""

    def test_trace_context_and_tokens_are_passed_on(self):
        seen = []

        class Router(inference_pb2_grpc.InferenceServicer):
            def Generate(self, request, context):
                seen.append({**dict(context.invocation_metadata()), "id": request.request_id})
                usage = inference_pb2.Usage(prompt_tokens=1, completion_tokens=1)
                yield inference_pb2.GenerateResponse(token_ids=[65], finish=inference_pb2.Finish(usage=usage))

        server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
        inference_pb2_grpc.add_InferenceServicer_to_server(Router(), server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        self.addCleanup(server.stop, None)
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        with bfio.Client(address, token="key") as client:
            client.complete(1, max_new_tokens=1, request_id="r2", metadata=[("traceparent", trace)])
        self.assertEqual([(s["traceparent"], s["authorization"], s["id"]) for s in seen], [(trace, "Bearer key", "r2")])


class Malformed(grpc.RpcError):
    def trailing_metadata(self):
        return [("grpc-status-details-bin", b"\xff\xff")]


class Small(unittest.TestCase):
    def test_a_login_does_not_show_its_token(self):
        self.assertNotIn("secret", repr(Login(ca="ca.pem", token="secret")))

    def test_unreadable_error_details_are_ignored(self):
        self.assertIsNone(retry_after(Malformed()))


class Promises(unittest.TestCase):
    """Streams that a correct router never sends: tokens missing, repeated, miscounted."""

    def test_they_are_checked(self):
        response = inference_pb2.GenerateResponse
        finish = inference_pb2.Finish(usage=inference_pb2.Usage(completion_tokens=3))
        for messages in ([response(first_index=1, token_ids=[1])], [response(token_ids=[1]), response(token_ids=[1])],
                         [response(token_ids=[1, 2]), response(first_index=2, finish=finish)],
                         [response(token_ids=[1, 2, 3], finish=finish), response(first_index=3, token_ids=[4])]):
            request = Request(build(5, max_new_tokens=5), 10, False, Retry())
            with self.assertRaises(bfio.Error) as caught:
                for message in messages:
                    request.on_message(message)
            self.assertEqual(caught.exception.code, grpc.StatusCode.DATA_LOSS)
        with self.assertRaises(bfio.Error):
            Request(build(5, max_new_tokens=5), 10, False, Retry()).on_end(None)


class Ended(unittest.TestCase):
    """The effect of a stream's end on the next stream and on the Abort."""

    def test_a_refused_request_is_not_aborted(self):
        full = bfio.Error(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", 0.5)
        request = Request(build(5, max_new_tokens=5), 100, True, Retry(max_retries=1, resume_patience=0.0))
        self.assertFalse(request.needs_abort)
        request.begin()
        self.assertTrue(request.needs_abort)
        self.assertGreater(request.on_end(full), 0)
        self.assertFalse(request.needs_abort)
        self.assertIsNone(request.broken_since)
        request.begin()
        self.assertRaises(bfio.Error, request.on_end, full)
        self.assertFalse(request.needs_abort)

    def test_a_slow_reader_that_was_disconnected_resumes(self):
        cut_off = bfio.Error(grpc.StatusCode.CANCELLED, "slow")
        request = Request(build(5, max_new_tokens=5), 100, True, Retry())
        request.begin()
        request.on_message(inference_pb2.GenerateResponse(token_ids=[1], resume_ticket=b"first"))
        self.assertIsNotNone(request.on_end(cut_off))
        self.assertEqual((request.resumes, request.begin()[0].resume_from_index), (1, 1))
        self.assertEqual(request.message.resume_ticket, b"first")
        request.on_message(inference_pb2.GenerateResponse(first_index=1, token_ids=[2], resume_ticket=b"second"))
        request.on_message(inference_pb2.GenerateResponse(first_index=2, token_ids=[3]))
        self.assertEqual(request.message.resume_ticket, b"second")
        plain = Request(build(5, max_new_tokens=5), 100, False, Retry())
        plain.begin()
        self.assertRaises(bfio.Error, plain.on_end, cut_off)

    def test_a_token_leaves_this_machine_only_encrypted(self):
        bfio.Client("127.0.0.1:1", token="x" * 20).close()
        for host in ("127.evil.example", "127.0.0.1.example", "127.1", "10.0.0.1"):
            self.assertRaises(ValueError, bfio.Client, f"{host}:1", token="x" * 20)


if __name__ == "__main__":
    FOLDER = programs_folder(sys.argv.pop(1))
    unittest.main(verbosity=2)
