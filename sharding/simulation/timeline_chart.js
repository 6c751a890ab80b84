"use strict";
// The chart: a canvas with zoom, and a description of the op under the pointer or reached by the keyboard.
// See `page_data` for what ops and hops hold. Times are in seconds.

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const step = data.step;
const AXIS = 28;
const [KIND, MICROBATCH, UNIT, VIRTUAL, CHUNK, HALF, START, END, COMMUNICATION, SLOWEST, IDLE] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
const [HOP_KIND, HOP_MICROBATCH, FROM, FROM_STAGE, TO_UNIT, TO_STAGE, LEAVES, COMES] = [0, 1, 2, 3, 4, 5, 6, 7];
const [WHOLE, UPPER] = [0, 1];  // halves
const forward = data.kinds.indexOf("forward"), backward = data.kinds.indexOf("backward"), norm = data.kinds.indexOf("norm");
const IDLE_HEIGHT = 0.4;  // of a row
let view = { from: 0, to: step };
let rowHeight = 20, width = 600, labelWidth = 170, chosen = null, ink = "", faint = "";

// ---- Text

const [unitSeconds, unit] = step >= 1 ? [1, "s"] : step >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
const percent = (share) => (100 * share).toFixed(1) + "%";

function seconds(value) {
  if (value === 0) return "0 s";
  const [scale, name] = value >= 1 ? [1, "s"] : value >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  return Number((value * scale).toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 9 }) + " " + name;
}

const element = (name, text, className) => {
  const node = document.createElement(name);
  if (text !== undefined) node.append(text);
  if (className) node.className = className;
  return node;
};

function ticks(from, to, most) {
  // Multiples of 1, 2 or 5 times a power of ten, and their labels with equal decimals.
  const power = 10 ** Math.floor(Math.log10((to - from) / most));
  const apart = power * [1, 2, 5, 10].find((factor) => power * factor >= (to - from) / most * (1 - 1e-9));
  const decimals = Math.max(0, -Math.floor(Math.log10(apart) + 1e-9));
  const shown = [];
  for (let i = Math.ceil(from / apart - 1e-9) + 0; i * apart <= to; i++)
    shown.push([i * apart, (i * apart + 0).toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })]);
  return shown;
}

// ---- Drawing

const x = (time) => (time - view.from) / (view.to - view.from) * width;
const time = (pixel) => view.from + pixel / width * (view.to - view.from);
const sum = (gaps) => gaps.reduce((total, [, long]) => total + long, 0);

function firstVisible(ops) {
  let low = 0, high = ops.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ops[middle][END] < view.from) low = middle + 1; else high = middle;
  }
  return low;
}

function layOut() {
  const labels = byId("labels"), chart = byId("chart");
  // Rows fill the window as far as they need not, but stay readable; more of them than fit scroll.
  rowHeight = Math.max(16, Math.min(40, Math.floor((window.innerHeight - 300) / data.lanes.length)));
  chart.style.maxHeight = Math.max(300, window.innerHeight - 40) + "px";
  labelWidth = chart.clientWidth < 560 ? 120 : 176;
  labels.style.width = labelWidth + "px";
  labels.replaceChildren(...data.lanes.map((lane, i) => {
    const label = element("div", undefined, i && data.lanes[i - 1].unit !== lane.unit ? "next-unit" : "");
    label.style.height = rowHeight + "px";
    label.append(element("b", lane.name), element("span", percent(lane.busy)));
    label.title = `devices ${lane.devices}: busy for ${percent(lane.busy)} of the step; `
      + lane.ranks.map((rank) => `${rank.name}: ${rank.replicas} replicas, ${rank.chunks} chunks`).join("; ");
    return label;
  }));
  width = chart.clientWidth - labelWidth;
  size(byId("axis"), chart.clientWidth, AXIS);
  size(byId("lanes"), width, rowHeight * data.lanes.length);
}

function size(canvas, wide, high) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = wide * scale;
  canvas.height = high * scale;
  canvas.style.width = wide + "px";
  canvas.style.height = high + "px";
  canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
}

function draw() {
  const pen = byId("lanes").getContext("2d");
  pen.clearRect(0, 0, width, rowHeight * data.lanes.length);
  data.lanes.forEach((lane, row) => drawLane(pen, lane, row * rowHeight));
  if (chosen && chosen.op) drawChosen(pen);
  drawAxis();
}

