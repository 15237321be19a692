// Epochs over time: where their time went, what came and left, what waits, and what happened meanwhile.

const MARK_TEXT = { start: "start", stop: "end", rescale: "rescale", failure: "failure", savepoint: "savepoint", commit: "commit" };

function timeline(app) {
  const ep = app.epochs;
  if (!ep.n) return [panel("Epochs", h("p", { class: "empty" }, "No epoch has ended yet."))];
  const range = app.range || extent(ep), width = app.width(), found = groups(ep, ...range);
  const per = key => g => g.ms ? g[key] / g.ms * 1000 : 0;
  const readout = h("div", { class: "readout", "aria-live": "polite" }, hint(found, ep));
  const charts = [
    phaseChart(found, width, 190, range),
    lineChart(found, width, 130, range, [{ class: "c-in", value: per("rows_in") }, { class: "c-done", value: per("done") }, { class: "c-out", value: per("out") }], v => fmt.short(v) + "/s"),
    lineChart(found, width, 110, range, [{ class: "c-flight", value: g => g.flight }], v => fmt.short(v), "f-flight"),
  ];
  const part = (title, chart, key) => h("div", { class: "part" }, h("div", { class: "tools" }, h("h3", null, title), h("span", { class: "grow" }), key), interactive(app, chart, range, width, ep, readout));
  return [
    panel(null,
      h("div", { class: "tools" }, h("h2", null, "Epochs"), h("span", { class: "grow" }),
        h("button", { on: { click: () => app.zoom(0.5) }, title: "zoom in (+)" }, "+"), h("button", { on: { click: () => app.zoom(2) }, title: "zoom out (-)" }, "−"),
        h("button", { on: { click: () => app.setRange(null) }, title: "everything (0)" }, "all")),
      readout,
      marksLane(app, range, width),
      part("Time of an epoch", charts[0], null), phaseLegend(),
      part("Rows", charts[1], legend([["f-in", "in"], ["f-done", "processed"], ["f-out", "out"]])),
      part("Rows in flight", charts[2], null)),
    panel("What happened", events(app, range)),
  ];
}

function hint(found, ep) {
  const more = found.length && found[0].count > 1 ? ` A bar stands for ${found[0].count} of them.` : "";
  return h("span", null, `${fmt.int(ep.n)} epochs.${more} Drag to zoom in; click an epoch to look into its checkpoint.`);
}

function marksLane(app, range, width) {
  const x = t => SPACE.left + (t - range[0]) / Math.max(1, range[1] - range[0]) * (width - SPACE.left - SPACE.right);
  const seen = new Map(), all = app.doc.marks.filter(m => m.at >= range[0] - 1 && m.at <= range[1] + 1);
  const few = all.length < 500, inside = all.filter(m => few || m.kind !== "commit"), drawn = [];
  for (const m of inside) {
    const low = m.kind === "commit";
    let px = Math.round(x(m.at));
    // Several things of one moment stand side by side; one thing many times is one mark.
    while (!low && seen.has(px) && seen.get(px) !== m.kind && px < width) px += 4;
    if (!low && seen.get(px) === m.kind) continue;
    if (!low) seen.set(px, m.kind);
    drawn.push(s("line", { class: "mark " + m.kind, x1: px, x2: px, y1: low ? 15 : 2, y2: low ? 20 : 13 }, s("title", null, `${fmt.clock(m.at)} ${m.text}`)));
  }
  const kinds = [...new Set(inside.map(m => m.kind))];
  return h("div", { class: "marks" }, svg(width, 22, drawn), kinds.length ? legend(kinds.map(k => ["k-" + k, MARK_TEXT[k]])) : null);
}

function interactive(app, chart, range, width, ep, readout) {
  const inner = width - SPACE.left - SPACE.right;
  const time = event => { const box = chart.getBoundingClientRect(); return range[0] + (range[1] - range[0]) * Math.max(0, Math.min(1, (event.clientX - box.left - SPACE.left) / inner)); };
  const px = t => SPACE.left + (t - range[0]) / Math.max(1, range[1] - range[0]) * inner;
  const height = Number(chart.getAttribute("height"));
  const cursor = s("line", { class: "cursor", y1: SPACE.top, y2: height - SPACE.bottom, x1: -9, x2: -9 });
  const choice = s("rect", { class: "choice", y: SPACE.top, height: height - SPACE.top - SPACE.bottom, x: 0, width: 0 });
  chart.append(choice, cursor);
  let from = null;
  const epochAt = t => Math.min(ep.n - 1, firstAfter(ep.at, t));
  const move = event => {
    const t = time(event), i = epochAt(t);
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, px(t));
    readout.replaceChildren(...about(ep, i));
    if (from != null) { choice.setAttribute("x", Math.min(px(from), px(t))); choice.setAttribute("width", Math.abs(px(t) - px(from))); }
  };
  const up = event => {
    if (from == null) return;
    const a = from, b = time(event);
    from = null;
    app.busy = false;
    if (Math.abs(px(b) - px(a)) > 6) app.setRange([Math.min(a, b), Math.max(a, b)]);
    else app.go("checkpoint", ep.checkpoint[epochAt(b)]);
  };
  return h("div", { class: "chart", on: {
    pointerdown: event => { from = time(event); app.busy = true; event.currentTarget.setPointerCapture(event.pointerId); },
    pointermove: move, pointerup: up, pointercancel: () => { from = null; app.busy = false; },
    wheel: event => { event.preventDefault(); app.zoom(event.deltaY > 0 ? 1.3 : 1 / 1.3, time(event)); },
    dblclick: () => app.setRange(null),
  } }, chart);
}

const KINDS = ["ingest", "drain", "takeover", "mean of a minute"];

function about(ep, i) {
  const one = (label, value) => h("span", null, label + " ", h("b", null, value));
  const phases = PHASES.filter(p => ep[p][i] > 0).sort((a, b) => ep[b][i] - ep[a][i]).slice(0, 4);
  return [one("checkpoint", fmt.int(ep.checkpoint[i])), one("", fmt.when(ep.at[i])), one("", KINDS[ep.kind[i]]), one("took", fmt.ms(ep.duration[i])),
    one("in", fmt.short(ep.rows_in[i])), one("processed", fmt.short(ep.rows_processed[i])), one("out", fmt.short(ep.rows_out[i])),
    one("in flight", fmt.short(ep.rows_in_flight[i])), ...phases.map(p => one(PHASE_TEXT[p], fmt.ms(ep[p][i])))];
}

function events(app, range) {
  const rows = app.doc.marks.filter(m => m.kind !== "commit" && m.at >= range[0] - 60000 && m.at <= range[1] + 60000).slice(-100).reverse();
  if (!rows.length) return h("p", { class: "empty" }, "Nothing but epochs and commits in this span.");
  return table([{ text: "time" }, { text: "what" }, { text: "", class: "name" }], rows.map(m => [fmt.when(m.at), h("span", { class: "chip" + (m.kind === "failure" ? " bad" : "") }, MARK_TEXT[m.kind]), m.text]));
}
