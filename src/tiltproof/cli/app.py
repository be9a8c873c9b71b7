"""The program ``tiltproof``: its commands, its version, and how a failed command ends: one message and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

import tiltproof
from tiltproof.cli import attack, bound, certify, check, demo, export, inspect, models, radius, report, train, tune
from tiltproof.cli.messages import say
from tiltproof.cli.options import LETTERS_HELP, Command, epilog
from tiltproof.errors import InputError, shown
from tiltproof.startup import INTERRUPTED, wait_passively
from tiltproof.version import __version__

BAD_INPUT, INTERNAL_ERROR, PIPE_CLOSED, TERMINATED = 2, 70, 141, 143
PACKAGE = Path(tiltproof.__file__).parent
MAX_CHARACTERS = 400
"""Maximum length of the text shown of an unexpected exception."""
PARSER_ERROR: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""What typer raises for a command line it cannot parse, and prints itself; its module depends on typer's version."""


class Program(TyperGroup):
    """Runs a command and turns every exception into one message on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings(), terminable():
            warnings.showwarning = _notice
            try:
                return super().invoke(ctx)
            except (typer.Exit, typer.Abort):
                raise
            except PARSER_ERROR as error:
                name = " ".join(["tiltproof", *([error.ctx.info_name] if error.ctx and error.ctx.parent else [])])
                refused = InputError(error.format_message().rstrip("."), do=f"see {name} --help")
                say("error", str(refused), refused)
                raise typer.Exit(error.exit_code) from None
            except BrokenPipeError:
                # The reader of our output has gone: neither a failure of the run nor the exit code of --fail-under.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(PIPE_CLOSED) from None
            except (Exception, KeyboardInterrupt) as error:
                if ctx.params.get("debug"):
                    traceback.print_exception(error)
                kind, text, code = ending(error)
                say(kind, text, error)
                raise typer.Exit(code) from None


def _notice(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning for the user without the source line it came from."""
    for_user = category is UserWarning
    text = str(message) if for_user else warnings.formatwarning(message, category, filename, lineno, line)
    typer.echo(f"notice: {text.rstrip()}", file=file or sys.stderr)


class Terminated(KeyboardInterrupt):
    """SIGTERM was received; the same code cleans up as after Ctrl-C."""


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM raises `Terminated`, once.

    Not in a process of torchrun: a process waiting for the others in a collective could not act on it, and has to end at once.
    """
    ours = threading.current_thread() is threading.main_thread() and "RANK" not in os.environ
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def ending(error: BaseException) -> tuple[str, str, int]:
    """The kind of ending and the message for the exception that ended a command, and the exit code."""
    if isinstance(error, InputError):
        return "error", str(error), BAD_INPUT
    if isinstance(error, Terminated):
        return "terminated", str(error), TERMINATED
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", str(error), INTERRUPTED
    text = shown(" ".join(str(error).split()), MAX_CHARACTERS)
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    defect = (
        "This is a defect of tiltproof, not a verdict. Please report it to the project's issue tracker with this line,"
    )
    text = f"{what} ({origin(error)}). {defect} the command, and what tiltproof --debug COMMAND ... prints."
    return "internal error", text, INTERNAL_ERROR


def origin(error: BaseException) -> str:
    """The file and line that raised an exception and, if that is outside the package, the line of the package that called it."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "place unknown"
    last = frames[-1]
    text = f"{_short(Path(last.filename))}, line {last.lineno}"
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)]
    if not inside or inside[-1] is last:
        return text
    return f"{text}, called from {_short(Path(inside[-1].filename))}, line {inside[-1].lineno}"


def _short(path: Path) -> str:
    """A path from the name of its package on."""
    if path.is_relative_to(PACKAGE):
        return str(path.relative_to(PACKAGE.parent))
    return shown("/".join(path.parts[-2:]))


app = typer.Typer(
    name="tiltproof",
    cls=Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"color": False if "NO_COLOR" in os.environ else None},
    epilog=epilog(
        "tiltproof demo",
        'tiltproof certify --model mnist-r30 --data mnist-sample --transform "R(30)"',
        "tiltproof certify --help",
    ),
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tiltproof {__version__}")
        raise typer.Exit


@app.callback(
    help="Prove that an image network keeps its answer under a range of transformations, or break it.\n\n"
    + LETTERS_HELP
)
def program(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[  # read by Program
        bool, typer.Option("--debug", envvar="TILTPROOF_DEBUG", help="Print the traceback of an error as well.")
    ] = False,
) -> None:
    """Hold the options of the program itself."""


COMMANDS = {
    "train": train,
    "certify": certify,
    "radius": radius,
    "check": check,
    "report": report,
    "export": export,
    "attack": attack,
    "bound": bound,
    "tune": tune,
    "demo": demo,
    "models": models,
    "inspect": inspect,
}
for name, module in COMMANDS.items():
    app.command(name, cls=Command, epilog=module.EPILOG)(module.command)


def main() -> None:
    """The entry point of the installed program."""
    wait_passively()
    app(prog_name="tiltproof")
