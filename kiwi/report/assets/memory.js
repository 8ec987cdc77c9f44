// Memory over the step: stacked by what holds it, predicted and compiled; what is alive at a time.
const plan = data.plan;
const operators = Object.entries(plan.operators).map(([identity, o]) => ({ ...o, identity }));
const CATEGORIES = [
  ["arguments", "Arguments and results held throughout"], ["forward", "Results of the forward pass"],
  ["backward", "Results of the backward pass"], ["update", "Results of the update"],
  ["copies", "Resharded copies of operands"],
];
const color = (name) => `var(--${name})`;

function holders() {
  const found = [];
  for (const [path, a] of Object.entries(plan.arguments))
    found.push({ category: "arguments", name: path, detail: `argument ${a.type} ${layout(a.sharding)}`, held: a.held });
  for (const c of plan.constants)
    found.push({ category: "arguments", name: "captured constant", detail: c.type, held: c.held });
  for (const o of operators) {
    const again = o.residency === "recompute" ? ", recomputed" : "";
    found.push({ category: o.phase, unit: o.unit, name: `${o.opcode} ${o.types.join(" ")}`,
      detail: `#${o.unit} ${line(o.source) || o.name_stack}${o.results.length ? " " + layout(o.results[0]) : ""}${again}`, held: o.held });
    if (o.copies.length) found.push({ category: "copies", unit: o.unit, name: `operand of ${o.opcode}, resharded`,
      detail: `#${o.unit} ${line(o.source)}`, held: o.copies });
  }
  return found;
}
const HOLDERS = holders();
const heldAt = (held, time) => held.reduce((sum, [start, end, size]) => sum + (start <= time && time < end ? size : 0), 0);

function layers(horizon) {
  const curves = Object.fromEntries(CATEGORIES.map(([name]) => [name, new Float64Array(horizon + 1)]));
  for (const holder of HOLDERS) for (const [start, end, size] of holder.held) {
    curves[holder.category][start] += size; curves[holder.category][Math.min(end, horizon)] -= size;
  }
  for (const curve of Object.values(curves)) for (let t = 1; t <= horizon; t++) curve[t] += curve[t - 1];
  return curves;
}

// Updates run between backward operators, so that these two share a band.
function bands(horizon) {
  const first = operators.findIndex((o) => o.phase === "backward"), middle = first < 0 ? horizon : first;
  return [{ phase: "forward", text: "forward", start: 0, end: middle }, { phase: "backward", text: "backward and update", start: middle, end: horizon }].filter((b) => b.end > b.start);
}

