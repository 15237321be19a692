// Charts as SVG: a few paths, whatever the number of epochs. Epochs that share a few pixels become one group.

const BARS_MAX = 320;

function readEpochs(doc) {
  const e = doc.epochs, n = e.checkpoint.length, at = new Float64Array(n), begin = new Float64Array(n);
  let t = 0;
  for (let i = 0; i < n; i++) {
    t += e.at[i];
    at[i] = t;
    begin[i] = t - Math.max(e.duration[i] + e.waiting[i], 1);
  }
  return { ...e, at, begin, n };
}

function extent(ep) { return ep.n ? [ep.begin[0], ep.at[ep.n - 1]] : [0, 1]; }

function firstAfter(list, value) {
  let lo = 0, hi = list.length;
  while (lo < hi) { const mid = (lo + hi) >> 1; if (list[mid] < value) lo = mid + 1; else hi = mid; }
  return lo;
}

function groups(ep, from, to) {
  const i0 = firstAfter(ep.at, from), i1 = Math.min(ep.n, firstAfter(ep.begin, to) + 1);
  const step = Math.max(1, Math.ceil((i1 - i0) / BARS_MAX)), found = [];
  for (let i = i0; i < i1; i += step) {
    const end = Math.min(i + step, i1);
    const g = { first: i, last: end - 1, x0: ep.begin[i], x1: ep.at[end - 1], flight: 0, rows_in: 0, done: 0, out: 0, ms: 0, count: end - i };
    for (const p of PHASES) g[p] = 0;
    for (let k = i; k < end; k++) {
      for (const p of PHASES) g[p] += ep[p][k];
      // An older history tells the whole only.
      const told = ep.outside[k] + ep.opening[k] + ep.delivery[k] + ep.stepping[k] + ep.writing[k] + ep.driver[k] + ep.publish[k];
      if (told < ep.duration[k]) g.outside += ep.duration[k] - told;
      g.flight = Math.max(g.flight, ep.rows_in_flight[k]);
      g.rows_in += ep.rows_in[k]; g.done += ep.rows_processed[k]; g.out += ep.rows_out[k];
      g.ms += ep.duration[k] + ep.waiting[k];
    }
    found.push(g);
  }
  return found;
}

function niceMax(value) {
  if (!(value > 0)) return 1;
  const p = 10 ** Math.floor(Math.log10(value));
  for (const m of [1, 1.5, 2, 3, 5, 7.5, 10]) if (m * p >= value) return m * p;
  return 10 * p;
}

const SPACE = { left: 56, right: 8, top: 8, bottom: 18 };

function frame(width, height, range, max, label) {
  const x = t => SPACE.left + (t - range[0]) / Math.max(1, range[1] - range[0]) * (width - SPACE.left - SPACE.right);
  const y = v => height - SPACE.bottom - Math.min(1, v / max) * (height - SPACE.top - SPACE.bottom);
  const parts = [0.5, 1].map(share => [
    s("line", { class: "grid", x1: SPACE.left, x2: width - SPACE.right, y1: y(max * share), y2: y(max * share) }),
    s("text", { class: "t-faint", x: SPACE.left - 7, y: y(max * share) + 4, "text-anchor": "end" }, label(max * share))]);
  parts.push(s("line", { class: "axis", x1: SPACE.left, x2: width - SPACE.right, y1: y(0), y2: y(0) }));
  return { x, y, parts };
}

function timeTicks(width, height, range, x) {
  const n = Math.max(2, Math.floor((width - SPACE.left) / 130)), seconds = range[1] - range[0] < 600000 * n;
  return Array.from({ length: n }, (_, i) => {
    const t = range[0] + (range[1] - range[0]) * (i + 0.5) / n;
    return s("text", { class: "t-faint", x: x(t), y: height - 4, "text-anchor": "middle" }, fmt.clock(t, seconds));
  });
}

function clipped(x, width, value) { return Math.max(SPACE.left, Math.min(width - SPACE.right, x(value))); }

function phaseChart(found, width, height, range) {
  const shown = PHASES.filter(p => p !== "waiting");
  const max = niceMax(Math.max(1, ...found.map(g => shown.reduce((sum, p) => sum + g[p], 0) / g.count)));
  const f = frame(width, height, range, max, v => fmt.ms(v));
  const base = new Array(found.length).fill(0);
  const paths = shown.map(p => {
    let d = "";
    found.forEach((g, i) => {
      const v = g[p] / g.count;
      if (v <= 0) return;
      const x0 = clipped(f.x, width, g.x0), x1 = clipped(f.x, width, g.x1), gap = x1 - x0 > 5 ? 1 : 0;
      if (x1 <= x0) return;
      const top = f.y(base[i] + v), bottom = f.y(base[i]);
      d += `M${x0.toFixed(1)} ${bottom.toFixed(1)}V${top.toFixed(1)}H${(x1 - gap).toFixed(1)}V${bottom.toFixed(1)}Z`;
      base[i] += v;
    });
    return s("path", { class: "ph-" + p, d });
  });
  return svg(width, height, f.parts, paths, timeTicks(width, height, range, f.x));
}

function lineChart(found, width, height, range, series, label, area) {
  const max = niceMax(Math.max(1e-9, ...found.flatMap(g => series.map(one => one.value(g)))));
  const f = frame(width, height, range, max, label);
  const paths = series.map(one => {
    let d = "", last = null;
    for (const g of found) {
      const x0 = clipped(f.x, width, g.x0), x1 = clipped(f.x, width, g.x1), v = f.y(one.value(g)).toFixed(1);
      // A pause between two runs is a gap.
      d += last !== null && x0 - last < 24 ? `L${x0.toFixed(1)} ${v}` : `M${x0.toFixed(1)} ${v}`;
      d += `L${x1.toFixed(1)} ${v}`;
      last = x1;
    }
    const under = area && found.length ? [s("path", { class: "area " + area, d: areaOf(found, f, width, one.value) })] : [];
    return [...under, s("path", { class: "line " + one.class, d })];
  });
  return svg(width, height, f.parts, paths, timeTicks(width, height, range, f.x));
}

function areaOf(found, f, width, value) {
  const zero = f.y(0).toFixed(1);
  return found.map(g => {
    const x0 = clipped(f.x, width, g.x0).toFixed(1), x1 = clipped(f.x, width, g.x1).toFixed(1);
    return `M${x0} ${zero}V${f.y(value(g)).toFixed(1)}H${x1}V${zero}Z`;
  }).join("");
}

function svg(width, height, ...parts) {
  return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, parts);
}

function sparkline(values, width, height) {
  const max = Math.max(1, ...values), step = width / Math.max(1, values.length - 1);
  const d = values.map((v, i) => `${i ? "L" : "M"}${(i * step).toFixed(1)} ${(height - 2 - v / max * (height - 4)).toFixed(1)}`).join("");
  return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, s("path", { class: "spark", d }));
}
