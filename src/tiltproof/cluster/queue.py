"""Which batch to do next, so that workers give each batch the starting grid that a single process would have given it.

A single process takes the grid from the first batch in which an image needed one, and gives it to all batches after that. So as long as
the grid is not known only the foremost batch is done, by itself; a second worker scouts: it finds the same grid from the same images
without proving them, and when it has done so all other batches are open, in any order. The task of a worker that was lost is given to
the next one as it was, with the same grid.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from tiltproof.certify.run import Grid
from tiltproof.errors import InputError

MOST_LOSSES = 3
"""A batch whose workers died this often is not given to another."""


@dataclass(frozen=True)
class Task:
    """A batch to prove with this grid, or, ``scouting``, only to find the grid of."""

    rows: slice
    grid: Grid | None
    scouting: bool = False


class Queue:
    """The batches of a run that are not done; ``grid``: the starting grid, if it is known; ``needs_grid``: or whether it matters."""

    def __init__(self, batches: Sequence[slice], grid: Grid | None, needs_grid: bool) -> None:
        self.waiting, self.left = deque(batches), len(batches)
        self.grid, self.open = grid, grid is not None or not needs_grid
        self.front: slice | None = None  # the batch that is to find the grid, while it is under way
        self.scouted = False  # or being scouted
        self.again: list[Task] = []  # whose workers were lost
        self.losses: Counter[int] = Counter()

    def take(self) -> Task | None:
        """Something to do now, or None while everything else depends on what is being done."""
        if self.again:
            return self.again.pop()
        if self.waiting and (self.open or self.front is None):
            rows = self.waiting.popleft()
            if not self.open:
                self.front, self.scouted = rows, False
            return Task(rows, self.grid)
        if not self.open and self.waiting and self.front is not None and not self.scouted:
            self.scouted = True
            return Task(self.front, None, scouting=True)
        return None

    def done(self, task: Task, grid: Grid | None) -> None:
        """``grid``: what the task came to; None where none of its images needed one."""
        if not self.open and grid is not None:
            self.grid, self.open = grid, True
        if not task.scouting:
            self.left -= 1
            if task.rows == self.front:
                self.front = None

    def lost(self, task: Task) -> None:
        """Whoever did it is gone."""
        self.losses[task.rows.start] += 1
        if self.losses[task.rows.start] >= MOST_LOSSES:
            raise InputError(
                f"{MOST_LOSSES} workers died over the same images",
                got=f"images {task.rows.start} to {task.rows.stop - 1} of this run",
                why="more memory than their machines have",
                do="fewer boxes at once (--batch-size), or fewer workers on a machine (ray start --num-cpus)",
            )
        self.again.append(task)
