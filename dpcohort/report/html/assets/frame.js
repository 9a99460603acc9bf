// SPDX-License-Identifier: Apache-2.0
/*
 * What all charts have in common: the report's data, colours of the scheme in force, axes, and
 * drawing again when the scheme or the width changes. Names of clients are text: plotly reads some
 * markup in labels, so it is taken away first.
 */
"use strict";

const dpcohortFrame = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);

  const styles = getComputedStyle(document.documentElement);
  const colour = (name) => styles.getPropertyValue(name).trim();
  const series = (k) => colour(`--c${k % 6}`);
  const narrow = () => window.matchMedia("(max-width: 46rem)").matches;

  function translucent(hex, alpha) {
    const value = parseInt(hex.slice(1), 16);
    return `rgba(${value >> 16},${(value >> 8) & 255},${value & 255},${alpha})`;
  }

  /** Text as plotly must get it so that it shows exactly what is written. */
  function inert(text) {
    return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  const shortened = (text, most) => inert(text.length > most ? `${text.slice(0, most - 1)}…` : text);

  /** A sentence in lines of some width, for a hover label. */
  function wrapped(text) {
    const width = narrow() ? 38 : 64;
    const lines = [];
    for (const paragraph of String(text).split("\n")) {
      let line = "";
      for (const word of paragraph.split(" ")) {
        if (line && line.length + word.length >= width) {
          lines.push(line);
          line = word;
        } else line = line ? `${line} ${word}` : word;
      }
      lines.push(line);
    }
    return lines.map(inert).join("<br>");
  }

  /** A number with so many digits; a dash where there is none. */
  function digits(value, count = 4) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return "∞";
    const small = value !== 0 && Math.abs(value) < 1e-3;
    if (small) return value.toExponential(Math.max(count - 2, 0));
    return String(Number(value.toPrecision(count)));
  }

  function axis(title, more = {}) {
    return {
      title: { text: title, font: { size: 13 }, standoff: 8 },
      gridcolor: colour("--grid"),
      linecolor: colour("--line"),
      zerolinecolor: colour("--line"),
      tickfont: { color: colour("--soft") },
      automargin: true,
      ...more,
    };
  }

  /** The numbers 1, 2, 5 (or other steps) times powers of ten from 10^low to 10^high. */
  function roundNumbers(low, high, steps) {
    const found = [];
    for (let power = Math.floor(low); power <= Math.ceil(high); power++) {
      for (const step of steps) {
        const value = Number(`${step}e${power}`);
        const at = Math.log10(value);
        if (at >= low - 1e-9 && at <= high + 1e-9) found.push(value);
      }
    }
    return found;
  }

  /** A log axis over these values, with plain numbers at 1, 2, 5 or at powers of ten. */
  function logAxis(title, values) {
    const known = values.filter((value) => value > 0);
    if (!known.length) return axis(title);
    const [low, high] = [Math.log10(Math.min(...known)), Math.log10(Math.max(...known))];
    // Wide enough that a single value still has a number beside it.
    const pad = Math.max(0.06 * (high - low), 0.15);
    const ticks = roundNumbers(low - pad, high + pad, high - low < 2.2 ? [1, 2, 5] : [1]);
    const plain = (value) => (value < 1e-4 || value >= 1e6 ? value.toExponential(0) : String(value));
    const range = [low - pad, high + pad];
    return axis(title, { type: "log", range, tickvals: ticks, ticktext: ticks.map(plain) });
  }

  /** Clients by rank, named where there is room. A name must not become a number or a date. */
  function ranked(names, title) {
    const quiet = { showgrid: false, zeroline: false };
    if (names.length > (narrow() ? 6 : 16)) return axis(title, { ...quiet, showticklabels: false });
    const ticktext = names.map((name) => shortened(name, 14));
    return axis(title, { ...quiet, tickvals: names.map((_, i) => i), ticktext });
  }

  function layout(x, y, more = {}) {
    return {
      font: { family: "system-ui, sans-serif", size: 13, color: colour("--ink") },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: narrow() ? 48 : 66, r: narrow() ? 12 : 26, t: 44, b: 56 },
      xaxis: x,
      yaxis: y,
      dragmode: false,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, bgcolor: "rgba(0,0,0,0)" },
      hoverlabel: {
        align: "left",
        bgcolor: colour("--card"),
        bordercolor: colour("--soft"),
        font: { color: colour("--ink"), size: 13 },
      },
      ...more,
    };
  }

  /** A trace of marks; without words it is silent under the mouse. */
  function marks(x, y, marker, { name = null, words = null } = {}) {
    const trace = { x, y, marker, type: "scatter", mode: "markers", showlegend: name !== null };
    if (name !== null) trace.name = name;
    return words ? { ...trace, hoverinfo: "text", hovertext: words } : { ...trace, hoverinfo: "skip" };
  }

  /** The ring around the client that is spoken about. */
  const ring = (x, y, size) => marks([x], [y], {
    symbol: "circle-open", size, color: colour("--accent"), line: { width: 3 },
  });

  /** Distances to the ends of intervals around means, for error bars. */
  function intervals(rows) {
    return {
      type: "data",
      symmetric: false,
      array: rows.map((row) => (row.high === null ? 0 : row.high - row.mean)),
      arrayminus: rows.map((row) => (row.low === null ? 0 : row.mean - row.low)),
    };
  }

  const drawn = new Map();
  const waiting = new Map();

  /** Charts are drawn when they come near the window: drawing takes longer than reading the page. */
  const NEAR = "600px";
  const watcher = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) drawWaiting(target.id);
  }, { rootMargin: NEAR });

  function drawWaiting(id) {
    const task = waiting.get(id);
    if (!task) return;
    waiting.delete(id);
    watcher.unobserve(document.getElementById(id));
    drawNow(id, task.make, task.onClick);
  }

  /** All that was not looked at yet. */
  const drawAll = () => [...waiting.keys()].forEach(drawWaiting);

  /** On paper everything is drawn, in light colours and as wide as a page, and back again after. */
  function printing(on) {
    const root = document.documentElement;
    if (on) root.dataset.screen = root.dataset.theme ?? "light";
    root.dataset.theme = on ? "light" : root.dataset.screen;
    root.classList.toggle("printing", on);
    // Drawn from nothing, at once: plotly's own change of size comes later than the paper.
    for (const chart of drawn.values()) chart.wide = null;
    if (on) drawAll();
    redraw();
  }
  window.addEventListener("beforeprint", () => printing(true));
  window.addEventListener("afterprint", () => printing(false));

  /** Draw a chart once it is near, and remember how; `onClick` gets the position of a point. */
  function draw(id, make, onClick = null) {
    const place = document.getElementById(id);
    if (!place || typeof Plotly === "undefined") return;
    if (drawn.has(id)) drawNow(id, make, onClick);
    else {
      waiting.set(id, { make, onClick });
      watcher.observe(place);
    }
  }

  function drawNow(id, make, onClick) {
    const place = document.getElementById(id);
    const { traces, shape } = make();
    const options = { responsive: true, displaylogo: false, displayModeBar: false };
    const before = drawn.get(id);
    drawn.set(id, { make, onClick, wide: !narrow() });
    if (before && before.wide === !narrow()) {
      Plotly.react(place, traces, shape, options);
      return;
    }
    // Another width moves legends and colour bars: those are drawn from nothing.
    Plotly.newPlot(place, traces, shape, options);
    if (!onClick) return;
    place.on("plotly_click", (event) => {
      const point = event.points[0];
      if (point && point.curveNumber === 0) onClick(point.pointIndex);
    });
  }

  const redraw = () => drawn.forEach(({ make, onClick }, id) => drawNow(id, make, onClick));

  return {
    data, colour, series, translucent, narrow, inert, shortened, wrapped, digits,
    axis, logAxis, roundNumbers, ranked, layout, marks, ring, intervals, draw, drawAll, redraw,
  };
})();
