// Text: a small language model writes, and shows what its earlier passes would have written.

import { Tokeniser, softmax } from "./model.js";
import { best, fetchModel, percent } from "./models.js";

const END = 1023;
const MOST = 300;

const section = document.querySelector("#text");
const [form, status, written, table] = ["form", ".status", ".written", ".passes"].map((one) =>
  section.querySelector(one));
const loaded = new Map();
let model, tokeniser, isWriting, isBusy;

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
  token === END ? "(end)" : new TextDecoder().decode(tokeniser.decode([token])).replaceAll("\n", "↵");

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

// Milliseconds that a token took the model, by the number of passes.
function showTimes(count, times) {
  const each = [...times].sort().map(([passes, { sum, number }]) =>
    `${(sum / number).toFixed(1)} with ${passes} ${passes > 1 ? "passes" : "pass"}`);
  status.textContent = `${count} tokens. Milliseconds per token: ${each.join(", ")}.`;
}

async function write() {
  const { prompt, temperature, seed, passes } = form;
  const next = random(Number(seed.value));
  const decoder = new TextDecoder();
  const unread = [END, ...tokeniser.encode(prompt.value)];
  const times = new Map();
  model.reset();
  written.textContent = prompt.value;
  for (let count = 0, said; isWriting && count < MOST; ) {
    let token = unread.shift();
    if (token === undefined) {
      token = draw(said.at(-1), Number(temperature.value), next);
      if (token === END) break;
      written.textContent += decoder.decode(tokeniser.decode([token]), { stream: true });
      count++;
    }
    // The dial may have been turned since the last token.
    model.setPasses(Number(passes.value));
    const time = times.get(passes.value) ?? { sum: 0, number: 0 };
    const began = performance.now();
    said = model.step(token);
    time.sum += performance.now() - began;
    time.number++;
    times.set(passes.value, time);
    showPasses(said);
    showTimes(count, times);
    // Let the page draw.
    await new Promise((resolve) => setTimeout(resolve));
  }
}

async function load(name) {
  const file = await fetch(`models/${name}/tokeniser/tokenizer.json`);
  return {
    tokeniser: new Tokeniser(await file.json()),
    model: await fetchModel(name, (text) => (status.textContent = text)),
  };
}

function showButton() {
  const begin = loaded.has(form.model.value) ? "Write" : "Load the model (3.5 MB) and write";
  form.write.textContent = isWriting ? "Stop" : begin;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  isWriting = !isWriting;
  showButton();
  // While the model loads, further clicks stop and start what the first one began.
  if (!isWriting || isBusy) return;
  isBusy = form.model.disabled = true;
  try {
    const name = form.model.value;
    if (!loaded.has(name)) loaded.set(name, await load(name));
    ({ model, tokeniser } = loaded.get(name));
    await write();
  } catch (error) {
    status.textContent = `could not load: ${error.message}`;
  }
  isWriting = isBusy = form.model.disabled = false;
  showButton();
});
form.model.addEventListener("change", showButton);
form.addEventListener("input", ({ target }) => {
  const output = target.closest("label").querySelector("output");
  if (output) output.value = target === form.temperature ? Number(target.value).toFixed(1) : target.value;
});
