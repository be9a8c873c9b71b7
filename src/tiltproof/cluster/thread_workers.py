"""`ThreadWorkers`: the batches of a run in threads of this process, for a GPU: while it works for one search, the host decides for another.

All use the model's own device, in the order in which they ask. Which batch gets which starting grid is for the `Queue` to say, as on a
cluster, so verdicts and evidence are those of one search after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

from tiltproof.certify.entry import Inputs
from tiltproof.certify.memory import Halving
from tiltproof.certify.run import Batch, Grid, Job
from tiltproof.cluster.queue import Queue, Task
from tiltproof.device import few_threads
from tiltproof.errors import InputError


class ThreadWorkers:
    """``count`` searches at once, each with its share of the pairs that are bounded at a time. Python itself does one thing at a time: on a
    CPU nothing is won. Give ``batch_images`` too, such as half of the images: a batch is one search."""

    def __init__(self, count: int = 2) -> None:
        if count < 1:
            raise InputError("there is at least one thread", got=count)
        self.count = count

    def work(
        self, inputs: Inputs, job: Job, batches: Sequence[slice], grid: Grid | None, pairs: int
    ) -> Generator[Batch, None, None]:
        """Every batch once, in the order in which they get done."""
        if inputs.limit is not None:
            raise InputError(
                "searches in several threads cannot keep to a limit of memory",
                why="each would take what is left for all",
                do="leave out the limit or the threads",
            )
        crew, queue = _Crew(inputs, job, max(1, pairs // self.count)), Queue(batches, grid, job.needs_grid)
        try:
            while queue.left:
                while crew.busy < self.count and (task := queue.take()) is not None:
                    crew.start(task)
                task, (results, found) = crew.wait()
                queue.done(task, found)
                if not task.scouting:
                    yield Batch(task.rows.start, results, found, str(inputs.images.device))
        finally:
            crew.stop()


class _Stopped(Exception):
    """Nobody waits for this search any more."""


class _Crew:
    """The threads that are at work, and what they have come to."""

    def __init__(self, inputs: Inputs, job: Job, pairs: int) -> None:
        self.inputs, self.job, self.pairs, self.busy = inputs, job, pairs, 0
        self.answers: SimpleQueue[tuple[Task, Any, BaseException | None]] = SimpleQueue()
        self.stopped = threading.Event()
        self.threads: list[threading.Thread] = []

    def start(self, task: Task) -> None:
        self.busy += 1
        # settings of the proof that belong to a context are this one's
        self.threads.append(threading.Thread(target=copy_context().run, args=(self._work, task), daemon=True))
        self.threads[-1].start()

    def wait(self) -> tuple[Task, Any]:
        """A task that is done, and its answer; an error in a proof ends the run, as it would in a single search."""
        task, answer, error = self.answers.get()
        self.busy -= 1
        if error is not None:
            raise error
        return task, answer

    def stop(self) -> None:
        """Searches under way end at their next step."""
        self.stopped.set()
        for thread in self.threads:
            thread.join()

    def _work(self, task: Task) -> None:
        answer, error = None, None
        try:
            answer = self._batch(task)
        except BaseException as caught:
            error = caught
        self.answers.put((task, answer, error))

    def _batch(self, task: Task) -> tuple[Any, Grid | None]:
        inputs, job = self.inputs.part(task.rows), self.job.part(task.rows)
        pairs = Halving(self.pairs, inputs.memory, job.each(inputs))
        with few_threads(inputs.images.device):
            if task.scouting:
                return None, job.grid(inputs, pairs)
            return job.batch(inputs, task.grid, pairs, _Silent(self.stopped))


class _Silent:
    """In place of a reporter, of either task: ends a search that nobody waits for, and says nothing."""

    def __init__(self, stopped: threading.Event) -> None:
        self.stopped = stopped

    def report(self, _: object = None) -> None:
        if self.stopped.is_set():
            raise _Stopped

    attacking = proving = say = report
