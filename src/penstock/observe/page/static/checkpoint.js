// One checkpoint: what its subtasks did, what waits where, what is not committed, and some of the rows.

function checkpoint(app) {
  const ep = app.epochs, doc = app.doc;
  const wanted = app.epoch == null ? (doc.newest || (ep.n && ep.checkpoint[ep.n - 1])) : app.epoch;
  if (!wanted) return [panel("Checkpoint", h("p", { class: "empty" }, "There is no checkpoint yet."))];
  const i = ep.checkpoint.indexOf(wanted), detail = doc.details[wanted], kept = doc.checkpoints.find(c => c.checkpoint === wanted);
  return [
    panel(null,
      h("div", { class: "tools" }, h("h2", null, "Checkpoint " + fmt.int(wanted)), h("span", { class: "grow" }),
        h("button", { on: { click: () => app.step(-1) }, title: "older ([)" }, "‹ older"), h("button", { on: { click: () => app.step(1) }, title: "newer (])" }, "newer ›"),
        h("button", { on: { click: () => app.go("checkpoint") } }, "newest")),
      i >= 0 ? h("div", { class: "readout" }, about(ep, i)) : h("p", { class: "soft" }, "The history does not know this epoch any more."),
      kept ? h("p", { class: "soft" }, `It is retained: restore=${wanted} goes back to it. ${fmt.int(kept.segments)} files of rows in flight, ${fmt.int(kept.state_files)} files of state, ${fmt.bytes(kept.state_bytes)}.`)
        : h("p", { class: "soft" }, "It is not retained any more.")),
    stagesOf(detail),
    h("div", { class: "two" }, panel("In flight", edgesOf(app, doc, detail, wanted, kept)), panel("Not committed", pendingOf(doc, wanted))),
    panel("Retained checkpoints", keptTable(app, doc)),
  ];
}

function stagesOf(detail) {
  const stages = detail ? Object.entries(detail.stages) : [];
  if (!stages.length) return panel("Subtasks", h("p", { class: "empty" }, "Figures of subtasks are kept for the last epochs only, and by newer versions."));
  return panel("Subtasks", phaseLegend(), stages.map(([name, stage]) => stageOf(name, stage, detail.scaling[name])));
}

function stageOf(name, stage, scaling) {
  const t = stage.subtasks, max = Math.max(1, ...t.elapsed);
  const facts = [`${fmt.int(stage.launched)} of its subtasks ran`, `${fmt.short(stage.rows)} rows`, stage.skew == null ? null : `skew ${fmt.times(stage.skew)}`,
    stage.cost_us == null ? null : `${fmt.secs(stage.cost_us / 1e6)} a row`, stage.memory ? `${fmt.bytes(stage.memory)} in the largest worker` : null].filter(Boolean).join(" · ");
  const shown = t.subtask.map((number, k) => {
    const parts = ["opening", "delivery", "stepping", "writing"].map(p => h("div", { class: "ph-" + p, "width%": t[p][k] / max * 100, title: `${PHASE_TEXT[p]} ${fmt.ms(t[p][k])}` }));
    return [h("span", { class: "soft num" }, "#" + number), h("div", { class: "bar" }, parts), h("span", { class: "num" }, fmt.ms(t.elapsed[k])), h("span", { class: "num soft opt" }, fmt.short(t.rows[k]) + " rows")];
  });
  return h("div", { class: "stage" }, h("h3", { class: "wrap" }, name), h("p", { class: "soft" }, facts), scaling && h("p", { class: "soft" }, scaling), h("div", { class: "sub" }, shown));
}

function edgesOf(app, doc, detail, wanted, kept) {
  const newest = doc.newest === wanted, told = detail ? detail.edges : {};
  const rows = doc.edges.map(edge => {
    const own = told[edge.name], count = newest ? edge.rows : own ? own.rows : null, bytes = newest ? edge.bytes : own ? own.bytes : null;
    const look = app.live && kept && count !== 0 ? h("button", { on: { click: event => app.sample(event.target, edge.name, wanted) } }, "look") : null;
    return [edge.name, fmt.int(count), fmt.bytes(bytes), own ? fmt.short(own.rows_in) : fmt.none, own ? fmt.short(own.processed) : fmt.none, look || ""];
  });
  if (!rows.length) return h("p", { class: "empty" }, "There are no edges.");
  const hint = app.live ? null : h("p", { class: "faint" }, "Rows themselves: ", h("span", { class: "mono" }, "penstock.open(folder).in_flight(edge)"));
  return h("div", null, table([{ text: "edge", class: "name" }, { text: "rows", num: true }, { text: "size", num: true }, { text: "came", num: true }, { text: "left", num: true }, { text: "" }], rows), h("div", { class: "sample", id: "sample" }), hint);
}

function pendingOf(doc, wanted) {
  const rows = doc.sinks.map(k => [k.name, k.pending.filter(c => c <= wanted).length, doc.newest === wanted ? fmt.int(k.pending_rows) : fmt.none, k.committed == null ? fmt.none : fmt.int(k.committed)]);
  if (!rows.length) return h("p", { class: "empty" }, "There are no sinks.");
  return table([{ text: "sink", class: "name" }, { text: "checkpoints", num: true }, { text: "rows", num: true }, { text: "committed up to", num: true }], rows);
}

function keptTable(app, doc) {
  if (!doc.checkpoints.length) return h("p", { class: "empty" }, "None.");
  return table([{ text: "checkpoint", num: true }, { text: "time" }, { text: "generation", num: true }, { text: "in flight", num: true }, { text: "", num: true }, { text: "state", num: true }, { text: "uncommitted", num: true }],
    doc.checkpoints.slice(-50).reverse().map(c => [h("a", { href: app.link("checkpoint", c.checkpoint) }, fmt.int(c.checkpoint)), fmt.when(c.at), fmt.int(c.generation), fmt.int(c.rows) + " rows", fmt.bytes(c.bytes), fmt.bytes(c.state_bytes), fmt.int(c.uncommitted)]));
}
