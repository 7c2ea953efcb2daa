// Figure 1, animated: any timetable of the family, what a cell sees, and what it costs.

import { describe, Ledger, makeSchedule, SCHEDULES, size } from "./timetable.js";

// The core of `staircase describe`; a Universal Transformer has one layer.
const CORE = { width: 512, numLayers: 8, numHeads: 8, vocabSize: 256, segment: 256 };
const CELL = [46, 26];
const LABEL = 70;
const MARGIN = 22;
const NAMES = {
  chunk_size: "C: tokens per chunk",
  num_window_chunks: "N: chunks in the window",
  num_passes: "passes",
  span: "S: tokens in view",
  order: "order of layers",
};
// Light for the first pass, dark for the last: fill and text.
const SCALE = [
  ["#c7e9b4", "#000"], ["#94d5b9", "#000"], ["#64c3bf", "#000"], ["#3cb1c3", "#000"],
  ["#2296c1", "#000"], ["#2074b2", "#fff"], ["#2352a2", "#fff"], ["#253494", "#fff"],
];
const SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉";

const section = document.querySelector("#figure");
const [form, svg, cellText] = ["form", "svg", "#cell"].map((name) => section.querySelector(name));
const button = (name) => section.querySelector(`[name=${name}]`);
let schedule, rows, now, chosen, timer;

const name = (letter, number) =>
  letter + [...String(number + 1)].map((digit) => SUBSCRIPTS[digit]).join("");
const names = (columns) => {
  if (columns.length < 2) return columns.map((column) => name("x", column)).join("");
  return `${name("x", columns[0])}…${name("x", columns.at(-1))}`;
};

