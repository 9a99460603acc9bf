# SPDX-License-Identifier: Apache-2.0
"""Configurations to start from: every key, why it is there, and a value that works.

Their text is in the folder ``examples``: a population of its own for most, and the settings that
all share, with four places in braces where they differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpcohort._validate import choice
from dpcohort.text_files import toml_text

_FOLDER = Path(__file__).parent / "examples"

_RATE = """\
sampling_rate = 0.1         # share of its records a client uses in a step
# batch_size = 128          # or the same expected batch for all (a client's own comes first)"""
_WHOLE = """\
sampling_rate = 1.0         # share of its records a client uses in a step: all of them
# batch_size = 128          # or the same expected batch for all (a client's own comes first)"""
_BATCH = """\
batch_size = 128            # expected batch (a client's own comes first)
# sampling_rate = 0.1       # or a share of each client's records"""

#: The title, how batches are given, and the trained parameters of each.
_EXAMPLES = {
    "digits": (
        "A first training: 20 clients with budgets of their own share the digits.",
        _RATE,
        "650             # trained parameters; softmax regression on 64 pixels",
    ),
    "hospitals": (
        "Sixty hospitals with budgets of their own, and one public data set.",
        _RATE,
        "26_010          # trained parameters; here the paper's MNIST network",
    ),
    "heart-disease": (
        "Four hospitals with budgets of their own, and their heart patients (embedded).",
        _RATE,
        "36              # trained parameters; softmax regression on 17 numbers",
    ),
    "paper-mnist": (
        "The population of the paper's MNIST experiments (arXiv 2602.22633).",
        _BATCH,
        "26_010          # trained parameters; here the paper's MNIST network",
    ),
    "paper-figure": (
        "The setting of the paper's figure of selection probabilities: r = 0.1 and its own noise.",
        _RATE,
        "26_010          # trained parameters; here the paper's MNIST network",
    ),
    "paper-cifar10": (
        "The population of the paper's CIFAR-10 experiments (arXiv 2602.22633).",
        _BATCH,
        "550_570         # trained parameters, e.g. of the CNN of Tramer and Boneh",
    ),
    "csv": (
        "Your own clients, from a CSV file.",
        _RATE,
        "26_010          # trained parameters of your model",
    ),
}

#: Names of the examples.
EXAMPLES = tuple(_EXAMPLES)


def commented_config(example: str = "hospitals") -> str:
    """A configuration with comments, as TOML text.

    Args:
        example: ``digits``, ``heart-disease``, ``hospitals``, ``paper-mnist``, ``paper-figure``,
            ``paper-cifar10`` or ``csv``.

    Example:
        >>> print(commented_config("csv").splitlines()[0])
        # Your own clients, from a CSV file.
    """
    title, batch, dimension = _EXAMPLES[choice("example", example, _EXAMPLES)]
    is_figure = example == "paper-figure"
    population = _text("population-paper-mnist" if is_figure else f"population-{example}")
    settings = _text("settings").format(
        batch=batch,
        dimension=f"dimension = {dimension}",
        accountant="paper" if is_figure else "tight",
        noise_model="paper" if is_figure else "exact",
    )
    following, execution = "dpcohort train FILE --out RUN", _text("execution")
    if example == "heart-disease":
        own = 'name = "heart-disease"      # embedded; its four hospitals are the clients\n\n'
        execution = f"[data]\n{own}{execution[execution.index('# [task]') :]}"
    elif example != "digits":  # the others come without data: it is commented out
        following = "dpcohort plan FILE"
        execution = "# To train as well, with data of as many records:\n" + "".join(
            line if not line.strip() or line.startswith("#") else f"# {line}"
            for line in execution.splitlines(keepends=True)
        )
    return f"# {title}\n# Next: {following}\n\n{population}\n{settings}\n{execution}"


_FILL = "FILL IN"


