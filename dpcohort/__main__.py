# SPDX-License-Identifier: Apache-2.0
"""``python -m dpcohort``."""

import sys

from dpcohort.cli import main

sys.exit(main())
