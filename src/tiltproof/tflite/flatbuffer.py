"""Flatbuffers, read field by field: tables, vectors, numbers and text, every one compared with the file's size before it is read."""

from __future__ import annotations

import struct

import numpy as np

MOST_ENTRIES = 10_000
"""Tables in one vector."""


class Damaged(Exception):
    """The bytes are no flatbuffer."""


class Table:
    """A table at a place of the file; its fields have numbers, in the schema's order."""

    def __init__(self, data: bytes, place: int) -> None:
        self.data, self.place = data, place
        self.fields = self._number("<i", place)
        start = place - self.fields
        self.size = self._number("<H", start)
        if start < 0 or self.size < 4 or self.size % 2 or start + self.size > len(data):
            raise Damaged("a table whose fields are outside of the file")
        self.start = start

    @classmethod
    def root(cls, data: bytes) -> Table:
        return cls(data, Table.read("<I", data, 0))

    @staticmethod
    def read(kind: str, data: bytes, place: int) -> int:
        if not 0 <= place <= len(data) - struct.calcsize(kind):
            raise Damaged("an offset that is outside of the file")
        value: int = struct.unpack_from(kind, data, place)[0]
        return value

    def _number(self, kind: str, place: int) -> int:
        return Table.read(kind, self.data, place)

    def _place(self, field: int) -> int:
        """Where the field is, or 0 if it has its default."""
        entry = 4 + 2 * field
        offset = self._number("<H", self.start + entry) if entry < self.size else 0
        return self.place + offset if offset else 0

    @property
    def count(self) -> int:
        """One more than the number of the last field that is there."""
        return max((k + 1 for k in range((self.size - 4) // 2) if self._place(k)), default=0)

    def has(self, field: int) -> bool:
        return bool(self._place(field))

    def integer(self, field: int, kind: str = "<i", default: int = 0) -> int:
        place = self._place(field)
        return self._number(kind, place) if place else default

    def real(self, field: int, default: float = 0.0) -> float:
        place = self._place(field)
        return float(self._number("<f", place)) if place else default

    def _follow(self, field: int) -> int:
        """Where the field's offset leads, or 0."""
        place = self._place(field)
        return place + self._number("<I", place) if place else 0

    def table(self, field: int) -> Table | None:
        place = self._follow(field)
        return Table(self.data, place) if place else None

    def _vector(self, field: int, width: int) -> tuple[int, int]:
        """The first entry's place and the number of entries."""
        place = self._follow(field)
        if not place:
            return 0, 0
        count = self._number("<I", place)
        if count * width > len(self.data) - place - 4:
            raise Damaged("a vector that is longer than the file")
        return place + 4, count

    def numbers(self, field: int, kind: str = "<i4", most: int = 2**20) -> np.ndarray:
        width = np.dtype(kind).itemsize
        place, count = self._vector(field, width)
        if count > most:
            raise Damaged(f"a vector of {count:,} numbers")
        return np.frombuffer(self.data, kind, count, place) if count else np.zeros(0, kind)

    def raw(self, field: int) -> memoryview:
        place, count = self._vector(field, 1)
        return memoryview(self.data)[place : place + count]

    def text(self, field: int) -> str:
        return bytes(self.raw(field)[:400]).decode("utf-8", "replace")

    def tables(self, field: int) -> list[Table]:
        place, count = self._vector(field, 4)
        if count > MOST_ENTRIES:
            raise Damaged(f"a vector of {count:,} tables")
        places = (place + 4 * k for k in range(count))
        return [Table(self.data, here + self._number("<I", here)) for here in places]
