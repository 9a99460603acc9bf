// SPDX-License-Identifier: Apache-2.0
/* What if: sliders, the selection solved anew (solver.js), and what follows from it. */
"use strict";

const dpcohortExplorer = (() => {
  const {
    data, draw, layout, ranked, logAxis, marks, ring, series, inert, digits,
  } = dpcohortFrame;
  const given = data.explorer;
  const at = (id) => document.getElementById(id);
  const element = (tag, content) => Object.assign(document.createElement(tag), content);
  if (!given.available) return { start() {} };

  const clients = given.ids.map((_, k) => k);
  const rank = (k) => (given.public[k] ? Number.MAX_VALUE : given.epsilon[k]);
  const order = clients.slice().sort((a, b) => rank(a) - rank(b));
  const sameEpsilon = given.epsilon_factors.indexOf(1);

  /** The noise level and floor of every client at a stop of the sliders. */
  function levels(setting) {
    const stop = given.levels[setting.rounds];
    const level = stop.level.slice();
    const floor = stop.floor.slice();
    const own = given.changed[setting.client];
    if (own) {
      level[setting.client] = own.level[setting.rounds][setting.epsilon];
      floor[setting.client] = own.floor[setting.rounds][setting.epsilon];
    }
    return { level, floor };
  }

  /** Costs per unit of eta, as dpcohort.selection.problem has them. */
  function costs(setting) {
    const { level, floor } = levels(setting);
    const size = given.dimension;
    if (given.noise_model === "paper") return { noise: level.map((v) => size * v), linear: null };
    const draws = given.rounds[setting.rounds] * given.cohort_size;
    return {
      noise: level.map((v) => size * (1 - 1 / draws) * v),
      linear: level.map((v, k) => size * (v / draws + floor[k] / (draws * given.local_steps))),
    };
  }

  function etaOf(setting) {
    const steps = given.rounds[setting.rounds] * given.local_steps;
    return setting.mode === "auto" ? 2 * given.smoothness * Math.sqrt(steps) : setting.eta;
  }

  /** The probabilities of a setting, from costs per unit of eta. */
  function selected(setting, unit, eta) {
    const unbiased = given.unbiased;
    const bounds = {
      floor: given.floor > 0 ? unbiased.map((value) => given.floor * value) : null,
      cap: given.cap < 1 ? unbiased.map(() => given.cap) : null,
    };
    if (setting.mode === "bias") {
      const problem = { unbiased, ...unit, ...bounds };
      return dpcohortSolver.selectAtBias(problem, setting.bias).probabilities;
    }
    const scaled = (values) => (values === null ? null : values.map((value) => eta * value));
    const problem = { unbiased, noise: scaled(unit.noise), linear: scaled(unit.linear), ...bounds };
    return dpcohortSolver.select(problem).probabilities;
  }

  /** Everything that follows from a setting: { probabilities, bias, noise_to_clip, ... }. */
  function compute(setting) {
    const unit = costs(setting);
    const eta = setting.mode === "bias" ? null : etaOf(setting);
    const p = selected(setting, unit, eta);
    const rounds = given.rounds[setting.rounds];
    const linear = unit.linear || clients.map(() => 0);
    const noise = dpcohortSolver.sum(p.map((v, k) => (unit.noise[k] * v + linear[k]) * v));
    const draws = p.map((value) => value * rounds * given.cohort_size);
    return {
      eta,
      probabilities: p,
      expected_draws: draws,
      bias: dpcohortSolver.distance(p, given.unbiased),
      noise_to_clip: Math.sqrt(rounds * given.local_steps * noise),
      largest: Math.max(...p),
      smallest: Math.min(...p),
      excluded: p.filter((value) => value === 0).length,
      std: clients.map((k) => stdOf(setting, k, draws[k])),
    };
  }

  const factorOf = (setting, k) => {
    const isChanged = setting.client === k && k in given.changed;
    return isChanged ? given.epsilon_factors[setting.epsilon] : 1;
  };

  /** Noise of a client on its mean gradient over C: at most what is certified, and the paper's. */
  function stdOf(setting, k, expected) {
    if (given.public[k]) return { most: 0, paper: 0 };
    // Draws are whole, and a systematic schedule rounds them up at most; not for rounding errors.
    const draws = Math.ceil(expected - 1e-9);
    if (draws <= 0) return { most: null, paper: null };
    const factor = factorOf(setting, k);
    const paper = dpcohortNoise.paperMultiplier({
      epsilon: given.epsilon[k] * factor,
      delta: given.delta[k],
      rate: given.rate[k],
      steps: draws * given.local_steps,
    }) / given.batch[k];
    const table = given.noise;
    const column = factor === 1 ? table.own[k] : table.changed[k][setting.epsilon];
    if (!column) return { most: null, paper };
    const z = dpcohortNoise.tabulated(table.draws, column, draws, table.margin);
    const tight = z / given.batch[k];
    // The paper's noise is raised to the tight one where it does not certify.
    return { most: given.accountant === "paper" ? Math.max(paper, tight) : tight, paper };
  }

  const [lowest, highest] = given.eta_range.map(Math.log);
  const etaAt = (stop) => Math.exp(lowest + (stop / 1000) * (highest - lowest));
  const stopOf = (eta) => Math.round((1000 * (Math.log(eta) - lowest)) / (highest - lowest));

  function read() {
    return {
      mode: document.querySelector("input[name=mode]:checked").value,
      eta: etaAt(Number(at("eta").value)),
      bias: Number(at("bias").value),
      rounds: Number(at("rounds").value),
      client: Number(at("changed").value),
      epsilon: Number(at("epsilon").value),
    };
  }

  let outcome = null;

  function show() {
    const setting = read();
    const hasClient = setting.client in given.changed;
    at("eta-row").hidden = setting.mode === "bias";
    at("bias-row").hidden = setting.mode !== "bias";
    at("eta").disabled = setting.mode === "auto";
    at("epsilon").disabled = !hasClient;
    if (setting.mode === "auto") at("eta").value = stopOf(etaOf(setting));
    const epsilon = hasClient ? given.epsilon[setting.client] * factorOf(setting, setting.client) : NaN;
    at("eta-out").textContent = digits(etaOf(setting), 3);
    at("bias-out").textContent = setting.bias.toFixed(2);
    at("rounds-out").textContent = given.rounds[setting.rounds];
    at("epsilon-out").textContent = digits(epsilon, 3);
    try {
      outcome = { setting, ...compute(setting) };
      at("what-if-error").textContent = "";
    } catch (error) {
      at("what-if-error").textContent = error.message;
      return;
    }
    cards();
    at("changed-words").textContent = hasClient
      ? words(setting.client, epsilon)
      : "No client has a budget to change.";
    draw("chart-what-if", chart);
    if (at("what-if-details").open) table();
  }

  function cards() {
    const rows = [
      ["Noise / clip", digits(outcome.noise_to_clip, 3), "expected, on a round's mean"],
      ["Bias", outcome.bias.toFixed(3), "0 is by size, 2 is the most"],
      ["Largest", digits(outcome.largest, 3), "probability per slot"],
      ["Smallest", digits(outcome.smallest, 3), "probability per slot"],
      ["Left out", String(outcome.excluded), `of ${clients.length} clients`],
    ];
    at("outcome").replaceChildren(...rows.map(([name, value, detail]) => {
      const card = element("div", { className: "card" });
      const content = element("dd", {});
      content.append(
        element("span", { className: "value", textContent: value }),
        element("span", { className: "detail", textContent: detail }),
      );
      card.append(element("dt", { textContent: name }), content);
      return card;
    }));
  }

  function words(k, epsilon) {
    const [before, after] = [given.planned[k], outcome.probabilities[k]];
    const { most, paper } = outcome.std[k];
    const times = before > 0 ? `, ${digits(after / before, 3)} times the plan's ${digits(before, 3)}` : "";
    const noise = after === 0
      ? "It is not drawn."
      : `Noise at most ${digits(most, 3)} C on its mean gradient (paper ${digits(paper, 3)} C).`;
    return `With ε ${digits(epsilon, 3)} it is drawn with probability ${digits(after, 3)}${times}: `
      + `${digits(outcome.expected_draws[k], 3)} draws expected. ${noise}`;
  }

  function chart() {
    const x = order.map((_, i) => i);
    const positive = (values) => order.map((k) => (values[k] > 0 ? values[k] : null));
    const told = order.map((k) => `<b>${inert(given.ids[k])}</b>, `
      + `${given.public[k] ? "public" : `ε ${digits(given.epsilon[k])}`}<br>`
      + `plan ${digits(given.planned[k])}, now ${digits(outcome.probabilities[k])}<br>`
      + `${digits(outcome.expected_draws[k], 3)} draws expected`);
    const planned = { symbol: "circle-open", size: 11, color: series(2), line: { width: 1.6 } };
    const now = { symbol: "diamond", size: 8, color: series(1) };
    const traces = [
      {
        ...marks(x, positive(given.unbiased), {}, { name: "by size" }),
        mode: "lines",
        line: { color: series(0), width: 1.5, dash: "dot" },
      },
      marks(x, positive(given.planned), planned, { name: "in the plan" }),
      marks(x, positive(outcome.probabilities), now, { name: "with these settings", words: told }),
    ];
    const k = outcome.setting.client;
    if (k in given.changed && outcome.probabilities[k] > 0) {
      traces.push(ring(order.indexOf(k), outcome.probabilities[k], 18));
    }
    const values = [...given.unbiased, ...given.planned, ...outcome.probabilities];
    const names = order.map((client) => given.ids[client]);
    const vertical = logAxis("Probability per slot", values);
    return { traces, shape: layout(ranked(names, "Clients, strictest first"), vertical) };
  }

  function table() {
    at("what-if-table").tBodies[0].replaceChildren(...order.map((k) => {
      const { most, paper } = outcome.std[k];
      const epsilon = given.epsilon[k] * factorOf(outcome.setting, k);
      const texts = [
        given.public[k] ? "public" : digits(epsilon),
        digits(given.unbiased[k]),
        digits(given.planned[k]),
        digits(outcome.probabilities[k]),
        digits(outcome.expected_draws[k], 3),
        digits(most, 3),
        digits(paper, 3),
      ];
      const row = element("tr", {});
      row.append(
        element("th", { scope: "row", textContent: given.ids[k] }),
        ...texts.map((text) => element("td", { className: "n", textContent: text })),
      );
      return row;
    }));
  }

  function reset() {
    document.querySelector(`input[name=mode][value=${given.mode}]`).checked = true;
    at("eta").value = stopOf(given.eta);
    at("bias").value = given.bias_cap;
    at("rounds").max = given.rounds.length - 1;
    at("rounds").value = given.rounds_now;
    at("epsilon").max = given.epsilon_factors.length - 1;
    at("epsilon").value = sameEpsilon;
    show();
  }

  function start() {
    const options = order.filter((k) => k in given.changed).map((k) => element("option", {
      value: k,
      textContent: `${given.ids[k]} (ε ${digits(given.epsilon[k], 3)})`,
    }));
    at("changed").replaceChildren(...options);
    const controls = at("controls");
    controls.addEventListener("input", (event) => {
      if (event.target.id === "changed") at("epsilon").value = sameEpsilon;
      show();
    });
    controls.addEventListener("submit", (event) => event.preventDefault());
    controls.addEventListener("reset", () => window.setTimeout(reset, 0));
    at("what-if-details").addEventListener("toggle", () => {
      if (at("what-if-details").open) table();
    });
    reset();
  }

  return { start, compute, read, get outcome() { return outcome; } };
})();
