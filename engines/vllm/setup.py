"""Generates the messages of proto/bfio/v1/engine_steps.proto while the wheel is built; no generated file is kept in the tree."""
import pathlib
import re
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto" / "bfio" / "v1"
VERSION = re.search(r"(?m)^project\(bfio VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]


def protoc():
    if shutil.which("protoc"):
        return ["protoc"]
    try:
        import grpc_tools  # noqa: F401
    except ImportError:
        sys.exit("no protoc (Debian: protobuf-compiler) and no grpcio-tools")
    return [sys.executable, "-m", "grpc_tools.protoc"]


class BuildWithMessages(build_py):
    def run(self):
        super().run()
        out = pathlib.Path(self.build_lib) / "bfio_vllm"
        subprocess.run([*protoc(), f"-I{PROTO}", f"--python_out={out}", "engine_steps.proto"], check=True)


setup(version=VERSION, cmdclass={"build_py": BuildWithMessages})
