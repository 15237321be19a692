// Which query and which screen is shown, what keys do, and how a live page stays fresh.

const SCREENS = [["overview", "Overview", overview], ["timeline", "Timeline", timeline], ["checkpoint", "Checkpoint", checkpoint], ["tables", "Tables", tablesScreen], ["errors", "Errors", errorsScreen]];
const REFRESH_MS = 2000;

const app = {
  live: false, summaries: [], docs: [], query: null, screen: "overview", epoch: null, range: null, doc: null, epochs: null, busy: false, trouble: null,
  width() { return Math.max(280, Math.min(1200, document.getElementById("app").clientWidth - (innerWidth <= 720 ? 50 : 78))); },
  half() { return innerWidth <= 720 ? app.width() : Math.max(260, (app.width() - 54) / 2); },
  linkOf(query, screen, epoch) { return `#/${query}/${screen || "overview"}${epoch == null ? "" : "/" + epoch}`; },
  link(screen, epoch) { return app.linkOf(app.query, screen, epoch); },
  go(screen, epoch) { location.hash = app.link(screen, epoch); },
  setRange(range) { app.range = range; draw(); },
  zoom(factor, around) {
    if (!app.epochs || !app.epochs.n) return;
    const whole = extent(app.epochs), [a, b] = app.range || whole, mid = around == null ? (a + b) / 2 : around;
    const from = Math.max(whole[0], mid - (mid - a) * factor), to = Math.min(whole[1], mid + (b - mid) * factor);
    app.setRange(to - from >= whole[1] - whole[0] ? null : to - from < 500 ? [a, b] : [from, to]);
  },
  pan(share) {
    if (!app.range) return;
    const whole = extent(app.epochs), size = app.range[1] - app.range[0];
    const from = Math.max(whole[0], Math.min(whole[1] - size, app.range[0] + size * share));
    app.setRange([from, from + size]);
  },
  step(by) {
    const list = app.epochs.checkpoint, now = app.epoch == null ? list.length - 1 : list.indexOf(app.epoch);
    const next = list[Math.max(0, Math.min(list.length - 1, now + by))];
    if (next != null) app.go("checkpoint", next);
  },
  async sample(button, edge, number) {
    button.disabled = true;
    app.busy = true;
    const place = document.getElementById("sample");
    try {
      const found = await ask(`/api/sample/${app.query}?edge=${encodeURIComponent(edge)}&checkpoint=${number}`);
      if (found.error) place.replaceChildren(h("p", { class: "pre" }, found.error.seen), h("p", { class: "soft pre" }, found.error.next_step));
      else place.replaceChildren(h("h3", null, `The first rows on ${edge}`), found.rows.length ? table(found.columns.map(text => ({ text })), found.rows.map(row => row.map(v => v == null ? h("span", { class: "faint" }, "null") : v))) : h("p", { class: "empty" }, "No rows wait."));
    } catch { place.replaceChildren(h("p", null, "The server does not answer.")); }
    button.disabled = false;
  },
};

function route() {
  const [, query, screen, epoch] = location.hash.split("/");
  const several = app.docs.length !== 1;
  app.query = /^\d+$/.test(query || "") && Number(query) < app.docs.length ? Number(query) : several ? null : 0;
  app.screen = SCREENS.some(([name]) => name === screen) ? screen : "overview";
  app.epoch = /^\d+$/.test(epoch || "") ? Number(epoch) : null;
  app.busy = false;
}

function choose() {
  app.doc = app.query == null ? null : app.docs[app.query];
  app.epochs = app.doc && !app.doc.error ? readEpochs(app.doc) : null;
}

