# SPDX-License-Identifier: Apache-2.0
"""Privacy statement of a receipt: the questions of NIST SP 800-226, each in a sentence or two.

Its sections and their titles are those of the publication. The letter prints them, and an entry of
the deployment registry is made of the same answers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context

from dpcohort.accounting._distributed import trust_in_words
from dpcohort.accounting._unit import unit_of
from dpcohort.deploy.ledger._receipt import LifetimeReceipt
from dpcohort.plain_text import counted
from dpcohort.runs import ClientReceipt, Receipt, Run
from dpcohort.runs._paid_evaluation import in_words
from dpcohort.runs._provenance import DROP_IN, TUNING_SOURCES
from dpcohort.runs._receipts import shown

#: How neighbouring data sets differ, of one unit.
_NEIGHBOURS = {
    "zero-out": "Neighbours differ in {} that is taken out; how many there are is public.",
    "replace-one": "Neighbours differ in {} that is exchanged for any other (bounded).",
}
_GUARDED = (
    "Local: the client's own guard adds the noise before anything leaves; the server and all other "
    "clients may do what they like."
)


def at_most(value: float | None) -> str:
    """A bound with five digits, never below what it bounds; a dash where there is none.

    Example:
        >>> at_most(1.498221), at_most(2.0), at_most(None)
        ('1.4983', '2', '-')
    """
    if value is None or not math.isfinite(value):
        return "-" if value is None else "unbounded"
    rounded = Context(prec=5, rounding=ROUND_CEILING).create_decimal(repr(value * (1 - 1e-12)))
    return f"{float(rounded):.5g}"


@dataclass(frozen=True)
class Statement(ABC):
    """Answers about one client's promise.

    Attributes:
        receipt: of a run, or of a client's own ledger.
    """

    receipt: ClientReceipt

    @property
    def sections(self) -> dict[str, dict[str, str]]:
        """Answers by question, by section of NIST SP 800-226."""
        return {
            "2. The guarantee": {
                "Privacy parameters": self.parameters,
                "Unit of privacy": self.unit,
            },
            "3. Algorithms": {
                "Mechanism": self.mechanism,
                "Sampling": self.sampling,
                "Composition, budget over time": self.composition,
                "Tuning": self.tuning,
                "Utility and bias": f"{self.utility} Noise weighs most on small groups: compare "
                "them before use.",
            },
            "4. Deployment": {
                "Query model": self.release,
                "Trust model": self.trust,
                "Randomness and side channels": self.randomness,
                "Access control": self.access,
                "Data collection exposure": self.exposure,
            },
        }

    @property
    def parameters(self) -> str:
        """Epsilon and delta, promised and spent."""
        receipt = self.receipt.in_all()
        return (
            f"ε = {shown(receipt.promised_epsilon)} at δ = {shown(receipt.delta)} promised"
            f"{self.scope}, ε = {at_most(receipt.certified_epsilon)} spent at most: (ε, δ)-DP "
            "(approximate)."
        )

    @property
    def unit(self) -> str:
        """What neighbouring data sets differ in."""
        words = _NEIGHBOURS.get(self.receipt.neighbours)
        differ = words.format(self.receipt.protects.one) if words else self.receipt.neighbours
        return f"{self.receipt.unit[:1].upper()}{self.receipt.unit[1:]}. {differ}"

    @property
    def scope(self) -> str:
        """Over what the promise is made, where that is more than a training."""
        return ""

    @property
    @abstractmethod
    def mechanism(self) -> str:
        """Clip and noise."""

    @property
    @abstractmethod
    def sampling(self) -> str:
        """How records come into a step."""

    @property
    @abstractmethod
    def composition(self) -> str:
        """How steps, runs and charges add up."""

    @property
    @abstractmethod
    def tuning(self) -> str:
        """Whether settings were chosen on private records."""

    @property
    @abstractmethod
    def utility(self) -> str:
        """What the model is worth."""

    @property
    @abstractmethod
    def release(self) -> str:
        """What is published, and how often."""

    @property
    @abstractmethod
    def trust(self) -> str:
        """Who has to be honest."""

    @property
    @abstractmethod
    def randomness(self) -> str:
        """Where the noise comes from."""

    @property
    @abstractmethod
    def access(self) -> str:
        """Who can read the records."""

    @property
    @abstractmethod
    def exposure(self) -> str:
        """What was collected, and what is public."""


@dataclass(frozen=True)
class RunStatement(Statement):
    """Answers about one training.

    Attributes:
        clip: C, the most that one unit adds to a step; not said where None.
        over_a_network: the client's own guard added the noise, not the operator's machine.
        judged: what is told of the model on test records; empty for nothing.
        summed: of what sums are released.
    """

    receipt: Receipt
    clip: float | None = None
    over_a_network: bool = False
    judged: str = ""
    summed: str = "gradients"

    @classmethod
    def of(cls, run: Run, receipt: Receipt) -> RunStatement:
        """The answers about a client of a run."""
        judged = "" if run.check is None else run.check.sentence
        if (paid := run.evaluation) is not None:
            [(metric, value), *_] = in_words(paid["in_all"]).items()
            tested = f"{paid['records']:,} test {unit_of(paid['unit']).several}"
            judged = f"{metric} {value}, on {tested}, noised and paid for"
        over_a_network = run.settings.get("engine") == "flower"
        moments = run.settings["model"]["options"].get("second_moments")
        summed = "gradients and second moments of rows, which share the limit," if moments else ""
        return cls(
            receipt, run.plan.training.clip, over_a_network, judged, summed or RunStatement.summed
        )

    @property
    def mechanism(self) -> str:
        """Clip and noise."""
        receipt, trust = self.receipt, self.receipt.trust
        if receipt.noise_multiplier is None:
            return "None: it was never drawn."
        length = "" if self.clip is None else f" (C = {shown(self.clip)})"
        of = ""
        if trust is not None:
            honest, share = trust["honest"], shown(trust["share"])
            of = f", from {counted(honest, 'share')} of it, its own of {share} C; its mean gradient"
            of += f" counts with the weight {shown(trust['weight'])}"
        return (
            f"DP-SGD: what one unit adds to a step's sum of {self.summed} is limited{length}, and "
            f"Gaussian noise of {shown(receipt.noise_multiplier)} times that limit is added in "
            f"every direction{of}."
        )

    @property
    def sampling(self) -> str:
        """How records come into a step."""
        receipt = self.receipt
        share = f"{100 * receipt.sampling_rate:.3g} % of all"
        return (
            f"{receipt.sampler.capitalize()} batches of about {receipt.batch_size} "
            f"{receipt.protects.several} ({share}); who is drawn into a batch is secret, when the "
            "client is drawn is not."
        )

    @property
    def composition(self) -> str:
        """How steps, runs and charges add up."""
        receipt = self.receipt
        steps = counted(receipt.spent_steps, "noisy step")
        also = f", with those of {counted(len(receipt.before), 'run')} before" * bool(
            receipt.before
        )
        paid = "; what was charged beside them is added" if receipt.charged is not None else ""
        return (
            f"{steps}{also} composed as one by a certified numerical accountant{paid}. It counts "
            "this training and what it goes on from; over time the client's own ledger counts."
        )

    @property
    def tuning(self) -> str:
        """Whether settings were chosen on private records."""
        if self.receipt.tuning is None:
            return "Nothing is recorded: choosing settings on these records would not be counted."
        told = TUNING_SOURCES[self.receipt.tuning["source"]]
        return f"On {told}."

    @property
    def utility(self) -> str:
        """What the model is worth."""
        return f"{self.judged[:1].upper()}{self.judged[1:]}." if self.judged else "Not told here."

    @property
    def release(self) -> str:
        """What is published, and how often."""
        if self.receipt.reports is not None:
            return "One model; cohorts were chosen on the way from charged reports."
        return "One model, by a plan that was fixed before; no queries are answered."

    @property
    def trust(self) -> str:
        """Who has to be honest."""
        if self.receipt.trust is not None:
            told = trust_in_words(self.receipt.trust)
            return f"{told[:1].upper()}{told[1:]}."
        if DROP_IN in self.receipt.stamp:
            return "The server, whose code clips and adds the noise on the client's machine."
        if self.over_a_network:
            return _GUARDED
        return "Central: the operator's machine had the records of all clients and added the noise."

    @property
    def randomness(self) -> str:
        """Where the noise comes from."""
        stamp = self.receipt.stamp
        return f"{stamp[:1].upper()}{stamp[1:]}"

    @property
    def access(self) -> str:
        """Who can read the records."""
        where = "the machine that trained"
        if self.over_a_network:
            where = "the client"
        return f"The records lie with {where}; who can read them there is outside of the promise."

    @property
    def exposure(self) -> str:
        """What was collected, and what is public."""
        where = "Records were brought together on one machine"
        if self.over_a_network:
            where = "No record left the client, and none was collected for this"
        return f"{where}. Public: sizes, budgets, who took part when, the plan and the model."


@dataclass(frozen=True)
class LedgerStatement(Statement):
    """Answers about everything in a client's own ledger."""

    receipt: LifetimeReceipt

    @property
    def scope(self) -> str:
        """Over what the promise is made."""
        return f" {self.receipt.period.scope}"

    mechanism = "Gaussian noise on clipped sums (DP-SGD), at least as much as the table says."
    sampling = "In every run the share of records that the table says."
    tuning = "Not known to a ledger. What tuning or estimates took has to be kept off its cap."
    utility = "Told by the report of each run."
    release = "Several trainings, each accepted by the client's owner; no queries are answered."
    access = "The records lie with the client; who can read them there is outside of the promise."
    exposure = (
        "No record left the client, and none was collected for this. Public: size, budget, when it "
        "took part, the models."
    )
    randomness = (
        "Of guards: rounded Gaussian noise on a lattice from a cryptographic stream keyed by the "
        "operating system. Of steps recorded afterwards: of whatever took them."
    )

    @property
    def composition(self) -> str:
        """How runs add up."""
        how = "All draws are composed as one"
        if self.receipt.across_runs == "summed":
            how = "The whole promise of every run that was begun is added up"
        ever = f" Ever: ε = {at_most(self.receipt.ever_epsilon)}." * self.receipt.period.is_timed
        return f"{how}; the ledger refuses what would exceed the cap{self.scope}.{ever}"

    @property
    def trust(self) -> str:
        """Who has to be honest."""
        if self.receipt.honest > 1:
            return (
                f"{_GUARDED} Runs with distributed noise count on up to {self.receipt.honest} "
                "honest members of a cohort, the client among them."
            )
        return _GUARDED


def statement(receipt: ClientReceipt) -> Statement:
    """The answers about a receipt, from it alone.

    Args:
        receipt: of a run or of a client's own ledger.

    Example:
        >>> receipt = Receipt(client="ward", neighbours="zero-out", promised_epsilon=1.0,
        ...                   delta=1e-5, certified_epsilon=0.9)
        >>> print(statement(receipt).parameters)
        ε = 1 at δ = 1e-05 promised, ε = 0.9 spent at most: (ε, δ)-DP (approximate).
    """
    if isinstance(receipt, LifetimeReceipt):
        return LedgerStatement(receipt)
    assert isinstance(receipt, Receipt)
    return RunStatement(receipt)