function drawLane(pen, lane, top) {
  const high = rowHeight - (rowHeight > 20 ? 4 : 2), fade = byId("fade").checked;
  pen.fillStyle = "#8883";
  pen.fillRect(x(0), top + 1, x(step) - x(0), high);
  for (let i = firstVisible(lane.ops); i < lane.ops.length; i++) {
    const op = lane.ops[i], gaps = op.slice(IDLE), gap = sum(gaps);
    if (op[START] - gap > view.to) break;
    drawGaps(pen, gaps, op[START] - gap, top, high, fade);
    drawOp(pen, lane, op, top, high, fade);
  }
  drawGaps(pen, lane.idle_after, step - sum(lane.idle_after), top, high, fade);
}

function drawGaps(pen, gaps, start, top, high, fade) {
  const share = fade ? 1 : IDLE_HEIGHT;
  for (const [cause, long] of gaps) {
    pen.fillStyle = data.cause_colours[cause];
    pen.fillRect(x(start), top + 1 + high * (1 - share), Math.max(0.4, x(start + long) - x(start)), high * share);
    start += long;
  }
}

function drawOp(pen, lane, op, top, high, fade) {
  if (op[KIND] === norm) return;
  const left = Math.max(-2, x(op[START])), long = Math.min(width + 4, x(op[END])) - left, kind = data.kinds[op[KIND]];
  if (op[HALF] !== WHOLE) high /= 2;
  if (op[HALF] > UPPER) top += high;
  // Microbatches differ in lightness, and neighbours by a seam where there is room for one.
  pen.fillStyle = data.colours[op[UNIT]][op[KIND]];
  pen.globalAlpha = (fade ? 0.25 : 1) * (op[MICROBATCH] < 0 ? 1 : 1 - 0.13 * (op[MICROBATCH] % 4));
  const seam = long > 4 ? 1 : long > 2 ? 0.5 : 0;
  pen.fillRect(left, top + 1, Math.max(0.5, long - seam), high);
  pen.globalAlpha = 1;
  const cause = fade && (op[COMMUNICATION] > 0 ? "tensor parallel" : ["gather", "reduce"].includes(kind) ? kind : "");
  if (cause) {
    // Collectives occur throughout the op; their fraction of its time is drawn as a fraction of its height.
    const share = cause === "tensor parallel" ? op[COMMUNICATION] / (op[END] - op[START]) : 1;
    pen.fillStyle = data.cause_colours[data.causes.indexOf(cause)];
    pen.fillRect(left, top + 1 + high * (1 - share), Math.max(0.5, long - seam), high * share);
  }
  const text = op[MICROBATCH] < 0 ? kind : rankOf(lane, op).chunks > 1 && long > 34 ? `${op[MICROBATCH]}.${op[CHUNK]}` : String(op[MICROBATCH]);
  pen.font = `${Math.min(13, high - 2)}px system-ui, sans-serif`;
  if (high > 11 && long > pen.measureText(text).width + 5) {
    pen.fillStyle = fade ? ink : "#10151a";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(text, left + long / 2, top + 1 + high / 2);
  }
}

const rankOf = (lane, op) => lane.ranks.find((rank) => rank.unit === op[UNIT]) || lane.ranks[0];

function drawChosen(pen) {
  const { row, op } = chosen, middle = (lane) => lane * rowHeight + rowHeight / 2;
  pen.strokeStyle = pen.fillStyle = ink;
  pen.lineWidth = 2;
  pen.strokeRect(x(op[START]), row * rowHeight + 1, Math.max(1, x(op[END]) - x(op[START])), rowHeight - 3);
  for (const hop of inputs(op)) {
    pen.beginPath();
    pen.moveTo(x(hop[LEAVES]), middle(hop[FROM]));
    pen.lineTo(x(hop[COMES]), middle(row));
    pen.stroke();
    pen.beginPath();
    pen.arc(x(hop[LEAVES]), middle(hop[FROM]), 3, 0, 7);
    pen.fill();
  }
}

function inputs(op) {
  const kind = data.kinds.indexOf(op[KIND] === forward ? "hop" : op[KIND] === backward ? "hop_back" : "");
  return data.hops.filter((hop) => hop[HOP_KIND] === kind && hop[TO_UNIT] === op[UNIT] && hop[HOP_MICROBATCH] === op[MICROBATCH]
    && hop[TO_STAGE] === op[VIRTUAL]);
}

