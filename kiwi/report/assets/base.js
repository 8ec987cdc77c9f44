"use strict";
// Small helpers: elements from names and children, numbers for people, one shared tooltip.
const data = JSON.parse(document.getElementById("data").textContent);
const PARTS = ["compute", "communication", "resharding", "recompute"];
const PHASES = ["forward", "backward", "update"];

function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined)
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  return node;
}

function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  for (const child of children.flat())
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  return node;
}

function bytes(size) {
  for (const [unit, factor] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (Math.abs(size) >= factor) return `${(size / factor).toFixed(2)} ${unit}`;
  return `${Math.round(size)} B`;
}

function seconds(value) {
  for (const [unit, factor] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]])
    if (Math.abs(value) >= factor) return `${Number((value / factor).toPrecision(3))} ${unit}`;
  return "0 s"; // Nobody measures less than a nanosecond.
}

const signed = (format, value) => (value < 0 ? "−" : "+") + format(Math.abs(value));
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const total = (o) => PARTS.reduce((sum, part) => sum + (o.seconds[part] || 0), 0);
const layout = (dims) => `[${dims.map((d) => d.length === 0 ? "-" : d.length === 1 ? d[0] : `(${d.join(", ")})`).join(", ")}]`;
const line = (source) => source.split(" ")[0];
const shapeOf = (type) => (type.match(/\[(.*)\]/)?.[1] || "").split(",").filter(Boolean).map(Number);

const tip = document.getElementById("tip");
function showTip(event, ...lines) {
  tip.replaceChildren(...lines.filter(Boolean).map((text) => el("div", {}, text)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = event.clientX + 14 + box.width > innerWidth ? event.clientX - box.width - 12 : event.clientX + 14;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 6))}px`;
}
const hideTip = () => { tip.hidden = true; };

// A drawing keeps a size at which its text can be read: on narrow screens it scrolls by itself.
const drawing = (chart) => el("div", { class: "chart" }, chart);

function section(id, title, sub, ...children) {
  const node = el("section", { id }, el("h2", {}, title), sub ? el("p", { class: "sub" }, sub) : null, ...children);
  document.getElementById("main").append(node);
  return node;
}

// About five round numbers from 0 to most.
function ticks(most, count = 5, binary = false) {
  const base = binary ? [1, 2, 4, 5, 8, 10, 16, 20, 32, 40, 50, 64, 100, 128, 200, 256, 500, 512] : null;
  const unit = binary ? 2 ** (10 * Math.max(0, Math.floor(Math.log2(Math.max(most, 1)) / 10))) : 10 ** Math.floor(Math.log10(most || 1));
  const span = most / unit;
  const step = (base || [0.1, 0.2, 0.5, 1, 2, 5]).concat(binary ? [0.1, 0.2, 0.25, 0.5] : []).sort((a, b) => a - b)
    .find((s) => span / s <= count) || span / count;
  const found = [];
  for (let k = 0; k * step <= span * 1.0001; k++) found.push(k * step * unit);
  return found;
}

function legend(entries) {
  return el("div", { class: "legend" }, entries.map(([color, text, kind]) =>
    el("span", {}, el("i", kind ? { class: kind } : { style: `background:${color}` }), text)));
}

function navigation() {
  const bar = el("div");
  for (const node of document.querySelectorAll("main > section")) bar.append(el("a", { href: `#${node.id}`, title: node.querySelector("h2").textContent }, node.id[0].toUpperCase() + node.id.slice(1)));
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const toggle = el("button", { id: "theme" }, dark() ? "Light" : "Dark");
  toggle.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; toggle.textContent = dark() ? "Light" : "Dark"; });
  bar.append(toggle);
  document.getElementById("nav").append(bar);
}
