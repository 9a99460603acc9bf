# SPDX-License-Identifier: Apache-2.0
"""``dpcohort.deploy.flower`` under its former name, which the apps of federations import."""

from dpcohort.deploy import flower as _home

__path__ = _home.__path__
