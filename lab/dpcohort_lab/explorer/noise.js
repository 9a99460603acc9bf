// SPDX-License-Identifier: Apache-2.0
/*
 * Noise in the page.
 *
 * paper: Equation (6) in closed form, exactly.
 * tight: a table that dpcohort calibrated when the report was made. More steps never need less
 *        noise, so the value at the next larger entry is an upper bound; between entries the
 *        smaller of that bound and of a straight line in the logarithms, raised by a margin that
 *        dpcohort measured, is shown. It is never below what dpcohort would add.
 */
"use strict";

const dpcohortNoise = (() => {
  /** log(1 + (e^eps - 1)/r), Lemma 1, without overflow or cancellation. */
  function amplified(epsilon, rate) {
    if (epsilon < 1) return Math.log1p(Math.expm1(epsilon) / rate);
    return epsilon - Math.log(rate) + Math.log1p((rate - 1) * Math.exp(-epsilon));
  }

  /** log(e^x + e^y). */
  function logAddExp(x, y) {
    const top = Math.max(x, y);
    return top + Math.log1p(Math.exp(Math.min(x, y) - top));
  }

  /** The paper's noise multiplier z for one client, sqrt(8 T log(e + r e'/delta)) / e'. */
  function paperMultiplier({ epsilon, delta, rate, steps }) {
    const inner = amplified(epsilon, rate);
    const log = logAddExp(1, Math.log(rate * inner) - Math.log(delta));
    return (Math.sqrt(8 * log) / inner) * Math.sqrt(steps);
  }

  /** An upper bound of the tight z after `draws` draws; NaN beyond the table. */
  function tabulated(grid, column, draws, margin) {
    if (draws <= 0) return 0;
    const next = grid.findIndex((entry) => entry >= draws);
    if (next < 0) return NaN;
    if (grid[next] === draws || next === 0) return column[next];
    const [x0, x1] = [Math.log(grid[next - 1]), Math.log(grid[next])];
    const [y0, y1] = [Math.log(column[next - 1]), Math.log(column[next])];
    const line = Math.exp(y0 + ((Math.log(draws) - x0) / (x1 - x0)) * (y1 - y0));
    return Math.min(column[next], line * (1 + margin));
  }

  return { paperMultiplier, tabulated };
})();
