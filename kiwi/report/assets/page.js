// Puts the page together.
function head() {
  const e = plan.estimate, fits = data.fits, r = plan.bounds, devices = plan.mesh.shape.reduce((a, b) => a * b, 1);
  const axes = plan.mesh.axis_names.map((n, k) => `${n} = ${plan.mesh.shape[k]}${data.axis_texts[k] && ` (${data.axis_texts[k]})`}`).join(", ");
  const tile = (value, text, cls) => el("div", { class: "tile" }, el("b", { class: cls || null }, value), el("span", {}, text));
  document.getElementById("head").append(
    el("h1", {}, plan.function.name || "Plan"),
    el("p", { class: "sub", style: "margin-bottom:0" }, `${devices} × ${plan.hardware.name}, mesh ${axes}; planner ${plan.options.planner}; jax ${plan.jax}`),
    el("div", { class: "tiles" }, tile(seconds(e.step_seconds), "estimated step time"),
      plan.checks?.time ? tile(seconds(plan.checks.time.step_seconds), "compiled step, simulated") : null, tile(bytes(e.peak_bytes), "estimated peak, per device"),
      tile(plan.checks ? bytes(plan.checks.peak_bytes) : "not compiled", plan.checks ? `compiled peak (${plan.checks.target})` : "compiled peak"),
      tile(bytes(plan.options.memory_budget_bytes), fits ? "budget: fits" : "budget: exceeded", fits ? "good" : "bad"),
      tile(r.gap === null ? "no bound" : percent(r.gap), "at most from the best plan"),
      tile(`${operators.filter((o) => o.residency === "recompute").length} of ${operators.length}`, "operators recomputed")));
}

function notesSection() {
  if (!plan.notes.length) return;
  section("notes", "Notes", "", el("ul", { class: "notes" }, plan.notes.map((text) => el("li", {}, text))));
}

function navigation() {
  const bar = el("div");
  for (const node of document.querySelectorAll("main > section")) bar.append(el("a", { href: `#${node.id}` }, node.querySelector("h2").textContent));
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const toggle = el("button", { id: "theme" }, dark() ? "Light" : "Dark");
  toggle.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; toggle.textContent = dark() ? "Light" : "Dark"; });
  bar.append(toggle);
  document.getElementById("nav").append(bar);
}

head();
memorySection();
timeSection();
shardingsSection();
recomputedSection();
decisionsSection();
solverSection();
paretoSection();
searchSection();
notesSection();
navigation();
document.documentElement.dataset.ready = "true";
