// Tables with their commits, errors with their next steps, runs, and the cards of several queries.

function tablesScreen(app) {
  const doc = app.doc, now = doc.looked_at;
  const sinks = table([{ text: "sink", class: "name" }, { text: "table", class: "name" }, { text: "committed up to", num: true }, { text: "snapshot", num: true }, { text: "waiting", num: true }, { text: "rows", num: true }, { text: "last commit" }],
    doc.sinks.map(k => [k.name, k.table, fmt.int(k.committed), fmt.int(k.snapshot), fmt.int(k.pending_count), fmt.int(k.pending_rows), fmt.ago(k.last, now)]));
  const commits = doc.commits.slice(-200).reverse().map(c => [fmt.when(c.at), c.sink, c.first === c.last ? fmt.int(c.last) : `${fmt.int(c.first)} – ${fmt.int(c.last)}`, fmt.int(c.snapshot), fmt.int(c.rows), fmt.int(c.files), c.found ? "found" : fmt.ms(c.ms)]);
  const upkeep = doc.upkeep.slice(-100).reverse().map(u => [fmt.when(u.at), u.sink, fmt.int(u.files_compacted), fmt.int(u.manifests_merged), fmt.int(u.snapshots_expired), fmt.int(u.orphans_removed), fmt.bytes(u.bytes_removed), [u.held_by ? `held by ${u.held_by}. ` : "", u.notes.join(" ")].join("")]);
  return [
    panel("Sinks", doc.sinks.length ? sinks : h("p", { class: "empty" }, "The query writes to no table.")),
    panel(`Commits (${fmt.int(doc.commit_count)})`, commitChart(app), commits.length ? table([{ text: "time" }, { text: "sink", class: "name" }, { text: "checkpoints", num: true }, { text: "snapshot", num: true }, { text: "rows", num: true }, { text: "files", num: true }, { text: "took", num: true }], commits) : h("p", { class: "empty" }, "Nothing was committed yet.")),
    upkeep.length ? panel("Upkeep", table([{ text: "time" }, { text: "sink", class: "name" }, { text: "compacted", num: true }, { text: "merged", num: true }, { text: "expired", num: true }, { text: "orphans", num: true }, { text: "removed", num: true }, { text: "", class: "name" }], upkeep)) : null,
    doc.savepoints.length ? panel("Savepoints", table([{ text: "time" }, { text: "checkpoint", num: true }, { text: "size", num: true }, { text: "path", class: "name" }], doc.savepoints.slice().reverse().map(p => [fmt.when(p.at), fmt.int(p.checkpoint), fmt.bytes(p.bytes), p.path]))) : null,
  ];
}

function commitChart(app) {
  const timed = app.doc.commits.filter(c => c.ms != null).sort((a, b) => a.at - b.at);
  if (timed.length < 2) return null;
  const range = [timed[0].at, timed[timed.length - 1].at], step = (range[1] - range[0]) / timed.length || 1;
  // Not further than half way to the next one: the line would go back in time where commits are close together.
  const half = (c, other) => other ? Math.min(step / 2, Math.abs(c.at - other.at) / 2) : step / 2;
  const found = timed.map((c, i) => ({ x0: c.at - half(c, timed[i - 1]), x1: c.at + half(c, timed[i + 1]), ms: c.ms }));
  return lineChart(found, app.width(), 90, range, [{ class: "c-done", value: g => g.ms }], v => fmt.ms(v));
}

function errorsScreen(app) {
  const doc = app.doc, found = doc.failures.slice().reverse();
  return [
    doc.verdict.health === "dead" || doc.verdict.health === "held_up" ? verdictPanel(doc.verdict, doc.looked_at) : null,
    found.length ? panel("What went wrong", found.slice(0, 200).map(failure)) : panel("What went wrong", h("p", { class: "empty" }, "Nothing, as far as the history goes back.")),
    doc.unreadable.length ? panel("Files that cannot be read", table([{ text: "file", class: "name mono" }, { text: "code" }, { text: "why", class: "name" }], doc.unreadable.map(u => [u.path, u.code, u.why]))) : null,
    panel("Runs", table([{ text: "generation", num: true }, { text: "started" }, { text: "where", class: "name" }, { text: "restored", num: true }, { text: "checkpoints", num: true }, { text: "ended" }, { text: "how" }],
      doc.runs.slice().reverse().map(r => [fmt.int(r.generation), fmt.when(r.at), r.host ? `${r.host}, process ${r.pid}` : fmt.none, fmt.int(r.restored), r.first == null ? fmt.none : `${fmt.int(r.first)} – ${fmt.int(r.last)}`, fmt.when(r.stopped_at), r.reason || (r === doc.runs[doc.runs.length - 1] ? doc.verdict.kind : "without a word")]))),
  ];
}

function failure(f) {
  const line = (label, text) => text && [h("dt", null, label), h("dd", { class: "pre" }, text)];
  return h("article", { class: "failure" + (f.fatal ? " fatal" : "") },
    h("div", { class: "head" }, h("span", { class: "chip" + (f.fatal ? " bad" : "") }, f.kind), f.code && h("span", { class: "mono" }, f.code), h("span", { class: "soft" }, fmt.when(f.at)), f.where && h("span", { class: "soft wrap" }, f.where), f.attempt && h("span", { class: "faint" }, "attempt " + f.attempt), f.fatal && h("span", { class: "chip bad" }, "ended the run")),
    h("div", { class: "pre" }, f.seen),
    (f.cause || f.next_step) && h("dl", null, line("likely cause", f.cause), line("next step", f.next_step)));
}

function cards(app) {
  const made = app.summaries.map((q, i) => {
    if (!q) return h("div", { class: "card" }, h("p", { class: "soft" }, "reading …"));
    if (q.error) return h("div", { class: "card" }, h("h2", null, "Cannot be read"), h("p", { class: "pre" }, q.error.seen), h("p", { class: "soft pre" }, q.error.next_step));
    const one = (label, value) => h("div", { class: "row" }, h("span", { class: "soft" }, label), h("span", null, value));
    return h("a", { class: "card", href: app.linkOf(i) }, h("div", { class: "row" }, h("h2", null, q.name), badge(q.verdict)),
      h("p", { class: "soft wrap" }, fmt.cut(q.verdict.why.split("\n")[0], 120)), q.spark.length > 1 && sparkline(q.spark, 266, 34),
      one("last checkpoint", fmt.ago(q.newest_at, q.looked_at)), one("in flight", fmt.short(q.rows_in_flight) + " rows"), one("backlog", fmt.secs(q.backlog_s)), one("uncommitted", fmt.int(q.uncommitted)),
      h("p", { class: "faint wrap" }, fmt.cut(q.folder, 90)));
  });
  return [h("div", { class: "cards" }, made)];
}
