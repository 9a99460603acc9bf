# SPDX-License-Identifier: Apache-2.0
"""The command line: all commands by name, and one place where errors become exit codes.

The module of a command is imported when the command is used. Another distribution adds commands by
entry points in the group ``dpcohort.commands``: ``name = "module:function"``, or a Typer
application. Its top package may say what each does in ``COMMANDS``, a dict from names to one line,
so that the list of commands loads none of them. What they share with ours is exported here.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module, metadata
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import typer

from dpcohort._lazy import names_on_use
from dpcohort._version import __version__
from dpcohort.cli import _terminal
from dpcohort.consent import allowances_file, code_of, is_allowed_by, keep_allowance
from dpcohort.errors import DpcohortError, InputError, missing_extra
from dpcohort.limits import exhausted

if TYPE_CHECKING:
    from dpcohort.cli._sources import data_changes as data_changes
    from dpcohort.cli._sources import is_run_place as is_run_place
    from dpcohort.cli._sources import plan_from as plan_from
    from dpcohort.cli._sources import read_config as read_config
    from dpcohort.cli._terminal import BackendOption as BackendOption
    from dpcohort.cli._terminal import ClientsOption as ClientsOption
    from dpcohort.cli._terminal import DataDirOption as DataDirOption
    from dpcohort.cli._terminal import DeviceOption as DeviceOption
    from dpcohort.cli._terminal import JobsOption as JobsOption
    from dpcohort.cli._terminal import JsonOption as JsonOption
    from dpcohort.cli._terminal import SetOption as SetOption
    from dpcohort.cli._terminal import SourceArgument as SourceArgument
    from dpcohort.cli._terminal import console as console
    from dpcohort.cli._terminal import new_table as new_table
    from dpcohort.cli._terminal import print_json as print_json
    from dpcohort.cli._terminal import print_note as print_note
    from dpcohort.cli._terminal import say as say
    from dpcohort.cli._terminal import show_messages as show_messages
    from dpcohort.cli._terminal import showing_progress as showing_progress
    from dpcohort.cli._terminal import sparkline as sparkline
    from dpcohort.cli._terminal import typed_here as typed_here

_SHARED, __getattr__, __dir__ = names_on_use(
    __name__,
    _sources="data_changes is_run_place plan_from read_config",
    _terminal=(
        "BackendOption ClientsOption DataDirOption DeviceOption JobsOption JsonOption SetOption "
        "SourceArgument console new_table print_json print_note say show_messages showing_progress "
        "sparkline typed_here"
    ),
)
__all__ = ["COMMANDS", "app", "home_of", "main", "other_commands", *_SHARED]

#: Exit code after Ctrl-C; typer turns the interrupt into it without a word.
_STOPPED = 130
_GO_ON = {"train": " What was counted stays counted; the same command with --resume goes on."}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``dpcohort`` and return its exit code.

    0 ok, 1 verification failed, 2 bad input, 3 data missing, 4 a budget would be exceeded. Of
    several ranks that ``torchrun`` started, the first runs the command.

    Example:
        >>> main(["--version"])
        dpcohort ...
        0
    """
    if not _is_rank(os.environ):
        return _main(arguments)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of connections that end, we tell
    from dpcohort.runs._ranks import run_command  # loads torch

    try:
        return run_command(lambda: _main(arguments), _terminal.print_note)
    except InputError as error:
        return _refused(error)


def _is_rank(environment: Mapping[str, str]) -> bool:
    """Whether this process is one of several that ``torchrun``, or its like, started together."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return all(name in environment for name in names) and environment["WORLD_SIZE"] != "1"


def _main(arguments: Sequence[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a letter shows a question mark, not a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with _notes():
            code = _run(words)
    except KeyboardInterrupt:
        code = _STOPPED
    if code == _STOPPED:
        step = _GO_ON.get(words[0], "") if words else ""
        print(f"error: stopped.{step}", file=sys.stderr)
    return code


@contextmanager
def _notes() -> Iterator[None]:
    """Warnings of this package in one line, without file and line of its code."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_note(
            message: Warning | str, category: type[Warning], *place: Any, **more: Any
        ) -> None:
            if category.__module__.startswith("dpcohort."):
                _terminal.print_note(str(message))
            else:
                show(message, category, *place, **more)

        warnings.showwarning = show_note
        yield


