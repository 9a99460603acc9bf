# SPDX-License-Identifier: Apache-2.0
"""Charges paid for a run's records after its plan was made, as the run folder keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpcohort.accounting import Charge
from dpcohort.accounting._charges import check_relation, in_order, private_clients, read_charge
from dpcohort.errors import FileFormatError, InputError
from dpcohort.plain_text import one_line
from dpcohort.plan import Plan
from dpcohort.runs._folder import CHARGES


def later_charges(folder: Path, plan: Plan) -> tuple[Charge, ...]:
    """What was paid for a run's records after its plan was made, as its folder keeps it.

    Args:
        folder: of the run.
        plan: its plan, which has the charges before.

    Raises:
        FileFormatError: a file is not the charge that its name says.
        InputError: the order of the charges is not proved, or they do not go with the plan.
    """
    found = []
    for path in sorted((folder / CHARGES).glob("*.json")):
        charge, _ = read_charge(path)
        if charge.id != path.stem:
            raise FileFormatError(path, f"it is the charge {charge.id[:12]}....")
        found.append(charge)
    check_later(found, plan)
    known = plan.past.paid.charges
    return tuple(one for one in in_order((*known, *found)) if one not in known)


def check_later(charges: Sequence[Charge], plan: Plan) -> None:
    """Refuse charges that have no total with a plan that was made before them.

    Args:
        charges: what was paid.
        plan: of the run whose records they are about.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> people = Population.from_arrays(sizes=[90, 90], epsilon=[1.0, 2.0], delta=1e-5)
        >>> plan = make_plan(people, Training(rounds=4, cohort_size=2, batch_size=9), seed=0)
        >>> check_later((), plan)
    """
    check_relation(charges, plan.contract)
    private = {name for _, name, _, _ in private_clients(plan.population)}
    for charge in charges:
        if bare := sorted(private & set(charge.public)):
            raise InputError.because(
                f"the charge {charge.title} looked at the records of {one_line(bare[0])!r} without "
                "noise, and the plan has a budget for them: nothing bounds what was told."
            )
