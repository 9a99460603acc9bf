# SPDX-License-Identifier: Apache-2.0
"""What users bring, found by name: functions and rules, as ``module:name`` or by an entry point.

A rule of this package is a line in ``REGISTRIES``: its name and the place of its class. Another
package adds one with an entry point. Names are known without loading anything.

A name means one rule. A name of this package is always its own rule's: installing another package
changes no config, plan or run. Who uses a name that an installed package announces too is warned.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpcohort._validate import choice, did_you_mean
from dpcohort.errors import DpcohortError, InputError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "REGISTRIES",
    "RuleNameWarning",
    "RuleRegistry",
    "full_name",
    "is_foreign",
    "is_named_function",
    "kind_of_rule",
    "named_function",
    "naming_the_rule",
]


_UNSAID = "not said"

#: Kinds that one key of a config names, so that no two of their rules may have one name.
_SAME_KEY = (("selection", "adaptive"), ("aggregation",))

#: What an object must have to be a rule of a kind.
_MEMBERS = {
    "selection": ("name", "select", "effective_epsilon"),
    "adaptive": ("name", "check", "expected_reports", "ask", "choose"),
    "aggregation": ("combine",),
}


class RuleNameWarning(UserWarning):
    """A rule of this package is used, and another package announces one by the same name."""


class RuleRegistry:
    """All rules of one kind.

    Args:
        kind: ``selection``, ``adaptive`` or ``aggregation``.
        places: where this package's rules are, ``module:Class`` (in ``dpcohort``) by name.
        filled: settings that a plan knows and fills in where they are not given.

    Example:
        >>> rules = RuleRegistry("selection", {"uniform": "selection.rules:Uniform"})
        >>> "uniform" in rules.built_in
        True
        >>> rules.find("uniform").name
        'uniform'
    """

    def __init__(
        self, kind: str, places: Mapping[str, str], *, filled: Collection[str] = ()
    ) -> None:
        self.kind = kind
        self._places = dict(places)
        #: Names of the rules of this package.
        self.built_in = tuple(sorted(places))
        self.filled = frozenset(filled)

    @property
    def group(self) -> str:
        """The entry-point group in which other packages announce rules of this kind."""
        return f"dpcohort.{self.kind}"

    @property
    def announced(self) -> Mapping[str, EntryPoint]:
        """Rules of other packages that are installed, by name; none is loaded."""
        taken = self._taken
        return {entry.name: entry for entry in self._entries if entry.name not in taken}

    @property
    def overshadowed(self) -> Mapping[str, EntryPoint]:
        """Rules of other packages that go by the name of one of this package; none is used."""
        taken = self._taken
        return {entry.name: entry for entry in self._entries if entry.name in taken}

    def about_overshadowed(self, name: str) -> str:
        """Whose rule of that name is not used, and how it can be."""
        entry = self.overshadowed[name]
        package = entry.dist.name if entry.dist else entry.module
        return (
            f"the {self._noun} {name!r} is that of dpcohort; the package {package} announces "
            f"another one by that name. To use that one, write rule = {entry.value!r}."
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that can be used, this package's first."""
        return (*self.built_in, *sorted(self.announced))

    def __contains__(self, name: object) -> bool:
        """Whether there is a rule of that name; any ``module:Class`` may be one."""
        if not isinstance(name, str):
            return False
        return name in self.built_in or is_named_function(name) or name in self.announced

    def find(self, name: str, *, field: str | None = None) -> Callable[..., Any]:
        """The class of that name.

        Args:
            name: of a rule, or ``module:Class``.
            field: what it is called in errors; the kind by default.

        Raises:
            InputError: there is no such rule (the nearest name is suggested), or the module or
                package that should have it cannot be loaded.
        """
        label = field or f"{self.kind} rule"
        rule: Callable[..., Any]
        if isinstance(name, str) and name in self.built_in:
            module, _, class_name = self._places[name].partition(":")
            rule = getattr(importlib.import_module(f"dpcohort.{module}"), class_name)
            return rule
        if isinstance(name, str) and is_named_function(name):
            return named_function(label, name, kind="class", example="my_project.rules:MyRule")
        self._refuse_two_of(name)
        found = self.announced[choice(label, name, self.names)]
        try:
            rule = found.load()
        except Exception as error:  # another package may fail in any way while it is imported
            raise InputError.because(
                f"the rule {name!r} is announced as {found.value}, but loading that failed: "
                f"{type(error).__name__}: {error}"
            ) from error
        return rule

    def make(self, name: str, settings: Mapping[str, Any]) -> Any:
        """A rule from its name and settings.

        Args:
            name: of a rule, or ``module:Class``.
            settings: as its class takes them.

        Raises:
            InputError: a name or setting that does not exist (the nearest one is suggested), a
                setting that is missing, or a value the rule refuses.
        """
        rule = self.find(name)
        self._warn_of_another(name)
        for missing in sorted(self._missing(name, settings)):
            step = " A plan knows it: use for_plan." if missing in self.filled else ""
            raise InputError.because(
                f"{self._noun.capitalize()} '{name}' needs the setting '{missing}', which is not "
                f"given.{step}"
            )
        with naming_the_rule(rule, "being made"):
            made = rule(**settings)
        self.check_members(name, made)
        return made

    def check_members(self, name: object, rule: object) -> None:
        """Refuse an object that is no rule of this kind.

        Args:
            name: how the user named it.
            rule: the object.
        """
        needed = _MEMBERS[self.kind]
        lacking = [member for member in needed if not hasattr(rule, member)]
        if lacking:
            raise InputError.because(
                f"{name!r} is no {self.kind} rule: its objects lack {', '.join(lacking)}. One has "
                f"{', '.join(needed)}; docs/rules.md shows how to write one."
            )

    def check(self, name: str, settings: Mapping[str, Any]) -> None:
        """Refuse what no plan can make good; what a plan fills in may be missing.

        Raises:
            InputError: as ``make``.

        Example:
            >>> REGISTRIES["aggregation"].check("size-weighted", {})
            >>> REGISTRIES["aggregation"].check("trimmed-mean", {"trim": 0.7})
            Traceback (most recent call last):
            ...
            dpcohort.errors.InputError: trim = 0.7 is not allowed: ...
        """
        if self._missing(name, settings) & self.filled:
            self._warn_of_another(name)
        else:
            self.make(name, settings)

    def settings_of(self, name: str) -> tuple[str, ...]:
        """Names of the settings of a rule."""
        return tuple(_parameters(self.find(name)))

    def _missing(self, name: str, settings: Collection[str]) -> set[str]:
        """Settings that the rule needs and that are not given.

        Raises:
            InputError: one is given that the rule does not have; with the nearest that it has.
        """
        known = _parameters(self.find(name))
        for setting in settings:
            label = f"setting of {self._noun} '{name}'"
            if not known:
                allowed = "left out: this rule has no settings"
                raise InputError(label, given=setting, allowed=allowed)
            choice(label, setting, known)
        needed = {setting for setting, found in known.items() if found.default is found.empty}
        return needed - set(settings)

    def card(self, name: str) -> dict[str, Any]:
        """What one should know about a rule before using it; plain values, ready for JSON.

        Its kind and name, a summary in one line, what it needs, what it leaks to whom, where it is
        from, the names of its settings, and the module that it is in.
        """
        rule = self.find(name)
        lines = (inspect.getdoc(rule) or _UNSAID).splitlines()
        return {
            "kind": self.kind,
            "name": name,
            "summary": lines[0],
            **{key: getattr(rule, key, _UNSAID) for key in ("needs", "leaks", "reference")},
            "settings": list(self.settings_of(name)),
            "home": rule.__module__,
        }

    @property
    def _noun(self) -> str:
        return "aggregation" if self.kind == "aggregation" else "rule"

    @property
    def _same_key(self) -> list[RuleRegistry]:
        """The kinds, this one too, that the same key of a config names."""
        kinds = next(kinds for kinds in _SAME_KEY if self.kind in kinds)
        return [self if kind == self.kind else REGISTRIES[kind] for kind in kinds]

    @property
    def _entries(self) -> tuple[EntryPoint, ...]:
        """What is announced for this kind, whatever the name."""
        return _entry_points(self.group, _state_of_path())

    @property
    def _taken(self) -> set[str]:
        """Names of this package's rules that the same key of a config names."""
        return {name for registry in self._same_key for name in registry.built_in}

    def _refuse_two_of(self, name: object) -> None:
        """Two packages may choose one name; which of them is meant, only the user knows."""
        announced = [entry for registry in self._same_key for entry in registry._entries]
        places = sorted({entry.value for entry in announced if entry.name == name})
        if name not in self._taken and len(places) > 1:
            raise InputError.because(
                f"the {self.kind} rule {name!r} is announced by more than one package: "
                f"{', '.join(places)}. Name the one you mean as module:Class."
            )

    def _warn_of_another(self, name: str) -> None:
        for registry in self._same_key:
            if name in self.built_in and name in registry.overshadowed:
                # Without a stack level: all uses are one place, so that it is told once.
                warnings.warn(registry.about_overshadowed(name), RuleNameWarning, stacklevel=1)


