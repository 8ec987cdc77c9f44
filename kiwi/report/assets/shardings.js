// Which part of a tensor each device holds, drawn over the mesh.
const sizes = Object.fromEntries(plan.mesh.axis_names.map((name, k) => [name, plan.mesh.shape[k]]));

function groupedArguments() {
  const groups = new Map();
  for (const [path, a] of Object.entries(plan.arguments)) {
    const name = path.replace(/\[\d+\]/g, "[*]"), key = `${name} ${a.type} ${layout(a.sharding)}`;
    if (!groups.has(key)) groups.set(key, { name, type: a.type, sharding: a.sharding, bytes: a.bytes, count: 0 });
    groups.get(key).count += 1;
  }
  return [...groups.values()].sort((a, b) => b.bytes * b.count - a.bytes * a.count);
}

function groupedActivations() {
  const groups = new Map();
  for (const o of operators) o.results.forEach((sharding, k) => {
    if (o.phase !== "forward" || !shapeOf(o.types[k]).length) return;
    const key = `${o.opcode} ${o.types[k]} ${layout(sharding)} ${line(o.source)}`;
    if (!groups.has(key)) groups.set(key, { name: `${o.opcode} at ${line(o.source)}`, type: o.types[k], sharding, bytes: o.bytes, count: 0 });
    groups.get(key).count += 1;
  });
  return [...groups.values()].sort((a, b) => b.bytes * b.count - a.bytes * a.count);
}

// [start, end) of each dimension on the device at `place` (one coordinate per mesh axis).
function slices(shape, sharding, place) {
  return shape.map((size, d) => {
    let index = 0, count = 1;
    for (const axis of sharding[d] || []) { index = index * sizes[axis] + place[axis]; count *= sizes[axis]; }
    return [index * size / count, (index + 1) * size / count];
  });
}

function deviceBox(shape, sharding, place, number) {
  const cut = slices(shape, sharding, place), W = 150, H = 62;
  const rows = shape.length > 1 ? shape.length - 2 : -1, cols = shape.length - 1;
  const part = (d) => d < 0 ? [0, 1] : [cut[d][0] / shape[d], cut[d][1] / shape[d]];
  const [top, bottom] = part(rows), [left, right] = part(cols);
  const drawing = svg("svg", { viewBox: `0 0 ${W} ${H}`, "aria-hidden": "true" },
    svg("rect", { x: 0, y: 0, width: W, height: H, rx: 3, fill: "var(--shard-off)" }),
    svg("rect", { x: left * W, y: top * H, width: Math.max(2, (right - left) * W), height: Math.max(2, (bottom - top) * H), rx: 2, fill: "var(--shard-on)" }));
  const text = cut.map(([a, b], d) => a === 0 && b === shape[d] ? ":" : `${a}:${b}`).join(", ");
  return el("div", { class: "device" }, `device ${number}`, drawing, el("code", {}, `[${text}]`));
}

function drawMesh(shape, sharding) {
  const names = plan.mesh.axis_names, dims = plan.mesh.shape;
  const columns = dims[dims.length - 1], panels = dims.length > 2 ? dims.slice(0, -2).reduce((a, b) => a * b, 1) : 1;
  const rowsCount = dims.length > 1 ? dims[dims.length - 2] : 1, wrap = dims.length === 1 ? Math.min(4, columns) : columns;
  const found = [];
  for (let p = 0; p < panels; p++) {
    const grid = el("div", { class: "mesh", style: `grid-template-columns:repeat(${Math.min(wrap, 8)},minmax(0,1fr))` });
    for (let r = 0; r < rowsCount; r++) for (let c = 0; c < columns; c++) {
      const place = {}; let rest = p;
      names.forEach((name, k) => { place[name] = k === names.length - 1 ? c : k === names.length - 2 ? r : 0; });
      for (let k = names.length - 3; k >= 0; k--) { place[names[k]] = rest % dims[k]; rest = Math.floor(rest / dims[k]); }
      grid.append(deviceBox(shape, sharding, place, (p * rowsCount + r) * columns + c));
    }
    if (panels > 1) found.push(el("div", { class: "axis" }, `${names.slice(0, -2).join(", ")} = ${p}`));
    found.push(grid);
  }
  const axes = dims.length > 1 ? `Rows: ${names[dims.length - 2]} (${rowsCount}). Columns: ${names[dims.length - 1]} (${columns}).` : `Axis ${names[0]} (${columns}), in order.`;
  return [el("div", { class: "axis" }, `${axes} Blue is the part of the tensor's last two dimensions that a device holds.`), ...found];
}

function shardingsSection() {
  const lists = { parameters: groupedArguments(), activations: groupedActivations() };
  const list = el("div", { class: "list", id: "tensors" }), panel = el("div", { id: "mesh-panel" });
  function pick(tensor, button) {
    for (const other of list.children) other.setAttribute("aria-pressed", other === button);
    const shape = shapeOf(tensor.type);
    const shards = tensor.sharding.flat().reduce((n, axis) => n * sizes[axis], 1);
    panel.replaceChildren(el("h3", {}, `${tensor.name}: ${tensor.type}, ${layout(tensor.sharding)}`),
      el("div", { class: "sub" }, shards === 1 ? "Whole on every device." : `${shards} different parts` + (shards < plan.mesh.shape.reduce((a, b) => a * b, 1) ? "; devices along the other axes hold copies." : ", one per device.")),
      ...drawMesh(shape, tensor.sharding));
  }
  function show(kind) {
    for (const button of tabs.children) button.setAttribute("aria-pressed", button.dataset.kind === kind);
    list.replaceChildren(...lists[kind].slice(0, 80).map((tensor) => {
      const button = el("button", { "aria-pressed": "false" }, el("span", {}, tensor.name), el("span", {}, layout(tensor.sharding)),
        el("small", {}, `${tensor.type}${tensor.count > 1 ? `, ${tensor.count} of them` : ""}`));
      button.addEventListener("click", () => pick(tensor, button));
      return button;
    }));
    if (list.firstChild) list.firstChild.click(); else panel.replaceChildren("Nothing of this kind.");
  }
  const tabs = el("div", { class: "tools" }, ["parameters", "activations"].map((kind) =>
    el("button", { "data-kind": kind, onclick: () => show(kind) }, kind === "parameters" ? "Arguments" : "Activations")));
  section("shardings", "Shardings over the mesh", "Arguments and forward activations, the largest first; those of equal layers together.",
    tabs, el("div", { class: "halves" }, list, panel));
  show("parameters");
}
