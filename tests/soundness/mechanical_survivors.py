"""Mechanical mutants with a tighter bound that no true value refutes: why each is sound, or why sampling cannot expose it.

Rows are keyed by text: the file, the changed line, and the change as `mechanical.py` prints it between brackets. That command
fails if a row matches no mutant any more, and if a row's mutant is refuted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Argued:
    file: str
    line: str
    changes: tuple[str, ...]
    why: str


CHOICE = (
    "It decides by which of two sound ways a pixel is bounded, by the formula or by a look at all points of its box; what comes out is "
    "not comparable with the other way's bounds to the last bit, and is as sound."
)
FLOOR = (
    "An allowance for rounding that is needed on paper (3 L + 29 D, of which there are 4 L + 40 D). The largest error at 240,000 exact "
    "points was 2 u L where D is small and 9 u L where D is 2 L, where 84 u L are allowed: so sampling sees that a whole term is missing, "
    "not that it is a half."
)
FLOOR_ENOUGH = (
    "Still at least the 3 L + 29 D that are needed on paper, because no pixel is further from zero than one end of the range and the "
    "range's width together: 4 |end| + 40 D >= 4 L + 36 D."
)
REACH = (
    "An allowance for rounding: on paper, seven roundings of |g| A, at 24 of them. The largest error at 120,000 exact points was 2.4, so "
    "sampling sees that the allowance is missing, or 1, and not that it is a half."
)
HALF = (
    "An allowance for rounding of half a side, by a few u of at most a cell. What is lacking is at most a few u D, and the floor has "
    "11 u D more than it needs on paper, 30 u D more than any sampled error: sampling cannot see it."
)
UPWARD = (
    "An allowance for at most 2^6 roundings of sums and products that are not negative, relative to a radius that is larger than what it "
    "bounds by more than that in every sampled box, because of the floor: sampling cannot see it."
)

ARGUED: list[Argued] = [
    Argued("pixels/single_cell.py", "MOST_FLAT = 4", ("4 -> 3", "4 -> 2"), CHOICE),
    Argued(
        "pixels/single_cell.py",
        "largest, spread = torch.maximum(-low, high), high - low",
        ("low -> high", "high -> low"),
        FLOOR_ENOUGH,
    ),
    Argued(
        "pixels/single_cell.py",
        "self.floor = (4 * largest + 40 * spread) * UNIT[torch.float64] + SMALLEST[torch.float64]",
        ("4 -> 3", "4 -> 2", "40 -> 39", "40 -> 20"),
        FLOOR,
    ),
    Argued(
        "pixels/single_cell.py",
        "torch.add(form.radius, form.reach(), alpha=24 * form.unit, out=cost)",
        ("24 -> 23", "24 -> 12"),
        REACH,
    ),
    Argued(
        "pixels/single_cell.py",
        "return first, end, (end - begin).abs_().mul_(0.5 + 4 * form.unit).add_(8 * form.unit)",
        (
            "(end - begin).abs_().mul_(0.5 + 4 * form.unit).add_ -> (end - begin).abs_().mul_(0.5 + 4 * form.unit).sub_",
            "0.5 + 4 * form.unit -> 0.5 - 4 * form.unit",
            "0.5 + 4 * form.unit -> 0.5",
            "4 -> 3",
            "4 -> 2",
            "4 -> 1",
            "8 -> 7",
            "8 -> 4",
            "8 -> 1",
        ),
        HALF,
    ),
    Argued(
        "pixels/single_cell.py",
        "UPWARD = 1 + 2.0**-47",
        ("1 + 2.0 ** (-47) -> 1", "2.0 -> 4.0", "47 -> 48", "47 -> 94"),
        UPWARD,
    ),
]
