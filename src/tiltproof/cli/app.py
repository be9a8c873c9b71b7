"""The program ``tiltproof``: its commands, its version, and how failures are told (one line, and no traceback without --debug)."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from tiltproof.cli import attack, bound, certify, check, demo, export, models, report, train, tune
from tiltproof.cli.display import PIPE_CLOSED, ending, terminable
from tiltproof.cli.options import examples
from tiltproof.runs.manifest import package_version
from tiltproof.startup import finish_start, say_interrupted

PARSER_ERROR: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""What typer raises for a command line that it cannot parse, and shows itself; its place depends on typer's version."""


class Program(TyperGroup):
    """Runs a command; whatever ends it early gets its exit code and one line on stderr (`tiltproof.cli.display`)."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings(), terminable():
            warnings.showwarning = _notice
            try:
                return super().invoke(ctx)
            except (typer.Exit, typer.Abort, PARSER_ERROR):
                raise
            except BrokenPipeError:
                # whoever read our output has gone: not a failure of the run, nor --fail-under's code
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(PIPE_CLOSED) from None
            except (Exception, KeyboardInterrupt) as error:
                if ctx.params.get("debug"):
                    traceback.print_exception(error)
                line, code = ending(error)
                typer.echo(line, err=True)
                raise typer.Exit(code) from None


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
    debug: Annotated[  # read by Program
        bool, typer.Option("--debug", envvar="TILTPROOF_DEBUG", help="Print the traceback of an error as well.")
    ] = False,
) -> None:
    """Prove that an image classifier keeps its answer under a whole range of transformations, or break it.

    Exit codes of every command: 0 done, 2 bad input, 70 internal error (a defect of tiltproof, never a verdict),
    130 interrupted by Ctrl-C, 143 terminated by SIGTERM; some use 1, and say for what.
    """


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
    try:
        finish_start()
        app()
    except KeyboardInterrupt:  # outside of a command
        sys.exit(say_interrupted())
