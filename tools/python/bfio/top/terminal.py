"""The terminal as a screen with keys (plain ANSI sequences), and the actions of the keys."""
from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
from typing import Iterator, NamedTuple, Optional

ESCAPE, INTERRUPT, DELETE, BACKSPACE = "\x1b", "\x03", "\x7f", "\b"
MAX_NAME = 200
MAX_SIZE = 400  # Columns and rows that a picture is drawn for.
HELP = "q quit   p switch policy   d drain a worker   u undrain a worker"


class Action(NamedTuple):
    method: str  # of bfio.Admin
    asks: str
    confirms: str
    done: str


ACTIONS = {
    "p": Action("set_policy", "policy to switch to", "switch to {} from the next decision on", "switched to {}"),
    "d": Action("drain", "worker to drain", "drain {}: it gets no new requests and leaves when idle", "{} is draining"),
    "u": Action("undrain", "worker to undrain", "undrain {}: it gets new requests again", "{} gets new requests again")}


class Prompt:
    """Which question is open and what has been typed. One key changes nothing: a name is typed, then confirmed with 'y'."""

    def __init__(self):
        self.action, self._name, self._complete = None, "", False

    def on_key(self, key: str) -> Optional[tuple[Action, str]]:
        """The confirmed action with its name, if this key confirms one."""
        if self.action is None or key == ESCAPE:
            self.action, self._name, self._complete = ACTIONS.get(key), "", False
        elif self._complete:
            action, self.action = self.action, None
            return (action, self._name) if key in "yY" else None
        elif key in "\r\n":
            self.action, self._complete = self.action if self._name else None, True
        elif key in (DELETE, BACKSPACE):
            self._name = self._name[:-1]
        elif " " < key <= "~" and len(self._name) < MAX_NAME:
            self._name += key
        return None

    def quits(self, key: str) -> bool:
        return key == INTERRUPT or (key == "q" and self.action is None)  # A name may have a q.

    def __str__(self) -> str:
        if self.action is None:
            return HELP
        if self._complete:
            return f"{self.action.confirms.format(self._name)} (y/n)?"
        return f"{self.action.asks} (Enter; Esc cancels): {self._name}"


def write(text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(sys.stdout.fileno(), data):]


def is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def size() -> tuple[int, int]:
    """Columns and rows; 80 x 24 where they are unknown."""
    with contextlib.suppress(OSError):
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        if columns and rows:
            return min(MAX_SIZE, columns), min(MAX_SIZE, rows)
    return 80, 24


@contextlib.contextmanager
def alternate_screen() -> Iterator[None]:
    """An empty screen without a cursor, and keys without echo. Restores the terminal at the end, also after an exception."""
    fd = sys.stdin.fileno()
    before, raw = termios.tcgetattr(fd), termios.tcgetattr(fd)
    raw[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG)
    try:
        termios.tcsetattr(fd, termios.TCSANOW, raw)
        write("\x1b[?1049h\x1b[?25l")
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)
        write("\x1b[?25h\x1b[?1049l")


def show(lines: list[str]) -> None:
    # Lines are overwritten, because clearing the screen first flickers.
    write("\x1b[H" + "\r\n".join(line + "\x1b[K" for line in lines) + "\x1b[J")


def keys(timeout: float) -> str:
    """The keys pressed; waits up to `timeout` seconds for the first."""
    if not select.select([sys.stdin], [], [], timeout)[0]:
        return ""
    pressed = os.read(sys.stdin.fileno(), 64).decode("latin-1") or INTERRUPT  # Nothing: the terminal is closed.
    # The sequence of an arrow key, for example, arrives in one read; the Escape key alone is one byte.
    return "" if len(pressed) > 1 and pressed[0] == ESCAPE else pressed
