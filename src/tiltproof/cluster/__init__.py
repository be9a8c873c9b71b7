"""A run's batches elsewhere: on many machines (docs/many-machines.md)."""

from tiltproof.cluster.ray_workers import RayWorkers

__all__ = ["RayWorkers"]
