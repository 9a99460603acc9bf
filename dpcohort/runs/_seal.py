# SPDX-License-Identifier: Apache-2.0
"""The seal of a finished run: one hash over its result, which holds the hash of every other file.

Any change afterwards is found, unless all hashes are made anew. Against whoever can do that, there
is the seal that somebody else has kept (letters and reports show it), or a signature.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpcohort.errors import VerificationError
from dpcohort.runs._folder import (
    AVERAGE_MODEL,
    BEFORE,
    CHARGES,
    CHECKPOINTS,
    CLIENT_LEDGERS,
    CONFIG,
    CONTINUED,
    ENVIRONMENT,
    EXCHANGE,
    LAST_MODEL,
    LEDGER,
    MODEL,
    PARTITION,
    PLAN,
    RECEIPTS,
    RESULT,
    ROUNDS,
    SETTINGS,
    SIGNATURE,
    SIGNATURES,
    read_json,
    write_json,
)
from dpcohort.signatures import is_signed
from dpcohort.text_files import finite_json

#: Files and folders of a run whose hashes its result has; one that is not there has none.
_SEALED = (
    *(CONFIG, PLAN, PARTITION, SETTINGS, LEDGER, ROUNDS, ENVIRONMENT, EXCHANGE, CLIENT_LEDGERS),
    *(MODEL, LAST_MODEL, AVERAGE_MODEL, CHECKPOINTS, RECEIPTS, BEFORE, CHARGES, SIGNATURES),
)
#: Those that every finished run has.
_ALWAYS = (PLAN, PARTITION, SETTINGS, LEDGER, ROUNDS, ENVIRONMENT, MODEL, CHECKPOINTS, RECEIPTS)


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of a run; of a folder one for the names and hashes of all in it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "run.json").write_text("{}")
        ...     list(file_hashes(Path(folder)))
        ['run.json']
    """
    found = {}
    for name in _SEALED:
        place = folder / name
        if place.is_file():
            found[name] = _sha256(place)
        elif place.is_dir():
            inside = [path for path in place.rglob("[!.]*") if path.is_file()]
            files = {path.relative_to(place).as_posix(): _sha256(path) for path in inside}
            found[name] = _hash_of(files)
    return found


def unsealed(folder: Path) -> list[str]:
    """Names in a run folder that no seal covers and that are none of a run's.

    Args:
        folder: of the run.
    """
    known = {*_SEALED, RESULT, SIGNATURE, CONTINUED, "personal.json"}
    return sorted(path.name for path in folder.glob("[!.]*") if path.name not in known)


def seal_of(result: Mapping[str, Any]) -> str:
    """The hash of all that a result says but its own seal.

    Example:
        >>> seal_of({"rounds": 3}) == seal_of({"seal": "f00", "rounds": 3})
        True
    """
    return _hash_of({key: value for key, value in result.items() if key != "seal"})


def write_sealed(folder: Path, result: Mapping[str, Any]) -> None:
    """Write the result of a run whose other files are all written, with their hashes and a seal."""
    sealed = finite_json({**result, "sha256": file_hashes(folder)})
    write_json(folder / RESULT, {**sealed, "seal": seal_of(sealed)})


def seal_again(folder: Path) -> None:
    """Seal a finished run anew after a charge was added to it; a signature of before goes.

    Whoever changes a sealed run must first have found it unchanged.

    Args:
        folder: of the run.
    """
    result = read_json(folder / RESULT)
    write_sealed(folder, {k: v for k, v in result.items() if k not in ("sha256", "seal")})
    (folder / SIGNATURE).unlink(missing_ok=True)


def changes_since_sealed(folder: Path, result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Files that are not as they were when the run was finished, and what is wrong with each.

    Args:
        folder: of the run.
        result: content of its ``result.json``.
    """
    if "seal" not in result:
        return [(RESULT, "it has no seal, so whether files were changed cannot be known.")]
    seal, said, found = seal_of(result), str(result["seal"]), file_hashes(folder)
    changes = []
    if seal != said:
        words = f"it was changed after it was written: its seal is {seal[:16]}, written {said[:16]}"
        changes.append((RESULT, f"{words}."))
    written = result.get("sha256")
    hashes = dict(written) if isinstance(written, Mapping) else {}
    for name in sorted({*hashes, *found, *_ALWAYS}):
        now, then = found.get(name, "missing"), str(hashes.get(name, "nothing"))
        if now != then:
            changes.append((name, f"its SHA-256 is {now[:16]}, written {then[:16]}."))
    return changes


def sign_seal(folder: Path, public: str, sign: Callable[[bytes], str]) -> str:
    """Sign the seal of a finished run.

    Args:
        folder: of the run.
        public: the key, hexadecimal.
        sign: gives its signature, hexadecimal, of bytes.

    Returns:
        The seal.

    Raises:
        DataMissingError: the run has no result.
        VerificationError: a file is not as the result has it.
    """
    result = read_json(folder / RESULT)
    for name, words in changes_since_sealed(folder, result):
        raise VerificationError(f"{folder / name}: {words} Nothing was signed.")
    seal = seal_of(result)
    write_json(folder / SIGNATURE, _signature(seal, public, sign(_signed(seal))))
    return seal


def signer_of(folder: Path, result: Mapping[str, Any]) -> str:
    """The key by which the seal of a run is signed, hexadecimal; empty where there is no signature.

    Raises:
        FileFormatError: the signature cannot be read.
        VerificationError: it is not of this seal, or not by the key that it names.
    """
    if not (folder / SIGNATURE).exists():
        return ""
    said, seal = read_json(folder / SIGNATURE), seal_of(result)
    key, signature = str(said.get("key")), str(said.get("signature"))
    if said != _signature(seal, key, signature):
        raise VerificationError("it is not a signature of this result.")
    if not is_signed(key, signature, _signed(seal)):
        raise VerificationError(f"the key {key[:64]} has not signed this result.")
    return key


def _signature(seal: str, key: str, signature: str) -> dict[str, Any]:
    head = {"format": "dpcohort signature", "schema": 1}
    return {**head, "seal": seal, "key": key, "signature": signature}


def _signed(seal: str) -> bytes:
    return json.dumps(["dpcohort run 1", seal]).encode()


def _hash_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
