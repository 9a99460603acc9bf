// SPDX-License-Identifier: Apache-2.0
/* The page itself: colour scheme, the client that is spoken about, sorting and finding in the table. */
"use strict";

(() => {
  const at = (id) => document.getElementById(id);
  const root = document.documentElement;

  /* Colour scheme: the system's, until the switch is used. */
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  function scheme() {
    const dark = chosen === null ? system.matches : chosen === "dark";
    root.dataset.theme = dark ? "dark" : "light";
    root.style.colorScheme = dark ? "dark" : "light";
    at("theme").textContent = dark ? "Light" : "Dark";
    at("theme").setAttribute("aria-pressed", String(dark));
    at("theme").setAttribute("aria-label", dark ? "Switch to light colours" : "Switch to dark colours");
    dpcohortFrame.redraw();
  }
  at("theme").addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    scheme();
  });
  system.addEventListener("change", scheme);
  // Margins and legends differ on a narrow screen.
  window.matchMedia("(max-width: 46rem)").addEventListener("change", () => dpcohortFrame.redraw());
  scheme();

  /* One client in words, chosen from the list, by the buttons or in the chart. */
  const points = dpcohortFrame.data.points;
  function tell(k) {
    at("client").value = String(k);
    at("client-words").textContent = points[k].sentence;
    dpcohortFrame.draw("chart-scatter", () => dpcohortCharts.scatter(k), tell);
  }
  if (points.length) {
    const step = (by) => tell((Number(at("client").value) + by + points.length) % points.length);
    at("client").addEventListener("change", () => tell(Number(at("client").value)));
    at("previous").addEventListener("click", () => step(-1));
    at("next").addEventListener("click", () => step(1));
    // The strictest client is the one people ask about.
    const budgets = points.map((point) => (point.public ? Infinity : point.epsilon));
    tell(budgets.indexOf(Math.min(...budgets)));
  }

  /* The privacy table: sort by a column, find a client. */
  const table = at("receipts");
  if (table) {
    const body = table.tBodies[0];
    const value = (row, column) => {
      const cell = row.cells[column];
      const text = cell.dataset.value ?? cell.textContent.trim();
      const number = Number(text.replace(/[,%\s]/g, ""));
      return Number.isNaN(number) || text === "" ? text : number;
    };
    table.tHead.addEventListener("click", (event) => {
      const button = event.target.closest(".sort");
      if (!button) return;
      const header = button.closest("th");
      const descending = header.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
      header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const column = Number(button.dataset.column);
      const sign = descending ? -1 : 1;
      const rows = [...body.rows].map((row) => [value(row, column), row]);
      rows.sort(([a], [b]) => {
        if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
        if (typeof a === "number") return sign * (a - b);
        return sign * a.localeCompare(b, undefined, { numeric: true });
      });
      body.append(...rows.map(([, row]) => row));
    });
    const receipts = dpcohortFrame.data.receipts;
    body.addEventListener("click", (event) => {
      const button = event.target.closest(".receipt");
      if (!button) return;
      at("receipt-title").textContent = `Receipt of ${button.dataset.client}`;
      at("receipt-text").textContent = receipts[button.dataset.client];
      at("receipt").showModal();
    });
    at("receipt-close").addEventListener("click", () => at("receipt").close());
    at("filter").addEventListener("input", () => {
      const wanted = at("filter").value.toLowerCase();
      let shown = 0;
      for (const row of body.rows) {
        row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
        shown += row.hidden ? 0 : 1;
      }
      at("filter-count").textContent = wanted ? `${shown} of ${body.rows.length}` : "";
    });
  }

  dpcohortCharts.start();
  root.dataset.ready = "true";
})();
