"""Real programs on free loopback ports, for tests in Python: a router with its workers, and a front for them.

Each Program writes its output to a file and is killed when its test ends. Standard library only.
"""
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time

# How long a test waits for an event that must happen. It ends a test that hangs; tests do not measure it.
PATIENCE = 60.0


class Program:
    def __init__(self, folder, name, *args):
        self.out = tempfile.TemporaryFile()
        self.process = subprocess.Popen([os.path.join(folder, name), *args], stdout=self.out, stderr=subprocess.STDOUT,
                                        stdin=subprocess.DEVNULL)

    def output(self):
        # pread, because the file offset is shared with the program.
        return os.pread(self.out.fileno(), 1 << 20, 0).decode(errors="replace")

    def wait_for(self, pattern):
        """The first match of `pattern` in the output."""
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up:
            if found := re.search(pattern, self.output()):
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise AssertionError(f"{self.process.args[0]} never said {pattern}:\n{self.output()}")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.out.close()

    def terminate(self):
        """The exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


class Programs:
    """Programs of one folder, which are all killed at the end."""

    def __init__(self, folder):
        self._folder, self._started = folder, []

    def start(self, name, *args):
        self._started.append(Program(self._folder, name, *args))
        return self._started[-1]

    def outputs(self):
        return "".join(f"--- {program.process.args}\n{program.output()[-2000:]}\n" for program in self._started)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for program in self._started:
            program.kill()


def held_port():
    """A socket that reserves a port on which a program can be restarted (tests/testing/sockets.h)."""
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind(("127.0.0.1", 0))
    return port


class Cluster:
    """A router and `workers` processes of sim workers. `address` is the address of the client API, `admin` of the admin API.

    `ranks`: number of ranks of all processes, where --ranks_per_process is among the worker's flags.
    """

    def __init__(self, folder, workers=1, router_flags=(), worker_flags=("--c=0.001", "--tl=0", "--slots=8"), ranks=None):
        self.folder, self.workers_wanted = folder, ranks or workers
        self.router_flags, self.worker_flags = router_flags, worker_flags
        self.held = [held_port() for _ in range(2)]
        self.address, self.admin = (f"127.0.0.1:{port.getsockname()[1]}" for port in self.held)
        self.router, self.workers = None, []
        self.start_router()
        self.workers = [Program(folder, "bfio_worker", f"--router={self.address}", *worker_flags) for _ in range(workers)]
        self.router.wait_for(rf"epoch \d+ serves with {self.workers_wanted} ranks")

    def start_router(self):
        self.router = Program(self.folder, "bfio_router", f"--listen={self.address}", f"--admin_listen={self.admin}",
                              f"--workers={self.workers_wanted}", "--http_listen=", *self.router_flags)
        self.router.wait_for(r"serving on \S+,.* admin on \S+,.*waiting for")

    def restart_router(self):
        self.router.kill()
        self.start_router()

    def close(self):
        for program in [*self.workers, self.router]:
            program.kill()
        for port in self.held:
            port.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def programs_folder(argument):
    folder = pathlib.Path(argument)
    return str(folder / "bin" if (folder / "bin").is_dir() else folder)
