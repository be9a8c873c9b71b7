"""The queue of batches and the pool of Ray workers; every batch gets the initial grid that a single process would
use.

A single process takes the grid from the first batch that has an image to prove, and uses it for all later batches.
While the grid is unknown, only the first open batch is proved; a second worker determines the grid from the same
images without proving them, and then all other batches may start in any order. The task of a lost worker is repeated
by the next one with the same grid.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tiltproof.distributed.worker import Package, Worker, versions
from tiltproof.errors import InputError
from tiltproof.verify.batch import Batch, Grid, Job
from tiltproof.verify.inputs import Inputs

MOST_LOSSES = 3
"""Number of lost workers after which a batch is not tried again."""


@dataclass(frozen=True)
class Task:
    """A batch to prove with this grid; or, if ``scouting``, only to determine the grid."""

    rows: slice
    grid: Grid | None
    scouting: bool = False


class Queue:
    """The unfinished batches of a run; ``grid``: the initial grid, if known; ``needs_grid``: whether batches wait for
    it."""

    def __init__(self, batches: Sequence[slice], grid: Grid | None, needs_grid: bool) -> None:
        self.waiting, self.left = deque(batches), len(batches)
        self.grid, self.open = grid, grid is not None or not needs_grid
        self.front: slice | None = None  # the batch that is to find the grid, while it is under way
        self.scouted = False  # or being scouted
        self.again: list[Task] = []  # whose workers were lost
        self.losses: Counter[int] = Counter()

    def take(self) -> Task | None:
        """Return the next task, or None while all others depend on running ones."""
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
        """Record a finished task; ``grid``: the initial grid that it determined, if an image needed one."""
        if not self.open and grid is not None:
            self.grid, self.open = grid, True
        if not task.scouting:
            self.left -= 1
            if task.rows == self.front:
                self.front = None

    def lost(self, task: Task) -> None:
        """Repeat the task of a lost worker."""
        self.losses[task.rows.start] += 1
        if self.losses[task.rows.start] >= MOST_LOSSES:
            raise InputError(
                f"{MOST_LOSSES} workers died over the same images",
                got=f"images {task.rows.start} to {task.rows.stop - 1} of this run",
                why="more memory than their machines have",
                do="fewer boxes at once (--batch-size), or fewer workers on a machine (ray start --num-cpus)",
            )
        self.again.append(task)


# `RayWorkers`: the batches of a run on a Ray cluster; the only file that knows Ray, which it imports when it is used.
#
# This process handles out batches and takes results; it alone writes the run folder. On each machine there is a worker for every GPU, or,
# where there is none, for every CPU core. An idle worker gets the next batch, so fast ones do more. The batch of a worker
# that dies is done again by another, and a new worker is started in its place if its machine is still there; machines that join are used.


LOOK_AROUND_SECONDS = 2.0
PATIENCE_SECONDS = 180.0
"""Time to wait for a worker, which must start Python and import torch."""
REACH_SECONDS = 10.0
MOST_FAILURES = 2
"""Number of failed starts after which a machine is not used."""
DEVICES = ("auto", "cpu", "cuda")


@dataclass(eq=False)
class WorkerHandle:
    """The driver's view of a worker."""

    actor: Any
    node: str
    host: str
    device: str | None = None  # None until it has read the network
    process: int = 0
    task: Task | None = None


