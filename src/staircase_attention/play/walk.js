// A walk: two models follow an agent on a grid from its actions alone.

import { best, percent, whenLoaded } from "./models.js";

const SIDE = 8;
const [START, LEFT, RIGHT, FORWARD] = [0, 1, 2, 3];
// North, east, south, west: row and column of one move.
const MOVES = [[-1, 0], [0, 1], [1, 0], [0, -1]];
// Within so many latest steps, a model that is right less often than this is lost.
const WINDOW = 20;
const LOST = 0.5;

const section = document.querySelector("#walk");
const [board, history, status, answers] = [".board", ".history", ".status", ".answers"].map((one) =>
  section.querySelector(one));
const button = (name) => section.querySelector(`[name=${name}]`);
let walkers = [];
let agent, timer;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

function canvas(side) {
  const made = document.createElement("canvas");
  made.width = made.height = side;
  return made;
}

// The probability of every cell, and where the agent really is.
function drawGrid(place, chances, { isSmall = false, answer = null } = {}) {
  const context = place.getContext("2d");
  const cell = place.width / SIDE;
  context.fillStyle = colour("--panel");
  context.fillRect(0, 0, place.width, place.height);
  chances?.forEach((chance, at) => {
    context.globalAlpha = Math.sqrt(chance);
    context.fillStyle = colour(at === agent.cell ? "--good" : "--bad");
    context.fillRect((at % SIDE) * cell, Math.floor(at / SIDE) * cell, cell, cell);
  });
  context.globalAlpha = 1;
  context.strokeStyle = colour("--line");
  for (let edge = 0; edge <= SIDE && !isSmall; edge++) {
    context.strokeRect(edge * cell, 0, 0, place.height);
    context.strokeRect(0, edge * cell, place.width, 0);
  }
  if (isSmall) return;
  const [x, y] = [(agent.cell % SIDE) * cell + cell / 2, Math.floor(agent.cell / SIDE) * cell + cell / 2];
  context.save();
  context.translate(x, y);
  context.rotate((agent.heading * Math.PI) / 2);
  context.fillStyle = colour("--ink");
  context.beginPath();
  for (const [right, down] of [[0, -0.34], [0.26, 0.3], [0, 0.14], [-0.26, 0.3]]) {
    context.lineTo(right * cell, down * cell);
  }
  context.fill();
  context.restore();
  if (answer !== null) {
    context.strokeStyle = colour(answer === agent.cell ? "--good" : "--bad");
    context.lineWidth = 3;
    const [column, row] = [answer % SIDE, Math.floor(answer / SIDE)];
    context.strokeRect(column * cell + 2, row * cell + 2, cell - 4, cell - 4);
    context.lineWidth = 1;
  }
}

function makeWalker(title, model) {
  const figure = document.createElement("figure");
  const [grid, caption, thoughts] = [canvas(240), document.createElement("figcaption"), document.createElement("div")];
  thoughts.className = "thoughts";
  figure.append(grid, caption, thoughts);
  answers.append(figure);
  return { title, model, grid, caption, thoughts, small: [], right: [] };
}

const place = (cell) => `row ${Math.floor(cell / SIDE) + 1}, column ${(cell % SIDE) + 1}`;

function tell(walker, logits) {
  const { answer, chance, chances } = best(logits.at(-1));
  const isRight = answer === agent.cell;
  if (agent.steps) walker.right.push(isRight);
  drawGrid(walker.grid, agent.steps ? chances : null, { answer: agent.steps ? answer : null });
  const share = walker.right.filter(Boolean).length / (walker.right.length || 1);
  walker.caption.textContent = agent.steps
    ? `${walker.title}: “${place(answer)}”, ${percent(chance)} sure: ${isRight ? "right" : "wrong"}. ` +
      `Right at ${percent(share)} of ${walker.right.length} steps. ${lost(walker)}`
    : walker.title;
  walker.grid.setAttribute("aria-label", walker.caption.textContent);
  while (logits.length > 1 && walker.small.length < logits.length) {
    const [label, small] = [document.createElement("div"), canvas(54)];
    label.append(small, `pass ${walker.small.length + 1}`);
    walker.thoughts.append(label);
    walker.small.push(small);
  }
  walker.small.forEach((small, pass) =>
    drawGrid(small, agent.steps ? best(logits[pass]).chances : null, { isSmall: true }));
}

