"""Tests of pages: real programs and a browser, started, read, and ended with the test. Standard library only."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import traceback

import chromium

PATIENCE_S = 60


def expect(right, what):
    if not right:
        raise AssertionError(what)


class Programs:
    """Real processes with their output in files; none outlives the `with` statement."""

    def __init__(self, build):
        self._bin = pathlib.Path(build) / "bin"
        self._folder = tempfile.TemporaryDirectory(prefix="bfio-live.")
        self.folder = pathlib.Path(self._folder.name)
        self._running = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._folder.cleanup()

    def start(self, name, program, *args):
        with open(self.folder / f"{name}.out", "w") as out, open(self.folder / f"{name}.err", "w") as err:
            process = subprocess.Popen([self._bin / program, *args], stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        self._running.append(process)
        return process

    def output(self, name):
        return "".join((self.folder / f"{name}.{end}").read_text() for end in ("out", "err"))

    def find(self, name, pattern):
        """The first group of `pattern` in what the program prints, once it is there."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = re.search(pattern, self.output(name))
            if found:
                return found.group(1)
            time.sleep(0.02)
        raise AssertionError(f"{name} does not say '{pattern}':\n{self.output(name)}")


def check_in_browser(usage, look):
    """main() of a test `[BUILD] [--screenshots=DIR]` that calls look(browser, programs, screenshots). Returns the exit status."""
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
    binary = chromium.find()
    if not binary:
        print("no chromium (deploy/install browser)")
        return 77
    with Programs(build) as programs, chromium.Browser(binary) as browser:
        try:
            look(browser, programs, screenshots)
        except (AssertionError, RuntimeError, TimeoutError):
            traceback.print_exc()
            for log in sorted(programs.folder.glob("*.err")):
                print(f"--- {log.stem}\n{programs.output(log.stem)[-2000:]}")
            return 1
    print("the page works")
    return 0
