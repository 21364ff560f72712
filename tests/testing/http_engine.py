#!/usr/bin/env python3
"""An engine with OpenAI's API over HTTP that computes nothing, for tests. Standard library only.

usage: tests/testing/http_engine.py --ports=8200-8207,8300 [--barrier] [--ranks=N] [--slots=N] [--kv_tokens=N] [--step=SECONDS]
           [--token_time=SECONDS] [--prompt_time=SECONDS] [--model=NAME] [--fault=FAULT] [--ends_by_seed]

A server for each port, at 127.0.0.1. It serves completions, chat completions and responses, whole or as streams; /v1/models, /health,
and /metrics with vLLM's names. A server has --ranks ranks, which X-data-parallel-rank chooses. A rank runs --slots requests at a time;
others wait in it. Each running request generates a token in every step, as often as its max_tokens says, and a step takes --step plus
--token_time for each token that the rank holds (prompts count a token for four bytes). With --prompt_time a rank first computes prompts,
oldest first, up to 2,048 tokens in a step, which takes as much longer for each of them. With --barrier all ranks of all ports step
together, as long as the slowest needs. With --ends_by_seed a request ends at the length that its field "seed" says, which nobody on the way knows.

Prompts are handed over as by vLLM's NIXL connector: with "do_remote_decode" in kv_transfer_params the answer says where the KV is, and
with "do_remote_prefill" it is fetched from there, once. "received" has what was fetched ("kv"): "wrong" is that of another prompt, and
"lost" that of a server that has died.

Faults, of all requests or of one (field "fault" of its body): "429" or another status, at once; "hang": it is accepted and never
answered; "die:N": the connection breaks after N tokens. A whole answer, and the last event of a stream, has the field "received": what
the engine was sent. GET /test tells what the server has counted, and POST /test sets its fault.
"""
import argparse
import asyncio
import hashlib
import json
import signal
import sys
import time

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 500: "Internal Server Error",
           503: "Service Unavailable"}
# Tokens of prompts that a rank computes in a step (vLLM: max_num_batched_tokens).
TOKEN_BUDGET = 2048
PATHS = {"/v1/chat/completions": "chat", "/v1/completions": "text", "/v1/responses": "responses"}


class Histogram:
    """As Prometheus': values up to each bound, their number and sum."""
    BOUNDS = [mantissa * 10.0 ** power for power in range(-3, 6) for mantissa in (1, 2, 5)] + [float("inf")]

    def __init__(self):
        self.count, self.sum, self.up_to = 0, 0.0, [0] * len(self.BOUNDS)

    def add(self, value):
        self.count, self.sum = self.count + 1, self.sum + value
        for i, bound in enumerate(self.BOUNDS):
            self.up_to[i] += value <= bound

    def lines(self, name, labels):
        for bound, count in zip(self.BOUNDS, self.up_to):
            yield f'{name}_bucket{{{labels},le="{"+Inf" if bound == float("inf") else bound}"}} {count}'
        yield f"{name}_count{{{labels}}} {self.count}"
        yield f"{name}_sum{{{labels}}} {self.sum}"


class Steps:
    """The steps of ranks that step together. It runs while a request does."""

    def __init__(self, step, token_time, prompt_time):
        self.step, self.token_time, self.prompt_time, self.ranks, self.task = step, token_time, prompt_time, [], None

    def start(self):
        if self.task is None:
            self.task = asyncio.ensure_future(self.run())

    async def run(self):
        while any(rank.running for rank in self.ranks):
            began = time.monotonic()
            times = [self.token_time * rank.tokens() + self.prompt_time * rank.compute_prompts() for rank in self.ranks]
            await asyncio.sleep(self.step + max(times))
            now = time.monotonic()
            for rank in self.ranks:
                rank.end_step(now - began, now)
        self.task = None


