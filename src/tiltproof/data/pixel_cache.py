"""Decode thousands of images once, in several threads, and cache their pixels in a file.

The file records the names and sizes of the image files, and how they were processed. If an image is added, removed, renamed or replaced
by a file of another size, the cache is rebuilt; a replacement of exactly the same size is not noticed. The cache lies in
the user's cache folder, never among the data, and may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tiltproof.data.download import cache_folder
from tiltproof.data.image_file import decode_image, strict_pillow
from tiltproof.errors import InputError

FORMATS = ("JPEG",)
MAX_BYTES = 2**32
"""Limit of decoded pixels; Tiny ImageNet has 1.2 GB."""
MAX_HEADER = 2**16
"""Largest header of the file."""
MAX_THREADS = 16
CHUNK = 250
"""Images that a thread decodes at once."""
SLOW = 5_000
"""From this number of images on, decoding is announced."""
log = logging.getLogger("tiltproof.data")


class PixelCache:
    """The pixels of image files in ``folder``, all of ``shape`` [3, H, W]; gray images become RGB.

    ``about`` describes them, for the cache's key; ``resize`` gives them the shape ``resized``.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        shape: tuple[int, int, int],
        about: str,
        resize: Callable[[np.ndarray], np.ndarray] | None = None,
        resized: tuple[int, int, int] | None = None,
    ) -> None:
        self.folder, self.name, self.about = folder, name, about
        self.shape, self.resize, self.resized = shape, resize, resized or shape

    def pixels(self, names: Sequence[str]) -> Tensor:
        """Return unsigned bytes [N, *resized] of these images, given by their paths in the folder."""
        if math.prod(self.resized) * len(names) > MAX_BYTES:
            raise InputError("the images do not fit into memory", got=f"{len(names):,} in {self.folder}")
        key = self.key(names)
        path = self.path()
        cached = None if path is None else self._read(path, key, len(names))
        if cached is not None:
            return cached
        pixels = self.decode(names)
        self._store(path, key, pixels)
        return pixels

    def key(self, names: Iterable[str]) -> str:
        """Return a digest of these images and of how they are processed."""
        digest = hashlib.sha256(f"{self.about} {self.resized}\n".encode())
        for name in names:
            path = self.folder / name
            try:
                size = path.stat().st_size
            except OSError as error:
                raise InputError("a listed image is missing", got=f"{path} ({error.strerror})") from None
            digest.update(f"{name}\t{size}\n".encode())
        return digest.hexdigest()

    def path(self) -> Path | None:
        """Return the path of the cache, which depends on that of the folder."""
        tag = hashlib.sha256(os.fsencode(self.folder.resolve())).hexdigest()[:12]
        try:
            own = cache_folder()
        except ImportError:  # pooch, which is otherwise needed for downloads only
            return None
        return own / "pixels" / f"{self.name}-{tag}.safetensors"

    def decode(self, names: Sequence[str]) -> Tensor:
        """Decode all images, in one thread per processor: Pillow releases the GIL."""
        pixels, began = np.empty((len(names), *self.resized), np.uint8), time.perf_counter()
        if len(names) >= SLOW:
            log.warning("decoding %s images in %s; this is done once", f"{len(names):,}", self.folder)

        def work(start: int) -> None:
            for k, name in enumerate(names[start : start + CHUNK], start):
                pixels[k] = self._decode_one(self.folder / name)

        with strict_pillow(), ThreadPoolExecutor(min(os.cpu_count() or 1, MAX_THREADS)) as pool:
            for _ in pool.map(work, range(0, len(names), CHUNK)):
                pass  # raises the first failure, and cancels the rest
        log.info("decoded %s images in %.1f s", f"{len(names):,}", time.perf_counter() - began)
        return torch.from_numpy(pixels)

    def _decode_one(self, path: Path) -> np.ndarray:
        image = decode_image(path, FORMATS)
        if image.shape[1:] != self.shape[1:]:
            raise InputError(
                f"the image {path} has another size than the others of the data set",
                got=f"{image.shape[2]} x {image.shape[1]}",
                do=f"keep to {self.shape[2]} x {self.shape[1]}",
            )
        image = np.broadcast_to(image, self.shape)  # gray: three equal channels
        return image if self.resize is None else self.resize(image)

    def _read(self, path: Path, key: str, count: int) -> Tensor | None:
        """Return the pixels in this file if it is intact and has this key."""
        from safetensors import SafetensorError, safe_open

        try:
            if not path.is_file() or path.stat().st_size > count * math.prod(self.resized) + MAX_HEADER:
                return None
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
                if about.get("key") != key:
                    return None
                pixels = file.get_tensor("pixels")
        except (OSError, SafetensorError, ValueError) as error:
            log.warning("%s is damaged (%s) and will be rebuilt", path, error)
            return None
        if (pixels.shape, pixels.dtype) != ((count, *self.resized), torch.uint8) or about.get("sha256") != _digest(
            pixels
        ):
            log.warning("%s is damaged and will be rebuilt", path)
            return None
        return pixels

    def _store(self, path: Path | None, key: str, pixels: Tensor) -> None:
        """Write the cache; if it cannot be written, the images are decoded again next time."""
        about = {"key": key, "sha256": _digest(pixels), "about": self.about}
        try:
            if path is not None:
                _write(path, pixels, about)
                return
        except OSError as error:
            log.info("%s cannot be written: %s", path, error)
        if len(pixels) >= SLOW:
            log.warning("the decoded images of %s could not be cached: no space, or no permission", self.folder)


def _digest(pixels: Tensor) -> str:
    return hashlib.sha256(pixels.view(-1).numpy().data).hexdigest()


def _write(path: Path, pixels: Tensor, about: dict[str, str]) -> None:
    """Write and sync a temporary file, then rename it, so that the cache is never incomplete."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # safetensors would make the file private
        save_file({"pixels": pixels}, temporary, about)
        temporary.chmod(mode)
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
    except SafetensorError as error:  # raised for a full disk or an unwritable folder
        raise OSError(str(error)) from None
    finally:
        temporary.unlink(missing_ok=True)
