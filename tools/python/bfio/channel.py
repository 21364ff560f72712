"""Channels with the settings of bfio's programs, and the caller's credentials."""
from __future__ import annotations

import ipaddress
import pathlib
from dataclasses import dataclass, field
from typing import Optional

import grpc

from bfio.request import to_error

# A lost connection to the router's machine is detected within some seconds, and reconnecting starts at once.
OPTIONS = [
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_http_proxy", 0),
]


def stays_here(host: str) -> bool:
    """Whether `host` is this machine. Parsed, not compared by prefix: 127.0.0.1.example is an ordinary host name."""
    if host in ("localhost", "[::1]"):
        return True
    try:
        return ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Login:
    """TLS files (PEM; plain text without `ca`) and a bearer token, for routers that require them."""

    ca: Optional[str] = None
    cert: Optional[str] = None
    key: Optional[str] = None
    token: Optional[str] = field(default=None, repr=False)

    def credentials(self) -> Optional[grpc.ChannelCredentials]:
        if self.ca is None:
            return None
        read = lambda path: pathlib.Path(path).read_bytes() if path else None  # noqa: E731
        return grpc.ssl_channel_credentials(read(self.ca), read(self.key), read(self.cert))

    def metadata(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self.token}")] if self.token else []

    def check(self, target: str) -> None:
        host = target.rpartition(":")[0]
        if self.token and self.ca is None and not stays_here(host):
            raise ValueError(f"the token would go to {host} unencrypted; give ca=")


def open_channel(module, target: str, login: Login):
    """`module` is grpc or grpc.aio."""
    login.check(target)
    credentials = login.credentials()
    if credentials is None:
        return module.insecure_channel(target, options=OPTIONS)
    return module.secure_channel(target, credentials, options=OPTIONS)


class Connection:
    """Common base of the blocking clients: a channel, credentials, and unary calls."""

    def __init__(self, target: str, ca: Optional[str], cert: Optional[str], key: Optional[str], token: Optional[str]):
        self._login = Login(ca, cert, key, token)
        self._channel = open_channel(grpc, target, self._login)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _unary(self, method, request, timeout):
        try:
            return method(request, timeout=timeout, metadata=self._login.metadata())
        except grpc.RpcError as error:
            raise to_error(error) from None
