// Text: a small language model writes, and shows what its earlier passes would have written.

import { Tokeniser, softmax } from "./model.js";
import { best, fetchModel, percent } from "./models.js";

const NAME = "novels-and-talk";
const END = 1023;
const MOST = 300;

const section = document.querySelector("#text");
const [form, status, written, table] = ["form", ".status", ".written", ".passes"].map((one) =>
  section.querySelector(one));
let model, tokeniser, isWriting;

// A generator of numbers from 0 to 1, the same for the same seed (mulberry32).
function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

function draw(logits, temperature, next) {
  if (!temperature) return best(logits).answer;
  let left = next();
  const chances = softmax(logits.map((score) => score / temperature));
  for (const [token, chance] of chances.entries()) {
    left -= chance;
    if (left < 0) return token;
  }
  return chances.length - 1;
}

const shown = (token) =>
  token === END ? "(end)" : new TextDecoder().decode(tokeniser.decode([token])).replace("\n", "↵");

function showPasses(said) {
  const lines = said.map((logits, pass) => {
    const { answer, chance } = best(logits);
    const line = document.createElement("tr");
    const texts = [`pass ${pass + 1}`, `“${shown(answer)}”`, percent(chance)];
    for (const text of texts) line.insertCell().textContent = text;
    return line;
  });
  table.hidden = false;
  table.createCaption().textContent = "The next token, had it stopped after this pass";
  table.tBodies[0]?.remove();
  table.createTBody().append(...lines);
}

async function write() {
  const { prompt, temperature, seed } = form;
  const next = random(Number(seed.value));
  const decoder = new TextDecoder();
  model.reset();
  let said = model.step(END);
  for (const token of tokeniser.encode(prompt.value)) said = model.step(token);
  written.textContent = prompt.value;
  const began = performance.now();
  for (let count = 1; isWriting && count <= MOST; count++) {
    const token = draw(said.at(-1), Number(temperature.value), next);
    if (token === END) break;
    written.textContent += decoder.decode(tokeniser.decode([token]), { stream: true });
    said = model.step(token);
    showPasses(said);
    const rate = (1000 * count) / (performance.now() - began);
    status.textContent = `${count} tokens, ${rate.toFixed(0)} per second`;
    // Let the page draw.
    await new Promise((resolve) => setTimeout(resolve));
  }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (isWriting) {
    isWriting = false;
    return;
  }
  isWriting = true;
  try {
    form.write.textContent = "Stop";
    if (!model) {
      tokeniser = new Tokeniser(await (await fetch(`models/${NAME}/tokeniser/tokenizer.json`)).json());
      model = await fetchModel(NAME, (text) => (status.textContent = text));
    }
    await write();
  } catch (error) {
    status.textContent = `could not load: ${error.message}`;
  }
  isWriting = false;
  form.write.textContent = model ? "Write" : "Load the model (3.5 MB) and write";
});
form.temperature.addEventListener("input", () => {
  form.querySelector("output").value = Number(form.temperature.value).toFixed(1);
});
