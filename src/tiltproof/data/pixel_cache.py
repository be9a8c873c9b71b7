"""Thousands of pictures as one array: decoded by several threads once, and kept in a file for the next time.

The file says which pictures it was made of: their names, the size of each file, and what was done with them. A picture added,
removed, renamed or replaced by one of another size makes it useless, and it is made anew; only a replacement of exactly the same
size goes unnoticed. It lies beside the pictures, or in the user's cache folder where that cannot be written, and may be deleted
at any time.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tiltproof.data.download import cache_folder
from tiltproof.data.image_file import decode_image, strict_pillow
from tiltproof.errors import InputError

FORMATS = ("JPEG",)
MOST_BYTES = 2**32
"""Of decoded pixels; all of Tiny ImageNet are 1.2 GB."""
MOST_HEADER = 2**16
MOST_THREADS = 16
AT_ONCE = 250
"""Pictures a thread takes at a time."""
WORTH_A_WORD = 5_000
"""From so many pictures on, whoever waits is told why."""

log = logging.getLogger("tiltproof.data")


class PixelCache:
    """The pixels of RGB pictures below ``folder``, each of the size ``shape`` [3, H, W]; grey ones become RGB.

    ``about`` says what they are; ``resize`` makes pictures of the size ``kept`` of them.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        shape: tuple[int, int, int],
        about: str,
        resize: Callable[[np.ndarray], np.ndarray] | None = None,
        kept: tuple[int, int, int] | None = None,
    ) -> None:
        self.folder, self.name, self.about = folder, name, about
        self.shape, self.resize, self.kept = shape, resize, kept or shape

    def pixels(self, pictures: Sequence[str]) -> Tensor:
        """Unsigned bytes [N, *kept] of these pictures, named by their paths below the folder, in this order."""
        if math.prod(self.kept) * len(pictures) > MOST_BYTES:
            raise InputError("the pictures do not fit into memory together", got=f"{len(pictures):,} in {self.folder}")
        key = self.key(pictures)
        for place in self.places():
            kept = self._read(place, key, len(pictures))
            if kept is not None:
                return kept
        pixels = self.decode(pictures)
        self._keep(key, pixels)
        return pixels

    def key(self, pictures: Iterable[str]) -> str:
        """Tells these pictures, treated in this way, from others."""
        digest = hashlib.sha256(f"{self.about} {self.kept}\n".encode())
        for picture in pictures:
            path = self.folder / picture
            try:
                size = path.stat().st_size
            except OSError as error:
                raise InputError("a listed image is missing", got=f"{path} ({error.strerror})") from None
            digest.update(f"{picture}\t{size}\n".encode())
        return digest.hexdigest()

    def places(self) -> Iterator[Path]:
        """Where the file may lie, the first choice first."""
        yield self.folder / f"tiltproof-{self.name}.safetensors"
        where = hashlib.sha256(os.fsencode(self.folder.resolve())).hexdigest()[:12]
        try:
            own = cache_folder()
        except (
            ImportError
        ):  # what knows that folder is only needed for downloads; beside the pictures there is room, mostly
            return
        yield own / "pixels" / f"{self.name}-{where}.safetensors"

    def decode(self, pictures: Sequence[str]) -> Tensor:
        """All pictures, by as many threads as there are processors: Pillow lets others work while it decodes."""
        pixels, began = np.empty((len(pictures), *self.kept), np.uint8), time.perf_counter()
        if len(pictures) >= WORTH_A_WORD:
            log.warning("decoding %s pictures in %s; this is done once", f"{len(pictures):,}", self.folder)

        def work(start: int) -> None:
            for k, picture in enumerate(pictures[start : start + AT_ONCE], start):
                pixels[k] = self._picture(self.folder / picture)

        with strict_pillow(), ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_THREADS)) as pool:
            for _ in pool.map(work, range(0, len(pictures), AT_ONCE)):
                pass  # a failure is raised here, and cancels what has not begun
        log.info("decoded %s pictures in %.1f s", f"{len(pictures):,}", time.perf_counter() - began)
        return torch.from_numpy(pixels)

    def _picture(self, path: Path) -> np.ndarray:
        image = decode_image(path, FORMATS)
        if image.shape[1:] != self.shape[1:]:
            raise InputError(
                f"the picture {path} has another size than those of the data set",
                got=f"{image.shape[2]} x {image.shape[1]}",
                do=f"keep to {self.shape[2]} x {self.shape[1]}",
            )
        image = np.broadcast_to(image, self.shape)  # grey: three equal channels
        return image if self.resize is None else self.resize(image)

    def _read(self, path: Path, key: str, count: int) -> Tensor | None:
        """The pixels in this file, if it is whole and made of these pictures."""
        from safetensors import SafetensorError, safe_open

        try:
            if not path.is_file() or path.stat().st_size > count * math.prod(self.kept) + MOST_HEADER:
                return None
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
                if about.get("key") != key:
                    return None
                pixels = file.get_tensor("pixels")
        except (OSError, SafetensorError, ValueError) as error:
            log.warning("%s is damaged (%s), and made anew", path, error)
            return None
        if (pixels.shape, pixels.dtype) != ((count, *self.kept), torch.uint8) or about.get("sha256") != _digest(pixels):
            log.warning("%s is damaged, and made anew", path)
            return None
        return pixels

    def _keep(self, key: str, pixels: Tensor) -> None:
        """In the first place that can be written; where there is none, the pictures are decoded again the next time."""
        about = {"key": key, "sha256": _digest(pixels), "about": self.about}
        for place in self.places():
            try:
                _write(place, pixels, about)
                return
            except OSError as error:
                log.info("%s cannot be written: %s", place, error)
        if len(pixels) >= WORTH_A_WORD:
            log.warning("the decoded pictures of %s could not be kept: no space, or no permission", self.folder)


def _digest(pixels: Tensor) -> str:
    return hashlib.sha256(pixels.view(-1).numpy().data).hexdigest()


def _write(path: Path, pixels: Tensor, about: dict[str, str]) -> None:
    """Beside the target, through to the disk, and then renamed: no half of a file ever has the name."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.touch()
        customary = temporary.stat().st_mode  # safetensors would keep the file from everybody else
        save_file({"pixels": pixels}, temporary, about)
        temporary.chmod(customary)
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
    except SafetensorError as error:  # its word for a full disk or a folder that cannot be written
        raise OSError(str(error)) from None
    finally:
        temporary.unlink(missing_ok=True)
