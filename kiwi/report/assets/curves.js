// The solver's progress, and the Pareto curve of a sweep.
function frame(W, H, L, B, T) {
  return svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img" }, svg("line", { class: "gridline", x1: L, x2: W - 10, y1: H - B, y2: H - B }), svg("line", { class: "gridline", x1: L, x2: L, y1: T, y2: H - B }));
}

function solverSection() {
  const r = plan.bounds;
  const gap = r.gap === null ? "no bound" : `proven within ${percent(r.gap)} of the best plan`;
  const sub = `${r.solver}: ${r.status}, ${gap}` + (data.seconds ? `; planned in ${data.seconds.planning.toFixed(1)} s by the clock.` : ".") + (r.deterministic ? "" : " The time limit ended the search.");
  const entries = data.progress.filter((p) => p.objective !== null || p.bound !== null);
  if (entries.length < 2) { section("solver", "Solver", sub, entries.length ? null : el("p", { class: "sub" }, "Progress is kept only in reports written while planning.")); return; }
  const again = entries.some((p, k) => k && p.objective > entries[k - 1].objective * (1 + 1e-9));
  const why = again ? " Where the curve rises, the compiled program was over the budget: what it holds beyond the prediction was added to the model, and the problem solved again." : "";
  const W = 1160, H = 250, L = 70, B = 32, T = 10, last = Math.max(...entries.map((p) => p.seconds), 1e-3);
  const values = entries.flatMap((p) => [p.objective, p.bound]).filter((v) => v !== null && v > 0);
  const objectives = entries.map((p) => p.objective).filter((v) => v !== null);
  const top = Math.min(Math.max(...values), 2 * Math.min(...(objectives.length ? objectives : values))), low = Math.max(Math.min(...values), 0.5 * top), span = (top - low) || top * .01;
  const lo = low - .08 * span, hi = top + .08 * span;
  const x = (s) => L + (W - L - 10) * s / last, y = (v) => H - B - (H - B - T) * (Math.max(lo, Math.min(hi, v)) - lo) / (hi - lo);
  const chart = frame(W, H, L, B, T); chart.id = "solver-chart"; chart.setAttribute("aria-label", "Objective and bound over time");
  for (let k = 0; k <= 4; k++) { const v = lo + (hi - lo) * k / 4; chart.append(svg("text", { x: L - 7, y: y(v) + 4, "text-anchor": "end" }, seconds(v)), svg("line", { class: "gridline", x1: L, x2: W - 10, y1: y(v), y2: y(v) })); }
  for (const s of ticks(last, 8)) chart.append(svg("text", { x: x(s), y: H - B + 17, "text-anchor": "middle" }, `${Number(s.toPrecision(3))} s`));
  const path = (name) => { let d = ""; for (const p of entries) if (p[name] !== null) d += d ? `H${x(p.seconds)}V${y(p[name])}` : `M${x(p.seconds)},${y(p[name])}`; return d; };
  chart.append(svg("path", { d: path("objective"), fill: "none", stroke: "var(--compute)", "stroke-width": 2 }), svg("path", { d: path("bound"), fill: "none", stroke: "var(--communication)", "stroke-width": 2 }));
  for (const p of entries) if (p.objective !== null) chart.append(svg("circle", { cx: x(p.seconds), cy: y(p.objective), r: 4, fill: "var(--compute)", class: "state",
    onmousemove: (e) => showTip(e, `after ${p.seconds.toFixed(2)} s: best step ${seconds(p.objective)}`, p.bound !== null ? `no plan is below ${seconds(p.bound)}` : "", p.peak_bytes ? `peak ${bytes(p.peak_bytes)}` : ""), onmouseleave: hideTip }));
  section("solver", "Solver", sub + why, drawing(chart), legend([["var(--compute)", "Best plan found"], ["var(--communication)", "Proven bound"]]));
}

