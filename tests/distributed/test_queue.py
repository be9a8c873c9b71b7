"""In whatever order workers finish and die, every batch is done once, with the grid a single process would give it."""

import random

import pytest

from tiltproof import InputError
from tiltproof.distributed.ray_workers import MOST_LOSSES, Queue

GRID = (4, 2)


def batches(count):
    return [slice(k, k + 1) for k in range(count)]


def alone(finds, grid, needs_grid):
    """Return what a single process gives each batch; ``finds[k]``: whether an image of batch k needs a grid."""
    given = []
    for found in finds:
        given.append(grid)
        if needs_grid and grid is None and found:
            grid = GRID
    return given


@pytest.mark.parametrize("seed", range(300))
def test_any_order(seed):
    rng = random.Random(seed)
    finds = [rng.random() < 0.5 for _ in range(rng.randint(1, 8))]
    needs_grid, grid = rng.random() < 0.8, rng.choice([None, None, (3,)])
    queue, busy, given = Queue(batches(len(finds)), grid, needs_grid), [], {}
    workers, losses = rng.randint(1, 4), 0
    while queue.left:
        while len(busy) < workers and (task := queue.take()) is not None:
            busy.append(task)
        assert busy, "nothing to do and batches left"
        task = busy.pop(rng.randrange(len(busy)))
        if rng.random() < 0.2 and queue.losses[task.rows.start] < MOST_LOSSES - 1:
            queue.lost(task)
            losses += 1
            continue
        k = task.rows.start
        if not task.scouting:
            assert k not in given
            given[k] = task.grid
        queue.done(task, task.grid or (GRID if needs_grid and finds[k] else None))
    assert [given[k] for k in range(len(finds))] == alone(finds, grid, needs_grid)


def test_a_second_worker_scouts_and_then_all_is_open():
    queue = Queue(batches(4), None, needs_grid=True)
    front, scout = queue.take(), queue.take()
    assert (front.rows, front.scouting) == (slice(0, 1), False)
    assert (scout.rows, scout.scouting) == (slice(0, 1), True)
    assert queue.take() is None
    queue.done(scout, GRID)
    assert [(queue.take().rows.start, queue.grid) for _ in range(3)] == [(1, GRID), (2, GRID), (3, GRID)]


def test_a_batch_that_kills_its_workers_is_given_up():
    queue = Queue(batches(1), None, needs_grid=True)
    for _ in range(MOST_LOSSES - 1):
        queue.lost(queue.take())
    with pytest.raises(InputError, match="images 0 to 0"):
        queue.lost(queue.take())
