# SPDX-License-Identifier: Apache-2.0
"""The paper and the field: recipes, schemes, theorems, and rules compared; stands on the core."""
