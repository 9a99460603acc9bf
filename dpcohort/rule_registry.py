# SPDX-License-Identifier: Apache-2.0
"""Rules found by name: those of this package, those other packages bring, and ``module:Class``.

A rule of this package is one file in the folder of its kind, named like the rule
(``best_threshold.py`` holds ``best-threshold``); adding the file adds the rule. Another package
adds one with an entry point. Names are known without loading anything.

A name means one rule. A name of this package is always its own rule's: installing another package
changes no config, plan or run. Who uses a name that an installed package announces too is warned.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpcohort._validate import choice, nearest
from dpcohort.errors import InputError
from dpcohort.foreign_rule import naming_the_rule
from dpcohort.named_function import is_named_function, named_function

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["REGISTRIES", "RuleCard", "RuleNameWarning", "RuleRegistry"]

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


@dataclass(frozen=True, kw_only=True)
class RuleCard:
    """What one should know about a rule before using it.

    Attributes:
        kind: ``selection``, ``adaptive`` or ``aggregation``.
        name: what configurations call it.
        summary: the first line of its docstring.
        needs: what it must know.
        leaks: what its use tells others, beside what the noise covers.
        reference: where it comes from.
        settings: names of its settings.
        home: the module it is in.
    """

    kind: str
    name: str
    summary: str
    needs: str
    leaks: str
    reference: str
    settings: tuple[str, ...]
    home: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "settings": list(self.settings)}


class RuleRegistry:
    """All rules of one kind.

    Args:
        kind: ``selection``, ``adaptive`` or ``aggregation``.
        package: the package whose modules are the rules, one each.
        filled: settings that a plan knows and fills in where they are not given.

    Example:
        >>> rules = RuleRegistry("selection", "dpcohort.selection.rules")
        >>> "best-threshold" in rules.built_in
        True
        >>> rules.find("uniform").name
        'uniform'
    """

    def __init__(self, kind: str, package: str, *, filled: Collection[str] = ()) -> None:
        self.kind = kind
        self._package = package
        self.filled = frozenset(filled)

    @property
    def group(self) -> str:
        """The entry-point group in which other packages announce rules of this kind."""
        return f"dpcohort.{self.kind}"

    @cached_property
    def built_in(self) -> tuple[str, ...]:
        """Names of the rules of this package, from the names of its files."""
        folder = Path(__file__).parent.joinpath(*self._package.split(".")[1:])
        modules = (found.name for found in pkgutil.iter_modules([str(folder)]))
        return tuple(sorted(name.replace("_", "-") for name in modules if name[0] != "_"))

    @property
    def announced(self) -> Mapping[str, EntryPoint]:
        """Rules of other packages that are installed, by name; none is loaded."""
        found, taken = _entry_points(self.group, _state_of_path()), self._taken
        return {entry.name: entry for entry in found if entry.name not in taken}

    @property
    def overshadowed(self) -> Mapping[str, EntryPoint]:
        """Rules of other packages that go by the name of one of this package; none is used."""
        found, taken = _entry_points(self.group, _state_of_path()), self._taken
        return {entry.name: entry for entry in found if entry.name in taken}

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
        if isinstance(name, str) and name in self.built_in:
            return self._of_module(name)
        if isinstance(name, str) and is_named_function(name):
            return named_function(label, name, kind="class", example="my_project.rules:MyRule")
        announced = self.announced
        self._refuse_two_of(name)
        found = announced[choice(label, name, (*self.built_in, *sorted(announced)))]
        try:
            rule: Callable[..., Any] = found.load()
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
        self.check_settings(name, settings)
        for missing in sorted(self.missing(name, settings)):
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
        if self.missing(name, settings) & self.filled:
            self._warn_of_another(name)
            self.check_settings(name, settings)
        else:
            self.make(name, settings)

    def check_settings(self, name: str, settings: Collection[str]) -> None:
        """Refuse a setting that the rule does not have.

        Raises:
            InputError: with the nearest setting it has.
        """
        known = self.settings_of(name)
        for setting in settings:
            if setting not in known:
                hint = nearest(setting, known)
                raise InputError(
                    f"setting of {self._noun} '{name}'",
                    given=setting,
                    allowed="one of " + ", ".join(known)
                    if known
                    else "left out: this rule has no settings",
                    next_step=f"Did you mean {hint!r}?" if hint else None,
                )

    def settings_of(self, name: str) -> tuple[str, ...]:
        """Names of the settings of a rule."""
        return tuple(_parameters(self.find(name)))

    def missing(self, name: str, settings: Collection[str]) -> set[str]:
        """Settings that the rule needs and that are not given."""
        parameters = _parameters(self.find(name)).items()
        needed = {name for name, found in parameters if found.default is found.empty}
        return needed - set(settings)

    def card(self, name: str) -> RuleCard:
        """What to know about one rule."""
        rule = self.find(name)
        lines = (inspect.getdoc(rule) or _UNSAID).splitlines()
        return RuleCard(
            kind=self.kind,
            name=name,
            summary=lines[0],
            needs=getattr(rule, "needs", _UNSAID),
            leaks=getattr(rule, "leaks", _UNSAID),
            reference=getattr(rule, "reference", _UNSAID),
            settings=self.settings_of(name),
            home=rule.__module__,
        )

    @property
    def _noun(self) -> str:
        return "aggregation" if self.kind == "aggregation" else "rule"

    @property
    def _same_key(self) -> list[RuleRegistry]:
        """The kinds, this one too, that the same key of a config names."""
        kinds = next(kinds for kinds in _SAME_KEY if self.kind in kinds)
        return [self if kind == self.kind else REGISTRIES[kind] for kind in kinds]

    @property
    def _taken(self) -> set[str]:
        """Names of this package's rules that the same key of a config names."""
        return {name for registry in self._same_key for name in registry.built_in}

    def _refuse_two_of(self, name: object) -> None:
        """Two packages may choose one name; which of them is meant, only the user knows."""
        groups = [entry_points(group=registry.group) for registry in self._same_key]
        places = sorted({entry.value for group in groups for entry in group if entry.name == name})
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

    def _of_module(self, name: str) -> Callable[..., Any]:
        module = importlib.import_module(f"{self._package}.{name.replace('-', '_')}")
        classes = [getattr(module, public) for public in module.__all__]
        found: Callable[..., Any] = next(c for c in classes if getattr(c, "name", None) == name)
        return found


@lru_cache(maxsize=16)
def _entry_points(group: str, state: tuple[object, ...]) -> tuple[EntryPoint, ...]:
    """What is announced in a group; asking every installed package takes milliseconds each time."""
    return tuple(entry_points(group=group))


def entry_points(*, group: str) -> Iterable[EntryPoint]:
    """What installed packages announce in a group of ours."""
    if not _any_announces(_state_of_path()):
        return ()
    from importlib import metadata  # takes longer to load than a small plan to make

    return metadata.entry_points(group=group)


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


#: Every kind of rule; who adds a kind adds a line here.
REGISTRIES = {
    "selection": RuleRegistry("selection", "dpcohort.selection.rules"),
    "adaptive": RuleRegistry("adaptive", "dpcohort.adaptive.rules"),
    "aggregation": RuleRegistry(
        "aggregation",
        "dpcohort.aggregation.rules",
        filled=("sizes", "epsilon", "probabilities", "unbiased"),
    ),
}
