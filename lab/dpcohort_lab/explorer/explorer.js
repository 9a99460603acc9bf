// SPDX-License-Identifier: Apache-2.0
/* What if: sliders, the selection between points that dpcohort solved, and what follows from it. */
"use strict";

const dpcohortExplorer = (() => {
  const {
    data, draw, layout, ranked, logAxis, marks, ring, series, inert, digits,
  } = dpcohortFrame;
  const given = data.sections["what-if"];
  const at = (id) => document.getElementById(id);
  const element = (tag, content) => Object.assign(document.createElement(tag), content);
  if (!given.available) return { start() {} };

  const clients = given.ids.map((_, k) => k);
  const rank = (k) => (given.public[k] ? Number.MAX_VALUE : given.epsilon[k]);
  const order = clients.slice().sort((a, b) => rank(a) - rank(b));
  const sameEpsilon = given.epsilon_factors.indexOf(1);

  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const distance = (p) => sum(p.map((value, k) => Math.abs(value - given.unbiased[k])));
  const biases = given.paths.map((table) => table.p.map(distance));

  function etaOf(setting) {
    const steps = given.rounds[setting.rounds] * given.local_steps;
    return setting.mode === "auto" ? 2 * given.smoothness * Math.sqrt(steps) : setting.eta;
  }

  /** Where a value lies between sorted ones: the next place, and how far towards it. */
  function placeOf(sorted, wanted) {
    const next = sorted.findIndex((value) => value >= wanted);
    if (next < 0) return [sorted.length - 1, 1];
    if (next === 0) return [0, 1];
    return [next, (wanted - sorted[next - 1]) / (sorted[next] - sorted[next - 1])];
  }

  /** Everything that follows from a setting: { probabilities, bias, noise_to_clip, ... }. */
  function compute(setting) {
    const table = given.paths[setting.rounds];
    const eta = setting.mode === "bias" ? null : etaOf(setting);
    const [next, part] = eta === null
      ? placeOf(biases[setting.rounds], setting.bias)
      : placeOf(table.eta.map(Math.log), Math.log(eta));
    const mixed = (before, after) => (part === 1 ? after : before + part * (after - before));
    const last = Math.max(next - 1, 0);
    const p = table.p[next].map((value, k) => mixed(table.p[last][k], value));
    const slots = given.rounds[setting.rounds] * given.cohort_size;
    const draws = p.map((value) => value * slots);
    const own = setting.client in given.changed ? ownOf(setting) : null;
    return {
      eta,
      probabilities: p,
      expected_draws: draws,
      bias: distance(p),
      noise_to_clip: mixed(table.noise[last], table.noise[next]),
      largest: Math.max(...p),
      smallest: Math.min(...p),
      excluded: p.filter((value) => value === 0).length,
      std: clients.map((k) => stdOf(k, draws[k], sameEpsilon)),
      own,
    };
  }

  /** One client with another epsilon, all else as planned. */
  function ownOf({ client, epsilon }) {
    const probability = given.changed[client][epsilon];
    const draws = probability * given.rounds[given.rounds_now] * given.cohort_size;
    return { probability, draws, ...stdOf(client, draws, epsilon) };
  }

  /** Noise of a client on its mean gradient over C: at most what is certified, and the paper's. */
  function stdOf(k, expected, stop) {
    if (given.public[k]) return { most: 0, paper: 0 };
    // Draws are whole, and a systematic schedule rounds them up at most; not for rounding errors.
    const draws = Math.ceil(expected - 1e-9);
    if (draws <= 0) return { most: null, paper: null };
    const factor = given.epsilon_factors[stop];
    const paper = dpcohortNoise.paperMultiplier({
      epsilon: given.epsilon[k] * factor,
      delta: given.delta[k],
      rate: given.rate[k],
      steps: draws * given.local_steps,
    }) / given.batch[k];
    const table = given.noise;
    const column = factor === 1 ? table.own[k] : table.changed[k][stop];
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
      // None is checked between the reset of the form and ours.
      mode: document.querySelector("input[name=mode]:checked")?.value ?? given.mode,
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
    const epsilon = hasClient
      ? given.epsilon[setting.client] * given.epsilon_factors[setting.epsilon]
      : NaN;
    at("eta-out").textContent = digits(etaOf(setting), 3);
    at("bias-out").textContent = setting.bias.toFixed(2);
    at("rounds-out").textContent = given.rounds[setting.rounds];
    at("epsilon-out").textContent = digits(epsilon, 3);
    outcome = { setting, ...compute(setting) };
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
    const { probability: after, draws, most, paper } = outcome.own;
    const before = given.planned[k];
    const times = before > 0 ? `, ${digits(after / before, 3)} times the plan's ${digits(before, 3)}` : "";
    const noise = after === 0
      ? "It is not drawn."
      : `Noise at most ${digits(most, 3)} C on its mean gradient (paper ${digits(paper, 3)} C).`;
    return `With ε ${digits(epsilon, 3)}, all else as planned, it is drawn with probability `
      + `${digits(after, 3)}${times}: ${digits(draws, 3)} draws expected. ${noise}`;
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
    if (outcome.own && outcome.own.probability > 0) {
      traces.push(ring(order.indexOf(k), outcome.own.probability, 18));
    }
    const values = [...given.unbiased, ...given.planned, ...outcome.probabilities];
    const names = order.map((client) => given.ids[client]);
    const vertical = logAxis("Probability per slot", values);
    return { traces, shape: layout(ranked(names, "Clients, strictest first"), vertical) };
  }

  function table() {
    at("what-if-table").tBodies[0].replaceChildren(...order.map((k) => {
      const { most, paper } = outcome.std[k];
      const texts = [
        given.public[k] ? "public" : digits(given.epsilon[k]),
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
dpcohortExplorer.start();
