// Shipped models, fetched when they are asked for; and what the sections of the page share.

import { Model, softmax } from "./model.js";

export async function fetchModel(name, tell) {
  const part = async (file, report) => {
    const answer = await fetch(`models/${name}/${file}`);
    if (!answer.ok) throw new Error(`models/${name}/${file}: ${answer.status}`);
    if (!report) return answer.json();
    const whole = Number(answer.headers.get("Content-Length"));
    const [pieces, reader] = [[], answer.body.getReader()];
    for (let have = 0, next; !(next = await reader.read()).done; ) {
      pieces.push(next.value);
      have += next.value.length;
      report(whole ? `${Math.round((100 * have) / whole)}%` : `${(have / 1e6).toFixed(1)} MB`);
    }
    return new Blob(pieces).arrayBuffer();
  };
  const config = await part("config.json");
  const weights = await part("weights.safetensors", (share) => tell(`loading ${name}: ${share}`));
  return new Model(config, weights);
}

// Run a button's work once; an error is shown instead of thrown.
export function whenLoaded(button, status, names, ready) {
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const models = [];
      for (const name of names) models.push(await fetchModel(name, (text) => (status.textContent = text)));
      status.textContent = "";
      button.hidden = true;
      ready(...models);
    } catch (error) {
      status.textContent = `could not load: ${error.message}`;
      button.disabled = false;
    }
  });
}

// The most probable symbol and its probability.
export function best(logits) {
  const chances = softmax(logits);
  const answer = chances.indexOf(Math.max(...chances));
  return { answer, chance: chances[answer], chances };
}

export const percent = (share) => `${(100 * share).toFixed(share > 0.995 || share < 0.1 ? 1 : 0)}%`;