@lru_cache(maxsize=16)
def _entry_points(group: str, state: tuple[object, ...]) -> tuple[EntryPoint, ...]:
    """What is announced in a group; asking every installed package takes milliseconds each time."""
    if not _any_announces(state):
        return ()
    from importlib import metadata  # takes longer to load than a small plan to make

    return tuple(metadata.entry_points(group=group))


@lru_cache(maxsize=16)
def _any_announces(state: tuple[object, ...]) -> bool:
    """Whether there may be an installed package that announces a rule; none is missed."""
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    return finders != [PathFinder] or any(_may_announce(Path(folder)) for folder in sys.path)


def _may_announce(folder: Path) -> bool:
    if not folder.is_dir():
        return folder.exists()  # an archive of packages
    for name in os.listdir(folder):
        if name.endswith((".egg", ".egg-link")):
            return True
        if name.endswith((".dist-info", ".egg-info")):
            try:
                if b"[dpcohort." in folder.joinpath(name, "entry_points.txt").read_bytes():
                    return True
            except OSError:  # most packages announce nothing
                continue
    return False


def _state_of_path() -> tuple[object, ...]:
    """Changes when a package is installed or removed, or another folder is searched."""
    return tuple((os.path.abspath(folder), _changed_at(folder)) for folder in sys.path)


