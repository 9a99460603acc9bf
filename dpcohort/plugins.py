# SPDX-License-Identifier: Apache-2.0
"""What users bring, found by name: functions and rules, as ``module:name`` or by an entry point.

A rule of this package is a line in ``RULES``: its name and the place of its class. Another
package adds one with an entry point. Names are known without loading anything.

What a name in a file stands for is loaded with the user's consent (`dpcohort.consent`) and used
only if it was made for that: marked with ``@plugin(kind)``, or a class of the kind's base.

A name means one rule. A name of this package is always its own rule's: installing another package
changes no config, plan or run. Who uses a name that an installed package announces too is warned.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from dpcohort import consent
from dpcohort._validate import choice, did_you_mean
from dpcohort.consent import import_allowed, typed
from dpcohort.errors import DpcohortError, InputError

__all__ = [
    "FILLED",
    "KINDS",
    "RULES",
    "RuleNameWarning",
    "announced",
    "check_members",
    "check_settings",
    "find_features",
    "find_rule",
    "full_name",
    "is_foreign",
    "is_named_function",
    "is_of_kind",
    "is_rule",
    "kind_of_rule",
    "make_rule",
    "named_function",
    "named_plugin",
    "naming_the_rule",
    "overshadowed",
    "place_of",
    "plugin",
    "require_consent",
    "rule_card",
    "rule_names",
    "settings_of",
    "telling",
]


Kind = Literal[
    "selection", "adaptive", "aggregation", "optimiser", "local-step",
    "model", "features", "data", "loss",
]  # fmt: skip
KINDS = get_args(Kind)

#: Classes whose subclasses are of a kind without a mark. By name: none is loaded to compare.
_BASES = {
    "selection": "dpcohort.selection._problem:PlannedRule",
    "adaptive": "dpcohort.adaptive._rule:AdaptiveRule",
    "aggregation": "dpcohort.aggregation._rule:AggregationRule",
    "model": "torch.nn.modules.module:Module",
    "features": "dpcohort.models._features:FixedFeatures",
    "optimiser": "torch.optim.optimizer:Optimizer",
    "local-step": "dpcohort.engine._local_rule:LocalRule",
}
_MARK = "__dpcohort_plugin__"

Marked = TypeVar("Marked", bound=Callable[..., Any])

_UNSAID = "not said"
#: Rules of the laboratory, of which one without it is told where they are.
_IN_THE_LAB = ("clipped-mean", "estimated-noise", "geometric-median")

#: For each kind those that the same key of a config names: no two of their rules have one name.
_SAME_KEY = {
    **dict.fromkeys(("selection", "adaptive"), ("selection", "adaptive")),
    "aggregation": ("aggregation",),
    "features": ("features",),
}

#: Settings that a plan knows and fills in where they are not given.
FILLED: dict[str, frozenset[str]] = {
    **dict.fromkeys(("selection", "adaptive"), frozenset()),
    "aggregation": frozenset(("sizes", "epsilon", "probabilities", "unbiased")),
}

#: What an object must have to be a rule of a kind.
_MEMBERS = {
    "selection": ("name", "select", "effective_epsilon"),
    "adaptive": ("name", "check", "expected_reports", "ask", "choose"),
    "aggregation": ("combine",),
}


class RuleNameWarning(UserWarning):
    """A rule of this package is used, and another package announces one by the same name."""


def rule_names(kind: str) -> tuple[str, ...]:
    """Every name of a rule of a kind that can be used, this package's first.

    Args:
        kind: ``selection``, ``adaptive`` or ``aggregation``.

    Example:
        >>> "uniform" in rule_names("selection")
        True
    """
    return (*RULES[kind], *sorted(announced(kind)))


def announced(kind: str) -> dict[str, EntryPoint]:
    """Rules of other packages that are installed, by name; none is loaded.

    Example:
        >>> "uniform" in announced("selection")
        False
    """
    taken = _taken(kind)
    return {entry.name: entry for entry in _entries(kind) if entry.name not in taken}


def overshadowed(kind: str) -> dict[str, str]:
    """Rules of other packages by the name of one of this package: whose is not used, in words.

    Example:
        >>> overshadowed("selection")
        {}
    """
    told = {}
    for entry in _entries(kind):
        if entry.name in _taken(kind):
            package = entry.dist.name if entry.dist else entry.module
            told[entry.name] = (
                f"the {_noun(kind)} {entry.name!r} is that of dpcohort; the package {package} "
                "announces another one by that name. To use that one, write "
                f"rule = {entry.value!r}."
            )
    return told


def is_rule(kind: str, name: object) -> bool:
    """Whether there is a rule of that kind and name; any ``module:Class`` may be one.

    Example:
        >>> is_rule("aggregation", "mean"), is_rule("aggregation", "uniform")
        (True, False)
    """
    return isinstance(name, str) and (
        name in RULES[kind] or is_named_function(name) or name in announced(kind)
    )


def find_rule(kind: str, name: str, *, field: str | None = None) -> Callable[..., Any]:
    """The class of a rule.

    Args:
        kind: of the rule.
        name: of a rule, or ``module:Class``.
        field: what it is called in errors; the kind by default.

    Raises:
        InputError: there is no such rule (the nearest name is suggested), the user has not allowed
            its code, it cannot be loaded, or is no rule of that kind.

    Example:
        >>> find_rule("selection", "uniform").name
        'uniform'
    """
    label = field or f"{kind} rule"
    rule: Callable[..., Any]
    if isinstance(name, str) and name in RULES[kind]:
        module, _, class_name = RULES[kind][name].partition(":")
        rule = getattr(importlib.import_module(f"dpcohort.{module}"), class_name)
        return rule
    if isinstance(name, str) and is_named_function(name):
        return named_plugin(kind, name, label)
    _refuse_two(kind, name, f"{kind} rule")
    if name in _IN_THE_LAB and name not in announced(kind):
        step = f"dpcohort-lab has {name}: python -m pip install dpcohort-lab"
        allowed = f"one of {', '.join(rule_names(kind))}"
        raise InputError(label, given=name, allowed=allowed, next_step=step)
    choice(label, name, rule_names(kind))
    return _load_announced(kind, name, label, "rule")


def find_features(name: str) -> Callable[..., Any]:
    """The class of fixed features that an installed package announces.

    Args:
        name: as announced in the group ``dpcohort.features``, or ``module:Class``.

    Raises:
        InputError: as `find_rule`.

    Example:
        >>> find_features("wavelets")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: features = 'wavelets' is not allowed: ...
    """
    if isinstance(name, str) and is_named_function(name):
        return named_plugin("features", name)
    known = sorted(announced("features"))
    if name not in known:
        step = did_you_mean(str(name), known)
        if "oriented" not in known:
            step = "dpcohort-lab has oriented and scattering: python -m pip install dpcohort-lab"
        allowed = f"one of {', '.join(('none', *known))}, or module:Class"
        raise InputError("features", given=name, allowed=allowed, next_step=step)
    _refuse_two("features", name, "features")
    return _load_announced("features", name, "features", "features")


def _refuse_two(kind: str, name: str, what: str) -> None:
    """Two packages may choose one name; which of them is meant, only the user knows."""
    entries = [entry for other in _SAME_KEY[kind] for entry in _entries(other)]
    places = sorted({entry.value for entry in entries if entry.name == name})
    if name not in _taken(kind) and len(places) > 1:
        raise InputError.because(
            f"the {what} {name!r} is announced by more than one package: "
            f"{', '.join(places)}. Name the one you mean as module:Class."
        )


def _load_announced(kind: str, name: str, field: str, what: str) -> Callable[..., Any]:
    entry = announced(kind)[name]
    try:
        loaded = entry.load()
    except Exception as error:  # another package may fail in any way while it is imported
        raise InputError.because(
            f"the {what} {name!r} is announced as {entry.value}, but loading that failed: "
            f"{type(error).__name__}: {error}"
        ) from error
    return _of_kind(kind, field, name, loaded)


def place_of(kind: str, name: str) -> str:
    """A rule of another package by its ``module:Class``, to be loaded with consent only.

    For names that were read from a plan; any other name stays as it is.

    Example:
        >>> place_of("selection", "uniform")
        'uniform'
    """
    entry = None if name in RULES[kind] else announced(kind).get(name)
    return name if entry is None else entry.value


def make_rule(kind: str, name: str, settings: Mapping[str, Any]) -> Any:
    """A rule from its name and settings.

    Args:
        kind: of the rule.
        name: of a rule, or ``module:Class``.
        settings: as its class takes them.

    Raises:
        InputError: a name or setting that does not exist (the nearest one is suggested), a
            setting that is missing, or a value the rule refuses.

    Example:
        >>> make_rule("aggregation", "trimmed-mean", {"trim": 0.1})
        TrimmedMean(trim=0.1)
    """
    rule = find_rule(kind, name)
    _warn_of_another(kind, name)
    for missing in sorted(_missing(kind, name, settings)):
        step = " A plan knows it: use for_plan." if missing in FILLED[kind] else ""
        raise InputError.because(
            f"{_noun(kind).capitalize()} '{name}' needs the setting '{missing}', which is not "
            f"given.{step}"
        )
    with naming_the_rule(rule, "being made"):
        made = rule(**settings)
    check_members(kind, name, made)
    return made


def check_members(kind: str, name: object, rule: object) -> None:
    """Refuse an object that is no rule of a kind.

    Args:
        kind: what it must be.
        name: how the user named it.
        rule: the object.

    Example:
        >>> check_members("aggregation", "mine", 3)
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: 'mine' is no aggregation rule: its objects lack combine. ...
    """
    needed = _MEMBERS[kind]
    lacking = [member for member in needed if not hasattr(rule, member)]
    if lacking:
        raise InputError.because(
            f"{name!r} is no {kind} rule: its objects lack {', '.join(lacking)}. One has "
            f"{', '.join(needed)}; docs/reference/rules.md shows how to write one."
        )


def check_settings(kind: str, name: str, settings: Mapping[str, Any]) -> None:
    """Refuse what no plan can make good; what a plan fills in may be missing.

    Raises:
        InputError: as ``make_rule``.

    Example:
        >>> check_settings("aggregation", "size-weighted", {})
        >>> check_settings("aggregation", "trimmed-mean", {"trim": 0.7})
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: trim = 0.7 is not allowed: ...
    """
    if _missing(kind, name, settings) & FILLED[kind]:
        _warn_of_another(kind, name)
    else:
        make_rule(kind, name, settings)


def settings_of(kind: str, name: str) -> tuple[str, ...]:
    """Names of the settings of a rule.

    Example:
        >>> settings_of("aggregation", "trimmed-mean")
        ('trim',)
    """
    return tuple(_parameters(find_rule(kind, name)))


def _missing(kind: str, name: str, settings: Collection[str]) -> set[str]:
    """Settings that the rule needs and that are not given.

    Raises:
        InputError: one is given that the rule does not have; with the nearest that it has.
    """
    known = _parameters(find_rule(kind, name))
    for setting in settings:
        label = f"setting of {_noun(kind)} '{name}'"
        if not known:
            allowed = "left out: this rule has no settings"
            raise InputError(label, given=setting, allowed=allowed)
        choice(label, setting, known)
    needed = {setting for setting, found in known.items() if found.default is found.empty}
    return needed - set(settings)


def rule_card(kind: str, name: str) -> dict[str, Any]:
    """What one should know about a rule before using it; plain values, ready for JSON.

    Its kind and name, a summary in one line, what it needs, what it leaks to whom, where it is
    from, the names of its settings, and the module to import it from.

    Example:
        >>> rule_card("selection", "uniform")["home"]
        'dpcohort.selection._rules'
    """
    rule = find_rule(kind, name)
    lines = (inspect.getdoc(rule) or _UNSAID).splitlines()
    ours = RULES[kind].get(name)
    return {
        "kind": kind,
        "name": name,
        "summary": lines[0],
        **{key: getattr(rule, key, _UNSAID) for key in ("needs", "leaks", "reference")},
        "settings": list(_parameters(rule)),
        "home": f"dpcohort.{ours.partition(':')[0]}" if ours else rule.__module__,
    }


def _noun(kind: str) -> str:
    return "aggregation" if kind == "aggregation" else "rule"


def _entries(kind: str) -> tuple[EntryPoint, ...]:
    """What is announced for a kind, whatever the name."""
    return _entry_points(f"dpcohort.{kind}", tuple(map(_state_of_folder, sys.path)))


def _taken(kind: str) -> set[str]:
    """Names of this package's rules that the same key of a config names."""
    return {name for other in _SAME_KEY[kind] for name in RULES.get(other, {})}


