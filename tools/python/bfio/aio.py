"""The asyncio client: bfio.aio.Client has the calls of bfio.Client as coroutines, its streams are iterated with async for."""
from __future__ import annotations

import asyncio
from typing import AsyncIterator, Optional, Sequence, Union

import grpc
import grpc.aio

from bfio.channel import Login, open_channel
from bfio.client import CANCELLED
from bfio.request import Error, Facts, Request, Result, Retry, Tokens, build, to_error
from bfio.v1 import inference_pb2, inference_pb2_grpc


class _Run:
    """State of a Stream's generator. It has no reference to the Stream, so that a dropped Stream is collected at once."""

    def __init__(self, client: "Client", request: Request, metadata):
        self.request = request
        self._client, self._metadata = client, metadata
        self._call: Optional[grpc.aio.UnaryStreamCall] = None
        self._cancelled = asyncio.Event()

    def cancel(self) -> None:
        if self._cancelled.is_set() or self.request.finish is not None:
            return
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()
        if self.request.needs_abort:
            self._client.abort_later(self.request.abort_message())

    async def tokens(self) -> AsyncIterator[Tokens]:
        try:
            while True:
                if self._cancelled.is_set():
                    raise Error(grpc.StatusCode.CANCELLED, CANCELLED)
                error = None
                try:
                    message, timeout = self.request.begin()
                    self._call = self._client.stub.Generate(message, timeout=timeout, metadata=self._metadata)
                    async for response in self._call:
                        tokens = self.request.on_message(response)
                        if tokens is not None:
                            yield tokens
                except grpc.RpcError as rpc_error:
                    error = to_error(rpc_error)
                except asyncio.CancelledError:
                    # gRPC raises it for a call that was cancelled as well as for the task.
                    if not self._cancelled.is_set():
                        raise
                if self._cancelled.is_set() and self.request.finish is None:
                    raise Error(grpc.StatusCode.CANCELLED, CANCELLED)
                pause = self.request.on_end(error)
                if pause is None:
                    return
                try:
                    await asyncio.wait_for(self._cancelled.wait(), pause)
                except asyncio.TimeoutError:
                    pass
        finally:
            if self.request.finish is None and not self.request.refused:
                self.cancel()


class Stream(Facts):
    """`async for` yields the tokens; `finish` is set at the end. Cancelling the task cancels its request, and so does the
    end of `async with`. A stream that is dropped before its end is cancelled when the event loop finalises it."""

    def __init__(self, client: "Client", request: Request, metadata):
        self._request = request
        self._run = _Run(client, request, metadata)
        self._tokens = self._run.tokens()

    def __aiter__(self) -> AsyncIterator[Tokens]:
        return self

    async def __anext__(self) -> Tokens:
        return await self._tokens.__anext__()

    async def aclose(self) -> None:
        self.cancel()
        await self._tokens.aclose()

    async def __aenter__(self) -> "Stream":
        return self

    async def __aexit__(self, *_) -> None:
        await self.aclose()

    def cancel(self) -> None:
        """Iterating then raises Error with CANCELLED. Frees the request's slot, also that of a resumable request."""
        self._run.cancel()


class Client:
    """As bfio.Client, for use in one event loop."""

    def __init__(self, target: str, *, ca: Optional[str] = None, cert: Optional[str] = None, key: Optional[str] = None,
                 token: Optional[str] = None, retry: Retry = Retry()):
        self._login = Login(ca, cert, key, token)
        self._channel = open_channel(grpc.aio, target, self._login)
        self.stub = inference_pb2_grpc.InferenceStub(self._channel)
        self._retry = retry
        self._aborts: set[asyncio.Task] = set()

    def generate(self, prompt: Union[int, Sequence[int]], *, max_new_tokens: int, timeout: float = 300.0,
                 resume: bool = False, retry: Optional[Retry] = None, metadata: Sequence[tuple[str, str]] = (),
                 **fields) -> Stream:
        """As bfio.Client.generate."""
        request = Request(build(prompt, max_new_tokens=max_new_tokens, **fields), timeout, resume, retry or self._retry)
        return Stream(self, request, [*self._login.metadata(), *metadata])

    async def complete(self, prompt: Union[int, Sequence[int]], **options) -> Result:
        stream = self.generate(prompt, **options)
        ids = [token async for tokens in stream for token in tokens.ids]
        assert stream.finish is not None
        return Result(stream.request_id, ids, stream.finish)

    async def abort(self, request_id: str, timeout: float = 5.0, *, resume_token: bytes = b"", tenant: str = "") -> bool:
        message = inference_pb2.AbortRequest(request_id=request_id, resume_token=resume_token, tenant=tenant)
        return (await self._unary(self.stub.Abort, message, timeout)).found

    async def loads(self, dp_rank: Optional[int] = None, timeout: float = 5.0) -> inference_pb2.GetLoadsResponse:
        return await self._unary(self.stub.GetLoads, inference_pb2.GetLoadsRequest(dp_rank=dp_rank), timeout)

    def abort_later(self, message: inference_pb2.AbortRequest) -> None:
        async def abort():
            try:
                await self._unary(self.stub.Abort, message, 5.0)
            except Error:
                pass  # the router ends it after its --client_timeout

        task = asyncio.ensure_future(abort())
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def close(self) -> None:
        if self._aborts:
            await asyncio.wait(self._aborts)
        await self._channel.close()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_) -> None:
        await self.close()

    async def _unary(self, method, request, timeout):
        try:
            return await method(request, timeout=timeout, metadata=self._login.metadata())
        except grpc.RpcError as error:
            raise to_error(error) from None
