# SPDX-License-Identifier: Apache-2.0
"""The commands that the laboratory adds to ``dpcohort``."""