const MESH_COLORS = ["compute", "communication", "update", "copies", "recompute", "arguments"];
function paretoSection() {
  if (!data.sweep) return;
  const points = data.sweep.points.filter((p) => p.step_seconds !== null).sort((a, b) => a.pareto - b.pareto);
  if (!points.length) return;
  const meshes = [...new Set(points.map((p) => p.mesh_shape.join("×")))], tint = (p) => `var(--${MESH_COLORS[meshes.indexOf(p.mesh_shape.join("×")) % MESH_COLORS.length]})`;
  const W = 1160, H = 300, L = 70, B = 36, T = 12, right = Math.max(...points.map((p) => p.peak_bytes)) * 1.05, top = Math.max(...points.map((p) => p.step_seconds)) * 1.05;
  const x = (b) => L + (W - L - 10) * b / right, y = (s) => H - B - (H - B - T) * s / top;
  const chart = frame(W, H, L, B, T); chart.id = "pareto-chart"; chart.setAttribute("aria-label", "Step time against peak memory");
  for (const b of ticks(right, 9, true)) chart.append(svg("text", { x: x(b), y: H - B + 16, "text-anchor": "middle" }, bytes(b).replace(".00", "")));
  for (const s of ticks(top, 5)) chart.append(svg("text", { x: L - 7, y: y(s) + 4, "text-anchor": "end" }, seconds(s)), svg("line", { class: "gridline", x1: L, x2: W - 10, y1: y(s), y2: y(s) }));
  chart.append(svg("text", { x: (L + W) / 2, y: H - 3, "text-anchor": "middle" }, "estimated peak of one device"));
  const counts = [...new Set(points.map((p) => p.device_count))];
  for (const count of counts) {
    const front = points.filter((p) => p.pareto && p.device_count === count).sort((a, b) => a.peak_bytes - b.peak_bytes);
    chart.append(svg("path", { d: front.map((p, k) => `${k ? "H" + x(p.peak_bytes) + "V" + y(p.step_seconds) : `M${x(p.peak_bytes)},${y(p.step_seconds)}`}`).join(""), fill: "none", stroke: "var(--muted)", "stroke-dasharray": "3 3" }));
  }
  for (const p of points) chart.append(svg("circle", { cx: x(p.peak_bytes), cy: y(p.step_seconds), r: p.pareto ? 6 : 4, fill: p.pareto ? tint(p) : "var(--surface)", stroke: tint(p), "stroke-width": 2, class: "point",
    onmousemove: (e) => showTip(e, `mesh ${p.mesh_shape.join("×")}, budget ${bytes(p.memory_budget_bytes)}`, `step ${seconds(p.step_seconds)}, peak ${bytes(p.peak_bytes)}`, p.gap === null ? "" : `gap ${percent(p.gap)}`), onmouseleave: hideTip }));
  section("pareto", "Meshes and budgets", `${data.sweep.points.length} combinations planned in ${data.sweep.seconds.toFixed(0)} s. Filled: no other point has fewer devices, a lower peak and a shorter step.`,
    drawing(chart), legend(meshes.map((m, k) => [`var(--${MESH_COLORS[k % MESH_COLORS.length]})`, m])));
}

function searchSection() {
  if (!data.search) return;
  const rows = data.search.rows, tint = (r) => `var(--${MESH_COLORS[counts.indexOf(r.devices) % MESH_COLORS.length]})`;
  const counts = [...new Set(rows.map((r) => r.devices))], planned = rows.filter((r) => r.step_seconds !== null), peak = (r) => r.compiled_peak_bytes ?? r.peak_bytes;
  const name = (c) => [`${c.profile} ${c.mesh_shape.join("×")}`, ...["batch_size", "microbatches", "stages"].filter((k) => c[k] !== null).map((k) => `${k.replace("_size", "")} ${c[k]}`)].join(", ");
  const W = 1160, H = 300, L = 70, B = 36, T = 12, right = Math.max(...planned.map(peak)) * 1.05, top = Math.max(...planned.map((r) => r.samples_per_second)) * 1.05;
  const x = (b) => L + (W - L - 10) * b / right, y = (s) => H - B - (H - B - T) * s / top;
  const chart = frame(W, H, L, B, T); chart.id = "search-chart"; chart.setAttribute("aria-label", "Samples per second against peak memory");
  for (const b of ticks(right, 9, true)) chart.append(svg("text", { x: x(b), y: H - B + 16, "text-anchor": "middle" }, bytes(b).replace(".00", "")));
  for (const s of ticks(top, 5)) chart.append(svg("text", { x: L - 7, y: y(s) + 4, "text-anchor": "end" }, Number(s.toPrecision(4))), svg("line", { class: "gridline", x1: L, x2: W - 10, y1: y(s), y2: y(s) }));
  chart.append(svg("text", { x: (L + W) / 2, y: H - 3, "text-anchor": "middle" }, "peak of one device, compiled where it was"));
  for (const r of planned) chart.append(svg("circle", { cx: x(peak(r)), cy: y(r.samples_per_second), r: r.state === "best" ? 7 : 4, fill: r.frontier ? tint(r) : "var(--surface)", stroke: tint(r), "stroke-width": 2, class: "point",
    onmousemove: (e) => showTip(e, name(r.configuration), `${Number(r.samples_per_second.toPrecision(4))} samples per second, step ${seconds(r.step_seconds)}`, `peak ${bytes(peak(r))}`), onmouseleave: hideTip }));
  const cell = (v, text) => el("td", {}, v === null ? "" : text(v));
  const line = (r) => el("tr", {}, el("td", {}, name(r.configuration)), cell(r.samples_per_second, (v) => String(Number(v.toPrecision(4)))), cell(r.step_seconds, seconds), cell(r.bound_seconds, seconds), cell(r.peak_bytes, bytes), cell(r.compiled_peak_bytes, bytes), el("td", {}, r.state), el("td", {}, r.why));
  const head = el("tr", {}, ["configuration", "samples/s", "step", "bound", "peak", "compiled", "", ""].map((t) => el("th", {}, t)));
  section("search", "Configurations", `${rows.length} configurations searched in ${data.search.seconds.toFixed(0)} s. Filled: no other one has a higher throughput, a lower peak and fewer devices.`,
    drawing(chart), legend(counts.map((n, k) => [`var(--${MESH_COLORS[k % MESH_COLORS.length]})`, `${n} devices`])), el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, rows.map(line)))));
}
