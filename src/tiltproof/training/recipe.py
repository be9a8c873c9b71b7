"""Read recipe files strictly: TOML, possibly untrusted; the message about an unknown key names the nearest known one."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiltproof.errors import InputError
from tiltproof.training.recipe_files import FOLDER, recipe_names
from tiltproof.training.recipe_schema import (
    PARTS,
    CertifyPart,
    DataPart,
    LossPart,
    ModelPart,
    Recipe,
    Refused,
    Rule,
    TrainPart,
    check_whole,
    shown,
)

__all__ = [
    "CertifyPart",
    "DataPart",
    "LossPart",
    "ModelPart",
    "Recipe",
    "TrainPart",
    "changed",
    "from_dict",
    "read_recipe",
    "recipe_names",
    "recipes",
]

MAX_BYTES = 2**13
"""Size limit of a file; tomllib is slow on thousands of nested keys."""
QUICK_EPOCHS = {"mnist": 5, "cifar10": 3}
"""Epochs of a quick run, by data set."""
OTHER_QUICK_EPOCHS = 3
"""Epochs of a quick run with other data."""
QUICK_BATCH = 128
"""Largest mini-batch of a quick run."""


def recipes() -> list[Recipe]:
    """Return the bundled recipes.

    Returns
    -------
    list of Recipe
        The recipes, sorted by name.
    """
    return [read_recipe(name) for name in recipe_names()]


def read_recipe(name_or_path: str | Path) -> Recipe:
    """Read a recipe.

    Parameters
    ----------
    name_or_path : str or Path
        The name of a bundled recipe, or the path of a TOML file.

    Returns
    -------
    Recipe
        The recipe, with defaults filled in.

    Raises
    ------
    InputError
        If there is no such recipe, or the file is not a valid recipe.

    Examples
    --------
    >>> read_recipe("mnist-r30-paper").loss.nu
    (0.25,)
    """
    text = str(name_or_path)
    if text in recipe_names():
        return _from_file(FOLDER / f"{text}.toml")
    if isinstance(name_or_path, str) and not text.endswith(".toml") and not Path(text).is_file():
        near = difflib.get_close_matches(text[:100], recipe_names(), 1)
        raise InputError(
            "neither a bundled recipe nor a file",
            got=_printable(text),
            why=f"{near[0]} was meant" if near else "",
            do=f"use one of {', '.join(recipe_names())}, or the path of a .toml file",
        )
    return _from_file(Path(name_or_path))


def _from_file(path: Path) -> Recipe:
    try:
        return from_dict(tomllib.loads(_content(path).decode("utf-8")), str(path))
    except UnicodeDecodeError as error:
        raise InputError(f"the recipe {path} is not UTF-8 text", got=f"byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the recipe {path} is not valid TOML", got=_printable(str(error))) from None
    except RecursionError:
        raise InputError(f"the recipe {path} nests lists or tables too deeply") from None
    except InputError:
        raise
    except ValueError:  # integers with thousands of digits, dates that do not exist
        raise InputError(f"the recipe {path} contains an invalid number or date") from None


def _content(path: Path) -> bytes:
    """Read a regular file of limited size; reading a pipe could block, and /dev/zero would not end."""
    if not path.is_file():
        raise InputError("the recipe is not a file", got=path, do="give the path of a .toml file")
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"the recipe {path} cannot be read", got=error.strerror) from None
    if len(content) > MAX_BYTES:
        raise InputError(f"the recipe {path} is too large", do=f"keep to {MAX_BYTES:,} bytes")
    return content


def from_dict(content: Mapping[str, Any], source: str) -> Recipe:
    """Make a recipe of nested values as in a file; ``source`` names it in messages."""
    own = {field.name for field in dataclasses.fields(Recipe)}
    for key in content:
        if key not in own:
            raise _unknown(key, own, "at the top", source)
    sections = {}
    for name in PARTS:
        section = content.get(name, {})
        if not isinstance(section, dict):
            raise InputError(f"{name!r} of {source} must be a section", got=shown(section), do=f"write [{name}]")
        sections[name] = section
    top = _checked(Recipe, {key: content[key] for key in content if key not in PARTS}, "", source)
    recipe = Recipe(
        **top,
        data=DataPart(**_checked(DataPart, sections["data"], "data", source)),
        model=ModelPart(**_checked(ModelPart, sections["model"], "model", source)),
        train=TrainPart(**_checked(TrainPart, sections["train"], "train", source)),
        loss=LossPart(**_checked(LossPart, sections["loss"], "loss", source)),
        certify=CertifyPart(**_checked(CertifyPart, sections["certify"], "certify", source)),
    )
    check_whole(recipe, source)
    return recipe


def changed(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """Return the recipe with settings such as ``train.epochs=3``, checked like those of a file."""
    content = recipe.to_dict()
    for line in settings:
        name, equals, value = line.partition("=")
        section, dot, key = name.strip().rpartition(".")
        if not equals or (dot and section not in PARTS):
            raise InputError(
                "a setting is section.key=value",
                got=_printable(line),
                do=f"write for example train.epochs=3; sections: {', '.join(PARTS)}",
            )
        rules = _rules(PARTS[section] if section else Recipe)
        if key not in rules:
            raise _unknown(
                key, set(rules), f"in [{section}]" if section else "at the top", f"the setting {_printable(line)}"
            )
        (content[section] if section else content)[key] = _value(value.strip(), rules[key], line)
    return from_dict(content, f"the recipe {recipe.name} with {', '.join(map(_printable, settings))}"[:500])


def _value(text: str, rule: Rule, line: str) -> Any:
    """Parse the value of a setting; a text may lack quotes, which shells remove."""
    if rule.is_text and text[:1] not in ("'", '"'):
        return text
    try:
        (value,) = tomllib.loads(f"value = {text}").values()  # a line break could add another value
    except (ValueError, RecursionError):
        raise InputError(
            "the value of a setting is not TOML", got=_printable(line), do='write numbers, true, [0.1, 0.2] or "text"'
        ) from None
    return value


def _rules(part: Any) -> dict[str, Rule]:
    return {field.name: field.metadata["rule"] for field in dataclasses.fields(part) if "rule" in field.metadata}


def _checked(part: Any, values: Mapping[str, Any], section: str, source: str) -> dict[str, Any]:
    """Check the values of one section by their rules."""
    rules = _rules(part)
    where = f"in [{section}]" if section else "at the top"
    for key in values:
        if key not in rules:
            raise _unknown(key, set(rules), where, source)
    needed = {field.name for field in dataclasses.fields(part) if field.default is dataclasses.MISSING} & set(rules)
    for key in sorted(needed - set(values)):
        raise InputError(f"{key!r} is missing {where} of {source}", do=f"add it: {rules[key].expected}")
    checked = {}
    for key, value in values.items():
        try:
            checked[key] = rules[key].accept(value)
        except Refused:
            raise InputError(f"{key!r} {where} of {source} must be {rules[key].expected}", got=shown(value)) from None
    return checked


def _unknown(key: str, known: set[str], where: str, source: str) -> InputError:
    near = difflib.get_close_matches(key[:100], sorted(known), 1)
    homes = [section for section, part in PARTS.items() if key in _rules(part)]
    hint = f"; it belongs in [{homes[0]}]" if homes else f"; did you mean {near[0]!r}?" if near else ""
    what = f"unknown key {key[:100]!r} {where} of {source}{hint}"
    return InputError(what, do="" if hint else f"use {', '.join(sorted(known))}")


def _printable(text: str) -> str:
    short = text if len(text) <= 200 else f"{text[:200]}..."
    return short if short.isprintable() else repr(short)


def shortened(recipe: Recipe) -> Recipe:
    """Shorten a recipe to about ten minutes on two CPU cores: fewer epochs, proportional schedules, small mini-batches.

    The result is certified adaptively with affine forms: the paper's splits would take longer than the training.
    """
    before = recipe.train.epochs
    epochs = min(QUICK_EPOCHS.get(recipe.data.name, OTHER_QUICK_EPOCHS), before)

    def scaled(epoch: int) -> int:
        return round(epoch * epochs / before)

    milestones = sorted({min(max(scaled(milestone), 1), epochs) for milestone in recipe.train.milestones})
    warm_up = scaled(recipe.loss.warm_up_epochs)
    ramp = min(scaled(recipe.loss.ramp_epochs), epochs - warm_up)
    return dataclasses.replace(
        recipe,
        train=dataclasses.replace(
            recipe.train,
            epochs=epochs,
            batch_size=min(QUICK_BATCH, recipe.train.batch_size),
            milestones=type(recipe.train.milestones)(milestones),
        ),
        loss=dataclasses.replace(recipe.loss, warm_up_epochs=warm_up, ramp_epochs=ramp),
        certify=dataclasses.replace(recipe.certify, method="affine", splits=None),
    )