function draw() {
  const root = document.getElementById("app"), doc = app.doc;
  document.title = doc && doc.name ? `${doc.name} – Penstock` : "Penstock";
  const errors = doc && doc.failures ? doc.failures.filter(f => f.fatal).length : 0;
  const tabs = app.query == null || !doc || doc.error ? null : h("nav", { class: "tabs", "aria-label": "screens" }, SCREENS.map(([name, text], i) =>
    h("a", { href: app.link(name), "aria-current": name === app.screen ? "page" : null, title: `key ${i + 1}` }, text, name === "errors" && errors ? h("span", { class: "count" }, errors) : null)));
  let body;
  if (app.query == null) body = cards(app);
  else if (!doc) body = [h("p", { class: "empty" }, app.trouble || "Reading the folder …")];
  else if (doc.error) body = [panel("The folder cannot be read", h("p", { class: "pre" }, doc.error.seen), h("p", { class: "soft pre" }, doc.error.next_step))];
  else body = SCREENS.find(([name]) => name === app.screen)[2](app);
  root.replaceChildren(top_(doc), ...[tabs].filter(Boolean), h("main", null, body), foot(doc));
  // For whoever measures: when the first whole picture stood, in milliseconds after the page was asked for.
  if (!root.dataset.drawn && (app.query == null || doc)) root.dataset.drawn = Math.round(performance.now());
}

function top_(doc) {
  const mark = s("svg", { width: 22, height: 22, viewBox: "0 0 22 22", "aria-hidden": "true" }, s("path", { d: "M2 5h7c4 0 3 12 7 12h4", class: "logo" }), s("circle", { cx: 16, cy: 5, r: 2, class: "logo-dot" }));
  const home = app.docs.length > 1 ? h("a", { href: "#/", class: "brand" }, mark, "Penstock") : h("span", { class: "brand" }, mark, "Penstock");
  return h("header", { class: "top" }, home, doc && doc.name && h("h1", null, doc.name), doc && doc.verdict && app.screen !== "overview" && badge(doc.verdict), h("span", { class: "grow" }),
    app.trouble && h("span", { class: "chip bad" }, app.trouble), h("button", { on: { click: theme }, title: "light or dark (t)", "aria-label": "light or dark" }, "◐"));
}

function foot(doc) {
  return h("footer", null, doc && doc.folder && h("span", null, doc.folder), doc && doc.library && h("span", null, "begun by Penstock " + doc.library),
    doc && doc.looked_at && h("span", null, (app.live ? "read " : "as of ") + fmt.when(doc.looked_at)),
    h("span", { class: "keys" }, h("kbd", null, "1"), "–", h("kbd", null, "5"), " screens  ", h("kbd", null, "+"), h("kbd", null, "-"), h("kbd", null, "←"), h("kbd", null, "→"), h("kbd", null, "0"), " timeline  ", h("kbd", null, "["), h("kbd", null, "]"), " checkpoints  ", h("kbd", null, "t"), " light or dark"));
}

function theme() {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("penstock-theme", root.dataset.theme); } catch { /* a file has no storage in some browsers */ }
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  const run = {
    "+": () => app.zoom(0.5), "=": () => app.zoom(0.5), "-": () => app.zoom(2), "0": () => app.setRange(null), ArrowLeft: () => app.pan(-0.3), ArrowRight: () => app.pan(0.3),
    "[": () => app.step(-1), "]": () => app.step(1), t: theme, h: () => { location.hash = "#/"; },
  }[event.key];
  const number = "12345".indexOf(event.key);
  if (number >= 0 && app.query != null) app.go(SCREENS[number][0]);
  else if (run && (app.epochs || event.key === "t" || event.key === "h")) run();
  else return;
  event.preventDefault();
}

async function ask(path) { const answer = await fetch(path); return answer.json(); }

async function refresh() {
  const query = app.query;
  try {
    const fresh = await ask(query == null ? "/api/queries" : `/api/query/${query}`);
    if (query == null) app.summaries = fresh; else app.docs[query] = fresh;
    app.trouble = null;
  } catch { app.trouble = "the server has stopped"; }
  if (query !== app.query || app.busy) return;
  choose();
  draw();
}

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  app.live = data.live === true;
  app.docs = data.queries;
  app.summaries = data.queries;
  try { const kept = localStorage.getItem("penstock-theme"); if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept; } catch { /* as above */ }
  const again = () => { route(); choose(); draw(); };
  addEventListener("hashchange", () => { again(); scrollTo(0, 0); if (app.live) refresh(); });
  addEventListener("keydown", keys);
  addEventListener("resize", () => { if (!app.busy) draw(); });
  again();
  if (app.live) { refresh(); setInterval(() => { if (!document.hidden && !app.busy) refresh(); }, REFRESH_MS); }
}

start();
