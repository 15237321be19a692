// The first screen: how the query is, in one look.

function overview(app) {
  const doc = app.doc, now = doc.looked_at, rates = doc.rates, v = doc.verdict;
  return [
    verdictPanel(v, now),
    tiles(doc, now),
    panel("Pipeline", drawGraph(doc, app.width())),
    h("div", { class: "two" },
      panel("Where the time goes", phasesBar(rates.phases), phaseLegend()),
      panel("Last epochs", recent(app))),
    sources(doc),
    panel("State", stateTable(doc)),
  ];
}

function verdictPanel(v, now) {
  const since = v.since ? `${fmt.when(v.since)}, ${fmt.ago(v.since, now)}` : null;
  return h("section", { class: "panel verdict " + v.health },
    badge(v), h("div", { class: "what pre" }, v.why),
    since && [h("span", { class: "soft" }, "since"), h("span", null, since)],
    v.next_step && [h("span", { class: "soft" }, "next step"), h("span", { class: "pre" }, v.next_step)],
    v.code && [h("span", { class: "soft" }, "code"), h("span", { class: "mono" }, v.code)]);
}

function tile(label, value, unit, note, level) {
  return h("div", { class: "tile " + (level || "") }, h("div", { class: "label" }, label),
    h("div", { class: "value" }, value, unit && h("span", { class: "unit" }, unit)), h("div", { class: "note" }, note || ""));
}

function tiles(doc, now) {
  const r = doc.rates, alive = doc.verdict.health === "well" || doc.verdict.health === "held_up";
  const age = doc.newest_at ? (now - doc.newest_at) / 1000 : null;
  const late = alive && r.cadence && age > Math.max(10, 10 * r.cadence) ? "warn" : "";
  const behind = doc.backlog_s == null ? (doc.rows_in_flight ? "warn" : "") : doc.backlog_s >= 60 ? "bad" : doc.backlog_s >= 10 ? "warn" : "";
  return h("div", { class: "tiles" },
    tile("Last checkpoint", age == null ? fmt.none : fmt.secs(age), age == null ? "" : "ago", doc.newest == null ? "" : "checkpoint " + doc.newest, late),
    tile("Cadence", fmt.secs(r.cadence), "", r.cadence_max == null ? "" : "at most " + fmt.secs(r.cadence_max)),
    tile("In flight", fmt.short(doc.rows_in_flight), "rows", fmt.bytes(doc.bytes_in_flight)),
    tile("Backlog", fmt.secs(doc.backlog_s), "", !doc.rows_in_flight ? "nothing waits" : doc.backlog_s == null ? "not known" : "at this rate", behind),
    tile("Rows in", fmt.short(r.rows_in), "/s", r.rows_out == null ? "" : fmt.short(r.rows_out) + "/s out"),
    doc.lag == null ? null : tile("Watermark", "−" + fmt.secs(doc.lag), "", doc.late_rows ? fmt.int(doc.late_rows) + " late rows" : "no late rows"),
    tile("Uncommitted", fmt.int(doc.uncommitted), "", doc.uncommitted === 1 ? "checkpoint" : "checkpoints", doc.uncommitted > 20 ? "warn" : ""),
    tile("State", fmt.bytes(doc.state_bytes), "", fmt.short(doc.state_rows) + " rows"));
}

function phasesBar(phases) {
  const known = PHASES.filter(p => phases[p] > 0);
  if (!known.length) return h("p", { class: "empty" }, "No epoch has told its times yet.");
  return h("div", null,
    h("div", { class: "bar" }, known.map(p => h("div", { class: "ph-" + p, "width%": phases[p] * 100, title: PHASE_TEXT[p] + " " + fmt.share(phases[p]) }))),
    h("p", { class: "soft" }, "Of the last epochs, ", known.sort((a, b) => phases[b] - phases[a]).slice(0, 3).map((p, i) => [i ? ", " : "", fmt.share(phases[p]) + " " + PHASE_TEXT[p]]), "."));
}

function recent(app) {
  const ep = app.epochs;
  if (!ep.n) return h("p", { class: "empty" }, "No epoch has ended yet.");
  const from = ep.begin[Math.max(0, ep.n - 60)], range = [from, ep.at[ep.n - 1]], width = app.half();
  return h("a", { href: app.link("timeline"), title: "open the timeline" }, phaseChart(groups(ep, ...range), width, 128, range));
}

function sources(doc) {
  const known = doc.sources.map(part => [part.name, null, null, null, null, part.lag == null ? null : "−" + fmt.secs(part.lag)]);
  const told = doc.offsets.map(part => [part.source, part.rows_per_s == null ? null : fmt.short(part.rows_per_s) + "/s", part.end, part.latest, part.behind == null ? null : fmt.int(part.behind), null]);
  // Spark may call a source otherwise than the pipeline does; one that both know is one row.
  for (const row of told) { const same = known.find(one => one[0] === row[0]); if (same) { row[5] = same[5]; known.splice(known.indexOf(same), 1, row); } else known.push(row); }
  // Without a watermark, and before the first sign of life, there is nothing to tell but names, which the graph has.
  if (!known.some(row => row.slice(1).some(value => value != null))) return null;
  return panel("Sources", table([{ text: "source", class: "name" }, { text: "rows", num: true }, { text: "read up to" }, { text: "newest" }, { text: "behind", num: true }, { text: "watermark", num: true }], known.slice(0, 200)));
}

function stateTable(doc) {
  const rows = doc.operators.flatMap(op => op.state.map(t => [t.name, op.kind.split("/")[0].replace(/_/g, " "), fmt.int(t.rows), fmt.bytes(t.bytes), fmt.int(t.files)]));
  if (!rows.length) return h("p", { class: "empty" }, "No operator keeps state.");
  return table([{ text: "table", class: "name" }, { text: "operator" }, { text: "rows", num: true }, { text: "size", num: true }, { text: "files", num: true }], rows.slice(0, 200));
}
