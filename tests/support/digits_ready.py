"""Imported by the process that `test_kill` forks its children from: everything loaded and run once, so that they start working at once."""

from tests.support.digits import run

run()