class Rank:
    def __init__(self, steps, slots):
        self.steps, self.slots, self.running, self.waiting, self.generated, self.prompted = steps, slots, [], [], 0, 0
        self.gaps, self.first_tokens, self.ends, self.prompts, self.outputs = (Histogram() for _ in range(5))
        # Most requests that it has had in a step, running and waiting, without those whose connection was closed.
        self.most = 0
        steps.ranks.append(self)

    def tokens(self):
        return sum(request.prompt_tokens + request.generated for request in self.running)

    def compute_prompts(self):
        """Tokens of prompts that are computed in the coming step."""
        left = TOKEN_BUDGET
        for request in self.running:
            part = min(left, request.to_compute)
            request.to_compute -= part
            left -= part
        return TOKEN_BUDGET - left

    def add(self, request):
        if self.steps.prompt_time > 0:
            request.to_compute = request.prompt_tokens
        self.waiting.append(request)
        self.fill()

    def remove(self, request):
        for queue in (self.running, self.waiting):
            if request in queue:
                queue.remove(request)
        self.fill()

    def fill(self):
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.pop(0))
            self.steps.start()

    def end_step(self, seconds, now):
        self.most = max(self.most, sum(not request.closed.is_set() for request in self.running + self.waiting))
        for request in self.running:
            if not request.hangs and request.to_compute == 0:
                request.generated += 1
                self.generated += 1
                self.count(request, seconds, now)
                request.stepped.set()

    def count(self, request, seconds, now):
        if request.generated == 1:
            self.prompted += request.prompt_tokens
            self.first_tokens.add(now - request.arrived)
        else:
            self.gaps.add(seconds)
        if request.generated == request.wanted:
            self.ends.add(now - request.arrived)
            self.prompts.add(request.prompt_tokens)
            self.outputs.add(request.generated)


