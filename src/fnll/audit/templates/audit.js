"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const items = [...$("cards").children];
  const shown = () => items.filter((item) => !item.hidden);
  $("controls").hidden = $("keys").hidden = false;

  function filter() {
    const client = $("client").value, label = $("label").value;
    for (const item of items) {
      item.hidden = Boolean((client && item.dataset.client !== client) || (label && item.dataset.label !== label));
    }
    const left = shown();
    $("count").textContent = `${left.length} of ${items.length} shown`;
    if (left.length) reachable(left[0]);
  }

  function reachable(item) {  // one card of the gallery is in the tab order; arrows move on from it
    for (const figure of $("cards").querySelectorAll("figure[tabindex='0']")) figure.tabIndex = -1;
    item.firstElementChild.tabIndex = 0;
  }

  function mark(item, what) {
    if (what === "take" && !item.querySelector("[data-mark=take]")) return;
    if (!what || item.dataset.mark === what) delete item.dataset.mark;
    else item.dataset.mark = what;
    for (const button of item.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(item.dataset.mark === button.dataset.mark));
    }
    const count = items.filter((one) => one.dataset.mark).length;
    $("save").textContent = `Save my marks (${count})`;
    $("save").disabled = !count;
  }

  function cell(text) {  // no spreadsheet shall take it for a formula
    const safe = /^'*[=+\-@\t\r]/.test(text) && !/^[+-]?\d+(\.\d+)?$/.test(text) ? `'${text}` : text;
    return `"${safe.replaceAll('"', '""')}"`;
  }

  function save() {
    const rows = items.filter((item) => item.dataset.mark).map((item) => {
      const { file, label, suggested, mark: what } = item.dataset;
      return [file, what === "take" ? suggested : label].map(cell).join(",");
    });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([["file,clean_label", ...rows, ""].join("\r\n")], { type: "text/csv" }));
    link.download = "review.csv";
    link.click();
    URL.revokeObjectURL(link.href);
  }

  function columns(left) {
    const top = left[0].offsetTop;
    const second = left.findIndex((item) => item.offsetTop > top);
    return second < 0 ? left.length : second;
  }

  $("cards").addEventListener("keydown", (event) => {
    const item = event.target.closest("li");
    if (!item || event.ctrlKey || event.metaKey || event.altKey) return;
    const left = shown(), at = left.indexOf(item);
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(left), ArrowUp: -columns(left), Home: -at, End: left.length - 1 - at };
    if (event.key in steps) {
      const next = left[Math.max(0, Math.min(left.length - 1, at + steps[event.key]))];
      event.preventDefault();
      reachable(next);
      next.firstElementChild.focus();
    } else if ("ksx".includes(event.key)) {
      mark(item, { k: "keep", s: "take", x: "" }[event.key]);
    }
  });
  $("cards").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) mark(button.closest("li"), button.dataset.mark);
  });
  $("client").addEventListener("change", filter);
  $("label").addEventListener("change", filter);
  $("save").addEventListener("click", save);
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  filter();
})();