def _run(arguments: list[str]) -> int:
    try:
        first, others = _options_first(arguments)
        app(_command_in(others))(args=[*first, *others], prog_name="dpcohort")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 2
    except DpcohortError as error:
        return _refused(error)
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        return _refused(missing)
    except (MemoryError, RecursionError, RuntimeError) as error:
        words = exhausted(error)
        if words is None:
            raise
        return _refused(InputError.because(words))
    except BrokenPipeError:
        # The reader (`| head`) has gone; give the interpreter nothing left to flush into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0


def _refused(error: DpcohortError) -> int:
    _terminal.print_error(str(error))
    return error.exit_code


#: What ``dpcohort --help`` says, in its order, without loading a command: the first line of each.
COMMANDS = dict(
    line.split(maxsplit=1)
    for line in """
new        Write a commented config: an example, or for a table of yours.
plan       Select, schedule, calibrate and certify; nothing is trained.
explain    Say why a client has its probability and noise, and what would change them.
rules      List all rules: what each needs, what it leaks, where it comes from.
replan     Go on with a run: clients leave, join or change, from what is left of each budget.
what-if    Try several values of one setting, without drawing a schedule or training.
tune       Choose rounds, batch, clip, step and η; write the config with them, all else as it was.
worth      Say what budgets are worth: accuracy against ε, and who should raise it first.
train      Train; the ledger is written before every round, so a crash never hides spending.
watch      Watch a run; it ends with the run, or with Ctrl-C, and never touches the run's files.
predict    Predict for the rows of a table: classes by name with probabilities, or numbers.
export     Write the model with its preprocessing for other programs, and a model card beside it.
coefficients  Show a linear model's coefficients with intervals: sampling error and noise together.
verify     Replay every receipt from the ledger with the independent accountant.
receipt    Show a client's receipt, counted from the ledger and certified anew.
sign       Sign a finished run that verifies: who changes a file of it from then on needs the key.
audit      Test from outside what a training claims; exit code 1 if a claim is refuted.
report     Write one self-contained page: charts, receipts and the privacy table.
compare    Compare test results over the same seeds, runs or settings; say what it means.
doctor     Show what is installed, what is missing and how to get it.
demo       Plan for 20 clients with budgets of their own, train on the digits, compare four ways.
data       List, check and fetch data sets.
ledger     A client's own ledger over all runs: caps, accepted terms, what was spent.
guard      Hold a client's data and answer a server within the owner's terms, and no further.
flower     Execute a plan with real clients over Flower, where no server can overspend a client.
""".strip().splitlines()
)
#: Modules that hold several commands, and the names of these; any other has one of its own name.
_SHARED_HOMES = {
    "setting_up": ("new", "doctor"),
    "plan": ("plan", "explain", "what-if"),
    "tune": ("tune", "worth"),
    "train": ("train", "watch"),
    "predict": ("predict", "export", "coefficients"),
    "verify": ("verify", "receipt"),
}
#: Commands of the laboratory, of which one without it is told where they are.
_IN_THE_LAB = (*("bound", "compare-rules", "figure", "personal", "reproduce", "schemes", "search"),)


def home_of(command: str) -> str:
    """The module of this package that a command is in.

    Example:
        >>> home_of("receipt"), home_of("demo")
        ('verify', 'demo')
    """
    return next((home for home, names in _SHARED_HOMES.items() if command in names), command)


