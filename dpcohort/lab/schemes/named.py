# SPDX-License-Identifier: Apache-2.0
"""Privacy schemes by name, in the order in which a table shows them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import get_args

from dpcohort._validate import choice
from dpcohort.errors import InputError
from dpcohort.lab.schemes.client_noise import UDP, DPFedAvg, ModelClipping
from dpcohort.lab.schemes.last_iterate import ProjectedSGD
from dpcohort.lab.schemes.local_reports import CLDP, LDP
from dpcohort.lab.schemes.scheme import Card, Mode, Scheme
from dpcohort.lab.schemes.shared_noise import IDP, RPDP

__all__ = ["SCHEMES", "make_scheme", "scheme_cards"]

_MAKERS: dict[str, Callable[..., Scheme]] = {
    "dp-fedavg": DPFedAvg,
    "udp": UDP,
    "udp-crd": partial(UDP, adaptive_rounds=True),
    "rpdp": RPDP,
    "last-iterate": ProjectedSGD,
    "idp-scale": partial(IDP, variant="scale"),
    "idp-sample": partial(IDP, variant="sample"),
    "cldp": CLDP,
    "ldp": LDP,
    "model-clipping": ModelClipping,
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
    scheme = _MAKERS[name](mode=mode)
    if mode == "formula" and not scheme.card.formula:
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
