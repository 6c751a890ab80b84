// The chart: a canvas with zoom and hover. See `page_data` for what ops and hops hold.

const LABELS = 210, AXIS = 24;
const [, MICROBATCH, VIRTUAL, CHUNK, START, END, COMMUNICATION, SLOWEST, IDLE] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
const [HOP_KIND, HOP_MICROBATCH, FROM, TO, FROM_STAGE, TO_STAGE, LEAVES, COMES] = [0, 1, 2, 3, 4, 5, 6, 7];
const forward = data.kinds.indexOf("forward"), backward = data.kinds.indexOf("backward");
let view = { from: 0, to: step };
let rowHeight = 20, width = 600, hovered = null;

// ---- Drawing

const x = (time) => (time - view.from) / (view.to - view.from) * width;
const time = (pixel) => view.from + pixel / width * (view.to - view.from);

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
  // Rows fill what is left below the header, but stay readable: then the chart takes the window, and scrolls.
  const room = window.innerHeight - chart.getBoundingClientRect().top - window.scrollY - 70;
  rowHeight = Math.max(13, Math.min(46, Math.floor((room - AXIS) / data.lanes.length)));
  chart.style.maxHeight = Math.max(300, window.innerHeight - 16) + "px";
  labels.replaceChildren(...data.lanes.map((lane, i) => {
    const label = element("div", undefined, i && data.lanes[i - 1].unit !== lane.unit ? "next-unit" : "");
    label.style.height = rowHeight + "px";
    label.append(element("b", `${lane.unit} ${lane.stage}`), element("span", lane.devices));
    label.title = `${lane.unit}, stage ${lane.stage}: devices ${lane.devices}; ${lane.replicas} replicas, ${lane.chunks} chunks`;
    return label;
  }));
  width = chart.clientWidth - LABELS;
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
  if (hovered) drawHovered(pen);
  drawAxis();
}

function drawLane(pen, lane, top) {
  const high = rowHeight - (rowHeight > 20 ? 4 : 2), first = firstVisible(lane.ops), byCause = byId("colour").checked;
  for (let i = first; i < lane.ops.length; i++) {
    const op = lane.ops[i], gaps = op.slice(IDLE), gap = gaps.reduce((sum, [, long]) => sum + long, 0);
    if (op[START] - gap > view.to) break;
    drawGaps(pen, gaps, op[START] - gap, top, high, byCause);
    drawOp(pen, lane, op, top, high, byCause);
  }
  const rest = lane.idle_after.reduce((sum, [, long]) => sum + long, 0);
  drawGaps(pen, lane.idle_after, step - rest, top, high, byCause);
}

function drawGaps(pen, gaps, start, top, high, byCause) {
  for (const [cause, long] of gaps) {
    pen.fillStyle = byCause ? colours.causes[cause] : colours.idle;
    pen.fillRect(x(start), top + 1, Math.max(0.4, x(start + long) - x(start)), high);
    start += long;
  }
}

function drawOp(pen, lane, op, top, high, byCause) {
  const left = Math.max(-2, x(op[START])), long = Math.min(width + 4, x(op[END])) - left, kind = data.kinds[op[KIND]];
  if (kind === "norm") return;
  // Microbatches differ in lightness, and neighbours by a seam where there is room for one.
  pen.fillStyle = colours.kinds[op[KIND]];
  pen.globalAlpha = (byCause ? 0.3 : 1) * (op[MICROBATCH] < 0 ? 1 : 1 - 0.13 * (op[MICROBATCH] % 4));
  const seam = long > 4 ? 1 : long > 2 ? 0.5 : 0;
  pen.fillRect(left, top + 1, Math.max(0.5, long - seam), high);
  pen.globalAlpha = 1;
  const causes = byCause && (op[COMMUNICATION] > 0 ? "tensor parallel" : ["gather", "reduce"].includes(kind) ? kind : "");
  if (causes) {
    // Collectives occur throughout the op; their fraction of its time is drawn as a fraction of its height.
    const share = causes === "tensor parallel" ? op[COMMUNICATION] / (op[END] - op[START]) : 1;
    pen.fillStyle = colours.causes[data.causes.indexOf(causes)];
    pen.fillRect(left, top + 1 + high * (1 - share), Math.max(0.5, long - seam), high * share);
  }
  const text = op[MICROBATCH] < 0 ? kind : lane.chunks > 1 && long > 34 ? `${op[MICROBATCH]}.${op[CHUNK]}` : String(op[MICROBATCH]);
  pen.font = `${Math.min(13, high - 2)}px system-ui, sans-serif`;
  if (high > 10 && long > pen.measureText(text).width + 5) {
    pen.fillStyle = byCause ? colours.ink : "#10151a";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(text, left + long / 2, top + 1 + high / 2);
  }
}

function drawHovered(pen) {
  const { row, op } = hovered, middle = (lane) => lane * rowHeight + rowHeight / 2;
  if (op) {
    pen.strokeStyle = colours.ink;
    pen.lineWidth = 1.5;
    pen.strokeRect(x(op[START]), row * rowHeight + 1, Math.max(1, x(op[END]) - x(op[START])), rowHeight - 3);
    for (const hop of inputs(row, op)) {
      pen.beginPath();
      pen.moveTo(x(hop[LEAVES]), middle(hop[FROM]));
      pen.lineTo(x(hop[COMES]), middle(row));
      pen.stroke();
      pen.beginPath();
      pen.arc(x(hop[LEAVES]), middle(hop[FROM]), 3, 0, 7);
      pen.fillStyle = colours.ink;
      pen.fill();
    }
  }
}

