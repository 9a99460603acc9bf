# SPDX-License-Identifier: Apache-2.0
"""The adaptive rules, one file each; `dpcohort.plugins` has their names."""
