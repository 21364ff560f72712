"""The program bfio-top: its options, its calls to the router, and the loop that draws."""
from __future__ import annotations

import argparse
import os
import pathlib
import re
import signal
import ssl
import sys
import time
from typing import Optional

import grpc

import bfio
from bfio.top import screen, terminal
from bfio.top.measurements import History

EXAMPLES = """keys: q quits, p switches the policy, d drains a worker, u undrains it; p, d and u ask for confirmation

  bfio-top --admin=127.0.0.1:50052
  bfio-top --once | grep idle          for scripts"""
RESULT_TIME = 5.0  # How long the result of an action stays on the lowest line, in seconds.
REDRAW = 0.1  # How soon a new size of the terminal is noticed, in seconds.
MANY_ROWS = 5000


class BadInput(argparse.ArgumentTypeError):
    """A command line that cannot be used; argparse adds the flag to the message."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise BadInput(message.removeprefix("argument "))


def address(text: str) -> str:
    found = re.fullmatch(r"(?:\[[\w.:%-]+\]|[\w.-]{1,253}):(\d{1,5})", text, re.ASCII)
    if not found or not 0 < int(found[1]) < 65536:
        raise BadInput(f"'{text}' must be HOST:PORT")
    return text


def duration(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m)", text, re.ASCII)
    value = float(found[1]) * {"ms": 0.001, "s": 1, "m": 60}[found[2]] if found else 0
    if not 0.1 <= value <= 60:
        raise BadInput(f"'{text}' must be within 100ms..1m")
    return value


def extent(text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text, re.ASCII) or int(text) > 10000:
        raise BadInput(f"'{text}' must be within 0..10000")
    return int(text)


def read(path: str) -> bytes:
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None


def token(path: str) -> Optional[str]:
    if not path:
        return None
    text = read(path).decode("latin-1").strip()
    if not re.fullmatch("[!-~]{1,512}", text):
        raise BadInput(f"{path}: expected a single line with the bearer token")
    return text


def tls_files(text: str) -> dict[str, str]:
    if not text:
        return {}
    files = dict(part.partition("=")[::2] for part in text.split(","))
    if files.keys() not in ({"ca"}, {"ca", "cert", "key"}) or len(files) <= text.count(","):
        raise BadInput(f"'{text}' must be ca=FILE or ca=FILE,cert=FILE,key=FILE")
    for path in files.values():
        read(path)
    try:  # gRPC would only report that no connection can be made.
        context = ssl.create_default_context(cafile=files["ca"])
        if "cert" in files:
            context.load_cert_chain(files["cert"], files["key"], password=lambda: "")  # Else OpenSSL asks the terminal.
    except ssl.SSLError as error:
        raise BadInput(f"'{text}': not a PEM file, or the key does not match the certificate: {error.strerror}") from None
    return files


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(prog="bfio-top", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
                    description="Shows a cluster in a terminal: the load of each worker, the time lost to imbalance, latencies.")
    parser.add_argument("--version", action="version", version=f"bfio-top {bfio.__version__}")
    parser.add_argument("--admin", type=address, default="127.0.0.1:50052", metavar="HOST:PORT",
                        help="address of the router's admin API (default: %(default)s)")
    parser.add_argument("--admin_tls", type=tls_files, default={}, metavar="FILES",
                        help="TLS for the admin API: ca=FILE,cert=FILE,key=FILE (PEM). ca: the CAs that signed the "
                             "router's certificate; cert and key: the operator's certificate, where the router "
                             "requires one (default: no TLS)")
    parser.add_argument("--admin_token_file", type=token, metavar="FILE", help="file with the bearer token")
    parser.add_argument("--interval", type=duration, default=1.0, metavar="TIME",
                        help="time between two updates of the screen, 100ms to 1m (default: 1s)")
    parser.add_argument("--once", action="store_true", help="print the screen once, after the first interval, and exit")
    parser.add_argument("--plain", action="store_true", help="plain ASCII without colours; the default without a terminal")
    parser.add_argument("--columns", type=extent, default=0, metavar="N",
                        help="width in columns; 0: that of the terminal, else 80")
    parser.add_argument("--rows", type=extent, default=0, metavar="N",
                        help="height in rows; 0: that of the terminal, else enough for all workers")
    # As in bfio's other programs, '-' and '_' mean the same in names of flags.
    settings = parser.parse_args([re.sub("^--[^=]+", lambda m: "--" + m[0][2:].replace("-", "_"), a) for a in arguments])
    if not settings.once and not terminal.is_terminal():
        raise BadInput("standard input and output must be a terminal; use --once to print the screen once")
    return settings


def connect(settings: argparse.Namespace) -> bfio.Admin:
    try:
        return bfio.Admin(settings.admin, token=settings.admin_token_file, **settings.admin_tls)
    except ValueError as error:
        raise BadInput(f"--admin_token_file: {error} in --admin_tls") from None


def reason(error: bfio.Error, settings: argparse.Namespace) -> str:
    """The failure in one line. gRPC's message about a missing connection names no flag; that of a failed handshake is kept."""
    text = screen.harmless(" ".join(error.message.split()))
    if error.code != grpc.StatusCode.UNAVAILABLE or not text.startswith("failed to connect to all addresses"):
        return text
    last = text.rpartition("last error: ")[2]
    return f"no router answers at {settings.admin} (--admin)" + ("" if "refused" in last else f": {last}")