function inputs(row, op) {
  const kind = data.kinds.indexOf(op[KIND] === forward ? "hop" : op[KIND] === backward ? "hop_back" : "");
  return data.hops.filter((hop) => hop[HOP_KIND] === kind && hop[TO] === row && hop[HOP_MICROBATCH] === op[MICROBATCH]
    && hop[TO_STAGE] === op[VIRTUAL]);
}

function drawAxis() {
  const pen = byId("axis").getContext("2d"), span = view.to - view.from;
  pen.clearRect(0, 0, LABELS + width, AXIS);
  const power = 10 ** Math.floor(Math.log10(span / (width / 110)));
  const tick = power * [1, 2, 5, 10].find((factor) => power * factor >= span / (width / 110));
  pen.fillStyle = colours.faint;
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  pen.fillText("stage, devices", 8, AXIS / 2);
  for (let at = Math.ceil(view.from / tick) * tick; at <= view.to; at += tick) {
    const left = LABELS + x(at);
    pen.fillRect(left, AXIS - 6, 1, 6);
    if (left + 50 < LABELS + width) pen.fillText(Math.abs(at) < tick / 2 ? "0" : seconds(at), left + 4, AXIS / 2);
  }
}

// ---- Hover

function find(px, py) {
  const row = Math.floor(py / rowHeight), lane = data.lanes[row], at = time(px);
  if (!lane || at < 0 || at > step) return null;
  const slack = 2 * (view.to - view.from) / width;
  const op = lane.ops.find((one) => one[END] + slack >= at && data.kinds[one[KIND]] !== "norm");
  if (op && op[START] - slack <= at) return { row, lane, op };
  const next = lane.ops.find((one) => one[START] >= at);
  const gaps = next ? next.slice(IDLE) : lane.idle_after, end = next ? next[START] : step;
  const gap = gaps.reduce((sum, [, long]) => sum + long, 0);
  return at >= end - gap ? { row, lane, gaps, from: end - gap } : null;
}

function describe(hit) {
  const { lane, op } = hit, gaps = op ? op.slice(IDLE) : hit.gaps, rows = [];
  const start = op ? op[START] : hit.from, total = gaps.reduce((sum, [, long]) => sum + long, 0);
  const name = op ? data.kinds[op[KIND]] + (op[MICROBATCH] < 0 ? "" : ` of microbatch ${op[MICROBATCH]}`) : "idle";
  const tip = byId("tip");
  tip.replaceChildren(element("b", name));
  rows.push(["on", `${lane.unit}, stage ${lane.stage}` + (op && lane.chunks > 1 && op[CHUNK] >= 0 ? `, chunk ${op[CHUNK]}` : "")]);
  rows.push(["start", seconds(start)], ["duration", seconds(op ? op[END] - op[START] : total)]);
  if (op && lane.replicas > 1) rows.push(["slowest replica", seconds(op[SLOWEST])]);
  if (op && op[COMMUNICATION] > 0) rows.push(["tensor-parallel wait", seconds(op[COMMUNICATION])]);
  if (op) for (const hop of inputs(hit.row, op)) {
    const from = data.lanes[hop[FROM]];
    rows.push(["input", `from ${from.unit} ${from.stage}, ${seconds(hop[COMES] - hop[LEAVES])} on the way`]);
  }
  if (op) rows.push(["idle before", seconds(total)]);
  for (const [cause, long] of gaps) rows.push([swatch(colours.causes[cause], data.causes[cause]), seconds(long)]);
  const table = element("table");
  fillTable(table, ["", ""], rows);
  table.deleteRow(0);
  tip.append(table);
}

function hover(event) {
  const before = hovered;
  hovered = find(event.offsetX, event.offsetY);
  const tip = byId("tip");
  tip.style.display = hovered ? "block" : "none";
  if (hovered) {
    describe(hovered);
    const right = event.clientX + 16 + tip.offsetWidth > window.innerWidth;
    tip.style.left = (right ? event.clientX - 12 - tip.offsetWidth : event.clientX + 16) + "px";
    tip.style.top = Math.min(event.clientY + 12, window.innerHeight - tip.offsetHeight - 8) + "px";
  }
  if ((before && before.op) !== (hovered && hovered.op)) draw();
}

// ---- Zoom and drag

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
    if (!last) return hover(event);
    show(view.from - (event.clientX - last.clientX) / width * (view.to - view.from), view.to - view.from);
    chart.scrollTop -= event.clientY - last.clientY;
    last = event;
  });
  canvas.addEventListener("pointerleave", () => { hovered = null; byId("tip").style.display = "none"; draw(); });
  canvas.addEventListener("dblclick", whole);
  byId("fit").addEventListener("click", whole);
  byId("colour").addEventListener("change", draw);
  window.addEventListener("resize", () => { layOut(); draw(); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); fillPage(); draw(); });
  window.addEventListener("keydown", (event) => {
    const span = view.to - view.from;
    const moves = { "+": () => zoom(0.7, width / 2), "-": () => zoom(1 / 0.7, width / 2), "0": whole,
      ArrowLeft: () => show(view.from - span / 8, span), ArrowRight: () => show(view.from + span / 8, span) };
    if (moves[event.key]) moves[event.key]();
  });
}

readColours();
fillPage();
layOut();
listen();
whole();
