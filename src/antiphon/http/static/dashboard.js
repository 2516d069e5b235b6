// What pages do beyond links and forms, which work without it: parts that follow the cluster, filters that answer while
// one types, plots, and keys. Everything stops while the page is out of sight.
"use strict";
(() => {
  const LIVE_MS = 4000, SAMPLE_MS = 2000, KEPT = 300, STORE = "antiphon-samples";
  const all = (selector) => [...document.querySelectorAll(selector)];

  // -- parts that follow the cluster ---------------------------------------------------------------------------------
  const light = document.querySelector(".live");
  const told = (ok) => { if (light) { light.hidden = false; light.classList.toggle("lost", !ok); light.title = ok ? "This page follows the cluster while it is in sight" : "The node does not answer"; } };
  async function follow() {
    const parts = all("[data-live]");
    if (document.hidden || !parts.length || parts.some((one) => one.contains(document.activeElement))) return;
    try {
      const answer = await fetch(location.href, { headers: { "X-Follows": "1" } });
      if (!answer.ok) { told(false); return; }
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const old of parts) {
        const now = fresh.getElementById(old.id);
        if (now && old.isConnected && !old.contains(document.activeElement) && now.innerHTML !== old.innerHTML) {
          const inner = old.querySelector(".events"), top = inner ? inner.scrollTop : 0, left = old.scrollLeft;
          old.innerHTML = now.innerHTML;
          const again = old.querySelector(".events");
          if (again) again.scrollTop = top;
          old.scrollLeft = left;
        }
      }
      told(true);
    } catch { told(false); }
  }

  // -- filters ---------------------------------------------------------------------------------------------------------
  for (const form of all("form[data-filter]")) {
    const part = form.dataset.filter;
    form.setAttribute("hx-get", form.getAttribute("action"));
    form.setAttribute("hx-trigger", "submit, input changed delay:250ms, change");
    form.setAttribute("hx-target", part);
    form.setAttribute("hx-select", part);
    form.setAttribute("hx-swap", "outerHTML");
    form.setAttribute("hx-push-url", "true");
    if (window.htmx) window.htmx.process(form);
  }

  // -- plots -----------------------------------------------------------------------------------------------------------
  const BOUNDS_MS = [0.2, 0.5, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];
  const COUNTED = ["append_records", "append_bytes", "fetch_bytes", "table_ops", "table_reads"];
  let samples = [];
  try { samples = JSON.parse(sessionStorage.getItem(STORE)) || []; } catch { samples = []; }
  samples = samples.filter((one) => Date.now() - one.at < KEPT * SAMPLE_MS);

  function percentile(counts, share) {
    const total = counts.reduce((sum, one) => sum + one, 0);
    if (!total) return null;
    let seen = 0;
    for (let at = 0; at < counts.length; at += 1) {
      if (seen + counts[at] >= share * total) {
        const low = at ? BOUNDS_MS[at - 1] : 0, high = BOUNDS_MS[Math.min(at, BOUNDS_MS.length - 1)];
        return low + (high - low) * ((share * total - seen) / counts[at]);
      }
      seen += counts[at];
    }
    return BOUNDS_MS[BOUNDS_MS.length - 1];
  }
  // A node that was started anew counts from zero, and one that came or went has no pair: both are left out of that step.
  function step(before, now) {
    const seconds = (now.at - before.at) / 1000, sums = {}, counts = [];
    for (const id of Object.keys(now.nodes)) {
      const old = before.nodes[id], one = now.nodes[id];
      if (!old || one.uptime < old.uptime) continue;
      for (const name of COUNTED) sums[name] = (sums[name] || 0) + (one[name] - old[name]) / seconds;
      one.commit_counts.forEach((count, at) => { counts[at] = (counts[at] || 0) + count - old.commit_counts[at]; });
    }
    return { at: now.at / 1000, ...sums, p50: percentile(counts, 0.5), p99: percentile(counts, 0.99) };
  }
  const short = (value) => value == null ? "–" : value >= 1e9 ? (value / 1e9).toFixed(1) + "G" : value >= 1e6 ? (value / 1e6).toFixed(1) + "M" : value >= 1e3 ? (value / 1e3).toFixed(1) + "k" : value >= 10 || value === 0 ? value.toFixed(0) : value.toFixed(1);
  const bytes = (value) => value == null ? "–" : value >= 2 ** 30 ? (value / 2 ** 30).toFixed(1) + " GiB" : value >= 2 ** 20 ? (value / 2 ** 20).toFixed(1) + " MiB" : value >= 1024 ? (value / 1024).toFixed(1) + " KiB" : value.toFixed(0) + " B";
  const ms = (value) => value == null ? "–" : value >= 1000 ? (value / 1000).toFixed(1) + " s" : (value >= 10 ? value.toFixed(0) : value.toFixed(1)) + " ms";
  const PLOTS = {
    records: { lines: ["append_records"], words: short, after: "/s" },
    bytes: { lines: ["append_bytes", "fetch_bytes"], words: bytes, after: "/s" },
    latency: { lines: ["p50", "p99"], words: ms, after: "" },
    tables: { lines: ["table_ops", "table_reads"], words: short, after: "/s" },
  };
  const drawn = new Map();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // What happened is marked on each plot: the marks of the time line, which the server drew.
  function marks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const one of all("#time-line [data-at]")) {
      const x = plot.valToPos(Number(one.dataset.at) / 1000, "x", true);
      if (!(x >= bbox.left && x <= bbox.left + bbox.width)) continue;
      ctx.strokeStyle = colour("--" + one.dataset.looks);
      ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
    }
    ctx.restore();
  }
  function options(place, plot) {
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    return {
      width: place.clientWidth, height: place.clientHeight, legend: { show: false }, cursor: { points: { size: 5 }, drag: { x: false, y: false }, sync: { key: "rates" } },
      hooks: { draw: [marks] },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high || 0, 1) * 1.15] } },
      axes: [{ ...axis, space: 70, size: 22 }, { ...axis, size: 58, space: 34, values: (_, marks) => marks.map((one) => plot.words(one)) }],
      series: [{}, ...plot.lines.map((_, at) => ({ stroke: colour(at ? "--second" : "--accent"), width: 1.6, fill: at ? undefined : colour("--accent") + "22", points: { show: false }, spanGaps: true }))],
    };
  }
  function draw() {
    const steps = [];
    for (let at = 1; at < samples.length; at += 1) if (samples[at].at - samples[at - 1].at < 6 * SAMPLE_MS) steps.push(step(samples[at - 1], samples[at]));
    for (const place of all("[data-plot]")) {
      const plot = PLOTS[place.dataset.plot];
      if (!steps.length || !window.uPlot) { place.dataset.waits = "sampling…"; continue; }
      delete place.dataset.waits;
      const data = [steps.map((one) => one.at), ...plot.lines.map((name) => steps.map((one) => one[name] ?? null))];
      const known = drawn.get(place);
      if (known) known.setData(data); else drawn.set(place, new window.uPlot(options(place, plot), data, place));
      const last = steps[steps.length - 1], now = document.querySelector(`[data-now="${place.dataset.plot}"]`);
      if (now) now.textContent = plot.lines.map((name) => plot.words(last[name])).join(" · ") + plot.after;
    }
  }
  function redraw() { for (const one of drawn.values()) one.destroy(); drawn.clear(); draw(); }
  async function sampled() {
    if (document.hidden || !document.querySelector("[data-plot]")) return;
    try {
      const answer = await fetch("/ui/sample");
      if (!answer.ok) return;
      samples.push(await answer.json());
      samples = samples.slice(-KEPT);
      try { sessionStorage.setItem(STORE, JSON.stringify(samples)); } catch { samples = samples.slice(-KEPT / 2); }
      draw();
    } catch { /* the light says so */ }
  }

  // -- keys --------------------------------------------------------------------------------------------------------------
  let before = "";
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest("input, select, textarea");
    if (typing) { if (event.key === "Escape") typing.blur(); return; }
    if (event.key === "/") { const box = document.querySelector("input[type=search]"); if (box) { event.preventDefault(); box.focus(); box.select(); } return; }
    const step = { j: "next", k: "prev" }[event.key], place = before === "g" && document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
    before = before === "g" ? "" : event.key;
    if (place) { event.preventDefault(); place.click(); } else if (step) document.querySelector(`a[rel="${step}"]`)?.click();
  });
  for (const one of all(".scroll")) { one.tabIndex = 0; one.setAttribute("role", "region"); one.setAttribute("aria-label", "Table"); }
  for (const one of all("a[data-other-node]")) one.protocol = location.protocol;

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let sizing = 0;
  addEventListener("resize", () => { clearTimeout(sizing); sizing = setTimeout(redraw, 150); });
  document.addEventListener("visibilitychange", () => { sampled(); follow(); });
  if (document.querySelector("[data-live]")) { told(true); setInterval(follow, LIVE_MS); }
  if (document.querySelector("[data-plot]")) { draw(); sampled(); setInterval(sampled, SAMPLE_MS); }
})();
