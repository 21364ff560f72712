"""A model that chats, and the gateway that serves it: for deploy/chat and tests/real/gateway.

The checkpoint is made on the spot, with random weights: it answers fast, and nonsense. The
gateway, Shepherd Model Gateway (SMG), comes from PyPI into a virtual environment of its own, about 200 MB.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys

PACKAGES = ("smg==1.13.0", "smg-grpc-proto==0.4.28", "grpcio")

# A byte-level BPE of some hundred tokens: special ones, then printable ASCII, so a digit is a token. docker-compose.yml has it, too.
TOKENIZER = pathlib.Path(__file__).resolve().parent / "tokenizer"
VOCABULARY = len(json.loads((TOKENIZER / "tokenizer.json").read_text())["model"]["vocab"])
# Number of the first tokens: special tokens and printable ASCII. Each is a whole character, which SMG sends at once. None ends
# a line, as U+0085 does for clients that split server-sent events as Python splits lines.
ASCII_VOCABULARY = 97


def install(venv):
    """The virtual environment's Python; installs what is missing."""
    python = venv / "bin" / "python"
    if not (venv / "bin" / "smg").exists():
        print(f"installing {' '.join(PACKAGES)} into {venv}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([python, "-m", "pip", "--quiet", "install", *PACKAGES], check=True)
    return python


def copy_tokenizer(folder):
    """Copies the tokenizer into `folder`."""
    for path in TOKENIZER.iterdir():
        shutil.copy(path, folder)


def make_model(programs, folder, hidden=64, layers=2):
    """A checkpoint of four heads with its tokenizer, in `folder`, which must not be there."""
    subprocess.run([os.path.join(programs, "bfio_make_checkpoint"), f"--out={folder}", f"--layers={layers}", f"--hidden={hidden}", "--heads=4",
                    "--kv_heads=2", f"--vocab={VOCABULARY}"], check=True, capture_output=True)
    copy_tokenizer(folder)


def smg_flags(address, metrics_port, engine):
    """Of `smg launch` in front of one engine, at loopback."""
    host, port = address.rsplit(":", 1)
    return ["launch", f"--host={host}", f"--port={port}", "--prometheus-host=127.0.0.1", f"--prometheus-port={metrics_port}",
            "--worker-urls", f"grpc://{engine}"]
