"use strict";
/* The page's script. Reads the JSON block, draws the table, the curves and the details of a cell. Texts and numbers come
   finished from payload.py: nothing is computed or rounded here that a table prints, too.
   Text from configs enters the page as text nodes only. */
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const FACETS = ["dataset", "partition", "noise", "other"];
  const state = {
    metric: DATA.start.metric, rule: DATA.start.rule, view: "mean", hidden: new Set(), sort: null,
    dataset: "", partition: "", noise: "", other: "",
    cell: DATA.start.cell, x: 0, y: DATA.start.metric,
  };
  const $ = (id) => document.getElementById(id);

  /* --- small helpers --------------------------------------------------------------------------------------- */
  function build(namespace, tag, attributes, children) {
    const node = namespace ? document.createElementNS(namespace, tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return node;
  }
  const h = (tag, attributes, ...children) => build(null, tag, attributes, children);
  const s = (tag, attributes, ...children) => build("http://www.w3.org/2000/svg", tag, attributes, children);
  const quantityOf = (key) => DATA.quantities.find((quantity) => quantity.key === key);
  const shown = (value, quantity) => (value === null ? "–" : quantity.percent ? value.toFixed(2) : String(value)).replace("-", "−");
  function select(label, options, value, change) {
    const only = options.length < 2;
    const list = options.map((o) => h("option", { value: o.key, selected: String(o.key) === String(value) }, o.label));
    return h("label", {}, label, h("select", { name: label, disabled: only, onchange: (e) => change(e.target.value) }, ...list));
  }
  const swatch = (method) => s("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" },
    s("line", { x1: 0, x2: 22, y1: 4, y2: 4, stroke: method.colour, "stroke-width": 3, "stroke-dasharray": method.dash }));

  /* --- the comparison -------------------------------------------------------------------------------------- */
  const current = () => DATA.grid[`${state.metric}|${state.rule}`];
  const entry = (m, c) => current().entries[state.view][m * DATA.cells.length + c]; // [text, class, what to sort by]
  const shownCells = () => DATA.cells.map((cell, c) => ({ ...cell, c }))
    .filter((cell) => FACETS.every((facet) => state[facet] === "" || cell[facet] === state[facet]));

  function controls() {
    const set = (key) => (value) => { state[key] = value; state.sort = null; render(); };
    const facet = (key, label) => {
      const values = [...new Set(DATA.cells.map((cell) => cell[key]))];
      const options = values.map((value) => ({ key: value, label: value || "–" }));
      if (values.length > 1) options.unshift({ key: "", label: `all ${values.length}` });
      return values.length === 1 && values[0] === "" ? null : select(label, options, state[key], set(key));
    };
    const chosen = (value) => { state.metric = value; state.y = value; state.sort = null; axes(); render(); };
    const parts = [
      select("Metric", DATA.metrics, state.metric, chosen),
      select("Score of a run", DATA.rules, state.rule, set("rule")),
      select("Show", DATA.views, state.view, set("view")),
      facet("dataset", "Data"), facet("partition", "Partition"), facet("noise", "Noise"), facet("other", "Other"),
    ];
    $("controls").replaceChildren(...parts.filter(Boolean));
    $("methods").replaceChildren(...DATA.methods.map((method, m) => h("button", {
      type: "button", "aria-pressed": String(!state.hidden.has(m)),
      onclick: (event) => {
        state.hidden.has(m) ? state.hidden.delete(m) : state.hidden.add(m);
        event.currentTarget.setAttribute("aria-pressed", String(!state.hidden.has(m)));
        render();
      },
    }, swatch(method), method.name)));
  }

  function ordered(rows) {
    if (!state.sort) return rows;
    const direction = state.sort.down ? -1 : 1;
    const value = (m) => (state.sort.c === -1 ? DATA.methods[m].name.toLowerCase() : entry(m, state.sort.c)[2]);
    return [...rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null); // what has no number stays below
      return direction * (x < y ? -1 : x > y ? 1 : 0);
    });
  }

  function heading(label, small, c) {
    const active = state.sort && state.sort.c === c;
    const sort = active ? (state.sort.down ? "descending" : "ascending") : "none";
    const higher = DATA.metrics.find((metric) => metric.key === state.metric).higher;
    const toggle = () => {
      state.sort = { c, down: active ? !state.sort.down : c !== -1 && (state.view !== "mean" || higher) };
      grid();
      $("grid").querySelector(`th[data-c="${c}"] button`).focus();
    };
    const parts = label.split(" · ").map((part) => h("span", {}, part));
    return h("th", { scope: "col", "aria-sort": sort, "data-c": c },
      h("button", { type: "button", onclick: toggle }, small ? h("small", {}, small) : null, ...parts));
  }

  function row(m, cells) {
    const method = DATA.methods[m];
    const boxes = cells.map((cell) => {
      const [text, kind] = entry(m, cell.c);
      const spoken = `${method.name}, ${cell.label}: ${text}${kind === "best" ? ", best" : ""}`;
      return h("td", { class: kind || null },
        h("button", { type: "button", "aria-label": spoken, onclick: () => open(m, cell.c) }, text));
    });
    const line = h("tr", { class: method.competes ? null : "apart" }, h("th", { scope: "row" }, method.name), ...boxes);
    line.firstChild.style.setProperty("--row", method.colour);
    return line;
  }

  function grid() {
    const cells = shownCells();
    const rows = DATA.methods.map((_, m) => m).filter((m) => !state.hidden.has(m));
    const groups = [rows.filter((m) => DATA.methods[m].competes), rows.filter((m) => !DATA.methods[m].competes)];
    const caption = current().captions[state.view];
    const head = h("tr", {}, heading("method", "", -1), ...cells.map((cell) => heading(cell.label, `noise ${cell.levels}`, cell.c)));
    const table = h("table", {}, h("thead", {}, head),
      ...groups.filter((g) => g.length).map((g) => h("tbody", {}, ...ordered(g).map((m) => row(m, cells)))));
    const body = cells.length && rows.length ? table : h("p", { class: "empty" }, "Nothing is left: widen the filters above.");
    $("grid").replaceChildren(h("figure", { class: "table numbers" },
      h("figcaption", {}, caption), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, body)));
  }

  /* --- curves ---------------------------------------------------------------------------------------------- */
  const runsOf = (m, c) => DATA.runs.id.map((_, run) => run).filter((run) => DATA.runs.m[run] === m && DATA.runs.c[run] === c);
  const column = (number) => (number < 0 ? null : DATA.arrays[number]);
  /* Points [x, y, low, high] of a band or of a run's own line; the last two only where several seeds have a spread. */
  function points([xs, mean, low = -1, high = -1]) {
    const [x, y, below, above] = [xs[state.x], mean, low, high].map(column);
    const all = x.map((value, i) => (below ? [value, y[i], below[i], above[i]] : [value, y[i]]));
    return all.filter(([a, b]) => a !== null && b !== null);
  }
  const methodBand = (m, c, key) => {
    const band = (DATA.bands[`${m},${c}`] || {})[key];
    return band ? points(band) : [];
  };
  const runLine = (run, key) => (DATA.curves[run][key] ? points(DATA.curves[run][key]) : []);
  function ticks(low, high, count) {
    const span = high - low || 1;
    const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((f) => f * power).find((f) => f >= rough);
    const found = [];
    for (let v = Math.ceil(low / step) * step; v <= high + 1e-9 * span; v += step) found.push(v);
    return found;
  }
  function short(value) {
    const size = Math.abs(value);
    const [unit, name] = [[1e9, "G"], [1e6, "M"], [1e4, "k"]].find(([u]) => size >= u) || [1, ""];
    return `${Number((value / (name === "k" ? 1e3 : unit)).toPrecision(3))}${name}`;
  }

  const shape = (height) => (window.innerWidth < 640 ? { width: 340, height: 280 } : { width: 860, height });

  /* series: {name, colour, dash, line: [[x, y, low?, high?]], faint?}; returns an <svg> */
  function plot(series, options) {
    const { width = 860, height = 360, title = "", xlabel = "", quantity, read } = options;
    const [left, right, top, bottom] = [54, 14, title ? 26 : 12, xlabel ? 40 : 24];
    const all = series.flatMap((one) => one.line);
    const svg = s("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title || options.label });
    if (title) svg.append(s("text", { class: "title", x: 8, y: 15 }, title));
    if (!all.length) { svg.append(s("text", { x: left, y: height / 2 }, "nothing recorded")); return svg; }
    const xs = all.map((p) => p[0]), ys = all.flatMap((p) => p.slice(1));
    const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const X = (v) => left + ((v - x0) / (x1 - x0 || 1)) * (width - left - right);
    const Y = (v) => height - bottom - ((v - y0) / (y1 - y0 || 1)) * (height - top - bottom);
    for (const v of ticks(y0, y1, height > 250 ? 6 : 4)) {
      svg.append(s("line", { class: "tick", x1: left, x2: width - right, y1: Y(v), y2: Y(v) }),
        s("text", { x: left - 8, y: Y(v) + 4, "text-anchor": "end" }, quantity.percent ? `${Number(v.toPrecision(4))}%` : short(v)));
    }
    for (const v of ticks(x0, x1, width > 500 ? 8 : 4)) {
      svg.append(s("text", { x: X(v), y: height - bottom + 17, "text-anchor": "middle" }, short(v)));
    }
    if (xlabel) svg.append(s("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, xlabel));
    const path = (list) => list.map(([x, y], i) => `${i ? "L" : "M"}${X(x).toFixed(1)} ${Y(y).toFixed(1)}`).join("");
    for (const one of series) {
      const wide = one.line.filter((p) => p.length > 2);
      if (wide.length > 1) {
        const edge = [...wide.map((p) => [p[0], p[3]]), ...wide.map((p) => [p[0], p[2]]).reverse()];
        const area = s("path", { class: "band", d: `${path(edge)}Z` });
        area.style.fill = one.colour;
        svg.append(area);
      }
      svg.append(s("path", {
        d: path(one.line), stroke: one.colour, "stroke-width": one.faint ? 1.2 : 2, "stroke-dasharray": one.dash || null,
        class: one.faint ? "faint" : null,
      }, s("title", {}, one.name)));
    }
    if (read) cursor(svg, series, { X, x0, x1, left, right, top, bottom, width, height, quantity, xlabel, read });
    return svg;
  }
  const nearest = (line, x) => line.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
  function cursor(svg, series, p) { // the evaluation nearest to the pointer, in the caption
    const read = series.filter((one) => one.line.length && !one.faint);
    if (!read.length) return;
    const line = s("line", { class: "cursor", y1: p.top, y2: p.height - p.bottom, visibility: "hidden" });
    svg.append(line);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const share = (((event.clientX - box.left) / box.width) * p.width - p.left) / (p.width - p.left - p.right);
      const x = nearest(read.map((one) => nearest(one.line, p.x0 + share * (p.x1 - p.x0))), p.x0 + share * (p.x1 - p.x0))[0];
      for (const [key, value] of [["x1", p.X(x)], ["x2", p.X(x)], ["visibility", "visible"]]) line.setAttribute(key, value);
      const values = read.map((one) => [one.name, ...nearest(one.line, x)]).sort((a, b) => b[2] - a[2]);
      const told = values.map(([name, where, y]) => `${name} ${shown(y, p.quantity)}${where === x ? "" : ` (at ${short(where)})`}`);
      p.read(`${p.xlabel.replace(/ \(.*/, "")} ${short(x)}: ${told.join(" · ")}`);
    });
    svg.addEventListener("pointerleave", () => { line.setAttribute("visibility", "hidden"); p.read(null); });
  }

  const xlabel = () => DATA.axes[state.x].label;
  function axes() {
    const set = (key) => (value) => { state[key] = value; chart(); };
    $("axes").replaceChildren(
      select("Scenario", DATA.cells.map((cell, c) => ({ key: c, label: cell.label })), state.cell, (value) => set("cell")(Number(value))),
      select("Quantity", DATA.quantities, state.y, set("y")),
      select("x axis", DATA.axes, DATA.axes[state.x].key, (value) => set("x")(DATA.axes.findIndex((axis) => axis.key === value))));
  }
  function chart() {
    const quantity = quantityOf(state.y);
    const series = DATA.methods.map((method, m) => ({ ...method, m })).filter((method) => !state.hidden.has(method.m))
      .map((method) => ({ ...method, line: methodBand(method.m, state.cell, state.y) })).filter((one) => one.line.length);
    const lost = DATA.methods.map((one, m) => [one.name, runsOf(m, state.cell).filter((run) => DATA.runs.status[run] === "diverged").length]);
    const warning = lost.filter(([, n]) => n).map(([name, n]) => `${n} diverged ${n > 1 ? "runs" : "run"} of ${name} not drawn`).join("; ");
    const spread = series.some((one) => one.line.some((p) => p.length > 2));
    const resting = `${spread ? "Mean over seeds; bands are one standard deviation." : "One seed."}${quantity.percent ? " In per cent." : ""} ${warning}`;
    const read = (text) => { $("chart-caption").textContent = text === null ? resting : text; };
    $("key").replaceChildren(...series.map((one) => h("span", {}, swatch(one), one.name)));
    $("chart").replaceChildren(plot(series, { ...shape(360), xlabel: xlabel(), quantity, read, label: `${quantity.label}, ${DATA.cells[state.cell].label}` }));
    read(null);
  }

  /* --- the details of a cell ------------------------------------------------------------------------------- */
  function runTable(runs) {
    const value = (run, rule) => DATA.runs.values[`${state.metric}|${rule}`][run];
    const names = ["run", "seed", "status", ...DATA.rules.map((rule) => rule.label), "seconds", "scenario", "commit", "started (UTC)"];
    const lines = runs.map((run) => h("tr", {},
      h("th", { scope: "row" }, h("code", {}, DATA.runs.id[run])),
      h("td", {}, DATA.runs.seed[run]),
      h("td", { class: DATA.runs.status[run] === "finished" ? null : "missing", title: DATA.runs.reason[run] || null }, DATA.runs.status[run]),
      ...DATA.rules.map((rule) => h("td", {}, value(run, rule.key))),
      h("td", {}, DATA.runs.seconds[run]),
      h("td", {}, h("code", {}, DATA.runs.fingerprint[run])),
      h("td", {}, h("code", { title: DATA.runs.commit[run] }, DATA.runs.commit[run].slice(0, 10))),
      h("td", {}, DATA.runs.started[run])));
    return h("div", { class: "scroll table words runs", tabindex: 0, role: "region", "aria-label": "Runs" },
      h("table", {}, h("thead", {}, h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, ...lines)));
  }
  function facts(m, c) {
    const list = current().facts[m * DATA.cells.length + c];
    return h("dl", { class: "facts" }, ...list.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  }
  function detailCharts(m, c) {
    const method = DATA.methods[m], runs = runsOf(m, c), quantity = quantityOf(state.metric);
    const others = DATA.methods.map((other, i) => ({ ...other, colour: "#8a8f96", faint: true, line: i === m ? [] : methodBand(i, c, state.metric).map((p) => p.slice(0, 2)) }));
    const mine = runs.map((run) => ({ ...method, dash: DATA.runs.status[run] === "diverged" ? "2 3" : "", name: `seed ${DATA.runs.seed[run]}`, line: runLine(run, state.metric) }));
    const caption = h("figcaption", {});
    const resting = `Every run of ${method.name}, one line per seed; other methods' means in grey.`;
    const read = (text) => { caption.textContent = text === null ? resting : text; };
    read(null);
    const main = plot([...others, ...mine], { ...shape(320), xlabel: xlabel(), quantity, read, label: `${method.name} by seed` });
    const small = DATA.quantities.filter((one) => !DATA.metrics.some((metric) => metric.key === one.key))
      .map((one) => [one, methodBand(m, c, one.key)]).filter(([, line]) => line.length)
      .map(([one, line]) => h("figure", { class: "chart" }, plot([{ ...method, line }], { width: 320, height: 190, title: one.label, quantity: one })));
    return [h("figure", { class: "chart" }, main, caption),
      ...(small.length ? [h("h3", {}, "Diagnostics"), h("div", { class: "small-multiples" }, ...small)] : [])];
  }
  function open(m, c) {
    const dialog = $("detail"), runs = runsOf(m, c), cell = DATA.cells[c];
    const repeat = [...new Set(runs.map((run) => DATA.runs.command[run]).filter(Boolean))];
    const close = h("button", { type: "button", class: "close", onclick: () => dialog.close() }, "Close");
    dialog.replaceChildren(h("div", { class: "inner" },
      h("div", { class: "top" }, h("h2", { id: "detail-title" }, `${DATA.methods[m].name} · ${cell.label}`), close),
      h("p", { class: "lead" }, [cell.dataset, cell.partition, cell.noise, cell.other].filter(Boolean).join(" · "), `; label noise ${cell.levels}`),
      facts(m, c),
      ...(runs.length ? [...detailCharts(m, c), h("h3", {}, "Runs"), runTable(runs)] : [h("p", {}, "No run of this method has this scenario.")]),
      ...(repeat.length ? [h("h3", {}, repeat.length > 1 ? "To repeat these runs" : "To repeat this run"), ...repeat.map((command) => h("p", {}, h("code", {}, command)))] : [])));
    dialog.showModal();
    dialog.scrollTop = 0;
    close.focus();
  }
  $("detail").addEventListener("click", (event) => { if (event.target === $("detail")) $("detail").close(); });

  $("all-runs").addEventListener("toggle", () => {
    if (!$("runs").firstChild) $("runs").append(runTable(DATA.runs.id.map((_, run) => run)));
  });
  function render() { grid(); chart(); }
  for (const id of ["controls", "methods", "legend", "notes"]) $(id).hidden = false;
  controls();
  axes();
  render();
})();
