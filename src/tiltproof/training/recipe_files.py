"""The bundled recipes' files. Needs no torch, so that a shell completes their names at once."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "recipes"


def recipe_names() -> list[str]:
    """Return the names of the bundled recipes.

    Returns
    -------
    list of str
        The names, sorted.
    """
    return sorted(path.stem for path in FOLDER.glob("*.toml"))
