// A trained model of the family, one token at a time: the executor of the package in plain numbers.
// Weights come from the files that the package ships; activations are doubles. No shipped model has
// a cache, so there is none here.

import { makeSchedule } from "./timetable.js";

const NORM_EPSILON = 1e-5;

// All tensors of a safetensors file in bfloat16, as {data, shape}.
export function readTensors(buffer) {
  const view = new DataView(buffer);
  const start = 8 + Number(view.getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8)));
  const tensors = {};
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const [from, to] = entry.data_offsets.map((offset) => start + offset);
    const halves = new Uint16Array(buffer.slice(from, to));
    // A bfloat16 is the upper half of a float32.
    const data = new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
    tensors[name] = { data, shape: entry.shape };
  }
  return tensors;
}

// A matrix by columns, so that a product can leave out those that meet a zero: most after a relu.
function transposed({ data, shape: [rows, columns] }) {
  const result = new Float32Array(data.length);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      result[column * rows + row] = data[row * columns + column];
    }
  }
  return { data: result, rows };
}

// A matrix times a vector, plus a bias: eight columns at a time, the fastest in plain JavaScript.
function multiply({ matrix: { data, rows }, bias }, vector) {
  const result = bias ? new Float64Array(bias.data) : new Float64Array(rows);
  // Where the vector is not zero; filled up to eight with factors of zero.
  const starts = new Int32Array(vector.length + 7);
  const factors = new Float64Array(vector.length + 7);
  let count = 0;
  for (let place = 0; place < vector.length; place++) {
    if (vector[place] === 0) continue;
    starts[count] = place * rows;
    factors[count++] = vector[place];
  }
  for (let at = 0; at < count; at += 8) {
    const [i, j, k, l] = [starts[at], starts[at + 1], starts[at + 2], starts[at + 3]];
    const [m, n, o, p] = [starts[at + 4], starts[at + 5], starts[at + 6], starts[at + 7]];
    const [a, b, c, d] = [factors[at], factors[at + 1], factors[at + 2], factors[at + 3]];
    const [e, f, g, h] = [factors[at + 4], factors[at + 5], factors[at + 6], factors[at + 7]];
    for (let row = 0; row < rows; row++) {
      result[row] +=
        a * data[i + row] + b * data[j + row] + c * data[k + row] + d * data[l + row] +
        (e * data[m + row] + f * data[n + row] + g * data[o + row] + h * data[p + row]);
    }
  }
  return result;
}

function normalise({ weight, bias }, vector) {
  const mean = vector.reduce((sum, value) => sum + value, 0) / vector.length;
  const spread = vector.reduce((sum, value) => sum + (value - mean) ** 2, 0) / vector.length;
  const scale = 1 / Math.sqrt(spread + NORM_EPSILON);
  return vector.map((value, place) => (value - mean) * scale * weight.data[place] + bias.data[place]);
}

export function softmax(scores) {
  const most = scores.reduce((one, other) => Math.max(one, other), -Infinity);
  const weights = scores.map((score) => Math.exp(score - most));
  const sum = weights.reduce((one, other) => one + other, 0);
  return weights.map((weight) => weight / sum);
}

const add = (one, other) => one.map((value, place) => value + other[place]);

export class Model {
  // `config` is the config.json of a packed run, `buffer` its weights.safetensors.
  constructor(config, buffer) {
    const { core, schedule } = config.recipe.model;
    const { name, ...options } = schedule;
    this.schedule = makeSchedule(name, options);
    this.core = core;
    this.tensors = readTensors(buffer);
    const part = (prefix) => {
      const weight = this.tensors[`${prefix}.weight`];
      const matrix = weight.shape.length > 1 ? transposed(weight) : null;
      return { weight, matrix, bias: this.tensors[`${prefix}.bias`] };
    };
    this.layers = Array.from({ length: core.num_layers }, (_, number) => {
      const at = `core.layers.${number}`;
      const names = ["attention_norm", "feed_forward_norm", "feed_forward.expand"];
      names.push("feed_forward.contract", "attention.query", "attention.key");
      names.push("attention.value", "attention.output");
      return Object.fromEntries(names.map((one) => [one.split(".").at(-1), part(`${at}.${one}`)]));
    });
    this.table = this.tensors["core.positions.table"];
    this.outputNorm = part("output_norm");
    this.output = part("output");
    this.reset();
  }

  // Begin a new stream: nothing is remembered.
  reset() {
    this.position = 0;
    this.banks = new Map();
  }

