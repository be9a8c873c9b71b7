"""Runs and run folders: batches, manifest, resumption, and the curve over nested ranges."""
