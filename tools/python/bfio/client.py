"""The blocking client."""
from __future__ import annotations

import threading
from typing import Iterator, Optional, Sequence, Union

import grpc

from bfio.channel import Connection
from bfio.request import Error, Facts, Request, Result, Retry, Tokens, build, to_error
from bfio.v1 import inference_pb2, inference_pb2_grpc

CANCELLED = "cancelled by the caller"


class _Run:
    """State of a Stream's generator. It has no reference to the Stream, so that a dropped Stream is collected at once."""

    def __init__(self, stub, request: Request, metadata):
        self.request = request
        self._stub, self._metadata = stub, metadata
        self._lock = threading.Lock()
        self._call: Optional[grpc.Call] = None
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        with self._lock:
            if self._cancelled.is_set() or self.request.finish is not None:
                return
            self._cancelled.set()
            call, abort = self._call, self.request.needs_abort
        if call is not None:
            call.cancel()
        if abort:
            try:
                self._stub.Abort.future(self.request.abort_message(), timeout=5,
                                        metadata=self._metadata).add_done_callback(lambda _: None)
            except ValueError:
                pass  # the client is already closed: the router ends the request after its --client_timeout

    def tokens(self) -> Iterator[Tokens]:
        try:
            while True:
                error = None
                try:
                    for message in self._begin():
                        tokens = self.request.on_message(message)
                        if tokens is not None:
                            yield tokens
                except grpc.RpcError as rpc_error:
                    error = to_error(rpc_error)
                if self._cancelled.is_set() and self.request.finish is None:
                    raise Error(grpc.StatusCode.CANCELLED, CANCELLED)
                pause = self.request.on_end(error)
                if pause is None:
                    return
                if self._cancelled.wait(pause):
                    raise Error(grpc.StatusCode.CANCELLED, CANCELLED)
        finally:
            if self.request.finish is None and not self.request.refused:
                self.cancel()  # dropped before its end, or broken: the router must end the request

    def _begin(self):
        with self._lock:
            if self._cancelled.is_set():
                return iter(())
            message, timeout = self.request.begin()
            self._call = self._stub.Generate(message, timeout=timeout, metadata=self._metadata)
            return self._call


class Stream(Facts):
    """Iterate to get the tokens; `finish` is set at the end. One thread iterates, any thread may call cancel(). A stream
    that is dropped before its end is cancelled."""

    def __init__(self, stub, request: Request, metadata):
        self._request = request
        self._run = _Run(stub, request, metadata)
        self._tokens = self._run.tokens()

    def __iter__(self) -> Iterator[Tokens]:
        return self

    def __next__(self) -> Tokens:
        return next(self._tokens)

    def cancel(self) -> None:
        """Iterating then raises Error with CANCELLED. Frees the request's slot, also that of a resumable request."""
        self._run.cancel()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_) -> None:
        self.cancel()


class Client(Connection):
    """A router's client API. Threads may share one.

    ca, cert, key: PEM files; token: a bearer token (docs/guides/security.md).
    """

    def __init__(self, target: str, *, ca: Optional[str] = None, cert: Optional[str] = None, key: Optional[str] = None,
                 token: Optional[str] = None, retry: Retry = Retry()):
        super().__init__(target, ca, cert, key, token)
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)
        self._retry = retry

    def generate(self, prompt: Union[int, Sequence[int]], *, max_new_tokens: int, timeout: float = 300.0,
                 resume: bool = False, retry: Optional[Retry] = None, metadata: Sequence[tuple[str, str]] = (),
                 **fields) -> Stream:
        """The request is sent when the stream is iterated. `prompt`: token ids, or a length for synthetic load. `resume`:
        the request survives a broken stream and a restarted router. `fields`: sampling=Sampling(...), stop_token_ids=,
        and fields of GenerateRequest by name: request_id=, ignore_eos=, tenant=, priority=, predicted_output_tokens=, and
        for an agent's call parent_id=, stage=, remaining_tokens=."""
        request = Request(build(prompt, max_new_tokens=max_new_tokens, **fields), timeout, resume, retry or self._retry)
        return Stream(self._stub, request, [*self._login.metadata(), *metadata])

    def complete(self, prompt: Union[int, Sequence[int]], **options) -> Result:
        """Sends the request and waits for all its tokens; options as for generate."""
        stream = self.generate(prompt, **options)
        ids = [token for tokens in stream for token in tokens.ids]
        assert stream.finish is not None
        return Result(stream.request_id, ids, stream.finish)

    def abort(self, request_id: str, timeout: float = 5.0, *, resume_token: bytes = b"", tenant: str = "") -> bool:
        """Ends a live request. `resume_token`, `tenant`: those of the request; the tenant may be left out where the bearer
        token implies it. False when there is no such live request."""
        message = inference_pb2.AbortRequest(request_id=request_id, resume_token=resume_token, tenant=tenant)
        return self._unary(self._stub.Abort, message, timeout).found

    def loads(self, dp_rank: Optional[int] = None, timeout: float = 5.0) -> inference_pb2.GetLoadsResponse:
        return self._unary(self._stub.GetLoads, inference_pb2.GetLoadsRequest(dp_rank=dp_rank), timeout)
