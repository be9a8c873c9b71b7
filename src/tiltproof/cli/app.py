"""The program ``tiltproof``: its commands, its version, and how failures are told (one message, no traceback)."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from tiltproof.certify.manifest import package_version
from tiltproof.cli import attack, bound, certify, check, demo, export, models, report, train, tune
from tiltproof.cli.options import examples
from tiltproof.errors import InputError

BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 2, 130, 141


class Program(TyperGroup):
    """Runs a command; bad input ends it with exit code 2 and Ctrl-C with 130, each with one line on stderr."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = _notice
            try:
                return super().invoke(ctx)
            except InputError as error:
                typer.echo(f"error: {error}", err=True)
                raise typer.Exit(BAD_INPUT) from None
            except (
                BrokenPipeError
            ):  # whoever read our output has gone: not a failure of the run, nor --fail-under's code
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(PIPE_CLOSED) from None
            except KeyboardInterrupt as error:
                typer.echo(f"interrupted: {error}" if str(error) else "interrupted", err=True)
                raise typer.Exit(INTERRUPTED) from None


def _notice(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning meant for the user without the source line it came from."""
    meant_for_user = category is UserWarning
    text = str(message) if meant_for_user else warnings.formatwarning(message, category, filename, lineno, line)
    typer.echo(f"notice: {text.rstrip()}", file=file or sys.stderr)


app = typer.Typer(
    name="tiltproof",
    cls=Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog=examples(
        "tiltproof demo",
        'tiltproof certify --model mnist-r30 --data mnist-sample --transform "R(30)"',
        "tiltproof certify --help",
    ),
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tiltproof {package_version()}")
        raise typer.Exit


@app.callback()
def program(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Prove that an image classifier keeps its answer under a whole range of transformations, or break it."""


COMMANDS = {
    "train": train,
    "certify": certify,
    "check": check,
    "report": report,
    "export": export,
    "attack": attack,
    "bound": bound,
    "tune": tune,
    "demo": demo,
    "models": models,
}
for name, command in COMMANDS.items():
    app.command(name, epilog=command.EXAMPLES)(command.command)


def main() -> None:
    """The entry point of the installed program."""
    app()
