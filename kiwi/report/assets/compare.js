// Two plans side by side: totals, memory over the step, and what is decided differently.
const [first, second] = data.plans;
const FORMATS = { bytes, seconds };
const change = (format, a, b) => (a === null || b === null || a === b ? "" : signed(format, b - a));

function compareHead() {
  const tile = (name, format, a, b) => el("div", { class: "tile" }, el("b", { class: b < a ? "good" : b > a ? "bad" : null }, a === null || b === null ? "-" : b === a ? "equal" : signed(format, b - a)),
    el("span", {}, `${name}: ${a === null ? "-" : format(a)} → ${b === null ? "-" : format(b)}`));
  const said = data.differences.length ? `${data.differences.length} decisions and options differ.` : "The plans decide the same.";
  document.getElementById("head").append(el("h1", {}, `${first.title} and ${second.title}`), el("p", { class: "sub", style: "margin-bottom:0" }, said),
    el("div", { class: "tiles" }, data.totals.filter((t) => ["step", "peak", "compiled step", "compiled peak"].includes(t.name)).map((t) => tile(t.name, FORMATS[t.unit], t.first, t.second))),
    el("div", { class: "findings" }, [first, second].map((p) => el("div", { class: "finding" }, el("b", {}, p.title), p.findings.slice(0, 2).map((f) => el("span", {}, `${f.title}. ${f.text.replace(/ us\b/g, " µs")}`)), el("span", { class: "next" }, el("i", {}, "Next: "), p.findings[0].advice)))));
}

function totalsSection() {
  const rows = data.totals.map((t) => { const f = FORMATS[t.unit], cell = (v) => el("td", { class: "n" }, v === null ? "-" : f(v));
    return el("tr", {}, el("td", {}, t.name), cell(t.first), cell(t.second), el("td", { class: "n" }, change(f, t.first, t.second))); });
  section("totals", "Totals", "Of one device. Parts of the step are of all work; what is hidden runs behind computation.",
    el("div", { class: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, ""), ["first", "second", "change"].map((n) => el("th", { class: "n" }, n)))), el("tbody", {}, rows))));
}

// Both curves over the same width: a step of each plan from its start to its end.
function curvesSection() {
  const W = 1160, H = 300, L = 70, B = 36, T = 12, curves = [first.memory_bytes, second.memory_bytes];
  const budgets = [...new Set([first.budget_bytes, second.budget_bytes])], peak = Math.max(1, ...curves.flat()), top = 1.06 * Math.max(peak, ...budgets.filter((b) => b <= 1.6 * peak));
  const y = (size) => H - B - (H - B - T) * size / top, x = (t, count) => L + (W - L - 10) * t / Math.max(1, count);
  const chart = svg("svg", { viewBox: `0 0 ${W} ${H}`, id: "compare-chart", role: "img", "aria-label": "Memory over the step of both plans" });
  for (const size of ticks(top, 6, true)) chart.append(svg("line", { class: "gridline", x1: L, x2: W - 10, y1: y(size), y2: y(size) }), svg("text", { x: L - 7, y: y(size) + 4, "text-anchor": "end" }, bytes(size).replace(".00", "")));
  const tints = ["var(--compute)", "var(--communication)"];
  curves.forEach((curve, k) => chart.append(svg("path", { fill: "none", stroke: tints[k], "stroke-width": 2, d: curve.map((size, t) => `${t ? "L" : "M"}${x(t, curve.length)},${y(size)}H${x(t + 1, curve.length)}`).join("") })));
  for (const budget of budgets) if (budget <= top) chart.append(svg("line", { x1: L, x2: W - 10, y1: y(budget), y2: y(budget), stroke: "var(--bad)", "stroke-width": 1.5 }));
  chart.append(svg("text", { x: (L + W) / 2, y: H - 6, "text-anchor": "middle" }, "operators in the order they run, from the first to the last of each plan"));
  section("memory", "Memory over the step", "Predicted, of one device.", drawing(chart), legend([[tints[0], first.title], [tints[1], second.title], ...(budgets.some((b) => b <= top) ? [["", "Budget", "budget"]] : [])]));
}

const MOST_DIFFERENCES = 400;
function differencesSection() {
  const rows = data.differences.slice(0, MOST_DIFFERENCES).map((d) => el("tr", {}, el("td", {}, d.kind), el("td", {}, d.name), el("td", { class: "code" }, line(d.source)), el("td", { class: "code" }, d.first), el("td", { class: "code" }, d.second),
    el("td", { class: "n" }, d.change_seconds ? signed(seconds, d.change_seconds) : ""), el("td", { class: "n" }, d.change_bytes ? signed(bytes, d.change_bytes) : "")));
  const sub = rows.length ? "Options and arguments first, then operators by what the difference changes of the step; bytes are at the first plan's peak." + (data.differences.length > MOST_DIFFERENCES ? ` The first ${MOST_DIFFERENCES} of ${data.differences.length}.` : "") : "The plans decide the same.";
  section("differences", "What is done differently", sub, rows.length ? el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ["", "What", "Source", "first", "second", "step", "peak"].map((n, k) => el("th", { class: k > 4 ? "n" : null }, n)))), el("tbody", {}, rows))) : null);
}

compareHead();
totalsSection();
curvesSection();
differencesSection();
navigation();
document.documentElement.dataset.ready = "true";
