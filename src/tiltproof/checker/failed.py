"""The exception the checker raises when a run folder's claim does not hold."""

from __future__ import annotations


class CheckFailed(Exception):
    """The certificate does not hold; ``image`` is the number of the offending image, or None."""

    def __init__(self, what: str, image: int | None = None) -> None:
        self.what, self.image = what, image
        super().__init__(what if image is None else f"image {image}: {what}")