function memorySection() {
  const horizon = operators.length, W = 790, H = 330, L = 66, B = 34, T = 12;
  const curves = layers(horizon), compiled = data.compiled_curve;
  const budget = plan.options.memory_budget_bytes, checked = plan.checks?.peak_bytes || 0;
  const peak = Math.max(plan.estimate.peak_bytes, checked, 1);
  const top = (budget <= 1.6 * peak ? Math.max(peak, budget) : peak) * 1.06;
  const x = (t) => L + (W - L) * t / horizon, y = (size) => H - B - (H - B - T) * size / top;
  const chart = svg("svg", { viewBox: `0 0 ${W} ${H}`, id: "memory-chart", role: "img", tabindex: 0,
    "aria-label": "Memory over the step. Arrow keys move through the operators." });
  for (const band of bands(horizon)) chart.append(svg("rect", { x: x(band.start), width: x(band.end) - x(band.start), y: T,
    height: H - B - T, fill: `var(--band-${band.phase})` }));
  for (const size of ticks(top, 6, true)) chart.append(svg("line", { class: "gridline", x1: L, x2: W, y1: y(size), y2: y(size) }),
    svg("text", { x: L - 7, y: y(size) + 4, "text-anchor": "end" }, bytes(size).replace(".00", "")));
  const below = new Float64Array(horizon);
  for (const [name] of CATEGORIES) {
    let up = "", down = "";
    for (let t = 0; t < horizon; t++) {
      const from = below[t], to = from + curves[name][t];
      up += `${t ? "L" : "M"}${x(t)},${y(to)}H${x(t + 1)}`;
      down = `L${x(t + 1)},${y(from)}H${x(t)}` + down;
      below[t] = to;
    }
    chart.append(svg("path", { d: up + down + "Z", fill: color(name), "fill-opacity": .88, class: "layer" }));
  }
  if (budget <= top) chart.append(svg("line", { x1: L, x2: W, y1: y(budget), y2: y(budget), stroke: "var(--bad)", "stroke-width": 2 }));
  if (compiled) chart.append(svg("path", { id: "compiled-curve", fill: "none", stroke: "var(--ink)", "stroke-width": 1.5, "stroke-dasharray": "4 3",
    d: Array.from(compiled, (size, t) => `${t ? "L" : "M"}${x(t)},${y(size)}H${x(t + 1)}`).join("") }));
  else if (checked) chart.append(svg("line", { id: "compiled-curve", x1: L, x2: W, y1: y(checked), y2: y(checked), stroke: "var(--ink)", "stroke-width": 1.5, "stroke-dasharray": "4 3" }));
  for (const band of bands(horizon)) if (x(band.end) - x(band.start) > 60)
    chart.append(svg("text", { x: (x(band.start) + x(band.end)) / 2, y: H - B + 15, "text-anchor": "middle" }, band.text));
  chart.append(svg("text", { x: (L + W) / 2, y: H - 3, "text-anchor": "middle" }, "operators in the order they run"));
  const cursor = svg("line", { y1: T, y2: H - B, stroke: "var(--ink)", "stroke-width": 1.5 });
  const hover = svg("line", { y1: T, y2: H - B, stroke: "var(--muted)", "stroke-width": 1, visibility: "hidden" });
  chart.append(hover, cursor);

  const list = el("ul", { class: "alive", id: "alive" }), heading = el("h3", { id: "alive-title" });
  let chosen = plan.estimate.peak_unit;
  const place = (t, node) => { node.setAttribute("x1", x(t + .5)); node.setAttribute("x2", x(t + .5)); };
  function select(t) {
    chosen = Math.max(0, Math.min(horizon - 1, t));
    place(chosen, cursor);
    const o = operators[chosen];
    heading.textContent = `Alive at operator ${chosen}${chosen === plan.estimate.peak_unit ? " (the predicted peak)" : ""}: ${o.opcode}, ${line(o.source)}`;
    const alive = HOLDERS.map((h) => ({ ...h, size: heldAt(h.held, chosen) })).filter((h) => h.size).sort((a, b) => b.size - a.size);
    fillAlive(list, alive.map((h) => ({ size: h.size, name: h.name, detail: h.detail, color: color(h.category) })), plan.estimate.memory_bytes[chosen]);
    for (const button of buttons.querySelectorAll("button")) button.setAttribute("aria-pressed", button.dataset.view === "predicted");
  }
  function selectCompiled() {
    const memory = plan.checks.memory;
    heading.textContent = `Alive at the compiled peak, ${bytes(memory.curve_bytes[memory.peak_position])}: XLA's buffers`;
    fillAlive(list, data.compiled_peak.map((b) => ({ size: b.bytes, name: b.name, detail: b.detail, color: color(b.category) })), memory.curve_bytes[memory.peak_position]);
    for (const button of buttons.querySelectorAll("button")) button.setAttribute("aria-pressed", button.dataset.view === "compiled");
  }
  const buttons = el("div", { class: "tools" },
    el("button", { "data-view": "predicted", id: "at-peak", onclick: () => select(plan.estimate.peak_unit) }, "Predicted peak"),
    plan.checks?.memory ? el("button", { "data-view": "compiled", id: "at-compiled-peak", onclick: selectCompiled }, "Compiled peak") : null);
  const timeOf = (event) => {
    const box = chart.getBoundingClientRect();
    return Math.max(0, Math.min(horizon - 1, Math.floor(((event.clientX - box.left) / box.width * W - L) / (W - L) * horizon)));
  };
  chart.addEventListener("mousemove", (event) => {
    const t = timeOf(event), o = operators[t];
    place(t, hover); hover.setAttribute("visibility", "visible");
    showTip(event, `#${t} ${o.opcode}, ${o.phase}`, line(o.source), `predicted ${bytes(plan.estimate.memory_bytes[t])}` + (compiled ? `, compiled ${bytes(compiled[t])}` : ""), "Click: what is alive here");
  });
  chart.addEventListener("mouseleave", () => { hideTip(); hover.setAttribute("visibility", "hidden"); });
  chart.addEventListener("click", (event) => select(timeOf(event)));
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) { event.preventDefault(); select(chosen + step * (event.shiftKey ? 10 : 1)); }
  });
  window.selectOperator = select;
  const entries = CATEGORIES.filter(([name]) => curves[name].some((v) => v > 0)).map(([name, text]) => [color(name), text]);
  if (checked) entries.push(["", compiled ? "Compiled, by operator" : "Compiled peak", "line"]);
  if (budget <= top) entries.push(["", "Budget", "budget"]);
  section("memory", "Memory over the step",
    `Of one device, predicted, ${checked ? "beside what XLA allocates" : "not compiled"}. ${compiled ? "The dashed curve is what the compiled program holds while an operator's own instructions run, wherever XLA put them. " : ""}Click the curve to see what is alive there.`,
    el("div", { class: "columns" }, el("div", {}, drawing(chart), legend(entries)), el("div", {}, heading, buttons, list)));
  select(chosen);
}

function fillAlive(list, rows, all) {
  const shown = rows.slice(0, 40), most = rows.length ? rows[0].size : 1;
  const rest = rows.slice(40).reduce((sum, r) => sum + r.size, 0);
  list.replaceChildren(...shown.map((r) => el("li", {},
    el("div", { class: "row" }, el("span", {}, r.name, el("br"), el("small", {}, r.detail)), el("span", { class: "size" }, bytes(r.size))),
    el("div", { class: "meter", style: `width:${Math.max(1, 100 * r.size / most)}%;background:${r.color}` }))),
  rest ? el("li", {}, `${rows.length - 40} more, ${bytes(rest)}`) : "", el("li", {}, el("div", { class: "row" }, el("span", {}, "All together"), el("span", { class: "size" }, bytes(all)))));
}
