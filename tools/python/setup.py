"""Generates the stubs of proto/bfio/v1 while the wheel is built; no generated file is kept in the tree."""
import pathlib
import re
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROTO = ROOT / "proto"
VERSION = re.search(r"(?m)^project\(bfio VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
SERVICES = ["bfio/v1/inference.proto", "bfio/v1/admin.proto", "bfio/v1/worker.proto"]


PLUGIN = shutil.which("grpc_python_plugin") if shutil.which("protoc") else None


def protoc():
    """The command that generates Python from protos, with the path of its own protos."""
    if PLUGIN:
        return ["protoc", f"--plugin=protoc-gen-grpc_python={PLUGIN}"]
    try:
        import grpc_tools
    except ImportError:
        sys.exit("no protoc with grpc_python_plugin (Debian: protobuf-compiler, protobuf-compiler-grpc) and no grpcio-tools")
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    return [sys.executable, "-m", "grpc_tools.protoc", f"-I{well_known}"]


class BuildWithStubs(build_py):
    def run(self):
        super().run()
        out = pathlib.Path(self.build_lib)
        (out / "bfio" / "v1").mkdir(parents=True, exist_ok=True)
        (out / "bfio" / "v1" / "__init__.py").touch()
        command = protoc()
        subprocess.run([*command, f"-I{PROTO}", f"--python_out={out}", f"--grpc_python_out={out}", *SERVICES], check=True)
        subprocess.run([*command, f"-I{HERE}", f"--python_out={out}", "bfio/details.proto"], check=True)


# pip installs setup_requires when it builds in isolation, which is the default.
setup(version=VERSION, cmdclass={"build_py": BuildWithStubs}, setup_requires=[] if PLUGIN else ["grpcio-tools"])
