"use strict";
// The timeline's data, and the tables of its summary. Times are in seconds.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const KIND = 0;  // place of an op's kind among its entries
const step = data.summary.step_seconds;
let colours = {};

// ---- Text and tables

function seconds(value) {
  if (value === 0) return "0";
  const [scale, unit] = value >= 1 ? [1, "s"] : value >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  return (value * scale).toPrecision(4) + " " + unit;
}
const percent = (share) => (100 * share).toFixed(1) + "%";
const gigabytes = (bytes) => (bytes / 1e9).toPrecision(3) + " GB";
const element = (name, text, className) => {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
};

function fillTable(table, titles, rows) {
  // Titles that start with # are of numbers. A cell is text or an element.
  const line = (cells, name) => {
    const row = element("tr");
    cells.forEach((cell, i) => {
      const node = element(name, undefined, titles[i].startsWith("#") ? "number" : "");
      node.append(cell);
      row.append(node);
    });
    return row;
  };
  table.replaceChildren(line(titles.map((title) => title.replace("#", "")), "th"), ...rows.map((row) => line(row, "td")));
}

function swatch(colour, text, title) {
  const node = element("span");
  const square = element("span", undefined, "swatch");
  square.style.background = colour;
  node.append(square, text);
  node.title = title || "";
  return node;
}

function bar(share, colour) {
  const node = element("span", undefined, "bar");
  node.style.cssText = `width: ${Math.max(1, 220 * share)}px; background: ${colour}`;
  return node;
}

function fillPage() {
  const s = data.summary;
  document.title = data.title;
  byId("title").textContent = data.title;
  const figures = [
    ["step", seconds(step)], ["MFU", percent(s.mfu)],
    ["tokens per second", Math.round(s.tokens_per_second).toLocaleString("en")],
    ["devices allocated", s.devices.toLocaleString("en")], ["microbatches", s.microbatches],
    ["idle", percent(1 - s.busy.share)],
  ];
  byId("figures").replaceChildren(...figures.map(([name, value]) => {
    const node = element("div", undefined, "figure");
    node.append(element("b", value), element("span", name));
    return node;
  }));
  const rows = data.causes.map((cause, i) => [cause, i, s.idle[cause]]).filter((row) => row[2].seconds > 0);
  fillTable(byId("causes"), ["share of the step", "#seconds", "#share", ""], [
    [swatch(colours.forward, "busy", "forwards, backwards and updates"), seconds(s.busy.seconds), percent(s.busy.share), bar(s.busy.share, colours.forward)],
    ...rows.map(([cause, i, idle]) =>
      [swatch(colours.causes[i], cause, data.meanings[i]), seconds(idle.seconds), percent(idle.share), bar(idle.share, colours.causes[i])]),
  ]);
  fillTable(byId("units"), ["unit", "#MFU"], s.units.map((unit) => [unit.unit, percent(unit.mfu)]));
  fillTable(byId("stages"), ["unit", "#stage", "#devices", "#replicas", "#chunks", "#busy", "#idle", "#memory a device"],
    s.stages.map((stage) => [stage.unit, String(stage.stage), String(stage.devices), String(stage.replicas), String(stage.chunks),
      percent(stage.busy_seconds / step), percent(Object.values(stage.idle_seconds).reduce((a, b) => a + b, 0) / step),
      gigabytes(stage.memory_bytes)]));
  byId("shared").textContent = isShared() ? "Units share devices: where a lane is blank, its devices work for another unit." : "";
  fillLegend();
}

const isShared = () => data.summary.stages.reduce((sum, stage) => sum + stage.devices, 0) > data.summary.devices;

function fillLegend() {
  const present = data.kinds.map((kind, i) => [kind, i])
    .filter(([kind, i]) => kind !== "norm" && data.lanes.some((lane) => lane.ops.some((op) => op[KIND] === i)));
  const shown = present.map(([kind, i]) => swatch(colours.kinds[i], kind));
  shown.push(swatch(colours.idle, "idle"));
  const legend = byId("legend");
  legend.replaceChildren(...shown);
  for (const item of shown) item.style.marginRight = "14px";
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue("--" + name).trim();
  const kinds = data.kinds.map((kind) => of(kind === "hop" ? "other" : kind) || of("other"));
  const causes = data.causes.map((cause) => of(["gather", "reduce"].includes(cause) ? cause + "-wait" : cause.replace(" ", "-")));
  colours = { kinds, causes, forward: of("forward"), idle: of("idle"), ground: of("ground"), ink: of("ink"), faint: of("faint"), line: of("line") };
}
