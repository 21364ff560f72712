"""The admin API: the state of the cluster, policies and drains."""
from __future__ import annotations

from typing import Iterator, Optional

import grpc

from bfio.channel import Connection
from bfio.request import to_error
from bfio.v1 import admin_pb2, admin_pb2_grpc


class Admin(Connection):
    """A router's admin API. Its methods return the messages of proto/bfio/v1/admin.proto."""

    def __init__(self, target: str, *, ca: Optional[str] = None, cert: Optional[str] = None, key: Optional[str] = None,
                 token: Optional[str] = None):
        super().__init__(target, ca, cert, key, token)
        self._stub = admin_pb2_grpc.AdminStub(self._channel)

    def state(self, timeout: float = 5.0) -> admin_pb2.ClusterState:
        return self._unary(self._stub.GetClusterState, admin_pb2.GetClusterStateRequest(), timeout)

    def set_policy(self, name: str, *, horizon: Optional[int] = None, objective: str = "", timeout: float = 5.0) -> None:
        """Takes effect with the next decision. Settings that are not given are kept."""
        policy = admin_pb2.PolicySetting(name=name, horizon=horizon, objective=objective)
        self._unary(self._stub.SetPolicy, admin_pb2.SetPolicyRequest(policy=policy), timeout)

    def drain(self, worker_id: str, timeout: float = 5.0) -> None:
        """The worker gets no new requests, and leaves when its requests have ended."""
        self._unary(self._stub.DrainWorker, admin_pb2.DrainWorkerRequest(worker_id=worker_id), timeout)

    def undrain(self, worker_id: str, timeout: float = 5.0) -> None:
        """Cancels a drain: the worker gets new requests again."""
        self._unary(self._stub.UndrainWorker, admin_pb2.UndrainWorkerRequest(worker_id=worker_id), timeout)

    def watch_steps(self, every: int = 1, timeout: Optional[float] = None) -> Iterator[admin_pb2.StepSummary]:
        """A summary of every n-th step, until `timeout` seconds have passed or the iterator is closed."""
        call = self._stub.WatchSteps(admin_pb2.WatchStepsRequest(every=every), timeout=timeout,
                                     metadata=self._login.metadata())
        try:
            yield from call
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                raise to_error(error) from None
        finally:
            call.cancel()
