"""Damaged files of every kind are read as a valid value or refused with an `InputError`, quickly and in little memory."""

import sys

import pytest

from tests.fuzz.file_kinds import KINDS

SHORT, LONG = 100, 5000

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits on memory and time are those of Linux")


def check(report, count):
    assert not report["failures"], "\n\n".join(report["failures"])
    assert report["said"] == "", "a reader wrote to the terminal"
    assert report["valid"] + report["refused"] == count
    assert report["refused"] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(reading_process, kind):
    check(reading_process.read(kind, SHORT, seconds=60), SHORT)


@pytest.mark.slow
def test_many_damaged_files(reading_process, capsys):
    for kind in KINDS:
        report = reading_process.read(kind, LONG, seconds=300)
        with capsys.disabled():
            print(f"\n{kind}: {LONG:,} damaged files, {report['refused']:,} refused, {report['valid']:,} valid", end="")  # noqa: T201
        check(report, LONG)
    assert LONG * len(KINDS) >= 20_000