function drawAxis() {
  const pen = byId("axis").getContext("2d"), from = Math.max(0, view.from) / unitSeconds, to = Math.min(step, view.to) / unitSeconds;
  pen.clearRect(0, 0, labelWidth + width, AXIS);
  pen.fillStyle = faint;
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  pen.fillText("stage", 8, AXIS / 2);
  pen.textAlign = "right";
  pen.fillText("busy", labelWidth - 8, AXIS / 2);
  let shown = [];
  for (let most = 10; most > 0; most--) {
    shown = ticks(from, to, most);
    shown[0][1] += " " + unit;
    const widest = Math.max(...shown.map(([, label]) => pen.measureText(label).width));
    if (shown.length < 2 || x(shown[1][0] * unitSeconds) - x(shown[0][0] * unitSeconds) > widest + 14) break;
  }
  for (const [at, label] of shown) {
    const left = labelWidth + x(at * unitSeconds), half = pen.measureText(label).width / 2;
    if (left < labelWidth - 1) continue;
    pen.fillRect(left, AXIS - 6, 1, 6);
    pen.textAlign = left - half < labelWidth + 2 ? "left" : left + half > labelWidth + width - 2 ? "right" : "center";
    pen.fillText(label, left, AXIS / 2 - 2);
  }
}

// ---- Description of an op, or of the idle time between two

function find(px, py) {
  const row = Math.floor(py / rowHeight), lane = data.lanes[row], at = time(px), half = py - row * rowHeight < rowHeight / 2;
  if (!lane || at < 0 || at > step) return null;
  const slack = 2 * (view.to - view.from) / width;
  const op = lane.ops.find((one) => one[END] + slack >= at && one[KIND] !== norm && (one[HALF] === WHOLE || (one[HALF] === UPPER) === half));
  if (op && op[START] - slack <= at) return { row, op };
  const next = lane.ops.find((one) => one[START] >= at), end = next ? next[START] : step;
  const gaps = next ? next.slice(IDLE) : lane.idle_after, start = end - sum(gaps);
  return at >= start ? { row, gaps, start } : null;
}

function describe({ row, op, gaps, start }) {
  const lane = data.lanes[row], rank = op ? rankOf(lane, op) : lane, rows = [];
  const idle = op ? op.slice(IDLE) : gaps;
  const name = op ? data.kinds[op[KIND]] + (op[MICROBATCH] < 0 ? "" : ` of microbatch ${op[MICROBATCH]}`) : "idle";
  rows.push(["on", rank.name + (op && rank.chunks > 1 && op[CHUNK] >= 0 ? `, chunk ${op[CHUNK]}` : "")]);
  if (op && op[HALF] !== WHOLE) {
    const other = lane.ops.find((one) => one !== op && one[HALF] !== WHOLE && one[START] === op[START]);
    if (other) rows.push(["one program with", `${data.kinds[other[KIND]]} of ${rankOf(lane, other).name}`]);
  }
  rows.push(["start", seconds(op ? op[START] : start)], ["duration", seconds(op ? op[END] - op[START] : sum(gaps))]);
  if (op && rank.replicas > 1) rows.push(["slowest replica", seconds(op[SLOWEST])]);
  if (op && op[COMMUNICATION] > 0) rows.push(["wait for other ranks", seconds(op[COMMUNICATION])]);
  if (op) for (const hop of inputs(op)) {
    const from = data.lanes[hop[FROM]];
    rows.push(["input", `from ${from.name}, ${seconds(hop[COMES] - hop[LEAVES])} on the way`]);
  }
  if (op) rows.push(["idle before", seconds(sum(idle))]);
  for (const [cause, long] of idle) {
    const dot = element("span", undefined, "dot"), title = element("span");
    dot.style.background = data.cause_colours[cause];
    title.append(dot, data.causes[cause]);
    rows.push([title, seconds(long)]);
  }
  const table = element("table"), largest = idle.reduce((most, gap) => gap[1] > most[1] ? gap : most, [-1, 0])[0];
  table.append(...rows.map((cells) => {
    const line = element("tr");
    line.append(...cells.map((cell) => element("td", cell)));
    return line;
  }));
  const tip = byId("tip");
  tip.replaceChildren(element("b", name), table);
  if (largest >= 0) tip.append(element("p", `${data.causes[largest]}: ${data.explanations[largest]}`));
}

function choose(next, left, top) {
  chosen = next;
  const tip = byId("tip");
  tip.style.display = chosen ? "block" : "none";
  if (chosen) {
    describe(chosen);
    tip.style.left = (left + 16 + tip.offsetWidth > window.innerWidth ? Math.max(4, left - 12 - tip.offsetWidth) : left + 16) + "px";
    tip.style.top = Math.max(4, Math.min(top + 12, window.innerHeight - tip.offsetHeight - 8)) + "px";
  }
  draw();
}

