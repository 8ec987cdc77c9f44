// Where estimate and compiled program differ, and how the plan was found: timings and attempts.
const fileLine = (source) => line(source).split("/").pop();
const signedPercent = (value) => (Math.abs(value) < 0.005 ? "" : `${value < 0 ? "−" : "+"}${(100 * Math.abs(value)).toFixed(0)} %`);
const MOST_DEVIATIONS = 20;

function headTable(names, numbers) {
  return el("thead", {}, el("tr", {}, names.map((name, k) => el("th", { class: k >= numbers ? "n" : null }, name))));
}

function deviationsSection() {
  const checks = plan.checks;
  if (!checks) return;
  const pairs = [["Peak of one device", bytes, plan.estimate.peak_bytes, checks.peak_bytes]];
  if (checks.time) pairs.unshift(["Step time", seconds, plan.estimate.step_seconds, checks.time.step_seconds]);
  const total = (list) => list.reduce((n, u) => n + u.bytes, 0);
  pairs.push(["Bytes of collectives", bytes, total(plan.estimate.collective_uses), total(checks.collective_uses || [])]);
  const cells = (format, planned, compiled) => [el("td", { class: "n" }, format(planned)), el("td", { class: "n" }, format(compiled)),
    el("td", { class: "n" }, planned === compiled ? "" : planned ? signedPercent(compiled / planned - 1) : "new")];
  const totals = el("table", {}, headTable(["", "planned", "compiled", "change"], 1),
    el("tbody", {}, pairs.map(([name, format, a, b]) => el("tr", {}, el("td", {}, name), cells(format, a, b)))));
  const excess = (d) => Math.abs(d.compiled - d.predicted);
  const sorted = (isMemory) => [...(plan.deviations || [])].filter((d) => (d.what === "memory") === isMemory).sort((a, b) => excess(b) - excess(a));
  const rows = sorted(false), buffers = sorted(true);
  const row = (d, format, what) => el("tr", {}, el("td", {}, d.name), el("td", { class: "code" }, fileLine(d.source_line || "")), el("td", {}, what),
    el("td", { class: "n" }, d.units.length || ""), el("td", { class: "n" }, format(d.predicted)), el("td", { class: "n" }, format(d.compiled)), el("td", { class: "n" }, signed(format, d.compiled - d.predicted)));
  const listed = rows.slice(0, MOST_DEVIATIONS).map((d) => row(d, seconds, d.what));
  const held = el("div", { class: "scroll" }, el("table", { id: "buffers" }, headTable(["Buffer at the compiled peak", "Source", "Cause", "Operators", "planned", "compiled", "change"], 3),
    el("tbody", {}, buffers.slice(0, MOST_DEVIATIONS).map((d) => row(d, bytes, d.cause)))));
  const table = rows.length ? el("div", { class: "scroll" }, el("table", {}, headTable(["Kernel", "Source", "What", "Operators", "planned", "compiled", "change"], 3), el("tbody", {}, listed))) : null;
  section("deviations", "Planned and compiled", `What ${checks.target} made of the plan. A fused kernel counts for its last operator: one row may take more where others take nothing.`
    + (rows.length > MOST_DEVIATIONS ? ` The ${MOST_DEVIATIONS} largest of ${rows.length} differences.` : ""), el("div", { class: "wide" }, totals), rows.length ? el("h3", { style: "margin-top:12px" }, "Kernels") : null, table,
    buffers.length ? el("h3", { style: "margin-top:12px" }, "Memory") : null, buffers.length ? held : null);
}

const OUTCOMES = { answer: "good", "over the budget": "bad", "no plan": "bad", "does not compile": "bad" };
function planningSection() {
  const history = plan.history || [], stages = Object.entries(data.timings || {}).sort((a, b) => b[1].cpu_seconds - a[1].cpu_seconds);
  if (!history.length && !stages.length) return;
  const spent = stages.reduce((sum, [, t]) => sum + t.cpu_seconds, 0) || 1, most = stages.length ? stages[0][1].cpu_seconds || 1 : 1;
  const bars = stages.map(([name, t]) => el("tr", {}, el("td", {}, name), el("td", { class: "n" }, `${t.cpu_seconds.toFixed(1)} s`), el("td", { class: "n" }, `${t.seconds.toFixed(1)} s`),
    el("td", { class: "bar" }, el("div", { style: `width:${100 * t.cpu_seconds / most}%` }))));
  const optional = (value, format) => el("td", { class: "n" }, value === null || value === undefined ? "" : format(value));
  const rows = history.map((t, k) => el("tr", {}, el("td", { class: "n" }, k + 1), el("td", {}, [...t.within, t.attempt].join(": ")), optional(t.limit_bytes, bytes), optional(t.predicted_seconds, seconds),
    optional(t.predicted_peak_bytes, bytes), optional(t.compiled_seconds, seconds), optional(t.compiled_peak_bytes, bytes), el("td", { class: OUTCOMES[t.outcome] || null }, t.outcome)));
  const attempts = rows.length ? el("div", { class: "scroll" }, el("table", { id: "history" }, el("thead", {}, el("tr", {}, ["#", "Attempt", "limit", "step", "peak", "compiled step", "compiled peak", "outcome"]
    .map((name, k) => el("th", { class: k === 0 || (k > 1 && k < 7) ? "n" : null }, name)))), el("tbody", {}, rows))) : null;
  const told = stages.length ? ` Planning took ${spent.toFixed(1)} s of the processor.` : "";
  section("planning", "How it was planned", `${rows.length} attempts of the search, in order.${told} kiwi explain PLAN.json search prints them.`,
    attempts, stages.length ? el("div", { class: "wide", style: "margin-top:12px" }, el("table", { id: "timings" }, headTable(["Stage", "processor", "clock", ""], 1), el("tbody", {}, bars))) : null);
}