class Request:
    def __init__(self, body, headers, size, digest, fault, closed, ends_by_seed):
        self.closed = closed
        self.stream, self.fault = body.get("stream") is True, fault
        self.hangs = fault == "hang"
        self.dies_after = int(fault[4:]) if fault.startswith("die:") else None
        self.wanted = next((body[name] for name in ("max_completion_tokens", "max_output_tokens", "max_tokens") if name in body), 16)
        if ends_by_seed:
            self.wanted = min(self.wanted, max(1, int(body.get("seed", self.wanted))))
        self.usage = (body.get("stream_options") or {}).get("include_usage") is True
        prompt = next((body[name] for name in ("messages", "prompt", "input") if name in body), "")
        self.prompt_tokens = max(1, len(prompt if isinstance(prompt, str) else json.dumps(prompt)) // 4)
        self.generated, self.to_compute, self.stepped, self.arrived = 0, 0, asyncio.Event(), time.monotonic()
        self.kv, self.prompt = body.get("kv_transfer_params") or {}, hashlib.sha256(json.dumps(prompt).encode()).hexdigest()
        self.received = {"headers": headers, "bytes": size, "sha256": digest, "kv": "none"}


class Reader(asyncio.StreamReader):
    """Knows at once when the peer has closed the connection, without reading on."""

    def __init__(self):
        super().__init__(limit=1 << 20)
        self.closed = asyncio.Event()

    def feed_eof(self):
        super().feed_eof()
        self.closed.set()

    def set_exception(self, exception):
        super().set_exception(exception)
        self.closed.set()


class Server:
    def __init__(self, port, steps, args):
        self.port, self.args, self.fault = port, args, args.fault
        self.ranks = [Rank(steps() if callable(steps) else steps, args.slots) for _ in range(args.ranks)]
        self.counts = dict.fromkeys(("accepted", "completed", "aborted", "refused", "handed_over", "fetched", "wrong", "lost"), 0)
        # Prompts by hand-off.
        self.kv = {}

    # --- HTTP ---

    async def connection(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode("latin-1").split("\r\n")
                method, path, _ = lines[0].split(" ", 2)
                headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:] if line)]
                body = await self.body(reader, dict(headers))
                await self.answer(method, path.partition("?")[0], headers, body, reader, writer)
                if dict(headers).get("connection") == "close":
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the end of the connection, or of the program
        finally:
            writer.close()

    @staticmethod
    async def body(reader, headers):
        if headers.get("transfer-encoding") != "chunked":
            return await reader.readexactly(int(headers.get("content-length", 0)))
        body = bytearray()
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
        return bytes(body)

    async def answer(self, method, path, headers, body, reader, writer):
        if path == "/health":
            self.send(writer, 200, b"")
        elif path == "/metrics":
            self.send(writer, 200, self.metrics().encode(), "text/plain")
        elif path == "/v1/models":
            model = {"id": self.args.model, "object": "model", "max_model_len": self.args.kv_tokens}
            self.send(writer, 200, {"object": "list", "data": [model]})
        elif path == "/test":
            if method == "POST":
                self.fault = json.loads(body)["fault"]
            ranks = [{"running": len(rank.running), "waiting": len(rank.waiting), "most": rank.most} for rank in self.ranks]
            self.send(writer, 200, {**self.counts, "ranks": ranks})
        elif path.startswith("/test/kv/"):
            self.send(writer, 200, self.kv.pop(path[9:], "").encode(), "text/plain")
        elif path in PATHS and method == "POST":
            await self.generate(PATHS[path], headers, body, reader, writer)
        else:
            self.send(writer, 404, {"error": {"message": f"no {path}"}})
        await writer.drain()

    def send(self, writer, status, body, kind="application/json"):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        writer.write(f"HTTP/1.1 {status} {REASONS.get(status, 'Other')}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
                     f"x-engine: 127.0.0.1:{self.port}\r\n\r\n".encode() + body)

    # --- requests ---

    def rank_of(self, headers):
        named = dict(headers).get("x-data-parallel-rank")
        if named is not None and named.isdigit():
            return self.ranks[int(named)] if int(named) < len(self.ranks) else None
        return min(self.ranks, key=lambda rank: len(rank.running) + len(rank.waiting))

    async def generate(self, api, headers, body, reader, writer):
        try:
            fields = json.loads(body)
            request = Request(fields, headers, len(body), hashlib.sha256(body).hexdigest(), fields.get("fault", self.fault),
                              reader.closed, self.args.ends_by_seed)
        except (ValueError, TypeError, AttributeError) as error:
            return self.send(writer, 400, {"error": {"message": str(error)}})
        rank = self.rank_of(headers)
        if rank is None or request.fault.isdigit():
            self.counts["refused"] += 1
            status = 400 if rank is None else int(request.fault)
            return self.send(writer, status, {"error": {"message": "refused by the engine", "code": status}})
        self.counts["accepted"] += 1
        rank.add(request)
        request.received |= {"server": f"127.0.0.1:{self.port}", "rank": self.ranks.index(rank)}
        gone = asyncio.ensure_future(reader.closed.wait())
        generating = asyncio.ensure_future(self.tokens(api, request, rank, writer))
        try:
            await asyncio.wait((gone, generating), return_when=asyncio.FIRST_COMPLETED)
            if generating.done() and generating.exception() is None and not gone.done():
                self.counts["completed"] += 1
            else:
                self.counts["aborted"] += 1
                raise ConnectionResetError
        finally:
            generating.cancel()
            gone.cancel()
            await asyncio.gather(gone, generating, return_exceptions=True)
            rank.remove(request)

    def hand_over(self, request):
        self.counts["handed_over"] += 1
        name = f"{self.port}-{self.counts['handed_over']}"
        self.kv[name] = request.prompt
        return {"do_remote_prefill": True, "remote_request_id": name, "remote_engine_id": f"engine-{self.port}", "remote_block_ids": [[1]],
                "remote_host": "127.0.0.1", "remote_port": self.port}

    async def fetch(self, request):
        try:
            reader, writer = await asyncio.open_connection(request.kv["remote_host"], request.kv["remote_port"])
            writer.write(f"GET /test/kv/{request.kv['remote_request_id']} HTTP/1.1\r\nconnection: close\r\n\r\n".encode())
            answer = await asyncio.wait_for(reader.read(), 2)
            got = "fetched" if answer.decode().endswith(request.prompt) else "wrong"
            writer.close()
        except (OSError, asyncio.TimeoutError):
            got = "lost"
        self.counts[got] += 1
        request.received["kv"] = got

    async def tokens(self, api, request, rank, writer):
        if request.kv.get("do_remote_prefill"):
            await self.fetch(request)
        if request.stream:
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
                         f"x-engine: 127.0.0.1:{self.port}\r\nx-rank: {self.ranks.index(rank)}\r\n\r\n".encode())
        sent = 0
        while sent < request.wanted:
            if sent == request.dies_after:
                writer.transport.abort()
                raise ConnectionResetError
            while sent == request.generated:
                request.stepped.clear()
                await request.stepped.wait()
            sent += 1
            if request.stream:
                self.event(writer, part_of(api, self.args.model, sent, sent == request.wanted))
                await writer.drain()
        usage = {"prompt_tokens": request.prompt_tokens, "completion_tokens": sent, "total_tokens": request.prompt_tokens + sent}
        whole = whole_of(api, self.args.model, sent) | {"usage": usage, "received": request.received}
        if request.kv.get("do_remote_decode"):
            whole["kv_transfer_params"] = self.hand_over(request)
        if not request.stream:
            rank.remove(request)
            return self.send(writer, 200, whole)
        if api == "responses":
            whole = {"type": "response.completed", "response": whole, "received": request.received}
        elif not request.usage:
            del whole["usage"]
        self.event(writer, whole if api == "responses" else whole | {"choices": []})
        if api != "responses":
            self.event(writer, "[DONE]")
        rank.remove(request)
        writer.write(b"0\r\n\r\n")

    @staticmethod
    def event(writer, value):
        name = f"event: {value['type']}\n" if "type" in value else ""
        event = f"{name}data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))

    def metrics(self):
        lines = []
        for index, rank in enumerate(self.ranks):
            labels = f'engine="{index}",model_name="{self.args.model}"'
            values = {"num_requests_running": len(rank.running), "num_requests_waiting": len(rank.waiting),
                      "kv_cache_usage_perc": min(1.0, rank.tokens() / self.args.kv_tokens), "generation_tokens_total": rank.generated,
                      "prompt_tokens_total": rank.prompted}
            lines += [f"vllm:{name}{{{labels}}} {value}" for name, value in values.items()]
            for name, histogram in (("inter_token_latency_seconds", rank.gaps), ("time_to_first_token_seconds", rank.first_tokens),
                                    ("e2e_request_latency_seconds", rank.ends), ("request_prompt_tokens", rank.prompts),
                                    ("request_generation_tokens", rank.outputs)):
                lines += histogram.lines(f"vllm:{name}", labels)
            lines.append(f'vllm:cache_config_info{{engine="{index}",block_size="16",num_gpu_blocks='
                         f'"{self.args.kv_tokens // 16 * len(self.ranks)}",kv_cache_size_tokens="{self.args.kv_tokens}"}} 1.0')
        return "\n".join(lines) + "\n"