def picture(history: History, settings: argparse.Namespace, message: str = "", alarm: bool = False) -> list[str]:
    on_terminal = terminal.is_terminal()
    columns, rows = terminal.size() if on_terminal else (80, MANY_ROWS)
    return screen.draw(history.measure(), history.idle, message, alarm, settings.columns or columns, settings.rows or rows,
                       settings.plain or not on_terminal)


def once(admin: bfio.Admin, settings: argparse.Namespace) -> None:
    history = History()
    history.add(time.monotonic(), admin.state())
    time.sleep(settings.interval)
    history.add(time.monotonic(), admin.state())
    terminal.write("".join(line + "\n" for line in picture(history, settings)))


def act(admin: bfio.Admin, action: terminal.Action, name: str, settings: argparse.Namespace) -> tuple[str, bool]:
    """The message for the lowest line, and whether it reports a failure."""
    try:
        getattr(admin, action.method)(name)
    except bfio.Error as error:
        return f"refused: {reason(error, settings)}", True
    return action.done.format(name), False


def watch(admin: bfio.Admin, settings: argparse.Namespace) -> None:
    history, prompt = History(), terminal.Prompt()
    history.add(time.monotonic(), admin.state())
    due, lost, result, result_end = time.monotonic() + settings.interval, "", None, 0.0
    with terminal.alternate_screen():
        while True:
            if time.monotonic() >= due:
                try:
                    history.add(time.monotonic(), admin.state())
                    lost = ""
                except bfio.Error as error:
                    lost = f"no answer from the router: {reason(error, settings)}"
                due = time.monotonic() + settings.interval
            message = (lost, True) if lost and prompt.action is None else (str(prompt), False)
            terminal.show(picture(history, settings, *(result if time.monotonic() < result_end else message)))
            for key in terminal.keys(max(0.0, min(due - time.monotonic(), REDRAW))):
                result_end = 0.0
                if prompt.quits(key):
                    return
                if confirmed := prompt.on_key(key):
                    result, result_end = act(admin, *confirmed, settings), time.monotonic() + RESULT_TIME


def interrupt(signum, frame) -> None:
    signal.signal(signum, signal.SIG_DFL)  # A second signal ends the program at once.
    raise KeyboardInterrupt


def main() -> int:
    # gRPC logs to descriptor 2, which would spoil the picture and the one line of an error.
    sys.stderr = os.fdopen(os.dup(2), "w", 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, interrupt)
    settings = None
    try:
        settings = parse(sys.argv[1:])
        with connect(settings) as admin:
            (once if settings.once else watch)(admin, settings)
        return 0
    except (BadInput, bfio.Error) as error:
        bad = isinstance(error, BadInput)
        print(f"bfio-top: {error if bad else reason(error, settings)}", file=sys.stderr)
        return 2 if bad else 1
    except BrokenPipeError:  # The reader of the output closed it, as `--once | head` does.
        return 0
    except KeyboardInterrupt:
        return 130 if settings is None or settings.once else 0


if __name__ == "__main__":
    sys.exit(main())
