"""Enclosures of every pixel of every transformed image, over a box of parameters."""
