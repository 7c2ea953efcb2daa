// Words of a group: two models follow the parity of a row of swaps.

import { best, percent, whenLoaded } from "./models.js";

const [START, KEEP, SWAP] = [0, 1, 2];
const ELEMENTS = ["12", "21"];

const section = document.querySelector("#words");
const [table, status] = [".word", ".status"].map((one) => section.querySelector(one));
const button = (name) => section.querySelector(`[name="${name}"]`);
let models = [];
let product, lines;

function take(token) {
  const said = models.map((model) => model.step(token));
  if (token === START) return;
  product ^= token === SWAP ? 1 : 0;
  const cells = [ELEMENTS[token - KEEP], ELEMENTS[product]];
  lines[0].append(cell(cells[0]));
  lines[1].append(cell(cells[1]));
  let row = 2;
  for (const logits of said) {
    for (const one of logits) {
      const { answer, chance } = best(one);
      lines[row++].append(cell(ELEMENTS[answer], answer === product, `${percent(chance)} sure`));
    }
  }
  table.parentElement.scrollLeft = table.scrollWidth;
  const rights = lines.slice(2).map((line) => {
    const every = line.querySelectorAll("td");
    return `${line.firstChild.textContent} ${line.querySelectorAll(".right").length} of ${every.length}`;
  });
  status.textContent = `Right answers: ${rights.join("; ")}.`;
}

function cell(text, isRight, title) {
  const made = document.createElement("td");
  made.textContent = text;
  if (isRight !== undefined) made.className = isRight ? "right" : "wrong";
  if (title) made.title = title;
  return made;
}

function restart() {
  product = 0;
  const passes = Array.from({ length: models[0].schedule.options.num_passes }, (_, pass) => pass + 1);
  const names = passes.map((pass) => (pass < passes.length ? `Staircase, pass ${pass}` : "Staircase"));
  lines = ["word", "product", ...names, "Transformer-XL"].map((name) => {
    const [line, head] = [document.createElement("tr"), document.createElement("th")];
    head.textContent = name;
    head.scope = "row";
    line.append(head);
    return line;
  });
  table.replaceChildren(...lines);
  for (const model of models) model.reset();
  take(START);
  status.textContent = "Press 1 or 2, or use the buttons.";
}

whenLoaded(button("load"), status, ["parity-staircase", "parity-transformer-xl"], (...loaded) => {
  models = loaded;
  table.hidden = false;
  for (const other of section.querySelectorAll("button")) other.disabled = false;
  restart();
  table.focus();
});
button("12").addEventListener("click", () => take(KEEP));
button("21").addEventListener("click", () => take(SWAP));
button("many").addEventListener("click", () => {
  for (let count = 0; count < 24; count++) take(Math.random() < 0.5 ? KEEP : SWAP);
});
button("restart").addEventListener("click", restart);
section.addEventListener("keydown", (event) => {
  if (models.length && (event.key === "1" || event.key === "2")) take(Number(event.key));
});
