"""What to do about a picture that is neither 8-bit grey nor RGB: a program that writes a copy, for each mode the right one.

The copy has another name, which nothing else has, and lossless PNG; the picture itself is left as it is. What a mode does not tell, such as
the scale of 32-bit numbers, is left to the user.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

TIFF_BITS = 258
OPEN = "from PIL import Image; "
COMPOSITE = (
    OPEN + 'picture = Image.open({source}).convert("RGBA"); '
    'Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("{mode}").save({target})'
)
CONVERT = OPEN + 'Image.open({source}).convert("{mode}").save({target})'
SCALE = (
    "import numpy; "
    + OPEN
    + 'Image.fromarray(numpy.rint(numpy.asarray(Image.open({source})) / {scale}).astype("uint8")).save({target})'
)
NO_SCALE = "save it under another name as 8-bit grey or RGB, its values scaled to 0 to 255, and list that copy"


def conversion_advice(picture: Picture, path: Path) -> tuple[str, str]:
    """The reason why an opened picture cannot be taken, and what to do."""
    mode = picture.mode
    if mode.startswith("I;16") or (mode == "I" and picture.format in ("PNG", "PPM")):
        bits = _bits(picture)
        return f"it has {bits} bits a pixel", _program(SCALE, "8bit", path, scale=f"{(2**bits - 1) / 255:.6g}")
    if mode in ("LA", "La", "L"):
        return "it has an alpha channel", _program(COMPOSITE, "grey", path, "over white, ", mode="L")
    if mode in ("RGBA", "RGBa", "PA") or "transparency" in picture.info:
        return "it has an alpha channel", _program(COMPOSITE, "rgb", path, "over white, ", mode="RGB")
    if mode == "1":
        return "it has 1 bit a pixel", _program(CONVERT, "grey", path, mode="L")
    if mode == "P":
        return "it has a palette", _program(CONVERT, "rgb", path, mode="RGB")
    if mode in ("CMYK", "YCbCr", "RGBX"):
        return f"its colours are {mode}", _program(CONVERT, "rgb", path, mode="RGB")
    return f"pixels of mode {mode}, whose scale is not known", NO_SCALE


def _bits(picture: Picture) -> int:
    """Of a grey picture whose mode has room for 16: TIFF may have 12."""
    bits = getattr(picture, "tag_v2", {}).get(TIFF_BITS, (16,))
    return bits[0] if isinstance(bits, tuple) and bits[0] in (12, 16) else 16


def _program(text: str, word: str, path: Path, how: str = "", **settings: str) -> str:
    target, count = path.with_name(f"{path.stem}-{word}.png"), 1
    while target.exists():
        count += 1
        target = path.with_name(f"{path.stem}-{word}-{count}.png")
    program = text.format(source=repr(str(path)), target=repr(str(target)), **settings)
    return f"write a copy, {how}and list that in labels.csv, with Python: {program}"
