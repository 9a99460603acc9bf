# SPDX-License-Identifier: Apache-2.0
"""Parts of a plan: participation, noise, past and certificate, and the file that holds them."""
