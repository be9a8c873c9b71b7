"""Write docs/constructs.md: the constructs of PyTorch networks that are accepted, and those that are refused.

    python scripts/docs_constructs.py

The table comes from ``tests/support/constructs.py``, whose networks the tests of bounds, of the checker and of ONNX files iterate over. A
test fails when the page is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "constructs.md"
sys.path.insert(0, str(ROOT))

from tests.support.constructs import ACCEPTED, REFUSED  # noqa: E402

START = """# Accepted constructs

{total} constructs that PyTorch networks are made of, a small network of each: {accepted} are accepted, {refused} are
refused. Every accepted one goes through the tests of forward and backward bounds, planted counterexamples, float32
semantics, the checker's own rules, and ONNX files, written and read again. Names stand for modules of `torch.nn`,
functions of `torch.nn.functional` and methods of a tensor `x` that depends on the image.
[Your own model](your-own.md#models) lists the ATen operations behind them.
"""

REFUSALS = """
## Refused

Each refusal names the operation, its module and what to do instead. For example, `nn.LSTM` has to be written out step by step.

| construct | why |
|---|---|
"""


def page() -> str:
    accepted = sum(map(len, ACCEPTED.values()))
    parts = [START.format(total=accepted + len(REFUSED), accepted=accepted, refused=len(REFUSED))]
    for title, rows in ACCEPTED.items():
        parts.append(f"\n## {title}\n\n")
        parts += [f"- `{construct}`\n" for construct in rows]
    parts.append(REFUSALS)
    parts += [f"| `{construct}` | {why} |\n" for construct, (_, why) in REFUSED.items()]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