def table_config(
    *,
    table: str,
    label: str | Sequence[str],
    client: str,
    clients: str,
    kind: str,
    labels: Sequence[Any],
    features: Sequence[str],
    bounds: Mapping[str, Sequence[float]],
    categories: Mapping[str, Sequence[Any]],
    target_bounds: Sequence[float] = (),
    left_out: Sequence[str] = (),
    test_public: bool = False,
) -> str:
    """A configuration with comments for a table of one's own; empty lists are for people to fill.

    Args:
        table: path of the table, from the folder of the configuration.
        label: the column or columns to be predicted.
        client: the column that says whose record it is.
        clients: path of the list of clients.
        kind: of the task.
        labels: values of the label, for a task of classes.
        features: columns that a model sees.
        bounds: of each column of numbers.
        categories: the values of each column of text.
        target_bounds: of a number that is predicted.
        left_out: columns that are left out, which is said.
        test_public: whether results on the test records may be published.

    Example:
        >>> text = table_config(table="t.csv", label="sick", client="ward", clients="c.csv",
        ...     kind="classification", labels=[], features=["age"], bounds={"age": []},
        ...     categories={})
        >>> "age = []" in text
        True
    """
    data: dict[str, Any] = {
        "name": table,
        "label": label if isinstance(label, str) else list(label),
        **({"labels": list(labels)} if kind == "classification" else {}),
        "client": client,
        "features": list(features),
    }
    said = {
        "name": "the table; the path starts from the folder of this file",
        "label": "what is predicted",
        "labels": "its values, one class each" if labels else f"{_FILL}: its values, in any order",
        "client": "the column that says whose record it is",
        "features": "what the model sees",
    }
    lines = ["[data]", *_commented(data, said)]
    if left_out:
        lines.append(f"# left out, as free text: {', '.join(left_out)}")
    lines += [
        "test_share = 0.2            # of each client's records, held out by the seed",
        f"test_public = {str(test_public).lower():<14}# true: results on them may be published",
        'missing = "middle"          # of its bounds; or "indicator", or a number, or by column',
        "# seed = 1                  # which records are held out",
        '# estimated_bounds = "bounds.json"   # of dpcohort data bounds: noised, and paid for',
    ]
    about = "# The smallest and the largest number that each column can hold: they become -1 and 1,"
    origin = "From what is known, not from the data."
    if any(bounds.values()):
        origin = "Of the table, which is public: all but 1 % at each end."
    lines += ["", about, f"# what lies beyond is moved there. {origin}"]
    lines += ["[data.bounds]", *_open(bounds, "smallest and largest, such as [0, 110]")]
    about = "# The values that each column can have; all others share one column more."
    lines += ["", about, "[data.categories]", *_open(categories, 'such as ["no", "yes"]')]
    if kind != "classification":
        lines += ["", "[task]", f'kind = "{kind}"']
        if kind == "regression":
            words = "smallest and largest to be predicted"
            lines += _open({"bounds": target_bounds}, words)
    execution = _text("execution")
    settings = _text("settings").format(
        batch=_WHOLE,
        dimension="# dimension = 100           # trained parameters; counted if left out",
        accountant="tight",
        noise_model="exact",
    )
    population = "\n".join(
        [
            "[population]",
            "# id,epsilon,delta[,size][,batch_size][,public], a line for each client; sizes are",
            "# counted in the table, and checked where the list has them.",
            *_commented({"clients": clients}, {}),
            "allow_large_delta = false   # true accepts delta >= 1/size",
        ]
    )
    rest = execution[execution.index("[model]") :]
    title = f"# {', '.join([label] if isinstance(label, str) else label)} of {Path(table).name}"
    following = "# Next: dpcohort tune FILE -o TUNED, dpcohort train TUNED --out RUN"
    return "\n".join([title, following, "", population, "", settings, "", *lines, "", rest])


def _commented(values: Mapping[str, Any], said: Mapping[str, str]) -> list[str]:
    lines = toml_text({"": values}).splitlines()[1:]
    return [
        f"{line:<26}  # {said[key]}" if key in said else line
        for key, line in zip(values, lines, strict=True)
    ]


def _open(values: Mapping[str, Sequence[Any]], example: str) -> list[str]:
    """A line for each column; one that is empty says what to fill in."""
    return _commented(values, {key: f"{_FILL}: {example}" for key, v in values.items() if not v})


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")
