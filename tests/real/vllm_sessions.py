"""Records what real vLLM answers, byte by byte, for tests/integration/vllm_sessions_test.cc: tests/real/vllm --record=DIR.

A file has lines "METHOD STATUS REQUEST", and under each the messages of its answer, "< MESSAGE"; bytes are hexadecimal, '#' begins a
comment. Requests are greedy unless said otherwise. Two outputs are recorded as vLLM makes them, and as two requests with one, which is
what a router makes of them.
"""
import json
import pathlib

from real_vllm import VERSION, check

SERVICE = "/vllm.grpc.engine.VllmEngine/"


def prompt(number, length=12):
    return [3 + (number * 37 + j * 11) % 250 for j in range(length)]


class Recorder:
    def __init__(self, engine):
        self.engine, self.lines = engine, []

    def call(self, method, request, on_message=None):
        """Returns the messages, as bytes."""
        same = {"request_serializer": lambda message: message, "response_deserializer": lambda message: message}
        call = self.engine.channel.unary_stream(SERVICE + method, **same)(request.SerializeToString())
        messages, status = [], "OK"
        try:
            for message in call:
                messages.append(message)
                if on_message is not None:
                    on_message(messages)
        except self.engine.grpc.RpcError as error:
            status = error.code().name
        self.lines.append(f"{SERVICE}{method} {status} {request.SerializeToString().hex()}".rstrip())
        self.lines.extend(f"< {message.hex()}" for message in messages)
        return messages

    def generate(self, *args, **kwargs):
        request = self.engine.request(*args, **kwargs)
        return [self.engine.pb.GenerateResponse.FromString(message) for message in self.call("Generate", request)]

    def write(self, folder, name, what):
        folder.mkdir(parents=True, exist_ok=True)
        head = f"# vLLM {VERSION}: {what} Recorded by tests/real/vllm --record: method, status, request; \"<\": a message of the answer."
        (folder / f"{name}.txt").write_text("\n".join([head, *self.lines]) + "\n")
        print(f"{name}: {len(self.lines)} lines", flush=True)
        self.lines = []


def tokens_of(messages):
    return [token for message in messages if message.HasField("chunk") for token in message.chunk.token_ids]


def record(engine, folder):
    recorder, pb = Recorder(engine), engine.pb
    for method, request in (("HealthCheck", pb.HealthCheckRequest()), ("GetModelInfo", pb.GetModelInfoRequest()),
                            ("GetServerInfo", pb.GetServerInfoRequest()), ("GetLoads", pb.GetLoadsRequest())):
        recorder.call(method, request)
    recorder.write(folder, "server", "what it says of itself while it is idle.")

    recorder.generate(prompt(1), 24, "plain", 0)
    recorder.write(folder, "plain", "a stream.")

    recorder.generate(prompt(2), 8, "logprobs", 1, logprobs=2)
    recorder.generate(prompt(12), 8, "prompt-logprobs", 1, logprobs=1, prompt_logprobs=1)
    recorder.write(folder, "logprobs", "streams with log-probabilities, of the output and of the prompt.")

    recorder.generate(prompt(3), 16, "whole", 0, stream=False)
    recorder.generate(prompt(13), 8, "whole-logprobs", 0, stream=False, logprobs=1)
    recorder.write(folder, "whole", "outputs that come in one message (stream=false).")

    sampled = {"temperature": 1, "logprobs": 1}
    for stream in (True, False):
        count, name = 10, "stream" if stream else "whole"
        recorder.generate(prompt(4), count, f"{name}-two", 1, stream=stream, n=2, seed=70, **sampled)
        for seed in (70, 71):
            recorder.generate(prompt(4), count, f"{name}-{seed}", 1, stream=stream, seed=seed, **sampled)
    recorder.write(folder, "two_outputs", "n=2 with seed 70, and requests with the seeds 70 and 71.")

    made = engine.tokens(prompt(5), 12, "unstopped", 0)
    recorder.generate(prompt(5), 12, "stop-token", 0, stop_token_ids=[made[5]])
    number, text = printable(engine)
    recorder.generate(prompt(number), 12, "stop-text", 0, stop=[text])
    made = engine.tokens(prompt(16), 12, "unstopped-whole", 0)
    recorder.generate(prompt(16), 12, "stop-token-whole", 0, stream=False, stop_token_ids=[made[5]])
    recorder.write(folder, "stop", "a stop token, a stop text, and a stop token of an output that comes whole.")

    def abort(messages):
        if len(messages) == 5:
            recorder.call("GetLoads", pb.GetLoadsRequest())
            recorder.call("Abort", pb.AbortRequest(request_ids=["aborted"]))
    messages = [pb.GenerateResponse.FromString(message)
                for message in recorder.call("Generate", engine.request(prompt(7), 120, "aborted", 1), abort)]
    got = tokens_of(messages)
    check(messages[-1].complete.finish_reason == "abort" and 5 <= len(got) < 120, messages[-1])
    recorder.generate(prompt(7) + got, 120 - len(got), "continued", 1)
    recorder.generate(prompt(7), 120, "undisturbed", 1)
    recorder.write(folder, "abort", "a stream that Abort ends, what follows its tokens, and the same stream undisturbed.")

    recorder.generate([], 5, "empty", 0)
    recorder.generate(prompt(9), 5, "no-such-rank", 7)
    recorder.write(folder, "refused", "requests that it refuses.")


def printable(engine):
    """(number of a prompt, a character that is a token of its own in the output from the fourth token on)."""
    vocabulary = json.loads(pathlib.Path("model/tokenizer.json").read_text())["model"]["vocab"]
    texts = {token: text for text, token in vocabulary.items()}
    for number in range(20, 200):
        made = [texts.get(token, "") for token in engine.tokens(prompt(number), 12, f"find-{number}", 0)]
        for i, text in enumerate(made[3:10], 3):
            if len(text) == 1 and "!" <= text <= "~" and text not in "".join(made[:i]):
                return number, text
    raise AssertionError("no output has such a token")
