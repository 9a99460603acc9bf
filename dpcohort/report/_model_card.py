# SPDX-License-Identifier: Apache-2.0
"""The card of a model: what it is, on whom it was trained, what each was promised, how good it is.

It says what the run's public record says, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from dpcohort._version import __version__
from dpcohort.data import TableColumns
from dpcohort.errors import InputError
from dpcohort.plain_text import counted, first_of, one_line
from dpcohort.runs import Run
from dpcohort.runs._coefficients import coefficients
from dpcohort.runs._folder import RECEIPTS
from dpcohort.runs._paid_evaluation import in_words
from dpcohort.runs._receipts import read_receipts

#: Of more clients only how many there are.
_MOST_CLIENTS = 1000
_USES = """```python
import numpy, onnxruntime
session = onnxruntime.InferenceSession("model.onnx")  # float32 columns, text for categories
rows = {"age": numpy.float32([[61]]), "sex": numpy.array([["female"]], object)}
probabilities, prediction = session.run(None, rows)

import skops.io
pipeline = skops.io.load("model.skops", trusted=["numpy.dtype"])  # predicts a pandas DataFrame

import torch
program = torch.export.load("model.pt2").module()
probabilities, prediction = program(torch.tensor([[61.0, 1.0]]))  # categories by their place
```"""


def model_card(run: Run) -> str:
    """The card of a finished run, in Markdown."""
    said = run.inputs.get("columns")
    columns = None if said is None else TableColumns(**said)
    task, plan = run.task, run.plan
    what = run.settings["data"]["name"] if columns is None else ", ".join(columns.targets)
    written = [] if run.path is None else read_receipts(run.path / RECEIPTS)
    told = [one for _, one in written] or run.receipts()
    classes = f" of {first_of([one_line(one) for one in task.names], 50)}" if task.names else ""
    lines = [
        f"# {one_line(what)}: model card",
        f"A {run.settings['model']['name']} model ({task.kind}{classes}), trained with "
        f"differential privacy by dpcohort {__version__} in {plan.training.rounds} rounds"
        f"{_NEWTON * bool(run.settings['model']['options'].get('second_moments'))}, plan "
        f"{plan.sha256[:16]}.",
        "## What it takes",
        "\n".join(_inputs(run, columns)),
        f"## On whom it was trained: {counted(len(plan.population), 'client')}",
        f"One unit of privacy is one {plan.contract.unit.name}. {told[0].stamp if told else ''}",
        "\n".join(
            [
                "| client | epsilon promised | epsilon spent at most | delta |",
                "|---|---|---|---|",
                *(
                    f"| {_cell(one.client)} | {_number(one.in_all().promised_epsilon)} | "
                    f"{_number(one.in_all().certified_epsilon)} | {_number(one.in_all().delta)} |"
                    for one in told[:_MOST_CLIENTS]
                ),
            ]
        ),
        "## How good it is",
        "\n".join(f"- {words}" for words in _judged(run)),
        *_coefficients(run),
        "## Limits",
        "\n".join(f"- {words}" for words in _limits(run, columns)),
        "## Use",
        _USES,
    ]
    return "\n\n".join(lines) + "\n"


_NEWTON = " of Newton steps, from noised second moments of rows"


def _cell(text: str) -> str:
    return one_line(text, 80).replace("|", "\\|")


def _number(value: float | None) -> str:
    return "public" if value is None else f"{value:.4g}"


def _inputs(run: Run, columns: TableColumns | None) -> Iterator[str]:
    if columns is None:
        yield f"Arrays of shape {tuple(run.settings['data']['input_shape'])}, before any scaling."
        return
    yield "| column | what it holds | a missing one counts as |"
    yield "|---|---|---|"
    for name in columns.features:
        if name in columns.categories:
            values = first_of(list(map(_cell, columns.words(name))), 50)
            yield f"| {_cell(name)} | one of {values}; all others alike | another value |"
            continue
        low, high = columns.bounds[name]
        what = "a date, in days since 1970-01-01" if columns.has_dates(name) else "a number"
        filling, is_told = columns.filled(name)
        more = ", and that it is missing is told" if is_told else ""
        yield f"| {_cell(name)} | {what} from {low} to {high} | {filling:g}{more} |"


def _judged(run: Run) -> Iterator[str]:
    found = run.judged
    if run.check is not None:
        yield f"{run.check.sentence}."
        both = found.get("metrics") or {}, found.get("trivial") or {}
        for name, value in both[0].items():
            if isinstance(value, int | float):
                constant = f"of the best constant {both[1][name]:.4g}"
                yield f"{name.replace('_', ' ')} {value:.4g}; {constant}."
    elif run.evaluation is not None:
        for name, text in in_words(run.evaluation["in_all"]).items():
            yield f"{name} {text}: noised, and paid for by the clients."
    else:
        yield "Nothing is told of test records: they are not public, and nobody paid for it."
    for words in found.get("warnings", ()):
        yield f"Warning: {words}"


def _coefficients(run: Run) -> Iterator[str]:
    """Those of a linear model, where it holds what their intervals need."""
    with suppress(InputError):
        found = coefficients(run)
        yield "## Coefficients, with 95 % intervals of sampling error and noise"
        lines = ["| column | coefficient | low | high |", "|---|---|---|---|"]
        for one in found.rows:
            numbers = " | ".join(f"{value:.4g}" for value in (one.estimate, one.low, one.high))
            lines.append(
                f"| {_cell(f'{one.of}: {one.name}' if one.of else one.name)} | {numbers} |"
            )
        yield "\n".join(lines)


def _limits(run: Run, columns: TableColumns | None) -> Iterator[str]:
    yield "It knows the clients above; of other places, times and people nothing is promised."
    yield "What is protected are records of the training. Predictions of a person are no secret."
    if columns is not None:
        yield "Numbers beyond the bounds above count as the bound."
    if run.task.is_uneven:
        shares = ", ".join(f"{one:.3g}" for one in run.task.class_shares)
        yield f"A class is predicted when it is likelier than usual ({shares})."
    if not run.is_private:
        yield "The training was a simulation: it protects nobody."