def _changed_at(folder: str) -> int | None:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:  # a path may name what is not there
        return None


def _parameters(rule: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {
        name: parameter
        for name, parameter in inspect.signature(rule).parameters.items()
        if parameter.kind in named
    }


#: Every rule of this package by kind and name. Who adds a rule adds a line here.
REGISTRIES = {
    "selection": RuleRegistry(
        "selection",
        {
            "best-threshold": "selection.rules:BestThreshold",
            "epsilon-proportional": "selection.rules:EpsilonProportional",
            "gradient-bound": "selection.rules:GradientBound",
            "inverse-noise": "selection.rules:InverseNoise",
            "minimum-epsilon": "selection.rules:MinimumEpsilon",
            "participation-counts": "selection.rules:ParticipationCounts",
            "payment-cap": "selection.rules:PaymentCap",
            "privacy-aware": "selection.rules:PrivacyAware",
            "threshold": "selection.rules:Threshold",
            "unbiased": "selection.rules:Unbiased",
            "uniform": "selection.rules:Uniform",
        },
    ),
    "adaptive": RuleRegistry(
        "adaptive",
        {
            "clustered": "adaptive.rules:ClusteredUpdates",
            "cpow-d": "adaptive.rules:MiniBatchPowerOfChoice",
            "donated": "adaptive.rules:DonatedData",
            "oort": "adaptive.rules:StatisticalUtility",
            "power-of-choice": "adaptive.rules:PowerOfChoice",
            "rpow-d": "adaptive.rules:RecentPowerOfChoice",
            "ucb-cs": "adaptive.rules:BanditLoss",
        },
    ),
    "aggregation": RuleRegistry(
        "aggregation",
        {
            "clipped-mean": "aggregation.robust:ClippedMean",
            "epsilon-weighted": "aggregation.rule:EpsilonWeighted",
            "estimated-noise": "aggregation.robust:EstimatedNoise",
            "geometric-median": "aggregation.robust:GeometricMedian",
            "importance-compensated": "aggregation.rule:ImportanceCompensated",
            "inverse-variance": "aggregation.rule:InverseVariance",
            "mean": "aggregation.rule:Mean",
            "minimum-noise": "aggregation.rule:MinimumNoise",
            "projected": "aggregation.projected:Projected",
            "projected-plus": "aggregation.projected:ProjectedPlus",
            "size-weighted": "aggregation.rule:SizeWeighted",
            "trimmed-mean": "aggregation.robust:TrimmedMean",
        },
        filled=("sizes", "epsilon", "probabilities", "unbiased"),
    ),
}


def kind_of_rule(name: str) -> str:
    """``selection`` for a planned rule, ``adaptive`` for one that chooses during the training.

    Raises:
        InputError: there is no such rule of either kind; the nearest name is suggested.

    Example:
        >>> kind_of_rule("unbiased"), kind_of_rule("power-of-choice")
        ('selection', 'adaptive')
    """
    planned, adaptive = REGISTRIES["selection"], REGISTRIES["adaptive"]
    if is_named_function(name):
        found = planned.find(name, field="rule")
        return "adaptive" if hasattr(found, "ask") and hasattr(found, "choose") else "selection"
    names = [*planned.names, *adaptive.names]
    return "adaptive" if choice("rule", name, names) in adaptive else "selection"


def full_name(rule: object) -> str:
    """A rule's class as ``module:Class``, as a config would name it.

    Example:
        >>> full_name(Path("."))
        'pathlib:PosixPath'
    """
    kind = _class_of(rule)
    return f"{kind.__module__}:{kind.__qualname__}"


def is_foreign(rule: object) -> bool:
    """Whether a rule is somebody's own and not of this package.

    Example:
        >>> is_foreign(InputError), is_foreign(Path("."))
        (False, True)
    """
    home: str = _class_of(rule).__module__
    return home.partition(".")[0] != "dpcohort"


@contextmanager
def naming_the_rule(rule: object, doing: str) -> Iterator[None]:
    """Whatever goes wrong inside somebody's own rule is told as one message that names it.

    A mistake in a rule of this package stays what it is: a bug, with its traceback.

    Args:
        rule: the rule, or its class.
        doing: which of its methods runs.

    Raises:
        InputError: a foreign rule failed; says how, and where in its file.

    Example:
        >>> with naming_the_rule(Path("."), "select"):
        ...     1 / 0
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: the rule pathlib:PosixPath failed in select: ...
    """
    try:
        yield
    except DpcohortError:
        raise
    except Exception as error:  # it is not ours, so it may fail in any way
        if not is_foreign(rule):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError.because(
            f"the rule {full_name(rule)} failed in {doing}: {type(error).__name__}: {error} "
            f"({Path(last.filename).name}, line {last.lineno})."
        ) from error


def _class_of(rule: object) -> Any:
    return rule if inspect.isclass(rule) or inspect.isfunction(rule) else type(rule)


def is_named_function(text: str) -> bool:
    """Whether the text has the form ``package.module:function``.

    Example:
        >>> is_named_function("my_project.data:load"), is_named_function("C:/data.npz")
        (True, False)
    """
    module, colon, name = text.partition(":")
    return bool(colon) and name.isidentifier() and all(p.isidentifier() for p in module.split("."))


def named_function(
    field: str,
    text: str,
    *,
    kind: str = "function",
    example: str = "my_project.data:load",
) -> Callable[..., Any]:
    """The function of that name; modules in the current folder are found too.

    Args:
        field: what it is for, named in errors.
        text: ``module:function``.
        kind: ``function`` or ``class``, for errors.
        example: of such a name, for errors.

    Raises:
        InputError: if the module or the function is not there, or importing it fails.

    Example:
        >>> named_function("dataset", "math:sqrt")(9.0)
        3.0
    """
    allowed = f"module:{kind}, as in {example}"
    if not is_named_function(text):
        raise InputError(field, given=text, allowed=allowed)
    module_name, _, name = text.partition(":")
    with _current_folder_importable():
        try:
            module = importlib.import_module(module_name)
        except Exception as error:  # the user's module may fail in any way while it is imported
            raise InputError(
                field,
                given=text,
                allowed=allowed,
                next_step=f"Importing {module_name} failed: {type(error).__name__}: {error}. "
                "Modules are looked for among installed packages and in the current folder.",
            ) from error
    function = getattr(module, name, None)
    if not callable(function):
        hint = did_you_mean(name, [word for word in dir(module) if not word.startswith("_")])
        step = f"The module {module_name} has no {kind} {name!r}."
        next_step = f"{step} {hint}" if hint else step
        raise InputError(field, given=text, allowed=allowed, next_step=next_step)
    found: Callable[..., Any] = function
    return found


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    """A console script does not have the current folder on its path; a user expects it there."""
    folder = os.getcwd()
    if folder in sys.path or "" in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