def app(command: str | None = None) -> typer.Typer:
    """The command line with one command from its module; of the others, what the table says.

    Args:
        command: the one that is run.

    Example:
        >>> len(app().registered_commands) >= len(COMMANDS)
        True
    """
    made = typer.Typer(
        name="dpcohort",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        help="Differentially private federated learning in which every client brings its own "
        "privacy budget. Start with [bold]dpcohort demo[/bold] or [bold]dpcohort new[/bold].",
    )

    def print_version(asked: bool) -> None:
        if asked:
            print(f"dpcohort {__version__}")
            raise typer.Exit

    told = typer.Option(False, "--version", callback=print_version, is_eager=True, help="Show it.")

    def allow(modules: list[str] | None) -> None:
        for module in modules or ():
            _allow(module)
        if modules and command is None:
            raise typer.Exit

    allowed = typer.Option(
        None,
        _ALLOW,
        metavar="MODULE",
        callback=allow,
        help="Let files name the code of this module, as it is now; remembered until it changes. "
        "May stand anywhere in a command, or alone.",
    )

    @made.callback()
    def options(version: bool = told, allow_code: list[str] | None = allowed) -> None:
        """Options before the command."""

    def add(name: str, words: str, load: Callable[[], Any], panel: str | None = None) -> None:
        if name != command:
            made.command(name, help=words, rich_help_panel=panel)(lambda: None)
            return
        found = load()
        if isinstance(found, typer.Typer):
            made.add_typer(found, name=name)
        else:
            made.command(name)(found)

    def own(name: str) -> Any:
        return getattr(import_module(f"dpcohort.cli._{home_of(name)}"), name.replace("-", "_"))

    for name, words in COMMANDS.items():
        add(name, words, partial(own, name))
    # Looking through what is installed takes time, which our own commands do not need.
    others = {} if command in COMMANDS else other_commands()
    for name, entry in others.items():
        package = entry.dist.name if entry.dist else entry.module
        add(name, _summary(entry, package), partial(_load, entry), f"Commands of {package}")
    if command in _IN_THE_LAB and command not in others:
        raise InputError.because(f"{command} is part of dpcohort-lab: pip install dpcohort-lab")
    return made


#: The one option that stands anywhere in a command.
_ALLOW = "--allow-code"


def _options_first(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """``--allow-code`` with its modules, which typer wants before the command, and the rest."""
    first: list[str] = []
    rest: list[str] = []
    for position, word in enumerate(words):
        if word == "--":
            return first, rest + list(words[position:])
        after = position > 0 and words[position - 1] == _ALLOW
        (first if after or word.partition("=")[0] == _ALLOW else rest).append(word)
    return first, rest


def _allow(module: str) -> None:
    code, file = code_of(module.partition(":")[0]), allowances_file()
    if not is_allowed_by(code, file):
        keep_allowance(code, file)
        _terminal.print_note(f"{code} may be loaded from now on, until it changes; kept in {file}")


def other_commands() -> dict[str, EntryPoint]:
    """Commands of other distributions that are installed, by name; none is loaded.

    A name of ours stays ours, and of two that are the same the first one found is taken.

    Example:
        >>> "train" in other_commands()
        False
    """
    found: dict[str, EntryPoint] = {}
    for entry in sorted(
        metadata.entry_points(group="dpcohort.commands"), key=lambda entry: entry.name
    ):
        if entry.name not in COMMANDS:
            found.setdefault(entry.name, entry)
    return found


def _summary(entry: EntryPoint, package: str) -> str:
    """What the top package of a command says that it does."""
    with suppress(Exception):  # another package may fail in any way while it is imported
        return str(import_module(entry.module.partition(".")[0]).COMMANDS[entry.name])
    return f"A command of {package}."


def _load(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:  # another package may fail in any way while it is imported
        if isinstance(error, ModuleNotFoundError) and missing_extra(error) is not None:
            raise
        raise InputError.because(
            f"the command {entry.name!r} is announced as {entry.value}, but loading that failed: "
            f"{type(error).__name__}: {error}"
        ) from error


def _command_in(words: Sequence[str]) -> str | None:
    """The command among the words; where a shell completes a line, among those of the line."""
    if "_DPCOHORT_COMPLETE" in os.environ:
        words = os.environ.get("COMP_WORDS", "").split()[1:]
    return next((word for word in words if not word.startswith("-")), None)
