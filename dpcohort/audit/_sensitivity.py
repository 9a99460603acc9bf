# SPDX-License-Identifier: Apache-2.0
"""Tests B, J and M: how far one record can move an update, whatever it and the model hold.

**B, sensitivity.** Two neighbouring data sets, the same noise: what is left is what one record did,
and the bound is certain: C / B if a record is replaced by nothing, 2 C / B if by another. Where a
seed repeats the noise it cancels exactly, no chance is involved, and so no false alarm. Elsewhere
the noise is made small (z = 2^-16), all records take part in every step, and the bound is raised
by what noise of that size can add. Records are large and small, just above C, not finite, so large
or so small that their square is out of range; persons have rows that cancel, or one that is not
finite; and models are hostile, where the training lets one choose them.

**J, erasure.** A membership attack: many records that agree, and one that may be able to take them
all out of the sum, because its gradient is not finite or its pass overflows. At ε = 1 an attacker
is right in e / (1 + e) = 73.1 % of cases at most.

**M, isolation.** Models and losses in which one record reaches another, one after the other: what
is released of several batches with a record and without it, the same noise in both. The bound is C
in each batch; a model may also be refused, whatever the records are. Sums are released as numbers
of 32 bits, and the bound is raised by how those round.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, get_args

import numpy as np
from scipy import stats

from dpcohort._validate import FloatArray, IntArray
from dpcohort.accounting import calibrate_noise
from dpcohort.audit._adversarial_models import CLASSES, WIDTH, Adversary, forget
from dpcohort.audit._claims import (
    Claim,
    Finding,
    PrivateTraining,
    Unequal,
    repeats,
    updates_of,
)
from dpcohort.errors import DpcohortError

_RECORDS, _BATCH, _DIMENSION, _ROUNDS = 16, 4, 64, 60
_CANARIES = (1e3, 1 + 1e-7, 0.3)  # in units of C
_BACKGROUNDS = (0.0, 1e4)
_TOLERANCE = 1e-5
_SMALL_NOISE = 2.0**-16
_SMALL_CLIPS = (1e-7, 1e-25)  # squares of what is to be clipped then leave the 32-bit floats

_LAST_PLACE = float(np.finfo(np.float32).eps)

_EPSILON, _DELTA = 1.0, 1e-5
_AGREEMENT = 7.0  # what the other records add up to, in standard deviations of the noise


def _breaking(row: FloatArray) -> dict[str, FloatArray]:
    """Records that arithmetic may break on, made of a row of length C."""
    second = np.arange(row.size) == 1
    return {
        "not a number": np.full_like(row, np.nan),
        "one coordinate not a number": np.where(second, np.nan, row),
        "infinite": np.where(second, np.inf, row),
        "as large as a 32-bit float": np.sign(row) * 3.4e38,
        "as large as a 64-bit float": np.sign(row) * 1e308,
        "with a square below all floats": row * 1e-30,
        "below all normal floats": np.sign(row) * 1e-40,
    }


def _most_breaking(row: FloatArray) -> dict[str, FloatArray]:
    """Those that hostile models meet."""
    every = _breaking(row)
    return {kind: every[kind] for kind in ("not a number", "as large as a 32-bit float")}


def sensitivity(
    training: PrivateTraining, claim: Claim, *, seed: int = 0, false_alarm_rate: float = 1e-7
) -> Finding:
    """Test the influence of one record, over sizes of the record, its company and models.

    Args:
        training: what to test.
        claim: what it claims; where a seed does not repeat, z is made small meanwhile.
        seed: seed for the training.
        false_alarm_rate: of a training whose seed does not repeat; otherwise there is none.
    """
    repeatable = repeats(training, claim, seed)
    slack = 0.0
    if not repeatable:
        claim = replace(claim, noise_multiplier=_SMALL_NOISE)
        slack = _noise_slack(false_alarm_rate)
    worst, where, moved = 0.0, "", False
    for ratio, what, ordinary in _influences(training, claim, seed, repeatable=repeatable):
        moved = moved or (ordinary and ratio > 2 * slack)
        if ratio > worst:
            worst, where = ratio, what
    detail = f"{claim.unit} moved an update by up to {worst:.6f} of the bound ({where})"
    if not moved:
        detail += "; it never took part, so nothing was tested"
    return Finding(
        test="B sensitivity",
        passed=bool(moved and worst <= 1 + _TOLERANCE + slack),
        detail=detail,
        false_alarm_rate=0.0 if repeatable else false_alarm_rate,
        measured={"influence": worst, "bound": 1 + _TOLERANCE + slack},
    )


def erasure(
    training: PrivateTraining,
    claim: Claim,
    *,
    seed: int = 0,
    trials: int = 36,
    false_alarm_rate: float = 1e-7,
) -> Finding:
    """Attack the membership of a record that may erase its batch, at epsilon = 1.

    Args:
        training: what to test, also of the hostile models that it offers.
        claim: what it claims; the noise multiplier is set to the one of epsilon = 1.
        seed: seed for the training.
        trials: updates of each of the two worlds, for each attack.
        false_alarm_rate: probability that a correct training fails.
    """
    z = calibrate_noise(
        epsilon=_EPSILON, delta=_DELTA, sampling_rate=1.0, steps=1, sampler=claim.sampler
    )
    claim = replace(claim, noise_multiplier=z)
    most = (math.exp(_EPSILON) + _DELTA) / (1 + math.exp(_EPSILON))
    attacks = list(_attacks(training, claim))
    pilots = [
        _says_in(model, claim, record, [seed, 1, place], max(4, trials // 10))
        for place, (_, model, record) in enumerate(attacks)
    ]
    # The attack that looks best is tried on fresh updates, so that the choice costs nothing.
    where, model, record = attacks[int(np.argmax(pilots))]
    hits = _says_in(model, claim, record, [seed, 2], trials)
    nearly_none = 1e-12 * claim.clip * _agreed()  # zeros may be hostile themselves
    false_alarms = _says_in(model, claim, nearly_none, [seed, 3], trials)
    right = hits + trials - false_alarms
    p_value = float(stats.binom.sf(right - 1, 2 * trials, most))
    accuracy, sd = right / (2 * trials), math.sqrt(most * (1 - most) / (2 * trials))
    return Finding(
        test="J erasure",
        passed=p_value >= false_alarm_rate,
        detail=f"the best of {len(attacks)} attacks is right in {accuracy:.1%} ({where}; "
        f"epsilon = 1 allows {most:.1%}, + 3 sd = {most + 3 * sd:.1%})",
        false_alarm_rate=false_alarm_rate,
        measured={"accuracy": accuracy, "allowed": most, "standard deviation": sd},
    )


#: Builds a training of a model or loss on inputs [records, WIDTH] and classes [records], or of
#: persons [persons, rows, WIDTH] and [persons, rows]. It gives what is released of batches,
#: [batches, D], in units of C and always with the same noise; each of its calls begins with the
#: state that building it left.
Released = Callable[[Adversary, FloatArray, IntArray], Callable[[Sequence[IntArray]], FloatArray]]
Verdict = Literal["held", "refused", "BROKEN", "out of reach"]


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """What became of one model or loss in which a record reaches others.

    Attributes:
        name: of the model or loss.
        verdict: ``held`` (no batch moved by more than C), ``refused`` (with a message, whatever
            the records are), ``BROKEN``, or ``out of reach`` (moved, but nothing is promised).
        moved: how far a batch moved at most, in units of C; infinite if one record decides
            whether there is an answer.
        detail: the message, or in which trial it moved most.

    Example:
        >>> print(Isolation(name="Centred", verdict="BROKEN", moved=3.2, detail=""))
        BROKEN (3.2 C)
    """

    name: str
    verdict: Verdict
    moved: float
    detail: str

    def __str__(self) -> str:
        shown = "" if self.verdict == "refused" else f" ({self.moved:.2g} C)"
        return f"{self.verdict}{shown}"


def isolation(
    released: Released,
    adversaries: Iterable[Adversary],
    *,
    rows: int = 1,
    full: bool = False,
    on_case: Callable[[Isolation], None] | None = None,
) -> list[Isolation]:
    """Train models and losses in which one record reaches another, with a record and without it.

    Where rows are more than 1, the same with a person of that many rows.

    Args:
        released: the training under test.
        adversaries: models and losses.
        rows: of each person; 1 where the unit is the record.
        full: many numbers of records, kinds of records and places, instead of the one trial in
            which the model or loss shows best what it does.
        on_case: called with each outcome as soon as it is there.

    Example:
        >>> from dpcohort.audit import ModelsUnderTest
        >>> from dpcohort.audit._adversarial_models import MODELS
        >>> [outcome] = isolation(ModelsUnderTest("guard"), [MODELS["Centred"]])
        >>> outcome.verdict
        'held'
    """
    outcomes = []
    for one in adversaries:
        tried = _tried(released, one, list(_trials(one, full=full)), rows)
        moved, detail = max(tried)
        verdict: Verdict = "held" if moved <= 1 else "BROKEN" if one.reachable else "out of reach"
        if moved < 0:
            verdict = "refused"
        outcomes.append(
            Isolation(name=one.name, verdict=verdict, moved=max(moved, 0), detail=detail)
        )
        if on_case is not None:
            on_case(outcomes[-1])
    return outcomes


@dataclass(frozen=True)
class _Trial:
    """So many records, one of them of a kind, at a place."""

    records: int
    value: str
    place: int
    seed: int


def _trials(one: Adversary, *, full: bool) -> Iterator[_Trial]:
    yield _Trial(one.records, one.value, 0, one.seed)
    if full:
        yield _Trial(one.records, one.value, 0, one.seed + 1)
        sizes = sorted({one.records, 2, 3, 5, 8, 33})
        for records, value in product(sizes, ("ordinary", "large", "nan")):
            yield _Trial(records, value, 0, 2)
            yield _Trial(records, value, records // 2, 3)


_REFUSED = -1.0


def _tried(
    released: Released, one: Adversary, trials: Sequence[_Trial], rows: int
) -> list[tuple[float, str]]:
    """By how many C a batch moved in each trial, or that the model is refused; and a remark."""
    parts = [_made_up_records(trial, rows) for trial in trials]
    # One more that is never drawn: batches are then no larger than half of all records.
    inputs, labels = (np.concatenate([*some, some[0][:1]]) for some in zip(*parts, strict=True))
    forget()
    try:
        with _quiet():
            run = released(one, inputs, labels)
    except DpcohortError as error:
        return [(_REFUSED, str(error))]
    except (Exception, SystemExit) as error:  # models may do as they like
        return [(math.inf, f"it always fails: {type(error).__name__}: {error}")]
    moves, start = [], 0
    for trial, (own, _) in zip(trials, parts, strict=True):
        every = np.arange(start, start + len(own))
        worlds = [[batch] * one.draws for batch in (every, np.delete(every, trial.place))]
        moves.append(_moved(run, worlds, trial))
        start += len(own)
    forget()
    return moves


def _moved(
    run: Callable[[Sequence[IntArray]], FloatArray], worlds: list[list[IntArray]], trial: _Trial
) -> tuple[float, str]:
    kind = {"nan": "not a number"}.get(trial.value, trial.value)
    what = f"{trial.records} records, number {trial.place} {kind}"
    seen: list[FloatArray | BaseException] = []
    for batches in worlds:
        try:
            with _quiet():
                seen.append(run(batches))
        except (Exception, SystemExit) as problem:
            seen.append(problem)
    with_it, without = seen
    if isinstance(with_it, BaseException) or isinstance(without, BaseException):
        error = next(world for world in seen if isinstance(world, BaseException))
        alike = type(with_it) is type(without)
        if alike and isinstance(error, DpcohortError):
            return _REFUSED, str(error)
        when = "always" if alike else "if one record is there, or not"
        return math.inf, f"{what}: {type(error).__name__}: {error}, {when}"
    # Numbers of 32 bits are off by half a unit of their last place.
    largest = max(float(np.abs(world).max(initial=0)) for world in (with_it, without))
    rounding = largest * _LAST_PLACE * math.sqrt(with_it.shape[1])
    return _gap(with_it, without) / (1 + _TOLERANCE + rounding), what


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of models and numbers that are given on purpose."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _made_up_records(trial: _Trial, rows: int) -> tuple[FloatArray, IntArray]:
    """Records that are much alike, so that what moves one moves all, and a unit that differs."""
    rng = np.random.default_rng(trial.seed)
    centre, size = rng.standard_normal(WIDTH), (trial.records, rows, WIDTH)
    inputs = (centre + 0.5 * rng.standard_normal(size)).clip(-3, 3)
    labels = np.full(size[:2], CLASSES - 1)
    labels[trial.place] = 1
    if trial.value == "large":
        inputs[trial.place] *= 1000
        inputs[trial.place, :, 0] = np.abs(inputs[trial.place, :, 0])
    if trial.value == "nan":
        inputs[trial.place] = np.nan
    return (inputs[:, 0], labels[:, 0]) if rows == 1 else (inputs, labels)


def _influences(
    training: PrivateTraining, claim: Claim, seed: int, *, repeatable: bool
) -> Iterator[tuple[float, str, bool]]:
    """How far a record moved an update, in units of the bound; what; whether it must have moved."""
    rng = np.random.default_rng(seed)
    for size, background in product(_CANARIES, _BACKGROUNDS):
        company = rng.standard_normal((_RECORDS, _DIMENSION)) * background * claim.clip
        row = _direction(rng) * size * claim.clip
        batch, rounds = (_BATCH, _ROUNDS) if repeatable else (_RECORDS, 1)
        case = f"{size:g} C, the others {background:g} C"
        with_row, without, opposite = (
            _updates(training, claim, company, record, seed, batch, rounds)
            for record in (row, np.zeros(_DIMENSION), -row)
        )
        yield _gap(with_row, without) * batch / claim.clip, case, True
        yield _gap(with_row, opposite) * batch / (2 * claim.clip), f"{case}, turned around", True
    cases = [("", training, clip) for clip in (claim.clip, *_SMALL_CLIPS)]
    cases += [
        (f", {name}", model, clip)
        for name, model in getattr(training, "hostile", {}).items()
        for clip in (claim.clip, _SMALL_CLIPS[0])
    ]
    for name, model, clip in cases:
        tight = replace(claim, clip=clip)
        company = np.stack([_direction(rng) for _ in range(_BATCH)]) * clip
        row = _direction(rng) * clip
        without = _updates(model, tight, company, np.zeros(_DIMENSION), seed, _BATCH, 1)
        kinds = _breaking(row) if not name else _most_breaking(row)
        for kind, record in (kinds | {"1000 C": 1e3 * row}).items():
            with_row = _updates(model, tight, company, record, seed, _BATCH, 1)
            yield _gap(with_row, without) * _BATCH / clip, f"{kind}, C = {clip:g}{name}", False
    company = np.stack([_direction(rng) for _ in range(_BATCH)]) * claim.clip
    sizes = {"": 1e3, **dict.fromkeys(get_args(Unequal)[1:], 0.3)}
    ways = getattr(training, "person_rows", [claim.person_rows]) if claim.rows > 1 else ()
    for way, (unequal, size) in product(ways, sizes.items()):
        row = _direction(rng) * size * claim.clip
        with_row, without = (
            _updates(training, each, company, record, seed, _BATCH, 1)
            for each, record in (
                (replace(claim, person_rows=way, unequal=unequal), row),
                (replace(claim, person_rows=way), np.zeros(_DIMENSION)),
            )
        )
        what = f"{size:g} C, the {way} of rows {unequal}".rstrip()
        yield _gap(with_row, without) * _BATCH / claim.clip, what, False


def _attacks(
    training: PrivateTraining, claim: Claim
) -> Iterator[tuple[str, PrivateTraining, FloatArray]]:
    """What each attack is, the training it is on, and its hostile record."""
    row = _agreed() * claim.clip
    for kind, record in _breaking(row).items():
        yield kind, training, record
    for name, model in getattr(training, "hostile", {}).items():
        for kind, record in _most_breaking(row).items():
            yield f"{kind}, {name}", model, record


def _agreed() -> FloatArray:
    """The direction in which all other records pull."""
    direction = np.zeros(16)
    direction[[0, -1]] = math.sqrt(0.5)
    return direction


def _says_in(
    training: PrivateTraining, claim: Claim, record: FloatArray, seed: list[int], trials: int
) -> int:
    """How often the attacker says that the hostile record is there: the others' sum is amiss."""
    others = math.ceil(_AGREEMENT * claim.noise_multiplier)
    company = np.tile(_agreed() * claim.clip, (others + 1, 1))
    number = int(np.random.SeedSequence(seed).generate_state(1)[0])
    updates = _updates(training, claim, company, record, number, others + 1, trials)
    seen = updates.astype(np.float64) @ _agreed() * (others + 1) / claim.clip
    return int(np.count_nonzero(~(np.abs(seen - others) <= others / 2)))