class RayWorkers:
    """Workers of a Ray cluster, for ``Execution(workers=...)``; on each machine one per GPU or, without a GPU, one per CPU core.

    Parameters
    ----------
    address : str
        ``auto`` for the cluster that this machine belongs to, ``HOST:PORT``, or ``local`` for this machine alone.
    device : {"auto", "cpu", "cuda"}
        ``cpu`` and ``cuda`` use one kind only.

    Raises
    ------
    InputError
        If the device is unknown, or Ray is not installed.
    """

    def __init__(self, address: str = "auto", device: str = "auto") -> None:
        if device not in DEVICES:
            raise InputError(
                "unknown kind of workers", got=device, do=f"use {', '.join(DEVICES)}: Ray chooses which GPU"
            )
        self.address, self.device = address, device
        self.ray: Any = _ray()
        self.connected = False  # by us

    def __repr__(self) -> str:
        """The call that makes this object."""
        device = "" if self.device == "auto" else f", device={self.device!r}"
        return f"{type(self).__name__}({self.address!r}{device})"

    def work(
        self, inputs: Inputs, job: Job, batches: Sequence[slice], grid: Grid | None, pairs: int
    ) -> Generator[Batch, None, None]:
        """Yield every batch once, in the order of completion."""
        if not batches:
            return
        packed = self._pack(Package.of(inputs, job, pairs))
        self.connect()
        crew = _WorkerPool(self.ray, self.device, self.ray.put(packed), len(batches))
        try:
            queue = Queue(batches, grid, job.needs_grid)
            while queue.left:
                crew.scale_up()
                for handle in crew.idle():
                    if (task := queue.take()) is None:
                        break
                    part = inputs.part(task.rows)
                    crew.start(handle, task, job.part(task.rows), part.images.cpu(), part.labels.cpu())
                for device, task, answer in crew.wait(queue):
                    results, found = answer
                    queue.done(task, found)
                    if not task.scouting:
                        yield Batch(task.rows.start, results, found, device)
        finally:
            crew.shutdown()
            if self.connected:
                self.connected = False
                self.ray.shutdown()

    def _pack(self, package: Package) -> bytes:
        try:
            packed: bytes = self.ray.cloudpickle.dumps(package)
        except Exception as error:  # any kind: raised by the model's own code
            raise InputError(
                "the model cannot be sent to other processes",
                got=f"{type(error).__name__}: {error}",
                why="it holds something that cannot be pickled: an open file, a lock, a generator",
                do="keep such things out of the module, or certify without Ray",
            ) from None
        return packed

    def connect(self) -> None:
        """Connect to the cluster, unless the program has done so; `work` disconnects at its end."""
        if self.ray.is_initialized():
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that we start sends no usage reports
        try:
            host, _, port = self.address.rpartition(":")
            if host and "/" not in host:  # Ray itself would try for minutes
                socket.create_connection((host, int(port)), REACH_SECONDS).close()
            with _own_sigterm():
                self.ray.init(address=self.address, logging_level="ERROR", log_to_driver=False, include_dashboard=False)
            self.connected = True
        except Exception as error:  # Ray raises many kinds
            raise InputError(
                f"no Ray cluster can be reached at {self.address!r}",
                got=(str(error).strip() or type(error).__name__).splitlines()[0],
                why="none was started, this machine is not part of the cluster or lacks its token (docs/many-machines.md), or its Python "
                "or Ray is another version",
                do="ray start --head on one machine, ray start --address=HEAD:6379 on the others, then this command on one of "
                "them; or --ray local for this machine alone",
            ) from None