def _warn_of_another(kind: str, name: str) -> None:
    for other in _SAME_KEY[kind] if name in RULES[kind] else ():
        if name in (told := overshadowed(other)):
            # Without a stack level: all uses are one place, so that it is told once.
            warnings.warn(told[name], RuleNameWarning, stacklevel=1)


@lru_cache(maxsize=16)
def _entry_points(group: str, path: tuple[object, ...]) -> tuple[EntryPoint, ...]:
    """What is announced in a group; asking every installed package takes 20 ms each time."""
    return tuple(metadata.entry_points(group=group))


def _state_of_folder(folder: str) -> tuple[object, ...]:
    """Changes when a package is installed or removed."""
    with suppress(OSError):  # a path may name what is not there
        return folder, os.stat(folder or ".").st_mtime_ns
    return (folder,)


def _parameters(rule: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {
        name: parameter
        for name, parameter in inspect.signature(rule).parameters.items()
        if parameter.kind in named
    }


#: Every rule of this package by kind and name, and where in ``dpcohort`` its class is. Who adds a
#: rule adds a line here.
RULES = {
    "selection": {
        "best-threshold": "selection._rules:BestThreshold",
        "epsilon-proportional": "selection._rules:EpsilonProportional",
        "inverse-noise": "selection._rules:InverseNoise",
        "minimum-epsilon": "selection._rules:MinimumEpsilon",
        "privacy-aware": "selection._rules:PrivacyAware",
        "threshold": "selection._rules:Threshold",
        "unbiased": "selection._rules:Unbiased",
        "uniform": "selection._rules:Uniform",
    },
    "adaptive": {
        "clustered": "adaptive._rules:ClusteredUpdates",
        "cpow-d": "adaptive._rules:MiniBatchPowerOfChoice",
        "donated": "adaptive._rules:DonatedData",
        "oort": "adaptive._rules:StatisticalUtility",
        "power-of-choice": "adaptive._rules:PowerOfChoice",
        "rpow-d": "adaptive._rules:RecentPowerOfChoice",
        "ucb-cs": "adaptive._rules:BanditLoss",
    },
    "aggregation": {
        "epsilon-weighted": "aggregation._rule:EpsilonWeighted",
        "importance-compensated": "aggregation._rule:ImportanceCompensated",
        "inverse-variance": "aggregation._rule:InverseVariance",
        "mean": "aggregation._rule:Mean",
        "minimum-noise": "aggregation._rule:MinimumNoise",
        "projected": "aggregation._projected:Projected",
        "projected-plus": "aggregation._projected:ProjectedPlus",
        "size-weighted": "aggregation._rule:SizeWeighted",
        "trimmed-mean": "aggregation._rule:TrimmedMean",
    },
}


def kind_of_rule(name: str) -> str:
    """``selection`` for a planned rule, ``adaptive`` for one that chooses during the training.

    Raises:
        InputError: there is no such rule of either kind; the nearest name is suggested.

    Example:
        >>> kind_of_rule("unbiased"), kind_of_rule("power-of-choice")
        ('selection', 'adaptive')
    """
    if is_named_function(name):
        found = _loaded("rule", name, what="class")
        return "adaptive" if is_of_kind("adaptive", found) else "selection"
    adaptive = rule_names("adaptive")
    known = choice("rule", name, [*rule_names("selection"), *adaptive])
    return "adaptive" if known in adaptive else "selection"


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


@contextmanager
def telling(what: str, more: str = "") -> Iterator[None]:
    """Whatever goes wrong inside a function of the user's is told as one message.

    Args:
        what: that failed.
        more: what to say after it.

    Raises:
        InputError: it failed; says how.

    Example:
        >>> with telling("the loss my:loss failed"):
        ...     1 / 0
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: the loss my:loss failed: ZeroDivisionError: division by zero
    """
    try:
        yield
    except DpcohortError:
        raise
    except Exception as error:  # it is not ours, so it may fail in any way
        message = f"{what}: {type(error).__name__}: {error}{more}"
        raise InputError.because(message) from error


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


def plugin(kind: Kind) -> Callable[[Marked], Marked]:
    """Mark a class or function as something that a configuration may name, of one kind.

    Args:
        kind: ``selection`` or ``adaptive`` (a class that is a rule), ``aggregation`` (a class),
            ``optimiser`` (a class of a server optimiser), ``local-step`` (a class), ``model`` (a
            function that returns a module), ``features`` (a class), ``data`` (a function that
            returns a data set) or ``loss``.

    Raises:
        InputError: there is no such kind.

    Example:
        >>> @plugin("loss")
        ... def squared(outputs, targets):
        ...     return (outputs[:, 0] - targets) ** 2
    """
    choice("kind", kind, KINDS)

    def mark(thing: Marked) -> Marked:
        setattr(thing, _MARK, kind)
        return thing

    return mark


def named_plugin(kind: str, text: str, field: str | None = None) -> Callable[..., Any]:
    """What a file names as ``module:name``: loaded with consent, and of the right kind.

    What the user's program has imported itself, and marked, needs no consent.

    Args:
        kind: one of ``KINDS``.
        text: ``module:name``.
        field: what it is for, named in errors; the kind by default.

    Raises:
        InputError: there is no consent, the module or the name is not there, importing it fails,
            or it is of another kind; it was not called.

    Example:
        >>> named_plugin("selection", "dpcohort.selection._rules:Uniform").name
        'uniform'
        >>> named_plugin("model", "dpcohort.plugins:named_function")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: model = 'dpcohort.plugins:named_function' is not allowed: ...
    """
    label = field or kind
    return _of_kind(kind, label, text, _loaded(label, text, what=_WHAT.get(kind, "class")))


_WHAT = {"model": "function", "data": "function", "loss": "function"}


def _of_kind(kind: str, field: str, text: str, found: Callable[..., Any]) -> Callable[..., Any]:
    if is_of_kind(kind, found):
        return found
    base = f", or a class that inherits from {_BASES[kind]}" if kind in _BASES else ""
    raise InputError(field, given=text, allowed=f'marked with @dpcohort.plugin("{kind}"){base}')


def is_of_kind(kind: str, found: object) -> bool:
    """Whether a class or function is marked as one of a kind, or inherits from the kind's base.

    Example:
        >>> is_of_kind("model", print), is_of_kind("loss", plugin("loss")(lambda *given: given))
        (False, True)
    """
    if getattr(found, _MARK, None) == kind:
        return True
    kinds = {f"dpcohort.{place}" for place in RULES.get(kind, {}).values()} | {_BASES.get(kind)}
    return inspect.isclass(found) and any(full_name(one) in kinds for one in found.__mro__)


def named_function(field: str, text: str, *, example: str) -> Callable[..., Any]:
    """The function that the user typed; modules in the current folder are found too.

    Args:
        field: what it is for, named in errors.
        text: ``module:function``, as typed: not from a file.
        example: of such a name, for errors.

    Raises:
        InputError: if the module or the function is not there, or importing it fails.

    Example:
        >>> named_function("--step", "dpcohort.plugins:is_rule", example="mine:step").__name__
        'is_rule'
    """
    typed(text)
    return _loaded(field, text, example=example)


def require_consent(field: str, text: str) -> None:
    """Refuse a ``module:name`` that the user has neither allowed nor imported; nothing is loaded.

    Args:
        field: what it is for, named in errors.
        text: ``module:name``.

    Raises:
        InputError: names the file that would be loaded, its hash, and how to allow it.

    Example:
        >>> require_consent("rule", "subprocess:Popen")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: rule = 'subprocess:Popen' is not allowed: it must be ...
    """
    if _running(text) is None:
        consent.require_consent(field, text)


def _running(text: str) -> Callable[..., Any] | None:
    """What the user's own program has imported and marked."""
    module, _, name = text.partition(":")
    known = sys.modules.get(module)
    own: Any = None if known is None else vars(known).get(name)
    return cast("Callable[..., Any]", own) if getattr(own, _MARK, None) in KINDS else None


def _loaded(
    field: str, text: str, *, what: str = "function", example: str = ""
) -> Callable[..., Any]:
    if not is_named_function(text):
        example = example or ("my_project:MyRule" if what == "class" else "my_project:load")
        raise InputError(field, given=text, allowed=f"module:{what}, as in {example}")
    module_name, _, name = text.partition(":")
    # Running already, by the user's own program, which marked it.
    if (own := _running(text)) is not None:
        return own

    require_consent(field, text)
    allowed = f"module:{what} that can be loaded"
    try:
        module = import_allowed(module_name)
    except Exception as error:  # the user's module may fail in any way while it is imported
        raise InputError(
            field,
            given=text,
            allowed=allowed,
            next_step=f"Importing {module_name} failed: {type(error).__name__}: {error}. "
            "Modules are looked for among installed packages and in the current folder.",
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        hint = did_you_mean(name, [word for word in dir(module) if not word.startswith("_")])
        step = f"The module {module_name} has no {what} {name!r}."
        next_step = f"{step} {hint}" if hint else step
        raise InputError(field, given=text, allowed=allowed, next_step=next_step)
    function: Callable[..., Any] = found
    return function