def _direction(rng: np.random.Generator) -> FloatArray:
    row = rng.standard_normal(_DIMENSION)
    return np.asarray(row / np.linalg.norm(row), dtype=np.float64)


def _updates(
    training: PrivateTraining,
    claim: Claim,
    company: FloatArray,
    record: FloatArray,
    seed: int,
    batch: int,
    rounds: int,
) -> FloatArray:
    gradients = company.copy()
    gradients[0] = record
    with np.errstate(all="ignore"):  # numbers that are none are given on purpose
        return updates_of(training, gradients, claim, batch_size=batch, seed=seed, rounds=rounds)


def _gap(one: FloatArray, other: FloatArray) -> float:
    """Largest distance of two updates; what is not a number in one of them only is not bounded."""
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.where(same, 0.0, one.astype(np.float64) - other.astype(np.float64))
        gap = float(np.linalg.norm(difference, axis=-1).max())
    return gap if math.isfinite(gap) else math.inf


def _noise_slack(level: float) -> float:
    """What noise of both worlds adds to a gap in units of C, with all but this probability.

    The length of D normal numbers exceeds sqrt(D) + sqrt(2 ln(1/p)) with probability below p.
    """
    gaps = 1000  # more than are looked at
    length = math.sqrt(_DIMENSION) + math.sqrt(2 * math.log(gaps / level))
    return math.sqrt(2) * _SMALL_NOISE * length
