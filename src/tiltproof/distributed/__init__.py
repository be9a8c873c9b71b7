"""Certification on many machines: batches of a run proved by the workers of a Ray cluster (docs/many-machines.md)."""

from tiltproof.distributed.ray_workers import RayWorkers

__all__ = ["RayWorkers"]
