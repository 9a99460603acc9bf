# SPDX-License-Identifier: Apache-2.0
"""Configurations to start from: every key, why it is there, and a value that works."""

from __future__ import annotations

from dataclasses import dataclass

from dpcohort._validate import choice

__all__ = ["EXAMPLES", "commented_config"]


@dataclass(frozen=True)
class _Example:
    """What differs between the examples."""

    title: str
    population: str
    batch: str
    dimension: str
    accountant: str = "tight"
    noise_model: str = "exact"
    has_data: bool = False


_HOSPITALS = """\
[population]
# Sixty hospitals are drawn here. To use your own list instead: clients = "clients.csv", with the
# columns id,size,epsilon,delta[,batch_size][,public]; then leave the other keys out.
count = 60
total_size = 60_000         # records of all of them together, shared out by the weights in size
size = "paper"              # weights U(0.5, 1.5); or a table like epsilon's, or one number for all
delta = 1e-5                # well below 1/size, or whole records may leak
seed = 1                    # the same seed draws the same clients
allow_large_delta = false   # true accepts delta >= 1/size

# Four in ten hospitals are strict (about 0.5), the others less so (about 4). Other tables:
#   { distribution = "uniform", low = 0, high = 1, minimum = 0.05 }
#   { distribution = "choices", values = [0.5, 2, 8], weights = [1, 2, 1] }
#   { distribution = "fixed", value = 1 }
# or the paper's own: "uniform-0-1", "mixture-0.5-10", "mixture-2-8" (variance 0.04; add -std to
# read 0.04 as a standard deviation).
[population.epsilon]
distribution = "gaussian-mixture"
minimum = 0.1               # draws below it are discarded and drawn again
components = [
  { weight = 0.4, mean = 0.5, std = 0.2 },
  { weight = 0.6, mean = 4, std = 1 },
]

# Data that needs no privacy: a kind of its own, not a huge epsilon. One table for each group.
[[population.public]]
count = 1
size = 500
"""

_PAPER_MNIST = """\
[population]
# The paper's MNIST clients. (Your own list instead: clients = "clients.csv", and nothing else.)
count = 100
total_size = 60_000         # |M_k| = |S| v_k / sum(v), summing to exactly this
size = "paper"              # v_k from U(0.5, 1.5)
epsilon = "uniform-0-1"     # some draws are so near 0 that the client is useless; a table
#                             { distribution = "uniform", low = 0, high = 1, minimum = 0.05 }
#                             discards them
delta = 1e-5
seed = 1
allow_large_delta = false   # true accepts delta >= 1/size

# Public clients, if there are any:
# [[population.public]]
# count = 1
# size = 500
"""

_PAPER_CIFAR = """\
[population]
# The paper's CIFAR-10 clients. (Your own list instead: clients = "clients.csv", and nothing else.)
count = 100
total_size = 50_000         # |M_k| = |S| v_k / sum(v), summing to exactly this
size = "paper"              # v_k from U(0.5, 1.5)
# 0.3 N(0.5, 0.04) + 0.7 N(10, 1), negative draws discarded; 0.04 read as the variance. Also:
# "mixture-2-8", and with -std at the end 0.04 as the standard deviation.
epsilon = "mixture-0.5-10"
delta = 1e-5
seed = 1
allow_large_delta = false   # true accepts delta >= 1/size

# Public clients, if there are any:
# [[population.public]]
# count = 1
# size = 500
"""

_CSV = """\
[population]
# id,size,epsilon,delta[,batch_size][,public]; the path starts from the folder of this file.
clients = "clients.csv"
allow_large_delta = false   # true accepts delta >= 1/size

# Without a list, clients can be drawn:
# count = 60
# total_size = 60_000       # records of all of them together
# size = "paper"            # shared out by weights from U(0.5, 1.5)
# epsilon = "mixture-0.5-10"
# delta = 1e-5
# seed = 1
# [[population.public]]     # and some whose data needs no privacy
# count = 1
# size = 500
"""

_DIGITS = """\
[population]
# Twenty clients share the training records of the digits. (Your own list instead:
# clients = "clients.csv", and nothing else.)
count = 20
total_size = 1_442          # all of them; may be left out where there is [data]
size = "paper"              # shared out by weights from U(0.5, 1.5)
delta = 1e-5                # well below 1/size, or whole records may leak
seed = 1                    # the same seed draws the same clients
allow_large_delta = false   # true accepts delta >= 1/size

# Four in ten clients are strict (about 0.5), the others less so (about 4).
[population.epsilon]
distribution = "gaussian-mixture"
minimum = 0.1               # draws below it are discarded and drawn again
components = [
  { weight = 0.4, mean = 0.5, std = 0.2 },
  { weight = 0.6, mean = 4, std = 1 },
]

# Public clients, if there are any:
# [[population.public]]
# count = 1
# size = 100
"""

#: How a plan is executed; only the digits come with data, for the others it is commented out.
_EXECUTION = """
[data]
name = "digits"             # embedded; or "mnist", "fashion-mnist", "cifar10", an .npz file
# dir = "data"              # where to look for it first
partition = "paper"         # "similarity" % of a client's records are IID, the rest label-sorted
similarity = 100.0
# alpha = 0.3               # for partition = "dirichlet": small means few labels a client
# column = "hospital.npy"   # for partition = "column": each record's client
public_share = 0.0          # share of the records that a public client holds, without noise
# seed = 1                  # of the partition; without it, the run's

[model]
name = "logistic"           # or "mlp", "mnist-cnn", "cifar-cnn", or your own module:function
# options = { activation = "tanh" }   # of the model

[optimiser]
step = "constant"           # or "inverse-time" (beta, gamma), "inverse-root" (gradient_bound)
learning_rate = 1.0         # of the local steps
# beta = 2.0
# gamma = 10.0
# gradient_bound = 1.0
server_learning_rate = 1.0
server_momentum = 0.0
average_decay = 0.8         # average of iterates; costs no privacy

[run]
seed = 0                    # of model, partition, batches and noise: a seeded run is NOT PRIVATE
engine = "batched"          # or "reference": Algorithm 1 line by line, slow
device = "auto"             # "cpu" or "cuda"
evaluate_every = 5          # rounds between looks at the public test set
checkpoint_every = 10       # rounds between checkpoints
merged_noise = false        # true: one noise vector a round, same law, faster; not for deployment

# For dpcohort compare: every combination, with the same seeds.
[grid]
selection = { rule = ["unbiased", "privacy-aware"] }
"""


