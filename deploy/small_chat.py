"""A model that chats, and the gateway that serves it, both made on the spot: for deploy/chat and tests/real/gateway.

The checkpoint has random weights and a byte-level tokenizer of some hundred tokens: it answers fast, and nonsense. The
gateway, Shepherd Model Gateway (SMG), comes from PyPI into a virtual environment of its own, about 200 MB.
"""
import os
import subprocess
import sys

PACKAGES = ("smg==1.13.0", "smg-grpc-proto==0.4.28", "tokenizers==0.23.3", "grpcio")

# Run by the Python of the virtual environment: a byte-level BPE of some hundred tokens.
MAKE_TOKENIZER = """
import json, sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(vocab_size=384, special_tokens=["<pad>", "<s>", "</s>"],
                              initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
text = "Every step of decode ends when its slowest rank does, so the router keeps the ranks level. "
tokenizer.train_from_iterator([text * 20], trainer)
tokenizer.save(sys.argv[1] + "/tokenizer.json")
with open(sys.argv[1] + "/tokenizer_config.json", "w") as out:
    json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
               "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}assistant: "}, out)
print(tokenizer.get_vocab_size())
"""


def install(venv):
    """The virtual environment's Python; installs what is missing."""
    python = venv / "bin" / "python"
    if not (venv / "bin" / "smg").exists():
        print(f"installing {' '.join(PACKAGES)} into {venv}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([python, "-m", "pip", "--quiet", "install", *PACKAGES], check=True)
    return python


def make_tokenizer(python, folder):
    """A tokenizer in `folder`; how many tokens it has. Digits are a token each."""
    return int(subprocess.run([python, "-c", MAKE_TOKENIZER, folder], check=True, capture_output=True, text=True).stdout)


def make_model(programs, python, folder, hidden=64):
    """A checkpoint of four heads with its tokenizer, in `folder`, which must not be there."""
    vocabulary = make_tokenizer(python, folder.parent)
    subprocess.run([os.path.join(programs, "bfio_make_checkpoint"), f"--out={folder}", "--layers=2", f"--hidden={hidden}", "--heads=4",
                    "--kv_heads=2", f"--vocab={vocabulary}"], check=True, capture_output=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder.parent / name).rename(folder / name)


def smg_flags(address, metrics_port, engine):
    """Of `smg launch` in front of one engine, at loopback."""
    host, port = address.rsplit(":", 1)
    return ["launch", f"--host={host}", f"--port={port}", "--prometheus-host=127.0.0.1", f"--prometheus-port={metrics_port}",
            "--worker-urls", f"grpc://{engine}"]
