# SPDX-License-Identifier: Apache-2.0
"""A real federation: each client's ledger and guard, and rounds over Flower."""
