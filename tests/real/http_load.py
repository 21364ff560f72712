"""An HTTP load client for OpenAI's completions API: open loop, streamed, on asyncio and the standard library alone.

Every request is sent when it is due, whatever became of the others, and latencies count from that time. A prompt of N tokens is N
digits, each a token of deploy/tokenizer. All requests may make MAX_TOKENS; their own length is their seed,
where ranks with --sim=ends_by_seed end, so nobody on the way knows it. Threads: one; it is good for some thousand events a second.
"""
import asyncio
import json
import random
import time

MAX_TOKENS = 2048
# Timeout of a request in seconds.
PATIENCE_S = 3600


class Request:
    """The result of one request. Times are of time.monotonic()."""

    def __init__(self, prompt_tokens, output_tokens, due, body):
        self.prompt_tokens, self.output_tokens, self.due, self.body = prompt_tokens, output_tokens, due, body
        # Times of the events with text; time of the end of the response; the reason of a failure.
        self.events, self.ended, self.error = [], None, None


def digits_prompt(model, prompt_tokens, output_tokens, chance):
    prompt = "".join(chance.choices("0123456789", k=prompt_tokens))
    return {"model": model, "prompt": prompt, "max_tokens": MAX_TOKENS, "seed": output_tokens, "temperature": 1}


async def lines_of(reader):
    """Lines of a response's body. A proxy may have cut it into other chunks than the server."""
    chunked = False
    while (header := await reader.readline()) not in (b"\r\n", b""):
        chunked = chunked or header.lower().startswith(b"transfer-encoding: chunked")
    if not chunked:
        async for line in reader:
            yield line
        return
    rest = b""
    while size := int(await reader.readline(), 16):
        *whole, rest = (rest + await reader.readexactly(size)).split(b"\n")
        await reader.readline()
        for line in whole:
            yield line
    yield rest


async def send(address, request, exact):
    await asyncio.sleep(max(0, request.due - time.monotonic()))
    host, port = address.rsplit(":", 1)
    body = json.dumps(request.body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    writer = None
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nConnection: close\r\n"
                     b"Content-Length: %d\r\n\r\n" % (address.encode(), len(body)) + body)
        status = await reader.readline()
        if b" 200 " not in status:
            request.error = (status + await reader.read())[-300:].decode(errors="replace")
            return
        async for line in lines_of(reader):
            if line.startswith(b"data: "):
                if line.startswith(b"data: [DONE]"):
                    request.ended = time.monotonic()
                elif b'"error"' in line:
                    request.error = line[:300].decode(errors="replace")
                elif b'"completion_tokens"' in line:
                    made = json.loads(line[6:])["usage"]["completion_tokens"]
                    if exact and made != request.output_tokens:
                        request.error = f"{made} tokens, not {request.output_tokens}"
                else:
                    request.events.append(time.monotonic())
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        request.error = repr(error)
    finally:
        if writer is not None:
            writer.close()
        if request.ended is None and request.error is None:
            request.error = "the response has no end"


def run(address, model, lengths, rate, seed, make_body=digits_prompt, exact=True):
    """Sends a request for each (prompt, output) of `lengths`, as a Poisson process of `rate` per second; returns them all.

    `exact`: a response of another length is a failure.
    """
    gaps, chance = random.Random(seed), random.Random(seed + 1)

    async def everything():
        due = time.monotonic() + 1
        requests = []
        for prompt, output in lengths:
            due += gaps.expovariate(rate)
            requests.append(Request(prompt, output, due, make_body(model, prompt, output, chance)))
        await asyncio.wait_for(asyncio.gather(*(send(address, request, exact) for request in requests)), PATIENCE_S)
        return requests

    return asyncio.run(everything())
