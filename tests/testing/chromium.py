"""Headless Chromium, driven over its DevTools pipe with the standard library alone.

For tests of dynamic pages: opens a page, clicks and types, reads its content and its console messages. Every wait has a
deadline. One thread.
"""
import base64
import fcntl
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

from processes import Programs, programs_folder

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--remote-debugging-pipe",
         "--force-device-scale-factor=1")
PATIENCE_S = 60


def find():
    """Path of Chromium, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """A browser process with a temporary profile; use it in a `with` statement."""

    def __init__(self, binary):
        self._profile = tempfile.mkdtemp(prefix="bfio-chromium.")
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        # Chromium expects its pipe ends as descriptors 3 and 4, so the originals are moved above these first.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read, to_write)]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash", binary, *FLAGS, f"--user-data-dir={self._profile}"],
            pass_fds=ends, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in (to_read, to_write, *ends):
            os.close(end)
        os.set_blocking(self._in, False)
        self._buffer = bytearray()
        self._next_id = 0
        self._events = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)
        shutil.rmtree(self._profile, ignore_errors=True)

    @property
    def pid(self):
        return self._process.pid

    def _receive(self, deadline):
        """The next message."""
        while True:
            end = self._buffer.find(b"\0")
            if end >= 0:
                message = json.loads(self._buffer[:end])
                del self._buffer[:end + 1]
                return message
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("chromium does not answer")
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise RuntimeError("chromium has ended")
            self._buffer += piece

    def call(self, method, session=None, **params):
        """The result of a DevTools command; raises RuntimeError with Chromium's error message."""
        self._next_id += 1
        message = {"id": self._next_id, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data):]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._next_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            if "method" in answer:
                self._events.append(answer)

    def take_events(self):
        """The events since the last call."""
        while select.select([self._in], [], [], 0)[0] or b"\0" in self._buffer:
            message = self._receive(time.monotonic() + PATIENCE_S)
            if "method" in message:
                self._events.append(message)
        events, self._events = self._events, []
        return events

    def open(self, url, width=1300, height=1000, dark=False, before=""):
        """Opens a page; `before` is JavaScript that runs before the page's own."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        page = Page(self, target, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Accessibility", "Performance"):
            page.call(domain + ".enable")
        page.resize(width, height)
        page.prefer(dark)
        if before:
            page.call("Page.addScriptToEvaluateOnNewDocument", source=before)
        page.call("Page.navigate", url=url)
        page.wait("location.href !== 'about:blank' && document.readyState === 'complete'", f"{url} to load")
        return page


class Page:
    def __init__(self, browser, target, session):
        self._browser = browser
        self._target = target
        self._session = session

    def call(self, method, **params):
        return self._browser.call(method, self._session, **params)

    def close(self):
        self._browser.call("Target.closeTarget", targetId=self._target)

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, dark):
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def evaluate(self, expression):
        """The value of a JavaScript expression; if it is a promise, the promise's value."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression, what, patience_s=PATIENCE_S):
        """The expression's value once it is true."""
        deadline = time.monotonic() + patience_s
        while True:
            value = self.evaluate(expression)
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain for {what}: {expression}; the page says:\n" +
                                     str(self.evaluate("document.body.innerText"))[:2000])
            time.sleep(0.05)

    def click(self, selector):
        """Clicks in the middle of an element, once it does not move and no other element covers it."""
        box = self.wait(f"(async () => {{ const e = document.querySelector({json.dumps(selector)});"
                        " e.scrollIntoView({block: 'center'}); const a = e.getBoundingClientRect();"
                        " await new Promise((done) => setTimeout(done, 50)); const b = e.getBoundingClientRect();"
                        " const at = {x: b.x + b.width / 2, y: b.y + b.height / 2};"
                        " return a.x === b.x && a.y === b.y && e.contains(document.elementFromPoint(at.x, at.y)) && at; })()",
                        f"{selector} to stand still")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **box)

    def key(self, name, code=0, text=""):
        """Presses a key: "Tab", "Escape", "Enter", " "."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code,
                      **({"text": text} if text and kind == "keyDown" else {}))

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def nodes(self):
        """The accessibility tree: (role, name) of every node that is not ignored."""
        tree = self.call("Accessibility.getFullAXTree")["nodes"]
        return [(n.get("role", {}).get("value", ""), n.get("name", {}).get("value", "")) for n in tree if not n.get("ignored")]

    def complaints(self):
        """Exceptions, errors and warnings since the last call."""
        found = []
        for event in self._browser.take_events():
            if event.get("sessionId") != self._session:
                continue
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                found.append(details.get("exception", {}).get("description", details["text"]))
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        return found


def expect(right, what):
    if not right:
        raise AssertionError(what)


def check(usage, look):
    """main() of a test `[BUILD] [--screenshots=DIR]`: the exit status after look(browser, programs, folder, screenshots).

    `folder` is an empty directory that is removed at the end; `screenshots` is None without --screenshots.
    """
    build, screenshots = "build", None
    for arg in sys.argv[1:]:
        if arg in ("--help", "-h"):
            print(usage)
            return 0
        if arg.startswith("--screenshots="):
            screenshots = pathlib.Path(arg.partition("=")[2])
            screenshots.mkdir(parents=True, exist_ok=True)
        elif arg.startswith("-"):
            print(usage, file=sys.stderr)
            return 2
        else:
            build = arg
    if not os.access(f"{build}/bin/bfio_router", os.X_OK):
        print(f"no {build}/bin/bfio_router")
        return 77
    binary = find()
    if not binary:
        print("no chromium (deploy/install browser)")
        return 77
    with (tempfile.TemporaryDirectory(prefix="bfio-page.") as folder, Programs(programs_folder(build)) as programs,
          Browser(binary) as browser):
        try:
            look(browser, programs, pathlib.Path(folder), screenshots)
        except (AssertionError, RuntimeError, TimeoutError):
            traceback.print_exc()
            print(programs.outputs())
            return 1
    print("the page works")
    return 0
