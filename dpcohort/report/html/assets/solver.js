// SPDX-License-Identifier: Apache-2.0
/*
 * Problem 1 of the paper, solved exactly in the page:
 *
 *     minimise  G + sqrt(G^2 + Q),   G = g0 + ||p - u||_1,   Q = sum a_k p_k^2 + b_k p_k,
 *     over      sum p = 1,  floor <= p <= cap.
 *
 * The same two loops as dpcohort/selection/instance.py. For f > 0, F(p) <= f if and only if
 * Q + 2 f G <= f^2. Inside, f is given and Q + 2 f G is minimised: every probability is a function
 * of one price, and the price at which they sum to 1 is found by Newton steps inside a bracket that
 * bisection over the doubles closes. Outside, f becomes F(p), until it stays.
 *
 * A browser test holds the answers equal to Python's to 1e-9.
 */
"use strict";

const dpcohortSolver = (() => {
  const ALMOST_ZERO = 1e-300; // stands in for a noise cost of 0 in divisions
  const SMALLEST_COST = 1e-280; // smaller costs count as 0
  const LARGEST_COST = 1e280; // larger costs count as infinite

  /** The sum with a running correction (Neumaier), so that the order does not matter. */
  function sum(values) {
    let total = 0.0;
    let lost = 0.0;
    for (const value of values) {
      const next = total + value;
      lost += Math.abs(total) >= Math.abs(value) ? total - next + value : value - next + total;
      total = next;
    }
    return total + lost;
  }

  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const distance = (p, u) => sum(p.map((value, k) => Math.abs(value - u[k])));

  // A double and its place among all doubles, to halve a bracket in at most 64 steps.
  const asDouble = new Float64Array(1);
  const asBits = new BigInt64Array(asDouble.buffer);
  function ordinal(value) {
    asDouble[0] = value;
    return asBits[0] >= 0n ? asBits[0] : -(asBits[0] & 0x7fffffffffffffffn);
  }
  function halfway(low, high) {
    const total = ordinal(low) + ordinal(high);
    // BigInt division rounds towards 0; round down as Python does.
    const middle = total >= 0n ? total / 2n : (total - 1n) / 2n;
    asBits[0] = middle >= 0n ? middle : -middle;
    return middle >= 0n ? asDouble[0] : -asDouble[0];
  }

  /** F = G + sqrt(G^2 + Q). */
  function objectiveOf(p, costs) {
    const bias = costs.gap + distance(p, costs.u);
    const noise = sum(p.map((value, k) => (costs.noise[k] * value + costs.linear[k]) * value));
    return bias + Math.hypot(bias, Math.sqrt(noise));
  }

  /** The checked instance: infinite costs become caps, no bounds become 0 and 1. */
  function instance({ unbiased, noise, linear = null, floor = null, cap = null, clippingGap = 0 }) {
    const size = unbiased.length;
    const low = floor === null ? new Array(size).fill(0) : floor.slice();
    const high = cap === null ? new Array(size).fill(1) : cap.map((value) => Math.min(value, 1));
    const a = noise.map((value) => (value < SMALLEST_COST ? 0 : value));
    const b = linear === null ? new Array(size).fill(0) : linear.map((v) => (v < SMALLEST_COST ? 0 : v));
    for (let k = 0; k < size; k++) {
      if (a[k] > LARGEST_COST || b[k] > LARGEST_COST) {
        high[k] = low[k];
        a[k] = b[k] = 0;
      }
    }
    if (sum(high) < 1 - 1e-12) {
      throw new Error("nobody can be selected: every client has infinite cost or is capped");
    }
    const plain = floor === null && cap === null && !b.some((value) => value > 0);
    return { u: unbiased, noise: a, linear: b, floor: low, cap: high, gap: clippingGap, plain };
  }

  /** Every client's best probability as a function of the price, for a given width 2 f. */
  class Prices {
    constructor(costs, floor, cap, width) {
      this.u = costs.u;
      this.floor = floor;
      this.cap = cap;
      this.width = width;
      this.noise = costs.noise.map((a, k) => (cap[k] === floor[k] ? 1 : Math.max(a, ALMOST_ZERO)));
      this.offset = costs.linear.map((b, k) => (cap[k] === floor[k] ? 0 : 0.5 * b));
    }

    of(k, price) {
      let best = (price - this.offset[k]) / this.noise[k];
      if (this.width > 0) {
        best = Math.max(best, this.u[k]);
        best = Math.min(best, (price + this.width - this.offset[k]) / this.noise[k]);
      }
      return Math.min(Math.max(best, this.floor[k]), this.cap[k]);
    }

    at(price) {
      return this.u.map((_, k) => this.of(k, price));
    }

    /** Sum of the probabilities at a price, and its slope there. */
    total(price) {
      const p = this.at(price);
      let slope = 0;
      for (let k = 0; k < p.length; k++) {
        const open = p[k] > this.floor[k] && p[k] < this.cap[k];
        if (open && !(this.width > 0 && p[k] === this.u[k])) slope += 1 / this.noise[k];
      }
      return [sum(p), slope];
    }

    /** Prices at which everybody is at the floor, and at the cap. */
    bracket() {
      let bottom = Infinity;
      let top = -Infinity;
      for (let k = 0; k < this.noise.length; k++) {
        bottom = Math.min(bottom, this.noise[k] * this.floor[k] + this.offset[k]);
        top = Math.max(top, this.noise[k] * this.cap[k] + this.offset[k]);
      }
      bottom -= this.width;
      return [bottom - 1e-12 * (1 + Math.abs(bottom)), top + 1e-12 * (1 + Math.abs(top))];
    }
  }

  /** Minimises Q + 2 f ||p - u||_1 over floor <= p <= cap with sum p = target. */
  function fill(costs, floor, cap, { halfWidth, target = 1, guess = null }) {
    const prices = new Prices(costs, floor, cap, 2 * halfWidth);
    let [low, high] = prices.bracket();
    let lowTotal = -Infinity;
    let highTotal = Infinity;
    let price = guess !== null && low < guess && guess < high ? guess : 0.5 * (low + high);
    for (let step = 0; step < 200; step++) {
      const [total, slope] = prices.total(price);
      if (total < target) [low, lowTotal] = [price, total];
      else [high, highTotal] = [price, total];
      const fine = 2 ** -54 * (halfWidth > 0 ? halfWidth : Math.abs(price));
      if (total === target || high - low <= fine || ordinal(high) - ordinal(low) <= 1n) break;
      const newton = slope > 0 ? price + (target - total) / slope : NaN;
      // Every fourth step bisects, so that a bad run of Newton steps cannot last.
      price = step % 4 !== 3 && low < newton && newton < high ? newton : halfway(low, high);
    }
    if (highTotal === target) [low, lowTotal] = [high, highTotal];
    const p = mixed(prices, low, high, lowTotal, highTotal, target);
    shareAlike(p, costs, floor, cap, [low, high], 2 * halfWidth);
    const middle = 0.5 * (low + high);
    return { p, lower: middle, upper: middle + 2 * halfWidth };
  }

  /** Probabilities that sum to the target, between those at the two ends of the bracket. */
  function mixed(prices, low, high, lowTotal, highTotal, target) {
    const upper = prices.at(high);
    if (highTotal === target) return upper;
    if (!Number.isFinite(highTotal)) highTotal = sum(upper);
    const lower = prices.at(low);
    if (!Number.isFinite(lowTotal)) lowTotal = sum(lower);
    if (highTotal <= lowTotal) return upper;
    const weight = clamp((target - lowTotal) / (highTotal - lowTotal), 0, 1);
    return lower.map((value, k) => value + weight * (upper[k] - value));
  }

  /** Shares the mass of clients with one constant marginal cost in proportion to u. */
  function shareAlike(p, costs, floor, cap, bracket, width) {
    for (const raised of [true, false]) {
      const [low, high] = raised ? bracket : bracket.map((price) => price + width);
      const alike = [];
      for (let k = 0; k < p.length; k++) {
        const offset = 0.5 * costs.linear[k];
        const flat = costs.noise[k] === 0 && cap[k] > floor[k];
        if (flat && offset + ALMOST_ZERO >= low && offset <= high) alike.push(k);
      }
      if (alike.length > 1) {
        let weights = alike.map((k) => costs.u[k]);
        let bottom = alike.map((k) => floor[k]);
        let top = alike.map((k) => cap[k]);
        if (width > 0 && raised) bottom = bottom.map((v, i) => Math.min(Math.max(v, weights[i]), top[i]));
        if (width > 0 && !raised) top = top.map((v, i) => Math.max(Math.min(v, weights[i]), bottom[i]));
        const mass = sum(alike.map((k) => p[k]));
        if (!weights.some((value) => value > 0)) weights = weights.map(() => 1);
        const shares = inProportion(mass, weights, bottom, top);
        alike.forEach((k, i) => { p[k] = shares[i]; });
      }
      if (width === 0) break;
    }
  }

  /** Shares mass as clip(c w, bottom, top); what weightless clients must take is equal. */
  function inProportion(wanted, weights, bottom, top) {
    const mass = Math.min(Math.max(wanted, sum(bottom)), sum(top));
    const reach = sum(weights.map((w, i) => (w > 0 ? top[i] : bottom[i])));
    if (mass > reach) {
      const room = weights.map((w, i) => (w > 0 ? 0 : top[i] - bottom[i]));
      const total = sum(room);
      const part = total > 0 ? (mass - reach) / total : 0;
      return weights.map((w, i) => (w > 0 ? top[i] : bottom[i] + room[i] * part));
    }
    const stiff = {
      u: weights,
      noise: weights.map((w) => (w > 0 ? 1 / w : 1e280)),
      linear: weights.map(() => 0),
    };
    const shares = fill(stiff, bottom, top, { halfWidth: 0, target: mass }).p;
    return shares.map((value, i) => (weights[i] > 0 ? value : bottom[i]));
  }

  /** Without linear costs and bounds, public clients share their mass in proportion to u. */
  function sharedByPublic(p, costs) {
    if (!costs.plain) return p;
    const free = p.map((_, k) => k).filter((k) => costs.noise[k] === 0 && costs.cap[k] > costs.floor[k]);
    if (free.length < 2) return p;
    const mass = sum(free.map((k) => p[k]));
    const total = sum(free.map((k) => costs.u[k]));
    for (const k of free) p[k] = total > 0 ? mass * (costs.u[k] / total) : mass / free.length;
    return p;
  }

  /** The unbiased probabilities, if they are allowed and nobody would gain by moving. */
  function unmoved(costs) {
    const { u, floor, cap } = costs;
    if (u.some((value, k) => value < floor[k] || value > cap[k])) return null;
    let top = -Infinity;
    let bottom = Infinity;
    for (let k = 0; k < u.length; k++) {
      const marginal = costs.noise[k] * u[k] + 0.5 * costs.linear[k];
      if (u[k] > floor[k]) top = Math.max(top, marginal);
      if (u[k] < cap[k]) bottom = Math.min(bottom, marginal);
    }
    return top - bottom > 2 * objectiveOf(u, costs) ? null : u.slice();
  }

  /** The optimum of Problem 1: { probabilities, objective }. */
  function select(problem) {
    const costs = instance(problem);
    let p = unmoved(costs);
    if (p === null) {
      const room = sum(costs.cap.map((value, k) => value - costs.floor[k]));
      const share = room > 0 ? (1 - sum(costs.floor)) / room : 0;
      let width = objectiveOf(costs.floor.map((v, k) => v + share * (costs.cap[k] - v)), costs);
      let price = null;
      for (let step = 0; step < 100; step++) {
        const answer = fill(costs, costs.floor, costs.cap, { halfWidth: width, guess: price });
        p = answer.p;
        const value = objectiveOf(p, costs);
        // F is flat around its minimum: only where f = F(p) to the last bits is p exact as well.
        if (Math.abs(value - width) <= 2 ** -51 * width || value === 0) break;
        [price, width] = [answer.lower + width - value, value];
      }
      p = sharedByPublic(p, costs);
    }
    return { probabilities: p, objective: objectiveOf(p, costs) };
  }

  /** The probabilities of least noise. */
  function leastNoise(problem) {
    const costs = instance(problem);
    return sharedByPublic(fill(costs, costs.floor, costs.cap, { halfWidth: 0 }).p, costs);
  }

  /**
   * The least noise whose bias ||p - u||_1 is at most `cap`; costs per unit of eta.
   * Raising and lowering separate: each side is a water filling of its own.
   */
  function selectAtBias(problem, cap) {
    const costs = instance(problem);
    const freely = leastNoise(problem);
    if (distance(freely, costs.u) <= cap) return { probabilities: freely, binds: false };
    const nearest = costs.u.map((value, k) => clamp(value, costs.floor[k], costs.cap[k]));
    const mass = sum(nearest);
    const spare = cap - distance(nearest, costs.u);
    let missing = 1 - mass;
    if (Math.abs(missing) < 1e-12 && Math.max(...costs.floor) === 0) missing = 0;
    const add = 0.5 * (spare + missing);
    const take = 0.5 * (spare - missing);
    if (Math.min(add, take) < -1e-13) {
      throw new Error("no probabilities are that close to unbiased: raise the bias cap");
    }
    const up = fill(costs, nearest, costs.cap, { halfWidth: 0, target: mass + Math.max(add, 0) }).p;
    const down = fill(costs, costs.floor, nearest, { halfWidth: 0, target: mass - Math.max(take, 0) }).p;
    // Nobody is both raised and lowered; choosing, not adding, keeps tiny probabilities exact.
    const p = nearest.map((value, k) => (up[k] > value ? up[k] : down[k]));
    return { probabilities: sharedByPublic(p, costs), binds: true };
  }

  return { select, selectAtBias, leastNoise, sum, distance };
})();
