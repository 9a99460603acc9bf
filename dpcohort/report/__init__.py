# SPDX-License-Identifier: Apache-2.0
"""What people read: tables for the terminal, figures for papers."""
