// Time by kind, recomputed operators, and the table of all decisions.
function timeSection() {
  const e = plan.estimate, all = PARTS.map((part) => e[`${part}_seconds`]);
  const sum = all.reduce((a, b) => a + b, 0) || 1, hidden = Math.max(0, sum - e.step_seconds);
  const shares = PARTS.map((part, k) => [part, all[k], `var(--${part})`]);
  const stack = el("div", { class: "stack", role: "img", "aria-label": "Time by kind" }, shares.map(([name, value, tint]) =>
    el("div", { style: `width:${100 * value / sum}%;background:${tint}`, onmousemove: (event) => showTip(event, `${name} ${seconds(value)}, ${percent(value / sum)} of all work`), onmouseleave: hideTip })));
  const cells = (values) => values.map((v) => el("td", { class: "n" }, seconds(v)));
  const rows = PHASES.map((phase) => {
    const members = operators.filter((o) => o.phase === phase);
    const by = PARTS.map((part) => members.reduce((n, o) => n + o.seconds[part], 0));
    return el("tr", {}, el("td", {}, phase), cells([...by, by.reduce((a, b) => a + b, 0)]));
  });
  const line = (name, value) => el("tr", {}, el("td", { colspan: PARTS.length + 1 }, name), el("td", { class: "n" }, value));
  const table = el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "Phase"), PARTS.map((p) => el("th", { class: "n" }, p)), el("th", { class: "n" }, "all"))),
    el("tbody", {}, rows, el("tr", {}, el("td", {}, "all"), cells([...all, sum])), e.offload_seconds ? line("of it copies to and from host memory", seconds(e.offload_seconds)) : null,
      hidden > 1e-9 ? line("behind computation", `−${seconds(hidden)}`) : null, line(el("b", {}, "step"), el("b", {}, seconds(e.step_seconds)))));
  const uses = e.collective_uses, found = plan.checks?.collective_uses || [];
  const key = (u) => `${u.kind} over ${u.axes ? u.axes.join(", ") : "?"}`;
  const kinds = [...new Set([...uses, ...found].map(key))];
  const cell = (list, name) => { const u = list.filter((v) => key(v) === name); return u.length ? `${u.reduce((n, v) => n + v.count, 0)} ×, ${bytes(u.reduce((n, v) => n + v.bytes, 0))}` : "-"; };
  const collectives = el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "Collective"), el("th", { class: "n" }, "planned"), el("th", { class: "n" }, "compiled"))),
    el("tbody", {}, kinds.map((name) => el("tr", {}, el("td", {}, name), el("td", { class: "n" }, cell(uses, name)), el("td", { class: "n" }, plan.checks ? cell(found, name) : "-")))));
  const behind = hidden > 1e-9 ? ` The parts sum to ${seconds(sum)}; ${seconds(hidden)} of that run behind computation, so that the step takes ${seconds(e.step_seconds)}.` : "";
  section("time", "Time by kind", `Estimated for ${plan.hardware.name}: ${plan.hardware.analytic ? "from public data-sheet figures, not measured" : "from measurements"}. Recompute is all that is done a second time, its collectives included.${behind}`,
    stack, legend(shares.map(([name, value, tint]) => [tint, `${name} ${percent(value / sum)}`])),
    el("div", { class: "halves", style: "margin-top:12px" }, el("div", { class: "wide" }, table), el("div", { class: "wide" }, kinds.length ? collectives : "No collectives.")));
}

function recomputedSection() {
  const again = operators.filter((o) => o.residency === "recompute");
  const sub = again.length ? `${again.length} of ${operators.length} operators run twice: ${bytes(again.reduce((n, o) => n + o.bytes, 0))} of results are not kept, for ${seconds(plan.estimate.recompute_seconds)} more.` : "Everything is kept; nothing runs twice.";
  const groups = new Map();
  for (const o of again) {
    const key = `${o.opcode} ${line(o.source)}`;
    if (!groups.has(key)) groups.set(key, { o, count: 0, bytes: 0, seconds: 0 });
    const g = groups.get(key); g.count += 1; g.bytes += o.bytes; g.seconds += o.seconds.recompute;
  }
  const rows = [...groups.values()].sort((a, b) => b.bytes - a.bytes).map((g) => el("tr", {}, el("td", {}, g.o.opcode), el("td", { class: "code" }, g.o.source),
    el("td", { class: "n" }, g.count), el("td", { class: "n" }, bytes(g.bytes)), el("td", { class: "n" }, seconds(g.seconds)),
    el("td", { class: "n" }, g.seconds ? `${bytes(g.bytes / (1e3 * g.seconds))}/ms` : "free")));
  section("recomputed", "Recomputed operators", sub, again.length ? el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {},
    ["Operator", "Source"].map((t) => el("th", {}, t)), ["Times", "Not kept", "Costs", "Saved per ms"].map((t) => el("th", { class: "n" }, t)))), el("tbody", {}, rows))) : null);
}

const COLUMNS = [
  ["#", (o) => o.unit, "n"], ["Operator", (o) => o.opcode], ["Phase", (o) => o.phase], ["Source", (o) => line(o.source)],
  ["Type", (o) => o.types[0] || ""], ["Sharding", (o) => o.results.length ? layout(o.results[0]) : ""], ["Residency", (o) => o.residency],
  ["Time", (o) => total(o), "n"], ["Bytes", (o) => o.bytes, "n"],
];
const MOST_ROWS = 600;

