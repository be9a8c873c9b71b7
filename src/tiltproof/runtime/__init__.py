"""Batch sizes that fit into memory."""
