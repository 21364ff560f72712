"""The state of one request, without I/O: the next message to send, and the effect of a message or a broken stream. Both
clients use it."""
from __future__ import annotations

import random
import secrets
import time
from dataclasses import dataclass, field
from typing import Optional, Sequence, Union

import grpc
from google.protobuf.message import DecodeError

from bfio import details_pb2
from bfio.v1 import inference_pb2

RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"


# Codes after which the router may still compute a resumable request: it treats the end of a stream, including the client's
# deadline, as a broken connection. After other errors the request was refused, or its id belongs to another client's
# request, which this client must not abort.
MAY_GO_ON = {grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE,
             grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.INTERNAL,
             grpc.StatusCode.UNKNOWN}


class Error(Exception):
    """How a call failed: gRPC's code, a message, and after how many seconds the router allows a retry."""

    def __init__(self, code: grpc.StatusCode, message: str, retry_after: Optional[float] = None):
        super().__init__(f"{code.name}: {message}")
        self.code, self.message, self.retry_after = code, message, retry_after


@dataclass(frozen=True)
class Tokens:
    """Consecutive tokens of the request; the first has index `first_index`."""

    first_index: int
    ids: list[int]


@dataclass(frozen=True)
class Finish:
    """Why a request ended, its token counts, and its times by the router's clock, in seconds."""

    reason: str  # "length", "stop" or "abort"
    prompt_tokens: int
    completion_tokens: int
    queue_s: float
    time_to_first_token_s: Optional[float]
    end_to_end_s: float
    dp_rank: Optional[int]


@dataclass(frozen=True)
class Result:
    request_id: str
    token_ids: list[int]
    finish: Finish


@dataclass(frozen=True)
class Sampling:
    """The fields of bfio.v1.SamplingParams; greedy when none is set."""

    temperature: Optional[float] = None
    top_p: Optional[float] = None
    top_k: Optional[int] = None
    seed: Optional[int] = None


@dataclass(frozen=True)
class Retry:
    """Which failures are tried again: up to `max_retries` refusals before the first token; a resumable request's broken
    stream until no message has arrived for `resume_patience` seconds. The bound of the pause doubles from `first_pause` to
    `last_pause` seconds, with full jitter; the router's RetryInfo is a lower bound."""

    max_retries: int = 5
    resume_patience: float = 30.0
    first_pause: float = 0.05
    last_pause: float = 2.0


def retry_after(error: grpc.RpcError) -> Optional[float]:
    for name, value in error.trailing_metadata() or ():
        if name != "grpc-status-details-bin":
            continue
        try:
            status = details_pb2.Status.FromString(value)
            for any_detail in status.details:
                if any_detail.type_url == RETRY_INFO:
                    delay = details_pb2.RetryInfo.FromString(any_detail.value).retry_delay
                    return max(0.0, delay.seconds + delay.nanos * 1e-9)
        except DecodeError:  # for example written by a proxy; the details are optional
            return None
    return None


def to_error(error: grpc.RpcError) -> Error:
    return Error(error.code(), error.details() or "", retry_after(error))


def to_finish(finish: inference_pb2.Finish) -> Finish:
    seconds = lambda duration: duration.seconds + duration.nanos * 1e-9  # noqa: E731
    timing = finish.timing
    return Finish(
        reason=inference_pb2.FinishReason.Name(finish.reason).removeprefix("FINISH_REASON_").lower(),
        prompt_tokens=finish.usage.prompt_tokens,
        completion_tokens=finish.usage.completion_tokens,
        queue_s=seconds(timing.queue),
        time_to_first_token_s=seconds(timing.time_to_first_token) if timing.HasField("time_to_first_token") else None,
        end_to_end_s=seconds(timing.end_to_end),
        dp_rank=finish.dp_rank if finish.HasField("dp_rank") else None)


def build(prompt: Union[int, Sequence[int]], *, max_new_tokens: int, sampling: Optional[Sampling] = None,
          stop_token_ids: Sequence[int] = (), **fields) -> inference_pb2.GenerateRequest:
    """A GenerateRequest. `prompt`: token ids, or the length of a synthetic prompt. `fields`: other fields by name."""
    request = inference_pb2.GenerateRequest(max_new_tokens=max_new_tokens, stop_token_ids=stop_token_ids, **fields)
    if isinstance(prompt, int):
        request.prompt_length = prompt
    else:
        request.token_ids.ids.extend(prompt)
    for name in ("temperature", "top_p", "top_k", "seed"):
        value = getattr(sampling, name, None)
        if value is not None:
            setattr(request.sampling, name, value)
    return request


