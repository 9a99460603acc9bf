# SPDX-License-Identifier: Apache-2.0
"""Configurations to start from: every key, why it is there, and a value that works.

Their text is in the folder ``examples``: a population of its own for most, and the settings that
all share, with four places in braces where they differ.
"""

from __future__ import annotations

from pathlib import Path

from dpcohort._validate import choice

_FOLDER = Path(__file__).parent / "examples"

_RATE = """\
sampling_rate = 0.1         # share of its records a client uses in a step
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
        example: ``digits``, ``hospitals``, ``paper-mnist``, ``paper-figure``, ``paper-cifar10`` or
            ``csv``.

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
    if example != "digits":  # only the digits come with data, for the others it is commented out
        following = "dpcohort plan FILE"
        execution = "# To train as well, with data of as many records:\n" + "".join(
            line if not line.strip() or line.startswith("#") else f"# {line}"
            for line in execution.splitlines(keepends=True)
        )
    return f"# {title}\n# Next: {following}\n\n{population}\n{settings}\n{execution}"


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")
