"""The command line: one file per command, each a thin layer over the public functions."""

from tiltproof.cli.app import app, main

__all__ = ["app", "main"]
