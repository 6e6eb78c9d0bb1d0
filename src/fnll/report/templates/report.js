"use strict";
/* The page's script. Reads the JSON block, draws the table, the curves and the details of a cell.
   Text from configs enters the page as text nodes only. */
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  // What one entry of DATA.grid holds, in the order of payload.py.
  const FIELDS = ["m", "c", "mean", "std", "n", "seeds", "diverged", "mark", "gain", "low", "high", "pairs", "share", "trios", "reason"];
  const VIEWS = [
    { key: "mean", label: "mean ± std over seeds" },
    { key: "gain", label: `difference to ${DATA.reference}`, needs: DATA.reference !== null },
    { key: "share", label: "share of the recoverable gap", needs: Object.values(DATA.grid).some((g) => g.some((e) => e[12] !== null)) },
  ].filter((view) => view.needs !== false);
  const FACETS = ["dataset", "partition", "noise", "other"];
  const state = {
    metric: DATA.start.metric, rule: DATA.start.rule, view: "mean", hidden: new Set(), sort: null,
    dataset: "", partition: "", noise: "", other: "",
    cell: DATA.start.cell, x: DATA.axes[0] ? DATA.axes[0].key : "", y: DATA.start.metric,
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
  const metricOf = (key) => DATA.metrics.find((m) => m.key === key) || DATA.labels[key];
  const minus = (text) => text.replace("-", "−");
  // Python's tables round an exact half to the even digit, toFixed rounds it up. Halves of two digits are odd eighths.
  function percent(value, digits = 2) {
    const x = 100 * value;
    const unit = 10 ** digits;
    const floor = Math.floor(unit * x);
    const half = Math.abs((2 ** (digits + 1) * x) % 2) === 1;
    return half ? ((floor % 2 ? floor + 1 : floor) / unit).toFixed(digits) : x.toFixed(digits);
  }
  function number(value, metric, signed) {
    if (value === null) return "–";
    const text = metric.percent ? percent(value) : Number(value.toPrecision(4)).toString();
    return minus(signed && value >= 0 ? `+${text}` : text);
  }
  const meanText = (e, metric) => number(e.mean, metric) + (e.std === null ? "" : ` ± ${number(e.std, metric)}`);
  function gainText(e, metric) {
    if (!e.pairs) return "–";
    const bounds = e.low === null ? ` (n=${e.pairs})` : ` [${number(e.low, metric, true)}, ${number(e.high, metric, true)}]`;
    return number(e.gain, metric, true) + bounds;
  }
  const shareText = (e) => (e.share === null ? "no gap" : minus(`${percent(e.share, 0)} %`) + (e.trios < 3 ? ` (n=${e.trios})` : ""));
  function select(label, options, value, change) {
    const only = options.length < 2;
    const list = options.map((o) => h("option", { value: o.key, selected: String(o.key) === String(value) }, o.label));
    return h("label", {}, label, h("select", { name: label, disabled: only, onchange: (e) => change(e.target.value) }, ...list));
  }
  const swatch = (method) => s("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" },
    s("line", { x1: 0, x2: 22, y1: 4, y2: 4, stroke: method.colour, "stroke-width": 3, "stroke-dasharray": method.dash }));

  /* --- the comparison -------------------------------------------------------------------------------------- */
  const entries = () => new Map(DATA.grid[`${state.metric}|${state.rule}`].map((values) => {
    const entry = Object.fromEntries(FIELDS.map((field, i) => [field, values[i]]));
    return [`${entry.m},${entry.c}`, entry];
  }));
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
      select("Show", VIEWS, state.view, set("view")),
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

  function sortValue(entry, m) {
    if (state.sort.c === -1) return DATA.methods[m].name;
    const value = entry ? entry[state.view] : null;
    return value === undefined ? null : value;
  }
  function ordered(rows, found) {
    if (!state.sort) return rows;
    const direction = state.sort.down ? -1 : 1;
    return [...rows].sort((a, b) => {
      const [x, y] = [a, b].map((m) => sortValue(found.get(`${m},${state.sort.c}`), m));
      if (x === null || y === null) return (x === null) - (y === null); // what has no number stays below
      return direction * (x < y ? -1 : x > y ? 1 : 0);
    });
  }

  function heading(label, small, c) {
    const active = state.sort && state.sort.c === c;
    const sort = active ? (state.sort.down ? "descending" : "ascending") : "none";
    const toggle = () => {
      state.sort = { c, down: active ? !state.sort.down : c !== -1 && (state.view !== "mean" || metricOf(state.metric).higher) };
      grid();
      $("grid").querySelector(`th[data-c="${c}"] button`).focus();
    };
    return h("th", { scope: "col", "aria-sort": sort, "data-c": c },
      h("button", { type: "button", onclick: toggle }, ...label.split(" · ").map((part) => h("span", {}, part))), small ? h("small", {}, small) : null);
  }

  function cellText(entry, metric) {
    if (!entry) return ["not run", "missing"];
    if (entry.diverged) return [`${entry.diverged}/${entry.seeds} diverged`, "missing diverged"];
    if (!entry.n) return [entry.reason.split(":")[0].replace(/^\d+ /, "") || "–", "missing"];
    if (state.view === "gain") return entry.m === reference ? ["reference", "missing"] : [gainText(entry, metric), ""];
    if (state.view === "share") {
      const competes = DATA.methods[entry.m].kind === "method" && entry.m !== reference;
      return competes ? [shareText(entry), entry.share === null ? "missing" : ""] : ["–", "missing"];
    }
    const partial = entry.n < entry.seeds ? ` (${entry.n}/${entry.seeds})` : "";
    const tied = entry.mark === 1 ? " ≈" : "";
    return [meanText(entry, metric) + partial + tied, ["", "tied", "best"][entry.mark]];
  }
  const reference = DATA.methods.findIndex((method) => method.name === DATA.reference);

  function row(m, cells, found, metric) {
    const method = DATA.methods[m];
    const boxes = cells.map((cell) => {
      const entry = found.get(`${m},${cell.c}`);
      const [text, kind] = cellText(entry, metric);
      const spoken = `${method.name}, ${cell.label}: ${text}${kind === "best" ? ", best" : ""}`;
      return h("td", { class: kind || null },
        h("button", { type: "button", "aria-label": spoken, onclick: () => open(m, cell.c, entry) }, text));
    });
    const line = h("tr", { class: method.kind === "method" ? null : "apart" }, h("th", { scope: "row" }, method.name), ...boxes);
    line.firstChild.style.setProperty("--row", method.colour);
    return line;
  }

  function grid() {
    const [cells, found, metric] = [shownCells(), entries(), metricOf(state.metric)];
    const rows = DATA.methods.map((_, m) => m).filter((m) => !state.hidden.has(m));
    const groups = [rows.filter((m) => DATA.methods[m].kind === "method"), rows.filter((m) => DATA.methods[m].kind !== "method")];
    const rule = DATA.rules.find((r) => r.key === state.rule).label;
    const unit = metric.percent ? (state.view === "gain" ? " (percentage points)" : " (%)") : "";
    const warning = state.rule === "best" ? " (optimistic: the test set itself chooses the evaluation)" : "";
    const caption = `${metric.label[0].toUpperCase()}${metric.label.slice(1)}${unit}, ${rule}${warning}${metric.higher ? "" : "; lower is better"}`;
    const head = h("tr", {}, heading("method", "", -1), ...cells.map((cell) => heading(cell.label, `noise ${cell.levels}`, cell.c)));
    const table = h("table", {}, h("thead", {}, head),
      ...groups.filter((g) => g.length).map((g) => h("tbody", {}, ...ordered(g, found).map((m) => row(m, cells, found, metric)))));
    const body = cells.length && rows.length ? table : h("p", { class: "empty" }, "Nothing is left: widen the filters above.");
    $("grid").replaceChildren(h("figure", { class: "table numbers" },
      h("figcaption", {}, caption), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, body)));
  }

  /* --- curves ---------------------------------------------------------------------------------------------- */
  const array = (run, key) => (key in DATA.curves[run] ? DATA.arrays[DATA.curves[run][key]] : null);
  const runsOf = (m, c) => DATA.runs.id.map((_, run) => run).filter((run) => DATA.runs.m[run] === m && DATA.runs.c[run] === c);
  function points(run, x, y) {
    const [xs, ys] = [array(run, x), array(run, y)];
    return xs && ys ? xs.map((value, i) => [value, ys[i]]).filter(([a, b]) => a !== null && b !== null) : [];
  }
  function at(line, x) { // linear between the two neighbours, as numpy.interp
    let i = line.findIndex(([value]) => value >= x);
    if (i <= 0) return i === 0 ? line[0][1] : line[line.length - 1][1];
    const [[x0, y0], [x1, y1]] = [line[i - 1], line[i]];
    return y0 + ((y1 - y0) * (x - x0)) / (x1 - x0);
  }
  function band(lines) { // mean and standard deviation over seeds on a common grid
    const full = lines.filter((line) => line.length);
    if (!full.length) return [];
    const [low, high] = [Math.max(...full.map((l) => l[0][0])), Math.min(...full.map((l) => l[l.length - 1][0]))];
    const longest = full.reduce((a, b) => (b.length > a.length ? b : a));
    return longest.map(([x]) => x).filter((x) => x >= low && x <= high).map((x) => {
      const values = full.map((line) => at(line, x));
      const mean = values.reduce((a, b) => a + b, 0) / values.length;
      const variance = values.reduce((a, b) => a + (b - mean) ** 2, 0) / Math.max(1, values.length - 1);
      return [x, mean, values.length > 1 ? Math.sqrt(variance) : 0];
    });
  }
  function methodBand(m, c, x, y) {
    const finished = runsOf(m, c).filter((run) => DATA.runs.status[run] === "finished");
    return band(finished.map((run) => points(run, x, y)));
  }
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

  /* series: {name, colour, dash, line: [[x, y, std?]], faint?}; returns an <svg> */
  function plot(series, options) {
    const { width = 860, height = 360, title = "", xlabel = "", metric, read } = options;
    const [left, right, top, bottom] = [54, 14, title ? 26 : 12, xlabel ? 40 : 24];
    const all = series.flatMap((one) => one.line);
    const svg = s("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title || options.label });
    if (title) svg.append(s("text", { class: "title", x: 8, y: 15 }, title));
    if (!all.length) { svg.append(s("text", { x: left, y: height / 2 }, "nothing recorded")); return svg; }
    const xs = all.map((p) => p[0]), ys = all.flatMap((p) => [p[1] - (p[2] || 0), p[1] + (p[2] || 0)]);
    const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const X = (v) => left + ((v - x0) / (x1 - x0 || 1)) * (width - left - right);
    const Y = (v) => height - bottom - ((v - y0) / (y1 - y0 || 1)) * (height - top - bottom);
    for (const v of ticks(y0, y1, height > 250 ? 6 : 4)) {
      svg.append(s("line", { class: "tick", x1: left, x2: width - right, y1: Y(v), y2: Y(v) }),
        s("text", { x: left - 8, y: Y(v) + 4, "text-anchor": "end" }, metric.percent ? `${Number((100 * v).toPrecision(4))}%` : short(v)));
    }
    for (const v of ticks(x0, x1, width > 500 ? 8 : 4)) {
      svg.append(s("text", { x: X(v), y: height - bottom + 17, "text-anchor": "middle" }, short(v)));
    }
    if (xlabel) svg.append(s("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, xlabel));
    const path = (list) => list.map(([x, y], i) => `${i ? "L" : "M"}${X(x).toFixed(1)} ${Y(y).toFixed(1)}`).join("");
    for (const one of series) {
      const wide = one.line.filter((p) => p[2]);
      if (wide.length > 1) {
        const edge = [...wide.map((p) => [p[0], p[1] + p[2]]), ...wide.map((p) => [p[0], p[1] - p[2]]).reverse()];
        const area = s("path", { class: "band", d: `${path(edge)}Z` });
        area.style.fill = one.colour;
        svg.append(area);
      }
      svg.append(s("path", {
        d: path(one.line), stroke: one.colour, "stroke-width": one.faint ? 1.2 : 2, "stroke-dasharray": one.dash || null,
        class: one.faint ? "faint" : null,
      }, s("title", {}, one.name)));
    }
    if (read) cursor(svg, series, { X, x0, x1, left, right, top, bottom, width, height, metric, read });
    return svg;
  }
  function cursor(svg, series, p) { // the values under the pointer, in the caption
    const line = s("line", { class: "cursor", y1: p.top, y2: p.height - p.bottom, visibility: "hidden" });
    svg.append(line);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const share = (((event.clientX - box.left) / box.width) * p.width - p.left) / (p.width - p.left - p.right);
      const x = p.x0 + Math.min(1, Math.max(0, share)) * (p.x1 - p.x0);
      for (const [key, value] of [["x1", p.X(x)], ["x2", p.X(x)], ["visibility", "visible"]]) line.setAttribute(key, value);
      const values = series.filter((one) => one.line.length && !one.faint).map((one) => [one.name, at(one.line, x)]);
      values.sort((a, b) => b[1] - a[1]);
      p.read(`${short(x)}: ${values.map(([name, v]) => `${name} ${number(v, p.metric)}`).join(" · ")}`);
    });
    svg.addEventListener("pointerleave", () => { line.setAttribute("visibility", "hidden"); p.read(null); });
  }

  function axes() {
    const set = (key) => (value) => { state[key] = key === "cell" ? Number(value) : value; chart(); };
    $("axes").replaceChildren(
      select("Scenario", DATA.cells.map((cell, c) => ({ key: c, label: cell.label })), state.cell, set("cell")),
      select("Quantity", Object.values(DATA.labels), state.y, set("y")),
      select("x axis", DATA.axes, state.x, set("x")));
  }
  function chart() {
    const metric = metricOf(state.y);
    const series = DATA.methods.map((method, m) => ({ ...method, m })).filter((method) => !state.hidden.has(method.m))
      .map((method) => ({ ...method, line: methodBand(method.m, state.cell, state.x, state.y) })).filter((one) => one.line.length);
    const axis = DATA.axes.find((a) => a.key === state.x);
    const lost = series.map((one) => [one.name, runsOf(one.m, state.cell).filter((run) => DATA.runs.status[run] === "diverged").length]);
    const warning = lost.filter(([, n]) => n).map(([name, n]) => `${n} diverged ${n > 1 ? "runs" : "run"} of ${name} not drawn`).join("; ");
    const resting = `Mean over seeds; bands are one standard deviation.${metric.percent ? " In per cent." : ""} ${warning}`;
    const read = (text) => { $("chart-caption").textContent = text === null ? resting : text; };
    $("key").replaceChildren(...series.map((one) => h("span", {}, swatch(one), one.name)));
    $("chart").replaceChildren(plot(series, { ...shape(360), xlabel: axis ? axis.label : "", metric, read, label: `${metric.label}, ${DATA.cells[state.cell].label}` }));
    read(null);
  }

  /* --- the details of a cell ------------------------------------------------------------------------------- */
  function runTable(runs) {
    const metric = metricOf(state.metric);
    const value = (run, rule) => number(DATA.runs.values[`${state.metric}|${rule}`][run], metric);
    const names = ["run", "seed", "status", ...DATA.rules.map((rule) => rule.label), "seconds", "scenario", "commit", "started"];
    const lines = runs.map((run) => h("tr", {},
      h("th", { scope: "row" }, h("code", {}, DATA.runs.id[run])),
      h("td", {}, DATA.runs.seed[run]),
      h("td", { class: DATA.runs.status[run] === "finished" ? null : "missing", title: DATA.runs.reason[run] || null }, DATA.runs.status[run]),
      ...DATA.rules.map((rule) => h("td", {}, value(run, rule.key))),
      h("td", {}, DATA.runs.seconds[run] === null ? "–" : String(DATA.runs.seconds[run])),
      h("td", {}, h("code", {}, DATA.runs.fingerprint[run])),
      h("td", {}, h("code", { title: DATA.runs.commit[run] }, DATA.runs.commit[run].slice(0, 10))),
      h("td", {}, DATA.runs.started[run])));
    return h("div", { class: "scroll table words", tabindex: 0, role: "region", "aria-label": "Runs" },
      h("table", {}, h("thead", {}, h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, ...lines)));
  }
  function facts(entry, m, metric) {
    const known = entry && entry.n && !entry.diverged;
    const list = [
      [`${metric.label}, ${DATA.rules.find((r) => r.key === state.rule).label}`, known ? meanText(entry, metric) : "–"],
      ["seeds finished", entry ? `${entry.n} of ${entry.seeds}` : "0"],
    ];
    if (known && m !== reference && reference >= 0) list.push([`difference to ${DATA.reference}${entry.low === null ? "" : ", 95 % interval"}`, gainText(entry, metric)]);
    if (known && entry.share !== null) list.push(["share of the recoverable gap", shareText(entry)]);
    const competes = DATA.methods[m].kind === "method";
    if (known) list.push(["rank", competes ? ["behind the best", "tied with the best ≈", "best of its column"][entry.mark] : "does not compete"]);
    if (entry && entry.reason) list.push(["without a number", entry.reason]);
    return h("dl", { class: "facts" }, ...list.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  }
  function detailCharts(m, c) {
    const method = DATA.methods[m], runs = runsOf(m, c), axis = DATA.axes.find((a) => a.key === state.x);
    const others = DATA.methods.map((other, i) => ({ ...other, colour: "#8a8f96", dash: other.dash, faint: true, line: i === m ? [] : methodBand(i, c, state.x, state.metric) }));
    const mine = runs.map((run) => ({ ...method, dash: DATA.runs.status[run] === "diverged" ? "2 3" : "", name: `seed ${DATA.runs.seed[run]}`, line: points(run, state.x, state.metric) }));
    const caption = h("figcaption", {});
    const resting = `Every run of ${method.name}, one line per seed; other methods' means in grey.`;
    const read = (text) => { caption.textContent = text === null ? resting : text; };
    read(null);
    const main = plot([...others, ...mine], { ...shape(320), xlabel: axis ? axis.label : "", metric: metricOf(state.metric), read, label: `${method.name} by seed` });
    const keys = Object.keys(DATA.labels).filter((key) => !DATA.metrics.some((metric) => metric.key === key) && runs.some((run) => array(run, key)));
    const small = keys.map((key) => h("figure", { class: "chart" }, plot(
      [{ ...method, line: methodBand(m, c, state.x, key) }],
      { width: 320, height: 190, title: DATA.labels[key].label, metric: DATA.labels[key] })));
    return [h("figure", { class: "chart" }, main, caption),
      ...(small.length ? [h("h3", {}, "Diagnostics"), h("div", { class: "small-multiples" }, ...small)] : [])];
  }
  function open(m, c, entry) {
    const dialog = $("detail"), runs = runsOf(m, c), cell = DATA.cells[c];
    const repeat = [...new Set(runs.map((run) => DATA.runs.command[run]).filter(Boolean))];
    const close = h("button", { type: "button", class: "close", onclick: () => dialog.close() }, "Close");
    dialog.replaceChildren(h("div", { class: "inner" },
      h("div", { class: "top" }, h("h2", { id: "detail-title" }, `${DATA.methods[m].name} · ${cell.label}`), close),
      h("p", { class: "lead" }, [cell.dataset, cell.partition, cell.noise, cell.other].filter(Boolean).join(" · "), `; label noise ${cell.levels}`),
      facts(entry, m, metricOf(state.metric)),
      ...(runs.length ? [...detailCharts(m, c), h("h3", {}, "Runs"), runTable(runs)] : [h("p", {}, "No run of this method has this scenario.")]),
      ...(repeat.length ? [h("h3", {}, "To repeat what failed"), ...repeat.map((command) => h("p", {}, h("code", {}, command)))] : [])));
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
