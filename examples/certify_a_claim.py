# SPDX-License-Identifier: Apache-2.0
"""Someone claims an epsilon: is it kept, and how much noise did it waste?"""

from dpcohort import calibrate_noise, certify_epsilon
from dpcohort.accounting import paper_noise_multiplier

setting = {"delta": 1e-5, "sampling_rate": 0.256, "steps": 50}
print("claimed   noise z of the paper   certified   noise z needed   variance wasted")
for claimed in (0.1, 0.5, 1.0, 10.0):
    z = paper_noise_multiplier(epsilon=claimed, **setting)
    spent = certify_epsilon(noise_multiplier=z, **setting)
    needed = calibrate_noise(epsilon=claimed, **setting)
    print(f"{claimed:7g} {z:22.2f} {spent:11.3f} {needed:16.3f} {(z / needed) ** 2:16.1f}x")