function element(kind, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// The rows of the picture: for each step its boxes, and what is cached after it.
function picture(schedule) {
  const chunk = schedule.chunkLength;
  const wanted = schedule.isBounded ? Math.floor(schedule.maxDistance / chunk) + 3 : 7;
  const numColumns = Math.max(5, Math.min(wanted, 12));
  const ledger = new Ledger();
  const cachedAfter = new Map();
  const last = new Map();
  const found = [];
  const steps = schedule.steps([0, numColumns * chunk], 2, "window");
  // The ledger is up to date once the next step is asked for.
  const settle = () => found.length && (found.at(-1).kept = ledger.cached.map((edge) => edge / chunk));
  for (const [step] of ledger.follow(steps)) {
    settle();
    const boxes = [];
    for (let at = step.frozen[0] / chunk; at < step.frozen[1] / chunk; at++) {
      boxes.push({ kind: "cached", column: at, pass: cachedAfter.get(at) });
    }
    for (const { tokens, pass, cached } of step.cells) {
      for (let at = tokens[0] / chunk; at < tokens[1] / chunk; at++) {
        const box = { kind: "query", column: at, pass, cached };
        if (cached) cachedAfter.set(at, cached === "output" ? pass : 0);
        last.set(at, box);
        boxes.push(box);
      }
    }
    found.push({ step, boxes });
  }
  settle();
  for (const box of last.values()) box.leaves = true;
  return { rows: found, numColumns };
}

function options() {
  const values = {};
  for (const [option, range] of Object.entries(SCHEDULES[form.schedule.value].options)) {
    const { value } = form[option];
    values[option] = range.length === 3 ? Number(value) : value;
  }
  // M is at most N.
  if (values.num_window_chunks) {
    values.num_passes = Math.min(values.num_passes, values.num_window_chunks);
    form.num_passes.value = values.num_passes;
  }
  return values;
}

function chooseSchedule() {
  const inputs = Object.entries(SCHEDULES[form.schedule.value].options).map(([option, range]) => {
    const label = document.createElement("label");
    if (range.length === 3) {
      const [min, max, value] = range;
      label.innerHTML = `<span>${NAMES[option]} <output></output></span>
        <input type="range" name="${option}" min="${min}" max="${max}" value="${value}">`;
    } else {
      const every = range.map((one) => `<option>${one}</option>`).join("");
      label.innerHTML = `${NAMES[option]} <select name="${option}">${every}</select>`;
    }
    return label;
  });
  form.querySelector(".options").replaceChildren(...inputs);
  update();
}

function update() {
  const values = options();
  for (const output of form.querySelectorAll("output")) {
    output.value = output.closest("label").querySelector("input").value;
  }
  schedule = makeSchedule(form.schedule.value, values);
  draw();
  showCost(values);
}

function draw() {
  const drawn = picture(schedule);
  rows = drawn.rows;
  const [width, height] = CELL;
  const all = [LABEL + drawn.numColumns * width + 8, rows.length * height + 2 * MARGIN + 4];
  const most = Math.max(...rows.flatMap(({ boxes }) => boxes.map((box) => box.pass)), 1);
  const top = (row) => MARGIN + (rows.length - 1 - row) * height;
  svg.setAttribute("viewBox", `0 0 ${all[0]} ${all[1]}`);
  svg.style.maxWidth = `${all[0] * 1.25}px`;
  const inputs = Array.from({ length: drawn.numColumns }, (_, column) => element(
    "text",
    { class: "label", x: LABEL + (column + 0.5) * width, y: all[1] - 8, "text-anchor": "middle" },
    name("x", column),
  ));
  const groups = rows.map(({ step, boxes }, row) => {
    const [first, end] = [boxes[0].column, boxes.at(-1).column + 1];
    const parts = size(step.layers) < 2 ? `step ${row + 1} · L${step.layers[1]}` : `step ${row + 1}`;
    const group = element("g", { "data-row": row },
      element("text", { class: "label", x: 5, y: top(row) + 17 }, parts),
      ...boxes.map((box, place) => cellOf(box, row, place, top(row), most)),
      element("rect", {
        class: "frame", rx: 5, x: LABEL + first * width, y: top(row),
        width: (end - first) * width, height,
      }));
    return group;
  });
  svg.replaceChildren(...inputs, ...groups);
  const scale = [1, Math.ceil(most / 2), most].filter((one, at, every) => every.indexOf(one) === at);
  section.querySelector(".legend").textContent =
    `A number is a pass; ▲ leaves with its output; dashed: cached. ${scale.length > 1 ? "Darker is deeper." : ""}`;
  show(rows.length - 1);
  choose(null);
}

function cellOf(box, row, place, y, most) {
  const [width, height] = CELL;
  const [fill, ink] = SCALE[Math.round(((box.pass - 1) / Math.max(most - 1, 1)) * 7)] ?? SCALE[0];
  const x = LABEL + box.column * width;
  const isQuery = box.kind === "query";
  const group = element("g", { class: `cell ${box.kind}`, "data-row": row, "data-place": place },
    element("rect", { x: x + 2, y: y + 2, width: width - 4, height: height - 4, rx: 4,
      ...(isQuery ? { fill } : {}) }),
    element("text", { x: x + width / 2, y: y + 17, "text-anchor": "middle",
      ...(isQuery ? { style: `fill: ${ink}` } : {}) },
    box.leaves ? `${box.pass} ▲` : String(box.pass)));
  return group;
}

// Time stands at this row: later ones are only hinted at.
function show(row) {
  now = Math.max(0, Math.min(rows.length - 1, row));
  for (const group of svg.querySelectorAll("g[data-row]:not(.cell)")) {
    const at = Number(group.dataset.row);
    group.classList.toggle("later", at > now);
    group.classList.toggle("now", at === now);
  }
  if (!chosen) cellText.textContent = describeRow(now);
}

function describeRow(row) {
  const { step, boxes, kept } = rows[row];
  const columns = (test) => boxes.filter(test).map((box) => box.column);
  const queries = columns((box) => box.kind === "query");
  const leaving = columns((box) => box.leaves);
  const how = queries.length > 1 ? "go through the core together" : "goes through the core";
  const words = [`Step ${row + 1}: ${names(queries)} ${how}.`];
  const seen = columns((box) => box.kind === "cached");
  if (seen.length) words.push(`In view: ${names(seen)}, cached.`);
  if (leaving.length) words.push(`${names(leaving)} ${leaving.length > 1 ? "leave" : "leaves"}.`);
  const cached = Array.from({ length: kept[1] - kept[0] }, (_, at) => kept[0] + at);
  if (cached.length) words.push(`Cached afterwards: ${names(cached)}.`);
  if (step.lags) words.push("A token enters with what the one before it left.");
  return `${words.join(" ")} Point at a cell, or use the arrow keys.`;
}

function choose(at) {
  chosen = at;
  svg.classList.toggle("choosing", Boolean(at));
  for (const cell of svg.querySelectorAll(".seen, .chosen")) cell.classList.remove("seen", "chosen");
  if (!at) return show(now);
  const { boxes } = rows[at.row];
  const box = boxes[at.place];
  const chunk = schedule.chunkLength;
  const end = (box.column + 1) * chunk;
  const isSeen = (other) =>
    other.column <= box.column && (other.column + 1) * chunk > end - (schedule.span ?? Infinity) &&
    !(schedule.hidesSelf && other === box);
  const isQuery = box.kind === "query";
  for (const cell of svg.querySelectorAll(`.cell[data-row="${at.row}"]`)) {
    const other = boxes[cell.dataset.place];
    cell.classList.toggle("seen", isQuery && isSeen(other));
    cell.classList.toggle("chosen", other === box);
    if (other === box) cell.classList.add("seen");
  }
  cellText.textContent = describeBox(at.row, box, boxes.filter(isSeen));
  return null;
}

function describeBox(row, box, seen) {
  const chunk = schedule.chunkLength;
  const tokens = chunk > 1
    ? `tokens ${box.column * chunk + 1} to ${(box.column + 1) * chunk}`
    : `token ${box.column + 1}`;
  const words = [`Step ${row + 1}, ${name("x", box.column)} (${tokens})`];
  if (box.kind === "cached") {
    const when = box.pass ? `as pass ${box.pass} left it` : "as it was embedded";
    return `${words[0]} is cached, ${when}: it gives keys and values and is no query.`;
  }
  words[0] += `, pass ${box.pass}.`;
  const [frozen, live] = ["cached", "query"].map((kind) =>
    seen.filter((other) => other.kind === kind).map((other) => other.column));
  const parts = [];
  if (frozen.length) parts.push(`${names(frozen)} from the cache`);
  if (live.length) parts.push(`${names(live)} at this step${chunk > 1 ? ", up to each token itself" : ""}`);
  words.push(parts.length ? `It sees ${parts.join(" and ")}.` : "It sees nothing.");
  if (rows[row].step.lags) words.push("It enters with the token before it, one pass earlier.");
  if (box.cached === "output") words.push("Then it is cached.");
  if (box.cached === "input") words.push("It is cached as it came in.");
  if (box.leaves) words.push(`It leaves with its output ${name("y", box.column)}.`);
  else words.push(`It comes back for pass ${box.pass + 1}.`);
  return words.join(" ");
}

function showCost(values) {
  const core = { ...CORE, numLayers: schedule.name === "universal-transformer" ? 1 : CORE.numLayers };
  const cost = describe(schedule, core);
  const number = (value) => Math.round(value).toLocaleString("en");
  const facts = [
    ["parameters", number(cost.num_parameters)],
    ["forward FLOPs per token", number(cost.forward_flops_per_token)],
    ["sequential steps per 256 tokens", number(cost.sequential_steps_per_segment)],
    ["layers one after another", number(cost.sequential_layers_per_segment)],
    ["state bytes per stream", number(cost.state_bytes)],
    ["state bytes at most", cost.is_state_bounded ? number(cost.most_state_bytes) : "it grows"],
  ];
  section.querySelector("tbody").replaceChildren(...facts.map(([label, value]) => {
    const line = document.createElement("tr");
    line.innerHTML = `<td>${label}</td><td class="number">${value}</td>`;
    return line;
  }));
  const words = Object.entries(values).map(([key, value]) => `${key}=${value}`).join(" ");
  const layers = core.numLayers === CORE.numLayers ? "" : ` --num-layers ${core.numLayers}`;
  section.querySelector(".command").textContent =
    `staircase describe ${schedule.name} ${words}${layers}`;
}

function play(isPlaying) {
  clearInterval(timer);
  button("play").textContent = isPlaying ? "Pause" : "Play";
  timer = isPlaying ? setInterval(() => show(now + 1 < rows.length ? now + 1 : 0), 800) : null;
}

// To a neighbouring cell: along the row, or to the same column of another row.
function move(event) {
  const [across, up] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[
    event.key] ?? [0, 0];
  if (event.key === "Escape") choose(null);
  if (!across && !up) return;
  event.preventDefault();
  if (!chosen) return void choose({ row: now, place: rows[now].boxes.length - 1 });
  const row = Math.max(0, Math.min(rows.length - 1, chosen.row + up));
  const column = rows[chosen.row].boxes[chosen.place].column + across;
  const distances = rows[row].boxes.map((box) => Math.abs(box.column - column));
  choose({ row, place: distances.indexOf(Math.min(...distances)) });
}

form.schedule.append(...Object.keys(SCHEDULES).map((key) => new Option(key)));
form.schedule.value = "cached-staircase";
form.schedule.addEventListener("change", chooseSchedule);
form.addEventListener("input", (event) => event.target !== form.schedule && update());
form.addEventListener("submit", (event) => event.preventDefault());
button("play").addEventListener("click", () => play(!timer));
button("back").addEventListener("click", () => { play(false); show(now - 1); });
button("next").addEventListener("click", () => { play(false); show(now + 1); });
svg.addEventListener("pointerover", (event) => {
  const cell = event.target.closest(".cell");
  if (cell) choose({ row: Number(cell.dataset.row), place: Number(cell.dataset.place) });
});
svg.addEventListener("pointerleave", () => choose(null));
svg.addEventListener("blur", () => choose(null));
svg.addEventListener("keydown", move);
chooseSchedule();
