"""Imported by the process from which `test_kill` forks children: everything is loaded and run once, so they start at once."""

from tests.support.digits import run

run()
