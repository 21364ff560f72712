"""The stream to the router, on threads of its own: what is called on the scheduler's thread never waits."""
import collections
import logging
import threading
import time

import grpc

from bfio_vllm.engine_steps_pb2 import Allotment, EngineHello, EngineStep

logger = logging.getLogger("bfio_vllm")
METHOD = "/bfio.v1.EngineSteps/Follow"


class RouterLink:
    """Reports steps to the router at `address`, and keeps its latest allotment.

    silence_s: how long an allotment holds after the router's last message. While no step ends, the last report is repeated
    four times in that time. Reports that the router does not take wait, KEPT at most: the oldest are dropped.
    `tls`: {"ca": FILE, "cert": FILE, "key": FILE}, the last two together or not at all; empty: no TLS.
    """

    KEPT = 256
    SHORTEST_RETRY_S, LONGEST_RETRY_S = 0.2, 5.0

    def __init__(self, address, hello, silence_s, tls=None):
        self._address, self._hello, self._silence_s = address, hello, silence_s
        self._credentials = _credentials(tls or {})
        self._ready = threading.Condition()
        self._reports = collections.deque(maxlen=self.KEPT)
        self._last = EngineStep()
        # (number, prompt tokens or None, when it came): one object, so that a reader needs no lock.
        self._allotment = (0, None, float("-inf"))
        self._call = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="bfio-router", daemon=True)
        self._thread.start()

    def report(self, step):
        """Sends an EngineStep, which the caller must not change after this."""
        with self._ready:  # held by others for as long as it takes to append or pop
            self._reports.append(step)
            self._last = step
            self._ready.notify()

    def allotment(self):
        """(number, prompt tokens or None: no limit) of the router's last message; (number, None) when it is silent."""
        number, tokens, came_at = self._allotment
        return number, tokens if time.monotonic() - came_at <= self._silence_s else None

    def close(self):
        with self._ready:
            self._closed = True
            call = self._call
            self._ready.notify()
        if call is not None:
            call.cancel()
        self._thread.join()

    def _messages(self, over):
        """Of one stream, until it is over: hello, then reports, or the last one again."""
        first = EngineStep()
        with self._ready:
            first.CopyFrom(self._last)
        first.hello.CopyFrom(self._hello)
        yield first
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._reports or self._closed or over.is_set(), self._silence_s / 4)
                if self._closed or over.is_set():
                    return
                message = self._reports.popleft() if self._reports else self._last
            yield message

    def _run(self):
        retry_s, said = self.SHORTEST_RETRY_S, None
        options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 2000),
                   ("grpc.keepalive_time_ms", 10_000), ("grpc.enable_http_proxy", 0)]
        while not self._closed:
            over = threading.Event()
            with (grpc.secure_channel(self._address, self._credentials, options) if self._credentials
                  else grpc.insecure_channel(self._address, options)) as channel:
                follow = channel.stream_stream(METHOD, request_serializer=EngineStep.SerializeToString,
                                               response_deserializer=Allotment.FromString)
                call = follow(self._messages(over))
                with self._ready:
                    self._call = call
                    if self._closed:
                        call.cancel()
                why = "the router ended the stream"
                try:
                    for message in call:
                        if said is not True:
                            logger.info("connected to the router at %s; its allotments limit the prompt tokens of a step",
                                        self._address)
                        retry_s, said = self.SHORTEST_RETRY_S, True
                        tokens = message.prompt_tokens if message.HasField("prompt_tokens") else None
                        self._allotment = (message.number, tokens, time.monotonic())
                except grpc.RpcError as error:
                    why = f"{error.code().name}: {error.details()}"
                with self._ready:
                    over.set()
                    self._ready.notify_all()
            with self._ready:
                if not self._closed and said != why:
                    logger.warning("no connection to the router at %s (%s): vLLM schedules without it and retries",
                                   self._address, why)
                said = why
                self._ready.wait_for(lambda: self._closed, retry_s)
                self._reports.clear()  # what happened meanwhile is not news
            retry_s = min(2 * retry_s, self.LONGEST_RETRY_S)


def _credentials(tls):
    if not tls:
        return None
    unknown = set(tls) - {"ca", "cert", "key"}
    if unknown or ("cert" in tls) != ("key" in tls) or "ca" not in tls:
        raise ValueError("BFIO_ROUTER_TLS must be ca=FILE or ca=FILE,cert=FILE,key=FILE")
    read = {name: open(file, "rb").read() for name, file in tls.items()}
    return grpc.ssl_channel_credentials(read["ca"], read.get("key"), read.get("cert"))


__all__ = ["Allotment", "EngineHello", "EngineStep", "RouterLink"]