@dataclass
class Request:
    """The state of one request over all its streams. Times by time.monotonic()."""

    message: inference_pb2.GenerateRequest
    timeout: float
    resume: bool
    retry: Retry
    received: int = 0
    retries: int = 0
    resumes: int = 0
    refused: bool = False  # ended by an error after which the router does not compute it
    finish: Optional[Finish] = None
    may_be_live: bool = False
    under_way: bool = False  # a stream of the request is open
    own_id: bool = False
    deadline: float = field(init=False)
    pause_bound: float = 0.0
    broken_since: Optional[float] = None

    def __post_init__(self):
        self.deadline = time.monotonic() + self.timeout
        self.own_id = not self.message.request_id
        self.new_id()
        if self.resume:
            self.message.resumable = True
            self.message.resume_token = self.message.resume_token or secrets.token_bytes(16)

    @property
    def needs_abort(self) -> bool:
        """Whether an Abort is needed to end it. The id of a refused request may belong to another client's request."""
        return self.resume and (self.under_way or self.may_be_live)

    def abort_message(self) -> inference_pb2.AbortRequest:
        return inference_pb2.AbortRequest(request_id=self.message.request_id, resume_token=self.message.resume_token,
                                          tenant=self.message.tenant)

    def new_id(self):
        if self.own_id:
            self.message.request_id = f"py-{secrets.token_hex(8)}"

    def begin(self) -> tuple[inference_pb2.GenerateRequest, float]:
        """The message to send, and its timeout in seconds."""
        if self.resume and self.may_be_live:
            self.message.resume_from_index = self.received
        elif self.retries and not self.resume:
            self.new_id()  # the router may not yet have noticed that the previous stream has ended
        self.under_way = True
        return self.message, max(0.001, self.deadline - time.monotonic())

    def on_message(self, message: inference_pb2.GenerateResponse) -> Optional[Tokens]:
        self.may_be_live, self.broken_since, self.pause_bound = True, None, 0.0
        if self.finish is not None:
            raise Error(grpc.StatusCode.DATA_LOSS, "a message came after the final one")
        ids = list(message.token_ids)
        if ids and message.first_index != self.received:
            raise Error(grpc.StatusCode.DATA_LOSS,
                        f"token {message.first_index} came where token {self.received} was expected")
        self.received += len(ids)
        if self.resume:  # a router that has lost the request continues after these tokens
            self.message.received_token_ids.extend(ids)
            self.message.resume_ticket = message.resume_ticket or self.message.resume_ticket
        if message.HasField("finish"):
            self.finish = to_finish(message.finish)
            if self.finish.completion_tokens != self.received:
                raise Error(grpc.StatusCode.DATA_LOSS, f"{self.received} tokens came, but the router's usage counts "
                                                       f"{self.finish.completion_tokens}")
        return Tokens(self.received - len(ids), ids) if ids else None

    def on_end(self, error: Optional[Error]) -> Optional[float]:
        """None when the request is complete, otherwise the seconds to wait before the next stream; raises if it failed."""
        if self.finish is not None:
            return None
        if error is None:
            raise Error(grpc.StatusCode.DATA_LOSS, "the stream ended without its final message")
        pause = self.pause_after(error)
        if error.code in MAY_GO_ON and error.code != grpc.StatusCode.RESOURCE_EXHAUSTED:
            self.may_be_live = True
        self.under_way = False
        if pause is None:
            self.refused = error.code not in MAY_GO_ON
            raise error
        return pause

    def pause_after(self, error: Error) -> Optional[float]:
        exhausted = error.code == grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_after is not None
        # The caller has not cancelled the request: the router disconnected a slow reader and keeps the request.
        cut_off = error.code == grpc.StatusCode.CANCELLED and self.resume and self.may_be_live
        if error.code != grpc.StatusCode.UNAVAILABLE and not exhausted and not cut_off:
            return None
        resumes = self.resume and not (exhausted and self.received == 0)
        if not resumes and (self.received > 0 or self.retries >= self.retry.max_retries):
            return None
        if error.retry_after is not None:
            pause = error.retry_after * random.uniform(1, 1.5)
        else:
            self.pause_bound = min(max(2 * self.pause_bound, self.retry.first_pause), self.retry.last_pause)
            pause = random.uniform(0, self.pause_bound)
        now = time.monotonic()
        if resumes:  # a refusal is not a broken stream
            self.broken_since = self.broken_since or now
        if now + pause >= self.deadline or (resumes and now + pause > self.broken_since + self.retry.resume_patience):
            return None
        self.retries, self.resumes = self.retries + (not resumes), self.resumes + resumes
        return pause


class Facts:
    """Properties of the request that both kinds of streams expose."""

    _request: Request

    @property
    def request_id(self) -> str:
        return self._request.message.request_id

    @property
    def finish(self) -> Optional[Finish]:
        return self._request.finish

    @property
    def retries(self) -> int:
        return self._request.retries

    @property
    def resumes(self) -> int:
        return self._request.resumes
