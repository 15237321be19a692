"use strict";
// Numbers, times and sizes for people. "–" stands for what is not known.

const fmt = {
  none: "–",
  int(n) { return n == null ? fmt.none : Math.round(n).toLocaleString("en-US"); },
  short(n) {
    if (n == null) return fmt.none;
    const a = Math.abs(n);
    if (a < 1000) return a && a < 10 && !Number.isInteger(n) ? n.toFixed(1) : String(Math.round(n));
    const units = ["", "k", "M", "G", "T", "P", "E"];
    const p = Math.min(units.length - 1, Math.floor(Math.log10(a) / 3));
    const v = n / 1000 ** p;
    return (Math.abs(v) < 10 ? v.toFixed(1) : String(Math.round(v))) + units[p];
  },
  bytes(n) {
    if (n == null) return fmt.none;
    if (n < 1024) return n + " B";
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    const p = Math.min(units.length - 1, Math.floor(Math.log(n) / Math.log(1024)));
    const v = n / 1024 ** p;
    return (v < 10 ? v.toFixed(1) : String(Math.round(v))) + " " + units[p];
  },
  secs(s) {
    if (s == null) return fmt.none;
    const a = Math.abs(s);
    if (a < 1e-3) return a === 0 ? "0 s" : (s * 1e6).toFixed(0) + " µs";
    if (a < 1) return (s * 1000).toFixed(0) + " ms";
    if (a < 10) return s.toFixed(1) + " s";
    if (a < 120) return Math.round(s) + " s";
    if (a < 7200) return Math.round(s / 60) + " min";
    if (a < 172800) return (s / 3600).toFixed(1) + " h";
    return (s / 86400).toFixed(1) + " d";
  },
  ms(n) { return n == null ? fmt.none : fmt.secs(n / 1000); },
  ago(ms, now) { return ms ? fmt.secs(Math.max(0, (now - ms) / 1000)) + " ago" : fmt.none; },
  clock(ms, seconds) {
    if (!ms) return fmt.none;
    return new Date(ms).toLocaleTimeString("en-GB", seconds === false ? { hour: "2-digit", minute: "2-digit" } : {});
  },
  when(ms) {
    if (!ms) return fmt.none;
    const d = new Date(ms);
    return d.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) + " " + d.toLocaleTimeString("en-GB");
  },
  share(x) { return x == null ? fmt.none : (x * 100 < 10 && x > 0 ? (x * 100).toFixed(1) : Math.round(x * 100)) + " %"; },
  times(x) { return x == null ? fmt.none : x.toFixed(1) + "×"; },
  cut(text, n) { return text.length > n ? text.slice(0, n - 1) + "…" : text; },
};

const PHASES = ["waiting", "outside", "opening", "delivery", "stepping", "writing", "driver", "publish"];
const PHASE_TEXT = {
  waiting: "waiting for input", outside: "source, shuffle, scheduling", opening: "opening state",
  delivery: "waiting for rows", stepping: "operators", writing: "writing", driver: "planning and reports", publish: "publishing",
};
