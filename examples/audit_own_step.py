# SPDX-License-Identifier: Apache-2.0
"""A noisy step of your own, and what a look from outside finds in it.

The same from a terminal, in this folder:

    dpcohort audit --step audit_own_step:textbook_step
"""

import numpy as np

from dpcohort.audit import Claim, StepUnderTest, audit_training


def textbook_step(gradients, *, clip, noise_multiplier, batch_size, rng_seed):
    """DP-SGD as printed: right on paper, for simulations; its noise is a float of a small seed."""
    rng = np.random.default_rng(rng_seed)
    batch = gradients[rng.random(len(gradients)) < batch_size / len(gradients)]
    norms = np.linalg.norm(batch, axis=1, keepdims=True)
    batch = np.where(np.isfinite(norms), batch, 0.0)
    clipped = batch / np.maximum(1.0, np.nan_to_num(norms) / clip)
    noise = noise_multiplier * clip * rng.standard_normal(gradients.shape[1])
    return (clipped.sum(axis=0) + noise) / batch_size


def careless_step(gradients, *, clip, noise_multiplier, batch_size, rng_seed):
    """The same, but a batch with a record that is not finite is skipped."""
    if not np.isfinite(gradients).all():
        gradients = np.zeros_like(gradients)
    return textbook_step(
        gradients,
        clip=clip,
        noise_multiplier=noise_multiplier,
        batch_size=batch_size,
        rng_seed=rng_seed,
    )


if __name__ == "__main__":
    for step, private in ((textbook_step, False), (textbook_step, True), (careless_step, False)):
        claim = Claim(sampler="poisson", noise_multiplier=1.0, private=private)
        print(f"{step.__name__}, {'for deployment' if private else 'for simulation'}:")
        for finding in audit_training(StepUnderTest(step), claim):
            print(f"  {finding}")