  // Make another number of passes from here on, as `models/depth.py` does for a Ladder. With fewer,
  // the stream is as if it had never made more; with more, earlier tokens offer their last pass.
  setPasses(number) {
    const { name, options } = this.schedule;
    const before = options.num_passes;
    this.schedule = makeSchedule(name, { ...options, num_passes: number });
    for (let layer = 0; layer < this.layers.length; layer++) {
      for (let pass = number + 1; pass <= before; pass++) this.banks.delete(`${pass},${layer}`);
      const deepest = this.banks.get(`${before},${layer}`) ?? [];
      for (let pass = before + 1; pass <= number; pass++) {
        this.banks.set(`${pass},${layer}`, [...deepest]);
      }
    }
  }

  // Take one token through all its steps; the logits after each pass, the last being the model's.
  step(token) {
    const width = this.core.width;
    const { data } = this.tensors["embedding.weight"];
    let hidden = Float64Array.from(data.subarray(token * width, (token + 1) * width));
    const range = [this.position, this.position + 1];
    const said = [];
    for (const step of this.schedule.steps(range, this.layers.length, "chunk")) {
      for (let layer = step.layers[0]; layer < step.layers[1]; layer++) {
        hidden = this.layer(layer, hidden, step);
      }
      said.push(multiply(this.output, normalise(this.outputNorm, hidden)));
    }
    this.position += 1;
    return said;
  }

  // h + Attention(norm(h)), then + FeedForward(norm(.)).
  layer(number, hidden, step) {
    const layer = this.layers[number];
    const normed = normalise(layer.attention_norm, hidden);
    const key = `${step.bank},${number}`;
    const bank = this.banks.get(key) ?? [];
    bank.push({ keys: multiply(layer.key, normed), values: multiply(layer.value, normed) });
    const found = this.attend(multiply(layer.query, normed), bank);
    const most = step.retained ?? Infinity;
    if (most) this.banks.set(key, bank.slice(Math.max(0, bank.length - most)));
    else this.banks.delete(key);
    hidden = add(hidden, multiply(layer.output, found));
    const inner = multiply(layer.expand, normalise(layer.feed_forward_norm, hidden));
    return add(hidden, multiply(layer.contract, inner.map((value) => Math.max(0, value))));
  }

  // The keys are neighbours in time, the last one the query's own:
  // score(j) = (q . k_j + q . r[distance]) / sqrt(size), for each head.
  attend(queries, seen) {
    const length = queries.length / this.core.num_heads;
    const { data, shape: [rows] } = this.table;
    const found = new Float64Array(queries.length);
    const scores = new Float64Array(seen.length);
    for (let first = 0; first < queries.length; first += length) {
      for (let place = 0; place < seen.length; place++) {
        const keys = seen[place].keys;
        const row = Math.min(seen.length - 1 - place, rows - 1) * length - first;
        let score = 0;
        for (let at = first; at < first + length; at++) {
          score += queries[at] * (keys[at] + data[row + at]);
        }
        scores[place] = score / Math.sqrt(length);
      }
      const weights = softmax(scores);
      for (let place = 0; place < seen.length; place++) {
        const values = seen[place].values;
        for (let at = first; at < first + length; at++) found[at] += weights[place] * values[at];
      }
    }
    return found;
  }
}

// Byte pairs as in a tokenizer.json with byte-level pieces.
export class Tokeniser {
  static pieces =
    /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;

  constructor({ model }) {
    this.ids = new Map(Object.entries(model.vocab));
    this.names = new Map([...this.ids].map(([name, id]) => [id, name]));
    this.ranks = new Map(model.merges.map((pair, rank) => [pair.join(" "), rank]));
    // Printable bytes stand for themselves, the others for characters from 256 on.
    const printable = (byte) =>
      (byte > 32 && byte < 127) || (byte > 160 && byte < 256 && byte !== 173);
    let next = 256;
    this.letters = Array.from({ length: 256 }, (_, byte) =>
      String.fromCharCode(printable(byte) ? byte : next++));
    this.bytes = new Map(this.letters.map((letter, byte) => [letter, byte]));
  }

  encode(text) {
    return (text.match(Tokeniser.pieces) ?? []).flatMap((piece) => {
      const parts = Array.from(new TextEncoder().encode(piece), (byte) => this.letters[byte]);
      for (;;) {
        const ranks = parts.slice(1).map((part, at) =>
          this.ranks.get(`${parts[at]} ${part}`) ?? Infinity);
        const least = Math.min(...ranks);
        if (least === Infinity) return parts.map((part) => this.ids.get(part));
        const at = ranks.indexOf(least);
        parts.splice(at, 2, parts[at] + parts[at + 1]);
      }
    });
  }

  // Bytes of some tokens; a token may end inside a character.
  decode(tokens) {
    const letters = tokens.flatMap((token) => [...(this.names.get(token) ?? "")]);
    return Uint8Array.from(letters, (letter) => this.bytes.get(letter));
  }
}
