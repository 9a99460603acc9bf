# SPDX-License-Identifier: Apache-2.0
"""The HTML report: one self-contained file with charts and tables."""
