// Elements. Text only ever becomes a text node, so a name from a folder stays a name.

function h(tag, attrs, ...children) { return fill(document.createElement(tag), attrs, children); }
function s(tag, attrs, ...children) { return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attrs, children); }

function fill(node, attrs, children) {
  for (const [name, value] of Object.entries(attrs || {})) {
    if (value == null || value === false) continue;
    if (name === "on") for (const [event, run] of Object.entries(value)) node.addEventListener(event, run, event === "wheel" ? { passive: false } : undefined);
    else if (name === "width%") node.style.width = value + "%";
    else node.setAttribute(name, value === true ? "" : value);
  }
  add(node, children);
  return node;
}

function add(node, children) {
  for (const child of children.flat(3)) if (child != null && child !== false) node.append(child);
}

function table(heads, rows) {
  const cell = (tag, spec, value) => h(tag, { class: spec.num ? "num" : spec.class }, value == null ? fmt.none : value);
  return h("div", { class: "scroll" }, h("table", null,
    h("thead", null, h("tr", null, heads.map(head => cell("th", head, head.text)))),
    h("tbody", null, rows.map(row => h("tr", null, row.map((value, i) => cell("td", heads[i], value)))))));
}

function panel(title, ...children) { return h("section", { class: "panel" }, title && h("h2", null, title), children); }
function badge(verdict) { return h("span", { class: "badge " + verdict.health }, verdict.kind); }
function legend(items) { return h("div", { class: "legend" }, items.map(([cls, text]) => h("span", null, h("i", { class: cls }), text))); }
function phaseLegend() { return legend(PHASES.map(p => ["ph-" + p, PHASE_TEXT[p]])); }