// Since when a model has been lost: wrong at most of any latest steps.
function lost({ right }) {
  const isLost = (end) => right.slice(end - WINDOW, end).filter(Boolean).length < LOST * WINDOW;
  let end = right.length;
  while (end >= WINDOW && isLost(end)) end--;
  return end < right.length && right.length >= WINDOW ? `Lost since about step ${end - WINDOW / 2}.` : "";
}

// The latest answers, a line per model: right ones are tall and green.
function drawHistory() {
  const context = history.getContext("2d");
  // As many as there is room for; to set the width also clears.
  history.width = Math.min(960, section.clientWidth);
  const label = 110;
  const most = Math.floor((history.width - label) / 2);
  context.font = "14px system-ui, sans-serif";
  walkers.forEach(({ title, right }, row) => {
    context.fillStyle = colour("--soft");
    context.fillText(title, 0, row * 32 + 18);
    right.slice(-most).forEach((isRight, at) => {
      context.fillStyle = colour(isRight ? "--good" : "--bad");
      context.fillRect(label + at * 2, row * 32 + (isRight ? 0 : 14), 2, isRight ? 26 : 12);
    });
  });
}

function take(action) {
  const [row, column] = [Math.floor(agent.cell / SIDE), agent.cell % SIDE];
  const [down, across] = MOVES[agent.heading];
  const within = (at) => Math.max(0, Math.min(SIDE - 1, at));
  if (action === LEFT) agent.heading = (agent.heading + 3) % 4;
  if (action === RIGHT) agent.heading = (agent.heading + 1) % 4;
  if (action === FORWARD) agent.cell = within(row + down) * SIDE + within(column + across);
  agent.steps += action === START ? 0 : 1;
  const began = performance.now();
  const said = walkers.map(({ model }) => model.step(action));
  agent.seconds += (performance.now() - began) / 1000;
  drawGrid(board.querySelector("canvas"), null);
  walkers.forEach((walker, number) => tell(walker, said[number]));
  drawHistory();
  status.textContent = agent.steps
    ? `Step ${agent.steps}. Both models together: ${((agent.steps + 1) / agent.seconds).toFixed(0)} steps per second.`
    : "Steer with the arrow keys or the buttons, or let the agent wander as in training.";
}

function restart() {
  wander(false);
  agent = { cell: 0, heading: 1, steps: 0, seconds: 0 };
  for (const walker of walkers) {
    walker.model.reset();
    walker.right = [];
  }
  take(START);
}

function wander(isOn) {
  clearTimeout(timer);
  timer = null;
  button("wander").textContent = isOn ? "Stop" : "Wander";
  const go = () => {
    take(LEFT + Math.floor(Math.random() * 3));
    timer = setTimeout(go, 15);
  };
  if (isOn) go();
}

whenLoaded(button("load"), status, ["random-walk-staircase", "random-walk-transformer-xl"], (one, two) => {
  walkers = [makeWalker("Staircase", one), makeWalker("Transformer-XL", two)];
  board.hidden = history.hidden = false;
  for (const other of section.querySelectorAll("button")) other.disabled = false;
  restart();
  board.focus();
});
const actions = { left: LEFT, forward: FORWARD, right: RIGHT };
for (const [name, action] of Object.entries(actions)) {
  button(name).addEventListener("click", () => take(action));
}
button("wander").addEventListener("click", () => wander(!timer));
button("restart").addEventListener("click", restart);
section.addEventListener("keydown", (event) => {
  const action = { ArrowLeft: LEFT, ArrowUp: FORWARD, ArrowRight: RIGHT }[event.key];
  if (!action || !walkers.length) return;
  event.preventDefault();
  take(action);
});