class _WorkerPool:
    """The workers, their tasks, and their machines."""

    def __init__(self, ray: Any, device: str, package: Any, most: int) -> None:
        self.ray, self.device, self.package, self.most = ray, device, package, most
        self.handles: list[WorkerHandle] = []
        self.calls: dict[Any, WorkerHandle] = {}  # what Ray will answer, and who is asked
        self.failures: Counter[str] = Counter()  # of machines, on which workers could not start
        self.reason = f"no machine of the cluster has a {'GPU' if device == 'cuda' else 'CPU core'} to offer"
        self.looked, self.last_ready = 0.0, time.monotonic()
        self.hopeless = self.ever = False

    def scale_up(self) -> None:
        """Start a worker for each GPU or core without one, but no more than there are batches."""
        now = time.monotonic()
        if now - self.looked < LOOK_AROUND_SECONDS:
            return
        self.looked, offered = now, 0
        for node in self.ray.nodes():
            name, has = node["NodeID"], node["Resources"]
            if not node["Alive"] or self.failures[name] >= MOST_FAILURES:
                continue
            gpus, cores = int(has.get("GPU", 0)), int(has.get("CPU", 0))
            on_gpu = gpus > 0 and self.device != "cpu"
            places = gpus if on_gpu else 0 if self.device == "cuda" else cores
            offered += places
            there = sum(handle.node == name for handle in self.handles)
            for _ in range(min(places - there, self.most - len(self.handles))):
                share = {"num_gpus": 1.0, "num_cpus": min(1.0, cores / gpus)} if on_gpu else {"num_cpus": 1.0}
                self._add(name, node["NodeManagerHostname"], "cuda" if on_gpu else "cpu", share)
        # machines that were there and have gone may come back
        self.hopeless = not offered and (not self.ever or bool(self.failures))
        self.ever = self.ever or bool(self.handles)

    def _add(self, node: str, host: str, kind: str, share: dict[str, float]) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        actor = self.ray.remote(Worker).options(**share, scheduling_strategy=here, max_restarts=0).remote()
        handle = WorkerHandle(actor, node, host)
        self.handles.append(handle)
        self.calls[actor.prepare.remote(self.package, kind, versions())] = handle

    def idle(self) -> list[WorkerHandle]:
        """Return idle workers, GPUs first."""
        ready = [handle for handle in self.handles if handle.device is not None and handle.task is None]
        return sorted(ready, key=lambda handle: handle.device == "cpu")

    def start(self, handle: WorkerHandle, task: Task, *what: Any) -> None:
        handle.task = task
        self.calls[handle.actor.batch.remote(*what, task.grid, task.scouting)] = handle

    def wait(self, queue: Queue) -> list[tuple[str, Task, Any]]:
        """Return (device, task, answer) of finished tasks; nothing if none finished for a while."""
        self._be_patient()
        if not self.calls:
            time.sleep(LOOK_AROUND_SECONDS)
            return []
        answered, _ = self.ray.wait(list(self.calls), timeout=LOOK_AROUND_SECONDS)
        finished = []
        for call in answered:
            handle = self.calls.pop(call)
            try:
                answer = self.ray.get(call)
            except self.ray.exceptions.RayTaskError as error:  # raised by our code there
                self._raised(handle, error.cause)
            except self.ray.exceptions.RayError as error:  # the process or the machine is gone
                self._gone(handle, queue, error)
            else:
                if handle.task is None:
                    handle.device, handle.process = answer
                else:
                    finished.append((handle.device or "", handle.task, answer))
                    handle.task = None
        return finished

    def _raised(self, handle: WorkerHandle, error: BaseException) -> None:
        """Drop a worker that cannot start; an error in a proof ends the run, as in a single process."""
        if handle.task is not None:
            raise error
        self.reason = f"on {handle.host}: {error}"
        self.failures[handle.node] = MOST_FAILURES  # it would not be otherwise the next time
        self._drop(handle)
        self.looked = 0.0
        warnings.warn(f"{handle.host} is not used: {error}", stacklevel=2)

    def _gone(self, handle: WorkerHandle, queue: Queue, error: BaseException) -> None:
        self._drop(handle)
        self.looked = 0.0  # look for another at once
        task = handle.task
        if task is None:
            self.failures[handle.node] += 1
            self.reason = f"on {handle.host}: {str(error).strip().splitlines()[0]}"
            return
        which = f"images {task.rows.start} to {task.rows.stop - 1}"
        who = f"worker {handle.process} on {handle.host}"
        warnings.warn(f"{who} was lost; another one does its {which} again", stacklevel=2)
        queue.lost(task)

    def _drop(self, handle: WorkerHandle) -> None:
        self.handles.remove(handle)
        with suppress(Exception):  # it is gone, most likely
            self.ray.kill(handle.actor)

    def _be_patient(self) -> None:
        now = time.monotonic()
        if any(handle.device is not None for handle in self.handles):
            self.last_ready = now
        if self.hopeless or now - self.last_ready > PATIENCE_SECONDS:
            waiting = f"{len(self.handles)} workers wait for a free GPU or CPU core" if self.handles else self.reason
            raise InputError(
                "the cluster has no worker for this run",
                got=waiting,
                why="tiltproof is not installed there in this version, or the machines are busy or gone",
                do="see ray status; what is in a run folder is kept, and --resume goes on with it",
            )

    def shutdown(self) -> None:
        """Stop all workers."""
        for handle in list(self.handles):
            self._drop(handle)


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep this process's handler of SIGTERM: Ray replaces it by one that exits with code 15."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "many machines need Ray, which is not installed", got=error, do="pip install 'tiltproof[ray]'"
        ) from None
    return ray
