"""Damaged variants of a file: truncated, flipped, stretched, with absurd lengths, duplicated, or pure nonsense."""

from __future__ import annotations

import random
from collections.abc import Iterator

NUMBERS = (0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)
WIDTHS = (1, 2, 4, 8)


def mutants(content: bytes, count: int, seed: str) -> Iterator[bytes]:
    """Yield ``count`` deterministic variants: first truncations, then absurd lengths in the header, then random damage."""
    chance = random.Random(seed)
    planned = cuts(content)
    fields = [
        _with_number(content, place, width, number, order) for place, width, number, order in _header_fields(content)
    ]
    chance.shuffle(fields)
    planned += fields[: count // 3]
    yield from planned[:count]
    for _ in range(count - len(planned)):
        yield damaged(content, chance)


def cuts(content: bytes) -> list[bytes]:
    """Return beginnings of the file: every length near its start and its end, and some in between."""
    size = len(content)
    lengths = {*range(min(24, size)), *range(max(0, size - 12), size), *(size * k // 8 for k in range(8))}
    return [content[:length] for length in sorted(lengths)]


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Apply one to four random kinds of damage in sequence."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        content = chance.choice(DAMAGES)(content, chance)
    return content


def _header_fields(content: bytes) -> list[tuple[int, int, int, str]]:
    return [
        (place, width, number, order)
        for place in range(min(64, len(content)))
        for width in WIDTHS
        for number in NUMBERS
        for order in ("little", "big")
        if number < 256**width
    ]


def _with_number(content: bytes, place: int, width: int, number: int, order: str) -> bytes:
    return content[:place] + number.to_bytes(width, order) + content[place + width :]


def _number(content: bytes, chance: random.Random) -> bytes:
    width = chance.choice(WIDTHS)
    number = chance.choice([number for number in NUMBERS if number < 256**width])
    return _with_number(content, chance.randrange(len(content) + 1), width, number, chance.choice(("little", "big")))


def _flip(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 2, 8, 64)) if content else 0):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _span(content: bytes, chance: random.Random) -> tuple[int, int]:
    begin = chance.randrange(len(content) + 1)
    return begin, min(len(content), begin + chance.choice((1, 2, 4, 8, 32, 256)))


def _insert(content: bytes, chance: random.Random) -> bytes:
    begin, _ = _span(content, chance)
    return content[:begin] + chance.randbytes(chance.choice((1, 2, 4, 8, 64, 1024))) + content[begin:]


def _delete(content: bytes, chance: random.Random) -> bytes:
    begin, end = _span(content, chance)
    return content[:begin] + content[end:]


def _fill(content: bytes, chance: random.Random) -> bytes:
    begin, end = _span(content, chance)
    return content[:begin] + bytes([chance.choice((0, 255, 32, 10, 44, 34))]) * (end - begin) + content[end:]


def _double(content: bytes, chance: random.Random) -> bytes:
    begin, end = _span(content, chance)
    return content[:end] + content[begin:end] * chance.choice((1, 2, 100)) + content[end:]


def _move(content: bytes, chance: random.Random) -> bytes:
    (begin, end), (target, _) = _span(content, chance), _span(content, chance)
    rest = content[:begin] + content[end:]
    return rest[:target] + content[begin:end] + rest[target:]


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _nonsense(content: bytes, chance: random.Random) -> bytes:
    keep = chance.choice((0, 4, 8, 16))
    return content[:keep] + chance.randbytes(chance.choice((0, 1, 16, 300, 5000)))


DAMAGES = (_flip, _flip, _number, _number, _insert, _delete, _fill, _double, _move, _cut, _nonsense)
