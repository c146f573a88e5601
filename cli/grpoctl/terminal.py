"""Standard output as rich writes to it."""

import sys

from rich.console import Console

PIPE_WIDTH = 1_000_000


def make_console() -> Console:
    """As wide as the terminal; where there is none, as wide as any text: what reads a pipe searches whole words."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
