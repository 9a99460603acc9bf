# SPDX-License-Identifier: Apache-2.0
"""Privacy schemes by name, in the order in which a table shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, get_args

from dpcohort._validate import choice
from dpcohort.errors import InputError
from dpcohort.lab.schemes.card import Card, Mode
from dpcohort.lab.schemes.cldp import CLDP
from dpcohort.lab.schemes.dp_fedavg import DPFedAvg
from dpcohort.lab.schemes.idp import IDP
from dpcohort.lab.schemes.ldp import LDP
from dpcohort.lab.schemes.model_clipping import ModelClipping
from dpcohort.lab.schemes.projected import ProjectedSGD
from dpcohort.lab.schemes.receipt import Outcome
from dpcohort.lab.schemes.rpdp import RPDP
from dpcohort.lab.schemes.udp import UDP

if TYPE_CHECKING:
    from dpcohort.lab.schemes.federation import Federation

__all__ = ["SCHEMES", "Scheme", "make_scheme", "scheme_cards"]


class Scheme(Protocol):
    """Anything that trains a federation under a promise of its own, and accounts for it."""

    @property
    def card(self) -> Card:
        """The scheme in words."""
        ...

    @property
    def mode(self) -> Mode:
        """``honest`` or ``formula``."""
        ...

    def run(self, federation: Federation) -> Outcome:
        """Train, and account for it."""
        ...


_MAKERS: dict[str, Callable[[Mode], Any]] = {
    "dp-fedavg": lambda mode: DPFedAvg(mode=mode),
    "udp": lambda mode: UDP(mode=mode),
    "udp-crd": lambda mode: UDP(mode=mode, adaptive_rounds=True),
    "rpdp": lambda mode: RPDP(mode=mode),
    "last-iterate": lambda mode: ProjectedSGD(mode=mode),
    "idp-scale": lambda mode: IDP(variant="scale", mode=mode),
    "idp-sample": lambda mode: IDP(variant="sample", mode=mode),
    "cldp": lambda mode: CLDP(mode=mode),
    "ldp": lambda mode: LDP(mode=mode),
    "model-clipping": lambda mode: ModelClipping(mode=mode),
}

#: Names of all schemes.
SCHEMES = tuple(_MAKERS)


def make_scheme(name: str, mode: str = "honest") -> Scheme:
    """A scheme by its name.

    Args:
        name: one of :data:`SCHEMES`.
        mode: ``honest``, or ``formula`` for the published noise with its certificate beside it.

    Raises:
        InputError: there is no such scheme (the nearest is named), or it has no formula mode.

    Example:
        >>> make_scheme("udp", "formula").card.unit
        'record'
        >>> make_scheme("udq")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: scheme = 'udq' is not allowed: ... Did you mean 'udp'?
    """
    choice("scheme", name, SCHEMES)
    choice("mode", mode, get_args(Mode))
    chosen: Mode = "formula" if mode == "formula" else "honest"
    scheme: Scheme = _MAKERS[name](chosen)
    if chosen == "formula" and not scheme.card.has_formula:
        raise InputError(
            "mode",
            given=mode,
            allowed=f"'honest' for {name}",
            next_step="It has no published formula here that differs from what is certified.",
        )
    return scheme


def scheme_cards() -> tuple[Card, ...]:
    """The cards of all schemes.

    Example:
        >>> sorted({card.unit for card in scheme_cards()})
        ['client', 'local record', 'record']
    """
    return tuple(make_scheme(name).card for name in SCHEMES)
