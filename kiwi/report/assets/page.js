// Puts the page together.
function findingBox(found, cls) {
  const said = found.text.replace(/ us\b/g, " µs");
  return el("div", { class: `finding ${cls}` }, el("b", {}, found.title), el("span", {}, said), el("span", { class: "next" }, el("i", {}, "Next: "), found.advice));
}

function head() {
  const e = plan.estimate, checks = plan.checks, fits = data.fits, r = plan.bounds, devices = plan.mesh.shape.reduce((a, b) => a * b, 1);
  const axes = plan.mesh.axis_names.map((n, k) => `${n} = ${plan.mesh.shape[k]}${data.axis_texts[k] && ` (${data.axis_texts[k]})`}`).join(", ");
  const tile = (value, text, cls) => el("div", { class: "tile" }, el("b", { class: cls || null }, value), el("span", {}, text));
  const again = operators.filter((o) => o.residency === "recompute").length;
  const [first, ...others] = data.findings;
  document.getElementById("head").append(
    el("h1", {}, plan.function.name || "Plan"),
    el("p", { class: "sub", style: "margin-bottom:0" }, `${devices} × ${plan.hardware.name}, mesh ${axes}; planner ${plan.options.planner}; jax ${plan.jax}`),
    el("div", { class: "tiles" },
      tile(seconds(e.step_seconds), checks?.time ? `step time, estimated; ${seconds(checks.time.step_seconds)} as compiled` : "step time, estimated"),
      tile(bytes(checks ? checks.peak_bytes : e.peak_bytes), checks ? `peak of a device, as compiled for ${checks.target}; ${bytes(e.peak_bytes)} estimated` : "peak of a device, estimated; not compiled"),
      tile(bytes(plan.options.memory_budget_bytes), fits ? "budget: fits" : "budget: exceeded", fits ? "good" : "bad"),
      tile(r.gap === null ? "no bound" : percent(r.gap), "at most from the best plan"),
      tile(`${again} of ${operators.length}`, "operators recomputed")),
    el("div", { class: "findings" }, findingBox(first, data.fits ? "main" : "main over"), others.map((found) => findingBox(found, ""))));
}

function notesSection() {
  if (!plan.notes.length) return;
  const item = (note) => el("li", {}, note.code ? el("code", {}, note.code) : null, ` ${note.text ?? note}`, note.suggestion ? el("div", { class: "sub" }, `Next: ${note.suggestion}`) : null);
  section("notes", "Notes", "kiwi explain CODE says more of each.", el("ul", { class: "notes" }, plan.notes.map(item)));
}

head();
memorySection();
timeSection();
deviationsSection();
shardingsSection();
recomputedSection();
decisionsSection();
solverSection();
planningSection();
paretoSection();
searchSection();
notesSection();
navigation();
document.documentElement.dataset.ready = "true";
