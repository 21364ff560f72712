#!/usr/bin/env python3
"""Forwards all gRPC calls of a gateway to the router, and records what the gateway sends.

usage: smg_relay.py LISTEN_PORT ROUTER_ADDRESS FILE

FILE gets a line per call: method, status, and the request's bytes in hexadecimal (tests/integration/gateways_test.cc replays
such files). Run by tests/real/gateway --record with the Python of its virtual environment, which has grpcio.
"""
import concurrent.futures
import sys
import threading

import grpc


class Relay(grpc.GenericRpcHandler):
    def __init__(self, router, path):
        self.channel = grpc.insecure_channel(router)
        self.file, self.lock = open(path, "w", encoding="ascii"), threading.Lock()

    def write(self, method, status, request):
        with self.lock:
            self.file.write(f"{method} {status.name} {request.hex()}".rstrip() + "\n")
            self.file.flush()

    def service(self, details):
        method = details.method

        def pass_on(request, context):
            call = self.channel.unary_stream(method, None, None)(request)
            context.add_callback(call.cancel)
            try:
                yield from call
            except grpc.RpcError as error:
                self.write(method, error.code(), request)
                context.abort(error.code(), error.details())
            self.write(method, grpc.StatusCode.OK, request)

        return grpc.unary_stream_rpc_method_handler(pass_on)


def main():
    port, router, path = sys.argv[1:]
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(64))
    server.add_generic_rpc_handlers((Relay(router, path),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    print("relaying", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
