# SPDX-License-Identifier: Apache-2.0
"""Units of privacy: what two neighbouring data sets of a client differ in.

**Record**: one row. Somebody with several rows is protected less, see
:mod:`dpcohort.accounting._risk`. **Person**: all rows of one person with a client, of which at most
a public number is used; batches are drawn by person, and the gradients of a person's rows are
clipped as one. A person who is with two clients is protected by each of them alone. **Client**:
everything that a client holds.

Sizes, batches and sampling rates count units: of a client whose unit is the person, persons.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator

from dpcohort._validate import choice

#: What is done with the gradients of a person's rows.
PersonRows = Literal["sum", "mean"]
#: What a row without a person is: refused, or a person of its own.
BlankPerson = Literal["refuse", "own"]


@dataclass(frozen=True)
class Unit:
    """What one promise of a client covers.

    Attributes:
        name: as files have it.
        one: one of them, in a sentence.
        several: many of them.
        hides: what neighbouring data sets differ in, of a client or data set.

    Example:
        >>> unit_of("person").one, unit_of("person").of("this client")
        ('one person', 'all records of one person with this client')
    """

    name: Literal["record", "person", "client"]
    one: str
    several: str
    hides: str

    def __str__(self) -> str:
        return self.name

    def of(self, whom: str) -> str:
        """What neighbouring data sets differ in, in a sentence."""
        return self.hides.format(whom)


#: All units by name.
UNITS: dict[str, Unit] = {
    unit.name: unit
    for unit in (
        Unit("record", "one record", "records", "one record of {}"),
        Unit("person", "one person", "persons", "all records of one person with {}"),
        Unit("client", "one client", "clients", "all records of {} together"),
    )
}


def _known(name: str) -> str:
    return unit_of(name).name


#: Name of a unit, as files have it.
UnitName = Annotated[str, AfterValidator(_known)]


def unit_of(given: str | Unit) -> Unit:
    """The unit of this name, or the one given.

    Example:
        >>> unit_of("record").several
        'records'
    """
    if isinstance(given, Unit):
        return given
    choice("unit", given, list(UNITS))
    return UNITS[given]
