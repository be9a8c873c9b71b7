"""A pseudo-terminal, for what only a person at one sees."""

from __future__ import annotations

import os


def read_to_the_end(reader: int) -> bytes:
    """Everything that was written to the terminal; the writing end is closed here and in the process."""
    seen = b""
    try:
        while piece := os.read(reader, 4096):
            seen += piece
    except OSError:  # Linux reports the end of a pseudo-terminal as an error
        pass
    return seen
