# SPDX-License-Identifier: Apache-2.0
"""The paper and the field: recipes, schemes, theorems, rules, personal models; on dpcohort."""

__version__ = "0.1.0"

#: What ``dpcohort --help`` says of each command, so that it need not be loaded.
COMMANDS = {
    "bound": "Show every term of Theorems 1 and 2, the best T, and when a bound says nothing.",
    "compare-rules": "Compare selection and aggregation rules in pairs, over the same seeds.",
    "figure": "Draw a figure of runs, plans or results, one style for all, text kept as text.",
    "personal": "Make each client's own model of a run's common one; say how good it is.",
    "reproduce": "Train every cell of a table or figure, and set it beside the paper's numbers.",
    "schemes": "List privacy schemes with their units, or train them on the same data and budgets.",
    "search": "Try every setting of a grid on a validation split of the training records.",
}

__all__ = ["COMMANDS"]