def part_of(api, model, number, last):
    text = f"t{number} "
    if api == "responses":
        return {"type": "response.output_text.delta", "output_index": 0, "delta": text}
    choice = {"index": 0, "finish_reason": "length" if last else None}
    if api == "chat":
        return {"object": "chat.completion.chunk", "model": model, "choices": [choice | {"delta": {"content": text}}]}
    return {"object": "text_completion", "model": model, "choices": [choice | {"text": text}]}


def whole_of(api, model, count):
    text = "".join(f"t{number} " for number in range(1, count + 1))
    if api == "responses":
        content = [{"type": "output_text", "text": text}]
        return {"object": "response", "model": model, "output": [{"type": "message", "role": "assistant", "content": content}]}
    choice = {"index": 0, "finish_reason": "length"}
    if api == "chat":
        return {"object": "chat.completion", "model": model, "choices": [choice | {"message": {"role": "assistant", "content": text}}]}
    return {"object": "text_completion", "model": model, "choices": [choice | {"text": text}]}


async def serve(args):
    ports = [int(port) for part in args.ports.split(",") for port in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)]
    together = Steps(args.step, args.token_time, args.prompt_time)
    servers = []
    for port in ports:
        server = Server(port, together if args.barrier else lambda: Steps(args.step, args.token_time, args.prompt_time), args)
        servers.append(await asyncio.get_running_loop().create_server(
            lambda server=server: asyncio.StreamReaderProtocol(Reader(), server.connection), "127.0.0.1", port, backlog=4096))
    print(f"serving on {args.ports}", flush=True)
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    await over.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ports", required=True)
    parser.add_argument("--barrier", action="store_true")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--kv_tokens", type=int, default=4 << 20)
    parser.add_argument("--step", type=float, default=0.02)
    parser.add_argument("--token_time", type=float, default=0)
    parser.add_argument("--prompt_time", type=float, default=0)
    parser.add_argument("--model", default="test")
    parser.add_argument("--fault", default="")
    parser.add_argument("--ends_by_seed", action="store_true")
    asyncio.run(serve(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
