# SPDX-License-Identifier: Apache-2.0
"""``dpcohort sign``: an operator puts a name to a finished run that verifies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from dpcohort.atomic_file import owner_only
from dpcohort.cli._terminal import LONGEST_MESSAGE, JsonOption, print_json, say
from dpcohort.deploy.guard._files import load_identity
from dpcohort.errors import InputError, VerificationError
from dpcohort.plain_text import one_line
from dpcohort.runs import verify_run
from dpcohort.runs._folder import SIGNATURE, find_run
from dpcohort.runs._seal import sign_seal


def sign(
    run: Annotated[Path, Argument(metavar="RUN", help="The folder of a finished run.")],
    key: Annotated[
        Path,
        Option(metavar="FILE", help="The operator's secret; dpcohort guard identity makes one."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Sign a finished run that verifies: who changes a file of it from then on needs the key."""
    identity, found = load_identity(key), verify_run(run)
    wrong = [finding for finding in found.findings if finding.kind != "note"]
    if wrong:
        raise VerificationError(
            f"{run} does not verify, so it is not signed: {one_line(wrong[0].subject)}: "
            f"{one_line(wrong[0].message, LONGEST_MESSAGE)} See: dpcohort verify {run}"
        )
    if not found.finished:
        raise InputError.because(
            f"{run} is not finished, and what follows would not be signed. Let it go on with "
            "--resume, and sign it then."
        )
    if found.signed_by not in ("", identity.public):
        raise InputError.because(
            f"{run} is signed by {found.signed_by} already. To sign it instead, delete "
            f"{run / SIGNATURE} first."
        )
    with owner_only(found.kind == "private"):
        seal = sign_seal(find_run(run), identity.public, identity.sign_bytes)
    if as_json:
        print_json(run=str(run), kind=found.kind, seal=seal, key=identity.public)
        return
    say(f"Signed {run} ({found.kind}), seal {seal}.")
    say(f"Whoever has the folder checks it: dpcohort verify {run} --key {identity.public}")
