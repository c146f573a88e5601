"""One command at a time on the same cluster or cache."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(file: Path, holder: str) -> Iterator[None]:
    """Hold an exclusive lock on ``file``, waiting for ``holder`` (words for the user). A killed holder frees it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Waiting for {holder} to finish ...", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
