// The pipeline: sources, stages with their operators, sinks, in layers from left to right.

const NODE = { width: 164, gap: 22, between: 124, line: 17, head: 30 };

function pressure(edge) {
  if (!edge || !edge.rows) return 0;
  const b = edge.backlog_s;
  if (b == null) return 1;
  return b >= 60 ? 3 : b >= 10 ? 2 : b >= 2 ? 1 : 0;
}

function graphOf(doc) {
  const nodes = new Map(), edges = [];
  const put = (id, node) => { if (!nodes.has(id)) nodes.set(id, { id, layer: 0, ...node }); };
  for (const part of doc.sources) put("s:" + part.name, { kind: "source", title: part.name, lines: [] });
  const stageOf = new Map(doc.operators.map(op => [op.name, op.stage]));
  for (const part of doc.stages) {
    const ops = part.operators.map(name => doc.operators.find(op => op.name === name)).filter(Boolean);
    const lines = ops.slice(0, 6).map(op => [op.name, op.kind.split("/")[0].replace("_window", "").replace(/_/g, " "), op.state.reduce((n, t) => n + t.bytes, 0)]);
    if (ops.length > 6) lines.push([`and ${ops.length - 6} more`, "", 0]);
    put("g:" + part.name, { kind: "stage", title: part.name, lines, part });
  }
  for (const part of doc.sinks) put("k:" + part.name, { kind: "sink", title: part.name, lines: [], part });
  for (const edge of doc.edges) {
    const from = edge.from_source ? "s:" + edge.producer : "g:" + edge.producer;
    if (nodes.has(from) && nodes.has("g:" + edge.consumer)) edges.push({ from, to: "g:" + edge.consumer, edge });
  }
  const sinks = new Set();
  for (const [a, b] of doc.links) {
    const from = "g:" + stageOf.get(a), to = "k:" + b;
    if (nodes.has(from) && nodes.has(to) && !sinks.has(from + to)) { sinks.add(from + to); edges.push({ from, to, edge: null }); }
  }
  return { nodes: [...nodes.values()], edges };
}

function layered(g) {
  const by = new Map(g.nodes.map(n => [n.id, n]));
  for (let round = 0; round < g.nodes.length; round++) {
    let moved = false;
    for (const e of g.edges) {
      const a = by.get(e.from), b = by.get(e.to);
      if (b.layer < a.layer + 1 && a.layer < g.nodes.length) { b.layer = a.layer + 1; moved = true; }
    }
    if (!moved) break;
  }
  // A source stands right before whoever reads it first: its edge then crosses nobody.
  for (const n of g.nodes) {
    const next = g.edges.filter(e => e.from === n.id).map(e => by.get(e.to).layer);
    if (n.kind === "source" && next.length) n.layer = Math.max(0, Math.min(...next) - 1);
  }
  const layers = [];
  for (const n of g.nodes) (layers[n.layer] = layers[n.layer] || []).push(n);
  const rows = layers.filter(Boolean);
  // Nodes stand near those they get rows from, so that edges seldom cross.
  rows.forEach((row, i) => {
    row.forEach((n, k) => { const before = g.edges.filter(e => e.to === n.id).map(e => by.get(e.from).place || 0); n.wish = before.length ? before.reduce((a, b) => a + b, 0) / before.length : k; });
    if (i) row.sort((a, b) => a.wish - b.wish);
    row.forEach((n, k) => { n.place = k; n.column = i; });
  });
  return rows;
}

function drawGraph(doc, room) {
  const g = graphOf(doc);
  if (!g.nodes.length) return h("p", { class: "empty" }, "No checkpoint tells how the pipeline looks yet.");
  if (g.nodes.length > 300) return h("p", { class: "empty" }, `The pipeline has ${g.nodes.length} parts, too many to draw. The tables below list them.`);
  const rows = layered(g), by = new Map(g.nodes.map(n => [n.id, n]));
  for (const n of g.nodes) n.height = n.kind === "stage" ? NODE.head + 22 + n.lines.length * NODE.line : n.kind === "sink" ? 46 : 34;
  const tall = Math.max(...rows.map(row => row.reduce((sum, n) => sum + n.height + NODE.gap, -NODE.gap)));
  rows.forEach((row, i) => {
    let y = (tall - row.reduce((sum, n) => sum + n.height + NODE.gap, -NODE.gap)) / 2 + 6;
    for (const n of row) { n.x = 4 + i * (NODE.width + NODE.between); n.y = y; y += n.height + NODE.gap; }
  });
  const width = rows.length * (NODE.width + NODE.between) - NODE.between + 8, height = tall + 12;
  const placed = [], lines = g.edges.map(e => drawEdge(e, by.get(e.from), by.get(e.to), placed));
  // A little too wide is drawn smaller; much too wide can be scrolled.
  const scale = Math.min(1, Math.max(0.72, room / width));
  return h("div", { class: "scroll" }, s("svg", { width: Math.round(width * scale), height: Math.round(height * scale), viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "the pipeline" },
    lines.map(l => l.path), g.nodes.map(drawNode), lines.map(l => l.label)));
}

