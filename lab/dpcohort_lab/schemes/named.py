# SPDX-License-Identifier: Apache-2.0
"""Privacy schemes by name, in the order in which a table shows them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

from dpcohort.errors import InputError
from dpcohort_lab.checks import choice
from dpcohort_lab.schemes.client_noise import dp_fedavg, model_clipping, udp
from dpcohort_lab.schemes.last_iterate import projected_sgd
from dpcohort_lab.schemes.local_reports import cldp, ldp
from dpcohort_lab.schemes.scheme import Card, Mode, Scheme
from dpcohort_lab.schemes.shared_noise import idp, rpdp

_SCHEMES: dict[str, Callable[..., Any]] = {
    "dp-fedavg": dp_fedavg,
    "udp": udp,
    "udp-crd": partial(udp, adaptive_rounds=True),
    "rpdp": rpdp,
    "last-iterate": projected_sgd,
    "idp-scale": partial(idp, variant="scale"),
    "idp-sample": partial(idp, variant="sample"),
    "cldp": cldp,
    "ldp": ldp,
    "model-clipping": model_clipping,
}

#: Names of all schemes.
SCHEMES = tuple(_SCHEMES)


def make_scheme(name: str, mode: Mode = "honest", **settings: Any) -> Scheme:
    """A scheme by its name.

    Args:
        name: one of :data:`SCHEMES`.
        mode: ``honest``, or ``formula`` for the published noise with its certificate beside it.
        settings: of the scheme itself, such as ``radius`` of ``last-iterate``.

    Raises:
        InputError: there is no such scheme (the nearest is named), or it has no formula mode.

    Example:
        >>> make_scheme("udp", "formula").card["unit"]
        'record'
        >>> make_scheme("udq")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: scheme = 'udq' is not allowed: ... Did you mean 'udp'?
    """
    choice("scheme", name, SCHEMES)
    choice("mode", mode, get_args(Mode))
    scheme = Scheme(name=name, mode=mode, prepare=partial(_SCHEMES[name], **settings))
    if mode == "formula" and not scheme.card["formula"]:
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
        >>> sorted({card["unit"] for card in scheme_cards()})
        ['client', 'local record', 'record']
    """
    return tuple(make_scheme(name).card for name in SCHEMES)
