# SPDX-License-Identifier: Apache-2.0
"""The adaptive rules, one file each, named like the rule; adding a file adds a rule."""
