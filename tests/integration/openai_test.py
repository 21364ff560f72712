#!/usr/bin/env python3
"""bfio_openai in front of a real router, called through sockets of our own: what it serves, refuses and survives.

usage: tests/integration/openai_test.py BUILD_FOLDER [unittest arguments]
"""
import http.client
import json
import os
import pathlib
import re
import select
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "testing"))
from processes import PATIENCE, Cluster, Program, programs_folder  # noqa: E402

FOLDER = None
ROOT = pathlib.Path(__file__).resolve().parents[2]


class Front(unittest.TestCase):
    router_flags = ()
    worker_flags = ("--c=0.002", "--tl=0", "--slots=8")
    front_flags = ()

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(FOLDER, router_flags=cls.router_flags, worker_flags=cls.worker_flags)
        cls.addClassCleanup(cls.cluster.close)
        cls.front = Program(FOLDER, "bfio_openai", "--listen=127.0.0.1:0", f"--target={cls.cluster.address}",
                            *cls.front_flags)
        cls.addClassCleanup(cls.front.kill)
        host, port = cls.front.wait_for(r"serving on (\S+),").group(1).rsplit(":", 1)
        cls.where = (host, int(port))

    def connect(self):
        return http.client.HTTPConnection(*self.where, timeout=PATIENCE)

    def call(self, method, path, body=None, headers=()):
        connection = self.connect()
        self.addCleanup(connection.close)
        headers = {"Content-Type": "application/json", **dict(headers)}
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request(method, path, body=data, headers=headers)
        return connection.getresponse()

    def complete(self, path="/v1/completions", headers=(), **body):
        """Status, JSON and headers of a request that does not stream."""
        body.setdefault("max_tokens", 5)
        if path == "/v1/completions":
            body.setdefault("prompt", [1, 2, 3])
        reply = self.call("POST", path, body, headers)
        return reply.status, json.loads(reply.read()), reply.headers

    def events(self, reply):
        """The data of the server-sent events, JSON parsed, until the reply ends."""
        self.assertEqual(reply.status, 200, reply.status)
        self.assertEqual(reply.headers["Content-Type"], "text/event-stream")
        text = reply.read().decode()
        self.assertTrue(text.endswith("\n\n"), text[-100:])
        for event in text[:-2].split("\n\n"):
            self.assertTrue(event.startswith("data: "), event)
            yield event[6:] if event == "data: [DONE]" else json.loads(event[6:])

    def send_raw(self, data):
        sock = socket.create_connection(self.where, timeout=PATIENCE)
        self.addCleanup(sock.close)
        sock.sendall(data)
        return sock

    @staticmethod
    def post(body, headers=""):
        return (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n{headers}\r\n{body}").encode()

    @staticmethod
    def read_all(sock):
        data = b""
        while part := sock.recv(65536):
            data += part
        return data.decode(errors="replace")

    def probe(self):
        """A request of one token that is given up when it is neither served nor refused soon: status, JSON, headers."""
        connection = http.client.HTTPConnection(*self.where, timeout=0.5)
        try:
            connection.request("POST", "/v1/completions", json.dumps({"prompt": [1], "max_tokens": 1}),
                               {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read()), reply.headers
        except TimeoutError:
            return 0, {}, {}
        finally:
            connection.close()

    def await_free_slot(self):
        """With one slot, 200 says that it is free."""
        give_up = time.monotonic() + PATIENCE
        while (answer := self.probe())[0] != 200:
            self.assertLess(time.monotonic(), give_up, answer)
            time.sleep(0.05)


class Completions(Front):
    def test_whole(self):
        status, reply, headers = self.complete(max_tokens=7, seed=3, return_token_ids=True,
                                               headers={"X-Request-Id": "mine"})
        self.assertEqual(status, 200, reply)
        choice = reply["choices"][0]
        self.assertEqual(len(choice["token_ids"]), 7)
        self.assertEqual(choice["text"], "".join(f"<|{i}|>" for i in choice["token_ids"] if i > 255),
                         "ordinary ids of the sim engine are hardly ever bytes")
        self.assertEqual(choice["finish_reason"], "length")
        self.assertEqual(reply["usage"], {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10})
        self.assertEqual((reply["object"], reply["id"], reply["model"]), ("text_completion", "cmpl-mine", "bfio"))
        self.assertEqual(headers["X-Request-Id"], "mine")
        again = self.complete(max_tokens=7, seed=3, return_token_ids=True)[1]
        self.assertEqual(again["choices"][0]["token_ids"], choice["token_ids"])

    def test_streamed_tokens_are_those_of_the_whole_reply(self):
        whole = self.complete(max_tokens=40, seed=9, return_token_ids=True)[1]["choices"][0]
        body = {"prompt": [1, 2, 3], "max_tokens": 40, "seed": 9, "return_token_ids": True, "stream": True,
                "stream_options": {"include_usage": True}}
        *chunks, last, usage, done = self.events(self.call("POST", "/v1/completions", body))
        self.assertEqual(done, "[DONE]")
        self.assertEqual(usage["choices"], [])
        self.assertEqual(usage["usage"], {"prompt_tokens": 3, "completion_tokens": 40, "total_tokens": 43})
        self.assertEqual(last["choices"][0]["finish_reason"], "length")
        self.assertTrue(all(c["choices"][0]["finish_reason"] is None and c["usage"] is None for c in chunks))
        self.assertEqual([i for c in chunks for i in c["choices"][0]["token_ids"]], whole["token_ids"])
        self.assertEqual("".join(c["choices"][0]["text"] for c in chunks) + last["choices"][0]["text"], whole["text"])
        self.assertGreater(len(chunks), 5, "tokens come as they are made")

    def test_chat(self):
        messages = [{"role": "system", "content": "hé"}, {"role": "user", "content": [{"type": "text", "text": "x"}]}]
        status, reply, _ = self.complete("/v1/chat/completions", messages=messages, max_completion_tokens=4)
        self.assertEqual(status, 200, reply)
        prompt = "system: hé\nuser: x\nassistant: ".encode()
        self.assertEqual(reply["usage"]["prompt_tokens"], len(prompt), "bytes are tokens")
        self.assertEqual(reply["object"], "chat.completion")
        self.assertEqual(reply["choices"][0]["message"]["role"], "assistant")
        # The same prompt as text and as ids is the same prompt.
        text = reply["choices"][0]["message"]["content"]
        self.assertTrue(text)
        as_text = self.complete(prompt=prompt.decode(), max_tokens=4, seed=1)[1]["choices"][0]["text"]
        as_ids = self.complete(prompt=list(prompt), max_tokens=4, seed=1)[1]["choices"][0]["text"]
        self.assertEqual(as_text, as_ids)
        body = {"messages": messages, "max_tokens": 4, "stream": True}
        *chunks, last, done = self.events(self.call("POST", "/v1/chat/completions", body))
        self.assertEqual(done, "[DONE]")
        self.assertEqual([c["choices"][0]["delta"].get("role") for c in chunks], ["assistant"] + [None] * (len(chunks) - 1))
        self.assertTrue(all(c["choices"][0]["delta"]["content"] for c in chunks))
        self.assertEqual(last["choices"][0]["delta"], {})

    def test_stop_tokens(self):
        ids = self.complete(max_tokens=8, seed=5, return_token_ids=True)[1]["choices"][0]["token_ids"]
        stopped = self.complete(max_tokens=8, seed=5, return_token_ids=True, stop_token_ids=[ids[3]])[1]["choices"][0]
        self.assertEqual((stopped["token_ids"], stopped["finish_reason"]), (ids[:4], "stop"))
        # As OpenAI and vLLM have it: the text ends before what ended it.
        said = [self.complete(max_tokens=n, seed=5)[1]["choices"][0]["text"] for n in (3, 4)]
        self.assertEqual(stopped["text"], said[0])
        kept = self.complete(max_tokens=8, seed=5, stop_token_ids=[ids[3]], include_stop_str_in_output=True)[1]
        self.assertEqual(kept["choices"][0]["text"], said[1])
        body = {"prompt": [1, 2, 3], "max_tokens": 8, "seed": 5, "stop_token_ids": [ids[3]], "stream": True}
        *chunks, last, _ = self.events(self.call("POST", "/v1/completions", body))
        self.assertEqual("".join(c["choices"][0]["text"] for c in chunks) + last["choices"][0]["text"], said[0])
        self.assertEqual(last["choices"][0]["finish_reason"], "stop")

    def test_what_is_wrong_is_named(self):
        for wrong, name in [({"n": 2}, "n"), ({"best_of": 2}, "best_of"), ({"logprobs": 3}, "logprobs"),
                            ({"echo": True}, "echo"), ({"stop": "two"}, "stop"), ({"max_tokens": -1}, "max_tokens"),
                            ({"max_tokens": 1.5}, "max_tokens"), ({"temperature": "hot"}, "temperature"),
                            ({"temperature": 7}, "temperature"), ({"top_p": 0}, "top_p"), ({"stream": "yes"}, "stream"),
                            ({"prompt": [1, -2]}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": ["a", "b"]}, "prompt"),
                            ({"prompt": [1 << 33]}, "prompt"), ({"prompt": {}}, "prompt"), ({"min_tokens": 2}, "min_tokens"),
                            ({"max_tokens": 10**9}, "max_new_tokens"), ({"seed": -1}, "seed"),
                            ({"stream_options": 1}, "stream_options"), ({"priority": 101}, "priority"), ({"priority": 1 << 63}, "priority"),
                            ({"priority": 0.5}, "priority"), ({"parent_id": 7}, "parent_id"), ({"stage": -1}, "stage"),
                            ({"stop_token_ids": ["a"]}, "stop_token_ids"), ({"min_p": 0.1}, "min_p"),
                            ({"min_tokens": 8, "max_tokens": 8, "stop": "x"}, "min_tokens"),
                            ({"guided_json": {}}, "guided_json"), ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
                            ({"bad_words": ["a"]}, "bad_words"), ({"include_stop_str_in_output": 1}, "include_stop_str_in_output")]:
            with self.subTest(wrong=wrong):
                status, reply, _ = self.complete(**wrong)
                self.assertEqual(status, 400, reply)
                self.assertEqual(reply["error"]["type"], "invalid_request_error")
                self.assertEqual(reply["error"]["param"], name, reply)
        for trivial in [{"n": 1, "stop": None, "logprobs": None, "presence_penalty": 0.0, "user": "me", "unheard_of": [1]},
                        {"ignore_eos": True, "min_tokens": 5}, {"min_tokens": 5}, {"top_k": -1}, {"stop": ["\n"]}, {"priority": -100, "parent_id": "a", "stage": 0, "remaining_tokens": 7}]:
            self.assertEqual(self.complete(**trivial)[0], 200, trivial)
        self.assertEqual(self.complete(model="gpt")[0], 404)
        for messages in [None, [], "x", [1], [{"content": "x"}], [{"role": "user", "content": [{"type": "image_url"}]}]]:
            status, reply, _ = self.complete("/v1/chat/completions", messages=messages)
            self.assertEqual((status, reply["error"]["param"]), (400, "messages"), reply)

    def test_models_health_and_what_is_not_there(self):
        self.assertEqual(json.loads(self.call("GET", "/v1/models").read())["data"][0]["id"], "bfio")
        self.assertEqual(self.call("GET", "/health").status, 200)
        for method, path, status in [("GET", "/nothing", 404), ("POST", "/v1/embeddings", 404), ("PUT", "/v1/completions", 405),
                                     ("DELETE", "/v1/models", 405), ("POST", "/v1/completions", 400)]:
            reply = self.call(method, path, "{}" if status != 400 else "")
            self.assertEqual(reply.status, status, (method, path))
            self.assertIn("message", json.loads(reply.read())["error"])
        self.assertEqual(self.call("POST", "/v1/completions", "{}", {"Content-Type": "text/plain"}).status, 415)
        self.assertEqual(self.call("GET", "/health", headers={"Host": "evil.example"}).status, 403)

    def test_metrics(self):
        front = Program(FOLDER, "bfio_openai", "--listen=127.0.0.1:0", "--http_listen=127.0.0.1:0", f"--target={self.cluster.address}")
        self.addCleanup(front.kill)
        web = front.wait_for(r"metrics on (\S+)").group(1).rsplit(":", 1)
        where = front.wait_for(r"serving on (\S+),").group(1).rsplit(":", 1)

        def call(address, method, path, body=None):
            connection = http.client.HTTPConnection(address[0], int(address[1]), timeout=PATIENCE)
            self.addCleanup(connection.close)
            connection.request(method, path, body=body, headers={"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, reply.read().decode()

        body = {"prompt": [1, 2], "max_tokens": 4}
        self.assertEqual(call(where, "POST", "/v1/completions", json.dumps(body))[0], 200)
        self.assertIn("[DONE]", call(where, "POST", "/v1/completions", json.dumps({**body, "stream": True}))[1])
        self.assertEqual(call(where, "POST", "/v1/completions", "{")[0], 400)
        self.assertEqual(call(web, "GET", "/healthz")[0], 200)
        wanted = ('bfio:openai_requests_total{code="200"} 2\n', 'bfio:openai_requests_total{code="400"} 1\n',
                  "bfio:openai_generation_tokens_total 8\n", "bfio:openai_requests_running 0\n",
                  "bfio:openai_time_to_first_token_seconds_count 2\n")
        until = time.monotonic() + PATIENCE
        while True:  # a reply is read before its thread has counted it
            text = call(web, "GET", "/metrics")[1]
            if all(line in text for line in wanted) or time.monotonic() > until:
                break
            time.sleep(0.05)
        for line in wanted:
            self.assertIn(line, text)

    def test_many_at_once_over_kept_connections(self):
        import threading
        failures, done = [], []

        def client(number):
            try:
                connection = http.client.HTTPConnection(*self.where, timeout=PATIENCE)
                for i in range(8):
                    body = {"prompt": [number, i], "max_tokens": 6, "stream": True, "return_token_ids": True}
                    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
                    ids = [t for e in self.events(connection.getresponse()) if e != "[DONE]"
                           for t in e["choices"][0]["token_ids"]]
                    done.append(len(ids))
                connection.close()
            except Exception as error:  # noqa: BLE001
                failures.append(repr(error))

        threads = [threading.Thread(target=client, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(done, [6] * 128)

    def test_its_port_is_its_own_and_bad_flags_are_one_line(self):
        for flags in [(f"--listen={self.where[0]}:{self.where[1]}",), ("--listen=0.0.0.0:0",), ("--target=nowhere",),
                      ("--max_connections=0",), ("--client_token_file=/nowhere",), ("--byte_offset=4294967295",)]:
            other = Program(FOLDER, "bfio_openai", *flags)
            self.addCleanup(other.kill)
            self.assertEqual(other.process.wait(PATIENCE), 1 if flags[0].endswith(str(self.where[1])) else 2, flags)
            self.assertRegex(other.output(), r"\Abfio_openai: [^\n]+\n\Z")


class Hostile(Front):
    front_flags = ("--max_body_kb=64", "--max_connections=8")

    def assert_serves(self):
        self.assertEqual(self.complete()[0], 200)

    def test_bad_json(self):
        for body in ["", "{", "[]", "null", '{"prompt": "\\ud800"}', '{"prompt": [1], "max_tokens": NaN}', "\x00" * 10,
                     "[" * 30000, '{"prompt": "' + "\\u0000" * 5 + '", "max_tokens": 1e400}']:
            reply = self.call("POST", "/v1/completions", body)
            self.assertEqual(reply.status, 400, body[:40])
            self.assertIn("error", json.loads(reply.read()))
        reply = self.call("POST", "/v1/completions", b'{"prompt": "\xff\xfe"}')
        self.assertEqual(reply.status, 400)
        self.assert_serves()

    def test_bodies_beyond_the_limit(self):
        reply = self.call("POST", "/v1/completions", '{"prompt": "' + "x" * 70000 + '"}')
        self.assertEqual(reply.status, 413)
        # One that only claims to be, one that never ends, one that says neither.
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        for framing in (b"Content-Length: 99999999999999\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
            sock = self.send_raw(head + framing)
            try:
                for _ in range(64):
                    sock.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
            except OSError:
                pass  # it has hung up on us
            try:
                self.assertRegex(self.read_all(sock), r"^HTTP/1.1 4\d\d|^$")
            except ConnectionError:
                pass
        import gzip
        bomb = gzip.compress(b" " * (50 << 20))
        reply = self.call("POST", "/v1/completions", bomb[:60000], {"Content-Encoding": "gzip"})
        self.assertIn(reply.status, (400, 413))
        self.assertEqual(self.call("POST", "/v1/completions", "x", {"Content-Type": "multipart/form-data; boundary=b"}).status, 415)
        self.assert_serves()

    def test_headers_beyond_the_limit(self):
        sock = self.send_raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" +
                             b"".join(b"X-%d: %s\r\n" % (i, b"y" * 1000) for i in range(40)) + b"\r\n")
        try:
            self.assertRegex(self.read_all(sock), r"^HTTP/1.1 4\d\d|^$")
        except ConnectionError:
            pass
        self.assertIn(self.call("GET", "/" + "a" * 9000).status, (400, 404, 414))
        for garbage in (b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), b"GET / HTTP/9.9\r\n\r\n"):
            sock = self.send_raw(garbage)
            sock.shutdown(socket.SHUT_WR)
            self.assertRegex(self.read_all(sock), r"^HTTP/1.1 4\d\d|^$")
        self.assert_serves()

    def test_no_request_hides_in_another(self):
        hidden = self.post('{"prompt": [1], "max_tokens": 1}').decode()
        length = f"Content-Length: {len(hidden)}\r\n"
        for head in ("GET /v1/models HTTP/1.1", "HEAD /v1/models HTTP/1.1", "OPTIONS / HTTP/1.1", "DELETE / HTTP/1.1",
                     "BREW / HTTP/1.1", "POST /v1/completions HTTP/1.1\r\nRange: what", "no request line"):
            for framing in (length, "Transfer-Encoding: chunked\r\n"):
                sock = self.send_raw(f"{head}\r\nHost: localhost\r\n{framing}\r\n{hidden}".encode())
                reply = self.read_all(sock)
                self.assertRegex(reply, r"^HTTP/1.1 \d")
                self.assertNotIn("choices", reply, head)
        self.assert_serves()

    def test_replies_are_whole_and_plain(self):
        whole = self.call("GET", "/v1/models").read()
        reply = self.call("GET", "/v1/models", headers={"Range": "bytes=0-,0-,0-", "Accept-Encoding": "br, gzip"})
        self.assertEqual((reply.status, reply.headers["Content-Encoding"], reply.read()), (200, None, whole))

    def test_a_line_feed_alone_does_not_end_the_headers(self):
        sock = self.send_raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\n" +
                             b"".join(b"X-%d: %s\r\n" % (i, b"y" * 1000) for i in range(40)) + b"\r\n")
        try:
            self.assertRegex(self.read_all(sock), r"^HTTP/1.1 431|^$")
        except ConnectionError:
            pass

    def test_idle_connections_make_way(self):
        held = [self.send_raw(b"") for _ in range(20)]
        self.assert_serves()
        self.assertEqual(len(held), 20)


class Tls(Front):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.certs, cls.there = pathlib.Path(folder.name) / "certs", pathlib.Path(folder.name) / "there"
        subprocess.run([ROOT / "deploy" / "make_certs", f"--out={cls.certs}"], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        cls.there.mkdir()
        cls.put("client")
        cls.front_flags = (f"--tls=cert={cls.there}/crt,key={cls.there}/key", "--max_connections=8")
        cls.context = cls.trusting("client")
        super().setUpClass()

    @classmethod
    def put(cls, ca, key_of=None):
        """What the front serves with: the certificate that this CA has signed, under the same names."""
        for suffix, of in (("key", key_of or ca), ("crt", ca)):
            shutil.copy(cls.certs / f"{of}-server.{suffix}", cls.there / "new")
            os.replace(cls.there / "new", cls.there / suffix)

    @classmethod
    def trusting(cls, ca):
        return ssl.create_default_context(cafile=cls.certs / f"{ca}-ca.crt")

    def connect(self):
        return http.client.HTTPSConnection(*self.where, timeout=PATIENCE, context=self.context)

    def test_whole_streamed_and_over_a_kept_connection(self):
        whole = self.complete(max_tokens=40, seed=9, return_token_ids=True)[1]["choices"][0]
        body = {"prompt": [1, 2, 3], "max_tokens": 40, "seed": 9, "return_token_ids": True, "stream": True}
        connection = self.connect()
        self.addCleanup(connection.close)
        for _ in range(3):
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            *chunks, done = self.events(connection.getresponse())
            self.assertEqual(done, "[DONE]")
            self.assertEqual([i for c in chunks for i in c["choices"][0]["token_ids"]], whole["token_ids"])
        large = "x" * 100000  # in many records
        connection.request("POST", "/v1/completions", json.dumps({"prompt": large, "max_tokens": 1}),
                           {"Content-Type": "application/json"})
        self.assertEqual(json.loads(connection.getresponse().read())["usage"]["prompt_tokens"], len(large))

    def test_a_client_that_goes_frees_its_slots(self):
        connections = [self.connect() for _ in range(8)]  # all slots of the worker, and of the front
        for connection in connections:
            connection.request("POST", "/v1/completions", json.dumps({"prompt": [1], "max_tokens": 60000, "stream": True}),
                               {"Content-Type": "application/json"})
            self.assertIn(b"data: ", connection.getresponse().readline())
        for connection in connections:
            connection.close()
        self.assertEqual(self.complete()[0], 200)

    def test_who_speaks_no_tls_is_not_served_and_keeps_nobody_from_it(self):
        for words in (self.post('{"prompt": [1], "max_tokens": 1}'), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600)):
            sock = self.send_raw(words)
            try:
                sock.shutdown(socket.SHUT_WR)
                self.assertNotIn("HTTP", self.read_all(sock))
            except OSError:
                pass  # it has hung up on us
        silent = [self.send_raw(b"") for _ in range(20)]  # more than the front has threads
        self.assertEqual(self.complete()[0], 200)
        self.assertEqual(len(silent), 20)
        self.context = self.trusting("worker")
        self.assertRaises(ssl.SSLCertVerificationError, self.call, "GET", "/health")
        self.context = self.trusting("client")
        self.context.maximum_version = ssl.TLSVersion.TLSv1_2
        self.assertEqual(self.complete()[0], 200)

    def status_of_a_new_connection(self):
        connection = self.connect()
        try:
            connection.request("GET", "/v1/models")
            return connection.getresponse().status
        finally:
            connection.close()

    def serve(self, ca):
        """Replaces the certificate, until it is the one that is shown."""
        self.put(ca)
        self.context = self.trusting(ca)
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                self.assertEqual(self.status_of_a_new_connection(), 200)
                return
            except ssl.SSLCertVerificationError:
                self.assertLess(time.monotonic(), give_up)
                time.sleep(0.05)

    def test_certificates_are_replaced(self):
        open_one = self.connect()
        self.addCleanup(open_one.close)
        open_one.request("GET", "/v1/models")
        open_one.getresponse().read()
        self.addCleanup(self.serve, "client")
        self.put("client", key_of="worker")
        give_up = time.monotonic() + PATIENCE
        while not re.search("not a certificate and its key: .* stays in force", self.front.output()):
            self.assertEqual(self.status_of_a_new_connection(), 200)  # it looks when somebody comes
            self.assertLess(time.monotonic(), give_up)
        self.serve("worker")
        open_one.request("GET", "/v1/models")
        self.assertEqual(open_one.getresponse().status, 200)

    def test_bad_flags_are_one_line(self):
        certs, token = self.certs, self.there / "token"
        token.write_text("x" * 20)
        crt, key = f"cert={certs}/client-server.crt", f"key={certs}/client-server.key"
        good = f"--tls={crt},{key}"
        for flags in [(f"--tls={crt}",), (f"--tls={key}",), (f"--tls={crt},key={certs}/worker-server.key",), (f"--tls=cert=/nowhere,{key}",),
                      (f"{good},ca={certs}/client-ca.crt",), (f"--tls={certs}",),
                      ("--listen=0.0.0.0:0", good, f"--client_token_file={token}")]:
            other = Program(FOLDER, "bfio_openai", "--listen=127.0.0.1:0", *flags)
            self.addCleanup(other.kill)
            self.assertEqual(other.process.wait(PATIENCE), 2, flags)
            self.assertRegex(other.output(), r"\Abfio_openai: [^\n]+\n\Z")
        public = Program(FOLDER, "bfio_openai", "--listen=0.0.0.0:0", f"--target={self.cluster.address}", good)
        self.addCleanup(public.kill)
        public.wait_for("serving on")


class OneSlot(Front):
    router_flags = ("--max_waiting=1",)
    worker_flags = ("--c=0.01", "--tl=0", "--slots=1")

    LONG = json.dumps({"prompt": [1], "max_tokens": 60000, "stream": True})

    def start_long(self):
        sock = self.send_raw(self.post(self.LONG))
        while b"data: " not in sock.recv(65536):
            pass
        return sock

    def test_a_client_that_goes_frees_its_slot(self):
        for close in (lambda s: s.close(), lambda s: s.shutdown(socket.SHUT_WR)):
            close(self.start_long())
            self.await_free_slot()
        # One that does not stream, and one that waits in the pool.
        running = self.send_raw(self.post(json.dumps({"prompt": [1], "max_tokens": 60000})))
        time.sleep(0.1)
        waiting = self.send_raw(self.post(self.LONG))
        time.sleep(0.1)
        waiting.close()
        running.close()
        self.await_free_slot()

    def test_a_full_pool_is_429_with_retry_after(self):
        running = self.start_long()
        # One of the two waits, the other finds the pool full; which of them comes first is not for the test to say.
        rest = [self.send_raw(self.post(self.LONG)) for _ in range(2)]
        answered, _, _ = select.select(rest, [], [], PATIENCE)
        self.assertEqual(len(answered), 1)
        reply = http.client.HTTPResponse(answered[0])
        reply.begin()
        error = json.loads(reply.read())["error"]
        self.assertEqual((reply.status, error["type"], error["code"]), (429, "rate_limit_error", "RESOURCE_EXHAUSTED"))
        self.assertGreaterEqual(int(reply.headers["Retry-After"]), 1)
        reply.close()
        for sock in (running, *rest):
            sock.close()
        self.await_free_slot()


class Ends(Front):
    def test_it_stops_cleanly_and_lets_streams_end(self):
        reply = self.call("POST", "/v1/completions", {"prompt": [1], "max_tokens": 2500, "stream": True})
        self.front.process.terminate()
        self.front.wait_for("stopping")
        self.assertEqual(self.call("POST", "/v1/completions", {"prompt": [1]}).status, 503)
        events = list(self.events(reply))
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual(self.front.process.wait(PATIENCE), 0)


class RouterGone(Front):
    def test_health_says_so(self):
        self.assertEqual(self.call("GET", "/health").status, 200)
        self.cluster.router.kill()
        reply = self.call("GET", "/health")
        self.assertEqual(reply.status, 503)
        self.assertTrue(reply.headers["Retry-After"])


class Timeouts(Front):
    worker_flags = ("--c=0.01", "--tl=0", "--slots=1")
    front_flags = ("--timeout=2s",)

    def test_a_late_request_is_504_or_says_so_in_its_stream(self):
        status, reply, _ = self.complete(max_tokens=60000)
        self.assertEqual((status, reply["error"]["code"]), (504, "DEADLINE_EXCEEDED"))
        *_, last = self.events(self.call("POST", "/v1/completions", {"prompt": [1], "max_tokens": 60000, "stream": True}))
        self.assertEqual(last["error"]["code"], "DEADLINE_EXCEEDED")


class Restart(Front):
    worker_flags = ("--c=0.01", "--tl=0", "--slots=4")

    def test_a_stream_outlives_the_router(self):
        wanted = self.complete(max_tokens=150, seed=4, return_token_ids=True)[1]["choices"][0]["token_ids"]
        body = {"prompt": [1, 2, 3], "max_tokens": 150, "seed": 4, "stream": True, "return_token_ids": True}
        reply = self.call("POST", "/v1/completions", body)
        self.cluster.restart_router()
        *chunks, done = self.events(reply)
        self.assertEqual(done, "[DONE]")
        self.assertEqual([i for c in chunks for i in c["choices"][0]["token_ids"]], wanted)


if __name__ == "__main__":
    FOLDER = programs_folder(sys.argv.pop(1))
    unittest.main(verbosity=2)