function detail(o) {
  const alternative = (a) => el("tr", {}, el("td", {}, a.reads.map(layout).join(" ")), el("td", {}, a.results.map(layout).join(" ")),
    el("td", {}, a.recompute_at === null ? "keep" : `recompute at ${a.recompute_at}`), el("td", { class: "n" }, signed(seconds, a.change_seconds)), el("td", { class: "n" }, signed(bytes, a.change_bytes)));
  const operands = o.operands.map((name, k) => el("div", {}, `reads ${name.startsWith("#") ? `${name} ${operators[Number(name.slice(1))].opcode}` : name} as ${layout(o.reads[k])}`));
  return el("tr", { class: "detail" }, el("td", { colspan: COLUMNS.length }, el("div", { class: "halves" },
    el("div", {}, el("h3", {}, `${o.identity}`), el("div", { class: "sub" }, o.name_stack), ...operands,
      el("div", {}, `yields ${o.types.join(" ")} as ${o.results.map(layout).join(" ") || "nothing"}`),
      el("div", {}, PARTS.map((p) => `${p} ${seconds(o.seconds[p])}`).join(", ")),
      o.absorbed.length ? el("div", { class: "sub" }, `fused in front: ${o.absorbed.slice(0, 12).join(", ")}${o.absorbed.length > 12 ? ", …" : ""}`) : null,
      el("button", { onclick: () => { window.selectOperator(o.unit); document.getElementById("memory").scrollIntoView(); } }, "Show in the memory curve")),
    el("div", {}, el("h3", {}, `Nearest of ${o.option_count} options, if nothing else changed`),
      o.alternatives.length ? el("table", {}, el("thead", {}, el("tr", {}, ["Reads", "Yields", ""].map((t) => el("th", {}, t)), ["Step", "At the peak"].map((t) => el("th", { class: "n" }, t)))), el("tbody", {}, o.alternatives.map(alternative)))
        : "None goes with what its neighbours chose.",
      o.excluded.length ? el("div", {}, el("h3", { style: "margin-top:8px" }, "Impossible"), o.excluded.map((t) => el("div", {}, t))) : null))));
}

function decisionsSection() {
  let key = 7, descending = true;
  const body = el("tbody"), count = el("span", { class: "sub", id: "count", style: "margin:0" });
  const text = el("input", { type: "search", id: "filter", placeholder: "Filter: operator, file.py:line, scope, sharding", "aria-label": "Filter" });
  const choice = (id, name, values) => el("select", { id, "aria-label": name, onchange: fill }, el("option", { value: "" }, `${name}: all`), values.map((v) => el("option", { value: v }, v)));
  const phase = choice("phase", "phase", PHASES), residency = choice("residency", "residency", ["keep", "recompute"]);
  const head = el("tr", {}, COLUMNS.map(([name, , cls], k) => el("th", { class: cls, "data-key": k }, el("button", { onclick: () => { descending = key === k ? !descending : Boolean(cls) && k > 0; key = k; fill(); } }, name))));
  function fill() {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = operators.filter((o) => (!phase.value || o.phase === phase.value) && (!residency.value || o.residency === residency.value)
      && words.every((w) => `${o.unit} ${o.opcode} ${o.source} ${o.name_stack} ${o.types.join(" ")} ${o.results.map(layout).join(" ")}`.toLowerCase().includes(w)));
    const value = COLUMNS[key][1];
    found.sort((a, b) => { const p = value(a), q = value(b); return (p < q ? -1 : p > q ? 1 : a.unit - b.unit) * (descending ? -1 : 1); });
    [...head.children].forEach((th, k) => th.setAttribute("aria-sort", k === key ? (descending ? "descending" : "ascending") : "none"));
    count.textContent = `${found.length} of ${operators.length}` + (found.length > MOST_ROWS ? `, the first ${MOST_ROWS} shown` : "");
    body.replaceChildren(...found.slice(0, MOST_ROWS).map(row));
  }
  function row(o) {
    const node = el("tr", { class: "item", tabindex: 0 }, COLUMNS.map(([name, value, cls]) => {
      if (name === "Residency") return el("td", {}, el("span", { class: `badge ${o.residency}` }, o.residency));
      const shown = name === "Time" ? seconds(value(o)) : name === "Bytes" ? bytes(value(o)) : value(o);
      return el("td", { class: cls || (["Source", "Type", "Sharding"].includes(name) ? "code" : null) }, shown);
    }));
    const toggle = () => {
      if (node.nextSibling?.className === "detail") { node.nextSibling.remove(); node.classList.remove("open"); }
      else { node.after(detail(o)); node.classList.add("open"); }
    };
    node.addEventListener("click", toggle);
    node.addEventListener("keydown", (e) => { if (e.key === "Enter") toggle(); });
    return node;
  }
  text.addEventListener("input", fill);
  section("decisions", "Decisions", "One row per operator that XLA materialises. Click a heading to sort, a row for its costs, alternatives and what was impossible.",
    el("div", { class: "tools" }, text, phase, residency, count), el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), body)));
  fill();
}