def _commented_out(text: str) -> str:
    """The lines as comments; empty ones and comments stay as they are."""
    return "".join(
        line if not line.strip() or line.startswith("#") else f"# {line}"
        for line in text.splitlines(keepends=True)
    )


_SETTINGS = """
[training]
rounds = 100                # global rounds
cohort_size = 10            # draws in each round, with replacement
local_steps = 1             # noisy steps of each draw
{batch}
oversized_batch = "error"   # or "whole": a client smaller than the batch uses all its records
clip = 1.0                  # norm to which each record's gradient is clipped
{dimension}
smoothness = 1.0            # L; only eta = "auto" and the bounds use it

[selection]
# Who is drawn how often: "privacy-aware", "unbiased" (by size alone), "uniform", "threshold", ...
# dpcohort rules lists them all, also those that choose each cohort during the training from noised
# and charged reports, such as "power-of-choice"; your own as "module:Class".
rule = "privacy-aware"
eta = "auto"                # weight of the noise against the bias: a number, or 2 L sqrt(T)
# bias_cap = 0.5            # instead of eta: how far from unbiased the probabilities may go
# floor = 0.1               # everyone keeps at least this share of the unbiased probability
# cap = 0.1                 # nobody is drawn with a higher probability than this
# threshold = 0.5           # only for "threshold": clients with a smaller epsilon are left out
# public_epsilon = 10       # only for "epsilon-proportional": what public clients count as
# bounds = [1.0, 2.0]       # only for "gradient-bound": a public bound for each client
noise_model = "{noise_model}"       # "exact": the noise a schedule really adds; "paper": sum p^2 V

[aggregation]
# How a round's noisy updates become one; costs no privacy. "mean" is the paper's; "trimmed-mean",
# "inverse-variance", ...: see dpcohort rules. Settings of the rule stand below it.
rule = "mean"

[privacy]
accountant = "{accountant}"        # "tight": the least noise that can be proved; "paper": its own
# Unless given, the next two are the accountant's own; for "paper": "fixed" and "replace-one".
# sampler = "poisson"       # how batches are drawn; "fixed" is without replacement
# neighbours = "zero-out"   # what counts as a change of one record
guard = "refuse"            # paper noise that does not certify; "lift" raises it to the tight one

[schedule]
draws = "systematic"        # each client as often as expected, within one; or "independent"
seed = 1                    # the same seed draws the same cohorts; without it, a new one
"""

_MNIST_DIMENSION = (
    "dimension = 26_010          # trained parameters; here the paper's MNIST network"
)
_NO_BATCH = """\
sampling_rate = 0.1         # share of its records a client uses in a step
# batch_size = 128          # or the same expected batch for all (a client's own comes first)"""
_BATCH_128 = """\
batch_size = 128            # expected batch (a client's own comes first)
# sampling_rate = 0.1       # or a share of each client's records"""

_EXAMPLES = {
    "digits": _Example(
        "A first training: 20 clients with budgets of their own share the digits.",
        _DIGITS,
        _NO_BATCH,
        "dimension = 650             # trained parameters; softmax regression on 64 pixels",
        has_data=True,
    ),
    "hospitals": _Example(
        "Sixty hospitals with budgets of their own, and one public data set.",
        _HOSPITALS,
        _NO_BATCH,
        _MNIST_DIMENSION,
    ),
    "paper-mnist": _Example(
        "The population of the paper's MNIST experiments (arXiv 2602.22633).",
        _PAPER_MNIST,
        _BATCH_128,
        _MNIST_DIMENSION,
    ),
    "paper-figure": _Example(
        "The setting of the paper's figure of selection probabilities: r = 0.1 and its own noise.",
        _PAPER_MNIST,
        _NO_BATCH,
        _MNIST_DIMENSION,
        accountant="paper",
        noise_model="paper",
    ),
    "paper-cifar10": _Example(
        "The population of the paper's CIFAR-10 experiments (arXiv 2602.22633).",
        _PAPER_CIFAR,
        _BATCH_128,
        "dimension = 550_570         # trained parameters, e.g. of the CNN of Tramer and Boneh",
    ),
    "csv": _Example(
        "Your own clients, from a CSV file.",
        _CSV,
        _NO_BATCH,
        "dimension = 26_010          # trained parameters of your model",
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
    chosen = _EXAMPLES[choice("example", example, _EXAMPLES)]
    settings = _SETTINGS.format(
        batch=chosen.batch,
        dimension=chosen.dimension,
        accountant=chosen.accountant,
        noise_model=chosen.noise_model,
    )
    if chosen.has_data:
        following, execution = "dpcohort train FILE --out RUN", _EXECUTION
    else:
        following = "dpcohort plan FILE"
        execution = "\n# To train as well, with data of as many records:" + _commented_out(
            _EXECUTION
        )
    return f"# {chosen.title}\n# Next: {following}\n\n{chosen.population}{settings}{execution}"