// ---- Zoom, drag and keyboard

function show(from, span) {
  span = Math.min(Math.max(span, step * 1e-6), step * 1.02);
  from = Math.min(Math.max(from, -0.01 * step), 1.01 * step - span);
  view = { from, to: from + span };
  draw();
}
const whole = () => show(-0.005 * step, 1.01 * step);

function zoom(factor, pixel) {
  const at = time(pixel), span = (view.to - view.from) * factor;
  show(at - pixel / width * span, span);
}
const zoomFromKeyboard = (factor) =>
  zoom(factor, chosen && chosen.op ? Math.min(width, Math.max(0, x((chosen.op[START] + chosen.op[END]) / 2))) : width / 2);

function chooseOp(row, op) {
  const middle = (op[START] + op[END]) / 2, span = view.to - view.from, chart = byId("chart");
  if (middle < view.from || middle > view.to) show(middle - span / 2, span);
  if (rowHeight * (row + 1) + AXIS > chart.scrollTop + chart.clientHeight) chart.scrollTop = rowHeight * (row + 2) + AXIS - chart.clientHeight;
  if (rowHeight * row < chart.scrollTop) chart.scrollTop = rowHeight * row;
  const box = byId("lanes").getBoundingClientRect();
  choose({ row, op }, box.left + x(middle), box.top + (row + 0.5) * rowHeight);
}

function walk(rows, ops) {
  // From the chosen op to another in its lane, or to the op of the next lane that is nearest in time.
  const shown = (row) => data.lanes[row].ops.filter((op) => op[KIND] !== norm);
  if (!chosen || !chosen.op) return chooseOp(0, shown(0)[0]);
  const row = Math.min(data.lanes.length - 1, Math.max(0, chosen.row + rows)), all = shown(row);
  if (ops) return chooseOp(row, all[Math.min(all.length - 1, Math.max(0, all.indexOf(chosen.op) + ops))]);
  const at = chosen.op[START], distance = (op) => Math.abs(op[START] - at);
  chooseOp(row, all.reduce((best, op) => distance(op) < distance(best) ? op : best, all[0]));
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const span = view.to - view.from;
  const moves = {
    "+": () => zoomFromKeyboard(0.7), "=": () => zoomFromKeyboard(0.7), "-": () => zoomFromKeyboard(1 / 0.7), "0": whole,
    ArrowLeft: () => event.shiftKey ? show(view.from - span / 8, span) : walk(0, -1),
    ArrowRight: () => event.shiftKey ? show(view.from + span / 8, span) : walk(0, 1),
    ArrowUp: () => walk(-1, 0), ArrowDown: () => walk(1, 0),
    Escape: () => choose(null),
  };
  if (!moves[event.key]) return;
  event.preventDefault();
  moves[event.key]();
}

function listen() {
  const canvas = byId("lanes"), chart = byId("chart");
  let last = null;
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.shiftKey) chart.scrollTop += event.deltaY + event.deltaX;
    else zoom(1.002 ** (event.deltaMode ? 33 * event.deltaY : event.deltaY), event.offsetX);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => { last = event; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { last = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (!last) return choose(find(event.offsetX, event.offsetY), event.clientX, event.clientY);
    show(view.from - (event.clientX - last.clientX) / width * (view.to - view.from), view.to - view.from);
    chart.scrollTop -= event.clientY - last.clientY;
    last = event;
  });
  canvas.addEventListener("pointerleave", () => choose(null));
  canvas.addEventListener("dblclick", whole);
  chart.addEventListener("keydown", press);
  chart.addEventListener("blur", () => choose(null));
  byId("fit").addEventListener("click", whole);
  byId("closer").addEventListener("click", () => zoomFromKeyboard(0.7));
  byId("farther").addEventListener("click", () => zoomFromKeyboard(1 / 0.7));
  byId("fade").addEventListener("change", draw);
  window.addEventListener("resize", () => { layOut(); draw(); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); draw(); });
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  [ink, faint] = ["--ink", "--faint"].map((name) => style.getPropertyValue(name).trim());
}

document.body.classList.add("interactive");
byId("interactive").hidden = false;
document.querySelector(".keys").hidden = false;
readColours();
layOut();
listen();
whole();