function drawNode(n) {
  const parts = [s("rect", { class: "node " + n.kind, x: n.x, y: n.y, width: NODE.width, height: n.height, rx: 9 })];
  const text = (dx, dy, cls, value, end) => parts.push(s("text", { class: cls, x: end ? n.x + NODE.width - dx : n.x + dx, y: n.y + dy, "text-anchor": end ? "end" : "start" }, value));
  parts.push(s("title", null, n.title));
  text(12, 21, "t-strong", fmt.cut(n.title, n.kind === "stage" ? 15 : 20));
  if (n.kind === "stage") {
    text(12, 21, "t-soft", "×" + n.part.parallelism, true);
    n.lines.forEach(([name, kind, bytes], i) => {
      const y = NODE.head + 11 + i * NODE.line;
      text(12, y, "t-soft", fmt.cut(kind || name, 18));
      if (bytes) text(12, y, "t-faint", fmt.bytes(bytes), true);
    });
    const y = n.height - 21;
    parts.push(s("line", { class: "node-line", x1: n.x, x2: n.x + NODE.width, y1: n.y + y, y2: n.y + y }));
    text(12, n.height - 7, "t-faint", n.part.rows_per_s == null ? "no rows lately" : fmt.short(n.part.rows_per_s) + " rows/s");
    if (n.part.skew != null && n.part.skew >= 1.5) text(12, n.height - 7, "t-faint", "skew " + fmt.times(n.part.skew), true);
  }
  if (n.kind === "sink") text(12, 37, "t-faint", n.part.pending_count ? `${n.part.pending_count} to commit` : n.part.committed == null ? "nothing committed" : "committed to " + n.part.committed);
  return s("g", null, parts);
}

function drawEdge(e, a, b, placed) {
  const level = pressure(e.edge), x0 = a.x + NODE.width, x1 = b.x - 7;
  const y0 = a.y + a.height / 2, y1 = b.y + b.height / 2, mid = Math.max(40, (x1 - x0) / 2);
  const wide = e.edge && e.edge.rows ? Math.min(7, 1.5 + Math.log10(e.edge.rows)) : 1.5;
  const dash = e.edge && e.edge.broadcast ? "5 4" : null;
  const path = s("g", null,
    s("path", { class: "edge pr-" + level, d: `M${x0} ${y0}C${x0 + mid} ${y0} ${x1 - mid} ${y1} ${x1} ${y1}`, "stroke-width": wide, "stroke-dasharray": dash }),
    s("path", { class: "arrow pr-" + level, d: `M${x1 + 7} ${y1}l-9 -4.5v9z` }));
  if (!e.edge) return { path, label: null };
  const x = (x0 + x1) / 2, y = (y0 + y1) / 2, rows = e.edge.rows;
  const first = rows ? `${fmt.short(rows)} rows` + (e.edge.backlog_s == null ? "" : `, ${fmt.secs(e.edge.backlog_s)}`) : "";
  const second = e.edge.lag == null ? "" : `watermark −${fmt.secs(e.edge.lag)}`;
  const text = (value, wish, cls) => {
    if (!value) return null;
    const half = value.length * 3.1 + 3;
    let at = wish;
    while (placed.some(p => Math.abs(p.x - x) < p.half + half && Math.abs(p.y - at) < 13)) at += 13;
    placed.push({ x, y: at, half });
    return [s("rect", { class: "label-back", x: x - half, y: at - 10, width: 2 * half, height: 13, rx: 3 }), s("text", { class: cls, x, y: at, "text-anchor": "middle" }, value)];
  };
  const label = s("g", null, s("title", null, e.edge.name), text(first, y - 8, "pt-" + level), text(second, first ? y + 16 : y - 7, "t-faint"));
  return { path, label };
}
