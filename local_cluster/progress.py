"""Progress for people: one line that updates on a terminal; elsewhere a line at the start, every 30 s, at the end."""

import shutil
import sys
import time


def elapsed(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Progress:
    """Shows ``label`` with a changing detail and the time since it began. A context manager: the last line stays."""

    def __init__(self, label: str, *, every_seconds: float = 30.0) -> None:
        self.label = label
        self._terminal = sys.stdout.isatty()
        self._every = 0.2 if self._terminal else every_seconds
        self._began = time.monotonic()
        self._shown = self._began
        self._ended = False

    def __enter__(self) -> "Progress":
        self._write(self.label)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and not self._ended:
            self.end("failed")

    def update(self, detail: str) -> None:
        now = time.monotonic()
        if now - self._shown >= self._every:
            self._shown = now
            self._write(f"{self.label} ... {detail}, {elapsed(now - self._began)} elapsed")

    def end(self, detail: str) -> None:
        self._ended = True
        self._write(f"{self.label}: {detail} in {elapsed(time.monotonic() - self._began)}")
        if self._terminal:
            print(flush=True)

    def _write(self, line: str) -> None:
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{line[:width]}", end="", flush=True)
        else:
            print(line, flush=True)
