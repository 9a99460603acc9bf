// SPDX-License-Identifier: Apache-2.0
/* The charts: plain functions from the report's data to plotly traces. */
"use strict";

const dpcohortCharts = (() => {
  const {
    data, colour, series, translucent, narrow, inert, shortened, wrapped, digits,
    axis, logAxis, roundNumbers, ranked, layout, marks, ring, intervals, draw,
  } = dpcohortFrame;

  // Never colour alone: every series also has a dash, a symbol and a pattern of its own.
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "cross"];
  const PATTERNS = ["", "/", "x", ".", "-", "+"];
  const STRICTEST_FIRST = "Clients, strictest first";
  // Where cohorts were chosen during the training there are shares of draws, and no probabilities.
  const CHOSEN = data.adaptive
    ? { axis: "Share of the draws", short: "Share", name: "of the draws" }
    : data.distributed
      ? { axis: "Weight in the model", short: "Weight", name: "in the plan" }
      : { axis: "Probability per slot", short: "Probability", name: "in the plan" };
  const DECILES = "Deciles of the budget, strictest first";

  function curves() {
    const traces = [];
    const { metric, words: what } = data.curves[0];
    const share = metric === "accuracy" || metric === "balanced_accuracy";
    const shown = (value) => (share ? value.toFixed(1) : value.toPrecision(3));
    data.curves.forEach((curve, k) => {
      if (curve.rounds.length > 1 && curve.low.every((value) => value !== null)) {
        traces.push({
          x: [...curve.rounds, ...curve.rounds.slice().reverse()],
          y: [...curve.high, ...curve.low.slice().reverse()],
          type: "scatter",
          mode: "lines",
          line: { width: 0 },
          fill: "toself",
          fillcolor: translucent(series(k), 0.17),
          hoverinfo: "skip",
          showlegend: false,
        });
      }
      const words = curve.rounds.map((at, i) => {
        const [low, high] = [curve.low[i], curve.high[i]];
        const band = low === null ? "one seed" : `95 % CI ${shown(low)} to ${shown(high)}`;
        const mean = `${shown(curve.mean[i])}${share ? " %" : ""}`;
        return `<b>${inert(curve.name)}</b>, round ${at}<br>${mean} (${band})`;
      });
      const marker = { symbol: SYMBOLS[k % 6], size: 7 };
      traces.push({
        ...marks(curve.rounds, curve.mean, marker, { name: inert(curve.name), words }),
        mode: "lines+markers",
        line: { color: series(k), width: 2.5, dash: DASHES[k % 6] },
      });
    });
    const zero = { rangemode: "tozero" };
    const title = `Test ${what}${share ? ", %" : ""}`;
    return { traces, shape: layout(axis("Rounds", zero), axis(title, zero)) };
  }

  function symbolOf(point) {
    if (point.probability === 0) return "x";
    const ratio = point.probability / point.unbiased;
    if (Math.abs(ratio - 1) < 1e-5) return "circle";
    return ratio > 1 ? "triangle-up" : "triangle-down";
  }

  /** Colours by the logarithm of the probability, so that small ones can be told apart. */
  function shades(points) {
    const known = points.map((point) => point.probability).filter((value) => value > 0);
    const least = Math.log10(Math.min(...known, 1));
    const most = Math.log10(Math.max(...known, 1e-300));
    const ticks = roundNumbers(least, most, most - least < 1.5 ? [1, 2, 5] : [1, 3]);
    const place = narrow()
      ? { orientation: "h", thickness: 10, y: 1.0, yanchor: "bottom", len: 0.9 }
      : { thickness: 14 };
    return {
      color: points.map(({ probability: p }) => (p > 0 ? Math.log10(p) : least)),
      cmin: least,
      cmax: Math.max(most, least + 0.01),
      colorscale: "Cividis",
      colorbar: {
        tickvals: ticks.map(Math.log10),
        ticktext: ticks.map(String),
        outlinewidth: 0,
        title: { text: CHOSEN.short, side: narrow() ? "top" : "right", font: { size: 13 } },
        ...place,
      },
    };
  }

  /** Clients by size and epsilon, one of them ringed. */
  function scatter(chosen) {
    const points = data.points;
    const hasPublic = points.some((point) => point.public);
    const loosest = Math.max(...points.map((point) => point.epsilon || 0), 1);
    // A public client has no epsilon: it stands at the right edge, apart from the others.
    const x = points.map((point) => (point.public ? loosest * 2.5 : point.epsilon));
    const single = narrow() ? 10 : 13;
    const sizes = points.map(({ clients }) => (data.grouped ? 8 + 5 * Math.log10(clients) : single));
    const marker = {
      symbol: points.map(symbolOf),
      size: sizes,
      opacity: 0.92,
      line: { color: colour("--soft"), width: 1.2 },
      ...shades(points),
    };
    const words = points.map((point) => wrapped(point.sentence));
    const traces = [marks(x, points.map((point) => point.size), marker, { words })];
    if (points[chosen]) traces.push(ring(x[chosen], points[chosen].size, sizes[chosen] + 12));
    const title = hasPublic ? "Promised ε (public at the right edge)" : "Promised ε";
    const budgets = points.every((point) => point.public)
      ? axis("Public clients, without ε", { showticklabels: false, showgrid: false })
      : logAxis(title, x);
    const shape = layout(budgets, axis("Records"));
    shape.margin.t = narrow() ? 80 : 24;
    return { traces, shape };
  }

  /** Points in the order of epsilon, the public ones last. */
  function ordered() {
    const place = (point) => (point.public ? Number.MAX_VALUE : point.epsilon);
    return data.points.slice().sort((a, b) => place(a) - place(b));
  }

  const namesOf = (points) => points.map((point) => point.name);

  function probability() {
    const points = ordered();
    const x = points.map((_, i) => i);
    const both = points.flatMap((point) => [point.unbiased, point.probability]);
    const known = both.filter((value) => value > 0);
    // A logarithm has no 0: clients that are never drawn stand below all others.
    const none = Math.min(...known) / 2.5;
    const y = points.map((point) => (point.probability > 0 ? point.probability : none));
    const words = points.map((point) => `<b>${inert(point.name)}</b><br>by size `
      + `${digits(point.unbiased)}, ${CHOSEN.name} ${digits(point.probability)}`);
    const stems = {
      x: x.flatMap((at) => [at, at, null]),
      y: points.flatMap((point, i) => [point.unbiased, y[i], null]),
      type: "scatter",
      mode: "lines",
      line: { color: colour("--line"), width: 2 },
      hoverinfo: "skip",
      showlegend: false,
    };
    const bySize = { symbol: "circle-open", size: 8, color: series(0), line: { width: 2 } };
    const planned = { size: 9, color: series(1) };
    const traces = [
      stems,
      marks(x, points.map((point) => point.unbiased), bySize, { name: "by size", words }),
      marks(x, y, { ...planned, symbol: points.map(symbolOf) }, { words }),
      // Marks of several kinds have no entry of their own in a legend.
      marks([null], [null], { ...planned, symbol: "triangle-up" }, { name: CHOSEN.name }),
    ];
    if (points.some((point) => point.probability === 0)) {
      traces.push(marks([null], [null], { ...planned, symbol: "x" }, { name: data.adaptive ? "never drawn" : "left out" }));
    }
    const vertical = logAxis(CHOSEN.axis, [...known, ...y]);
    return { traces, shape: layout(ranked(namesOf(points), STRICTEST_FIRST), vertical) };
  }

  function noise() {
    const points = ordered().filter((point) => !point.public && point.noise_std !== null);
    const x = points.map((_, i) => i);
    const others = (point) => (data.adaptive
      ? ""
      : `paper ${digits(point.paper_std)}, tight ${digits(point.tight_std)}, `);
    const words = points.map((point) => `<b>${inert(point.name)}</b>, ε ${digits(point.epsilon)}<br>`
      + `${others(point)}certified ${digits(point.noise_std)}`);
    const kinds = [
      ["paper_std", "paper's formula", 3, "triangle-down-open", 9],
      ["tight_std", "tight", 2, "circle-open", 10],
      ["noise_std", data.distributed ? "of honest members, certified" : "in the plan, certified", 1, "x-thin", 6],
    ];
    const shown = kinds.filter(([field]) => points.some((point) => point[field] !== null));
    const traces = shown.map(([field, name, k, symbol, size]) => {
      const marker = { symbol, size, color: series(k), line: { width: 2, color: series(k) } };
      return marks(x, points.map((point) => point[field]), marker, { name, words });
    });
    const values = points.flatMap((point) => [point.paper_std, point.tight_std, point.noise_std]);
    const vertical = logAxis("Noise on the mean gradient / C", values);
    return { traces, shape: layout(ranked(namesOf(points), STRICTEST_FIRST), vertical) };
  }

  /** Bars for each group of runs: `of` gives a row's key (its place), label, value and words. */
  function bars(groups, of, { x, y, error = false, shapes = [] }) {
    const names = Object.keys(groups);
    const traces = names.map((name, k) => {
      const rows = groups[name].map(of);
      const pattern = { shape: PATTERNS[k % 6], bgcolor: series(k), fgcolor: colour("--card") };
      const trace = {
        x: rows.map((row) => row.key),
        y: rows.map((row) => row.value),
        name: inert(name),
        type: "bar",
        marker: { color: series(k), pattern: { ...pattern, size: 9, solidity: 0.16 } },
        hoverinfo: "text",
        textposition: "none",
        hovertext: rows.map((row) => `<b>${inert(name)}</b><br>${row.words}`),
      };
      if (!error) return trace;
      const look = { color: colour("--soft"), thickness: 1.3, width: 3 };
      return { ...trace, error_y: { ...intervals(groups[name]), ...look } };
    });
    const more = { barmode: "group", bargap: 0.25, showlegend: names.length > 1, shapes };
    // A label may stand under several bars: clients with equal budgets keep a bar each.
    const labels = new Map(names.flatMap((name) => groups[name].map(of)).map((row) => [row.key, row.label]));
    const horizontal = axis(x, {
      type: "category", tickmode: "array", tickvals: [...labels.keys()], ticktext: [...labels.values()],
    });
    return { traces, shape: layout(horizontal, axis(y, { rangemode: "tozero" }), more) };
  }

  function heard() {
    const several = Object.keys(data.heard).length > 1;
    const line = { color: colour("--ink"), width: 1.5, dash: "dot" };
    const one = { type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line };
    const percent = (share) => `${(100 * share).toFixed(1)} %`;
    const of = (row) => {
      const budget = row.epsilon_low === null
        ? "public"
        : row.epsilon_low === row.epsilon_high
          ? `ε ${digits(row.epsilon_low, 3)}`
          : `ε ${digits(row.epsilon_low, 3)}–${digits(row.epsilon_high, 3)}`;
      return {
        key: row.name,
        // Groups of runs may have other budgets; their deciles have the same names.
        label: several ? row.name.replace(/^(decile|group) /, "") : budget,
        value: row.heard,
        words: `${budget}, ${row.clients} clients<br>${percent(row.draw_share)} of draws with `
          + `${percent(row.record_share)} of records`,
      };
    };
    return bars(data.heard, of, { x: DECILES, y: "Draw share / record share", shapes: [one] });
  }

  function classes() {
    const of = (row) => ({
      key: String(row.class),
      label: String(row.class),
      value: row.mean,
      words: `class ${row.class}: ${row.mean.toFixed(1)} %`,
    });
    return bars(data.classes, of, { x: "Class", y: "Accuracy, %", error: true });
  }

  /** Predicted accuracy against a common factor on every budget. */
  function worth() {
    const traces = [];
    data.worth.forEach((curve, k) => {
      const x = curve.factors;
      if (curve.low.some((low, i) => low !== curve.high[i])) {
        traces.push({
          x: [...x, ...x.slice().reverse()],
          y: [...curve.high, ...curve.low.slice().reverse()],
          type: "scatter",
          mode: "lines",
          line: { width: 0 },
          fill: "toself",
          fillcolor: translucent(series(k), 0.12),
          hoverinfo: "skip",
          showlegend: false,
        });
      }
      const words = x.map((factor, i) => `<b>${inert(curve.name)}</b>, every ε times ${factor}<br>`
        + `${curve.mean[i].toFixed(1)} % (${curve.low[i].toFixed(1)} to ${curve.high[i].toFixed(1)})`);
      traces.push({
        ...marks(x, curve.mean, { symbol: SYMBOLS[k % 6], size: 7 }, { name: inert(curve.name), words }),
        mode: "lines+markers",
        line: { color: series(k), width: 2.5, dash: DASHES[k % 6] },
      });
    });
    const { factors, words: what } = data.worth[0];
    const ticks = { type: "log", tickvals: factors, ticktext: factors.map((f) => `× ${f}`) };
    const x = axis("Every ε", ticks);
    return { traces, shape: layout(x, axis(`Predicted ${what}, %`, { range: [0, 100] })) };
  }

  /** Everything there is to draw; the chart of clients is drawn with its choice of a client. */
  function start() {
    const wanted = [
      ["chart-curves", curves, data.curves.some((curve) => curve.mean.length)],
      ["chart-probability", probability, data.points.length],
      ["chart-heard", heard, data.points.length],
      ["chart-classes", classes, Object.keys(data.classes).length],
      ["chart-worth", worth, data.worth.length],
      ["chart-noise", noise, data.points.some((point) => !point.public)],
    ];
    for (const [id, make, some] of wanted) if (some) draw(id, make);
  }

  return { start, scatter };
})();
