"""A run's batches elsewhere: on many machines (docs/many-machines.md), or in several threads beside one GPU."""

from tiltproof.cluster.ray_workers import RayWorkers
from tiltproof.cluster.thread_workers import ThreadWorkers

__all__ = ["RayWorkers", "ThreadWorkers"]
