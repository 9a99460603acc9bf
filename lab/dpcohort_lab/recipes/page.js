// SPDX-License-Identifier: Apache-2.0
/* Charts of a result: cells beside the paper's numbers, and their accuracy over the rounds. */
"use strict";

(() => {
  const {
    data, draw, axis, layout, marks, intervals, series, narrow, inert, shortened, digits,
  } = dpcohortFrame;
  const measured = data.sections.reproduction;
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];

  /** Cells of a reproduction beside the paper's numbers. */
  function cells() {
    const rows = measured.slice().reverse();
    const y = rows.map((_, i) => i);
    const words = rows.map((cell) => `<b>${inert(cell.name)}</b><br>ours ${digits(cell.mean)}, `
      + `paper ${digits(cell.paper)}<br>${inert(cell.verdict)}`);
    const ours = { symbol: "circle", size: 9, color: series(0) };
    const paper = { symbol: "diamond-open", size: 11, color: series(1), line: { width: 2 } };
    const spread = { ...intervals(rows), color: series(0), thickness: 2, width: 5 };
    const name = "ours, 95 % interval";
    const traces = [
      { ...marks(rows.map((cell) => cell.mean), y, ours, { name, words }), error_x: spread },
      marks(rows.map((cell) => cell.paper), y, paper, { name: "paper" }),
    ];
    const most = narrow() ? 18 : 48;
    const ticktext = rows.map((cell) => shortened(cell.name, most));
    const place = document.getElementById("chart-cells");
    place.style.height = `${Math.max(16, 9 + 1.7 * rows.length)}rem`;
    return { traces, shape: layout(axis("Test accuracy, %"), axis("", { tickvals: y, ticktext })) };
  }

  function cellCurves() {
    const traces = measured.filter((cell) => cell.curve.length).map((cell, k) => ({
      x: cell.curve.map((point) => point[0]),
      y: cell.curve.map((point) => point[1]),
      name: inert(cell.name),
      type: "scatter",
      mode: "lines",
      line: { color: series(k), width: 2, dash: DASHES[Math.floor(k / 6 + k) % 6] },
      hoverinfo: "x+y+name",
    }));
    const shape = layout(axis("Rounds"), axis("Test accuracy, %"));
    return { traces, shape: { ...shape, showlegend: traces.length <= 8 } };
  }

  if (measured.length) {
    draw("chart-cells", cells);
    draw("chart-cell-curves", cellCurves);
  }
})();
