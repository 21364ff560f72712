#!/usr/bin/env python3
"""An HTTP proxy that chooses engines by Dynamo's own code, its SelectionService (PyPI ai-dynamo-runtime). For tests/real/compare.

usage: dynamo_proxy.py PORT ENGINE_PORT,.. TOTAL_KV_BLOCKS

It reports to the service what Dynamo's frontend would: each request's tokens (a byte counts as one), its first token and its end. Without
events of the engines' caches, DYN_ROUTER_USE_KV_EVENTS=false, the service follows prefixes from its own choices. Connections are not reused.
"""
import asyncio
import json
import sys

from dynamo.llm import SelectionService

MODEL = {"model_name": "any"}
BLOCK_TOKENS = 16


class Proxy:
    def __init__(self, engines, kv_blocks):
        self.engines, self.kv_blocks, self.requests, self.service = engines, kv_blocks, 0, SelectionService(indexer_threads=1)

    async def start(self, port):
        for engine in self.engines:
            # The service requires an address of events, and does not use it.
            await self.service.upsert_worker(MODEL | {"worker_id": engine, "endpoint": f"http://127.0.0.1:{engine}", "block_size": BLOCK_TOKENS,
                                                      "total_kv_blocks": self.kv_blocks, "kv_events_endpoint": "tcp://127.0.0.1:9"})
        return await asyncio.start_server(self.connection, "127.0.0.1", port, limit=1 << 24)

    async def connection(self, reader, writer):
        name = None
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            size = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
            body, engine = await reader.readexactly(size[0] if size else 0), self.engines[0]
            if body:
                self.requests += 1
                name = str(self.requests)
                tokens = list(json.loads(body)["prompt"].encode())
                engine = (await self.service.select_and_reserve(MODEL | {"selection_id": name, "token_ids": tokens}))["worker_id"]
            answer, request = await asyncio.open_connection("127.0.0.1", engine)
            try:
                request.write(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1) + body)
                first = name
                while data := await answer.read(65536):
                    if first and b"data:" in data:
                        await self.service.prefill_complete(first)
                        first = None
                    writer.write(data)
                    await writer.drain()
            finally:
                request.close()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            if name:
                await self.service.free_reservation(name)
            writer.close()


async def main():
    port, engines, kv_blocks = sys.argv[1:]
    server = await Proxy([int(engine) for engine in engines.split(",")], int(kv_blocks)).start(int(port))
    await server.serve_forever()


asyncio.run(main())
