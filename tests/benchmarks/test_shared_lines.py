"""The program that lists shared lines: it finds a copy, and the package shares argument lists only."""

import re
from pathlib import Path

import shared_lines

from tests.support.processes import ROOT

ARGUMENT = re.compile(r"@[\w.]+\(\)|(def|class) \w+\(|self,|\*,|\w+: .+,|\) -> .+:")


def code(folder):
    return {path: shared_lines.code_lines(path) for path in sorted(folder.rglob("*.py"))}


def test_a_copy_is_found_once(tmp_path):
    body = "".join(f"{name} = 1\n" for name in "abcdefgh")
    (tmp_path / "one.py").write_text(f'"""One."""\n\nimport os\n\n{body}')
    (tmp_path / "other.py").write_text(f"x = 2  # other\n\n{body}y = 3\n")
    assert shared_lines.shared(code(tmp_path), 6) == [(8, (tmp_path / "one.py", 5), (tmp_path / "other.py", 3))]


def test_the_package_shares_no_logic():
    files = code(ROOT / "src" / "tiltproof")
    for count, (path, number), other in shared_lines.shared(files, 6):
        lines = [text for place, text in files[path] if place >= number][:count]
        assert all(ARGUMENT.fullmatch(line) for line in lines), (path, number, Path(other[0]).name, lines)
