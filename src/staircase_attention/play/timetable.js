// What is computed when, and what it costs: the schedules of the family as plain data.
// The same rules as staircase_attention/schedules and models/cost.py, which tests compare.
// A range is [start, stop]; those of this family have no gaps.

const LONGEST_RUN = 512;
const GLOBAL_MAX_DISTANCE = 512;
export const CARRIED = -1;

export const size = ([start, stop]) => Math.max(0, stop - start);
const overlap = (one, other) => {
  const both = [Math.max(one[0], other[0]), Math.min(one[1], other[1])];
  return size(both) ? both : [0, 0];
};
const ceiling = (number, unit) => Math.ceil(number / unit);

// Models that are recurrent in time: a chunk makes its pass n at step i + n - 1.
function stairs({ chunkSize, windowChunks, passes }) {
  const queryPasses = Math.max(passes, 1);
  const caches = windowChunks !== queryPasses;
  const windowStart = (index) =>
    windowChunks === null ? 0 : Math.max(0, index - windowChunks + 1) * chunkSize;

  function* byWindow(arrived, unfinished) {
    const [first, last] = [arrived[0].chunk, arrived.at(-1).chunk];
    for (let index = first; index < last + queryPasses; index++) {
      const inside = arrived.filter(({ chunk }) => chunk <= index && chunk > index - queryPasses);
      const cells = inside.map(({ chunk, tokens }) => cell(chunk, index - chunk + 1, tokens));
      yield [index, cells, Math.min(index + 1, unfinished)];
    }
  }
  function* byChunk(arrived, unfinished) {
    for (const { chunk, tokens } of arrived) {
      for (let pass = 1; pass <= queryPasses; pass++) {
        const done = pass === queryPasses && chunk < unfinished;
        yield [chunk + pass - 1, [cell(chunk, pass, tokens)], done ? chunk + 1 : chunk];
      }
    }
  }
  function cell(chunk, pass, tokens) {
    const isLast = caches && pass === queryPasses;
    return { chunk, pass, tokens, cached: isLast ? (passes ? "output" : "input") : null };
  }
  function* steps([start, stop], numLayers, order) {
    const arrived = [];
    for (let chunk = Math.floor(start / chunkSize); chunk * chunkSize < stop; chunk++) {
      const tokens = overlap([start, stop], [chunk * chunkSize, (chunk + 1) * chunkSize]);
      arrived.push({ chunk, tokens });
    }
    if (!size([start, stop])) return;
    const walk = order === "window" ? byWindow : byChunk;
    for (const [index, cells, oldest] of walk(arrived, Math.floor(stop / chunkSize))) {
      const end = cells.at(-1).tokens[1];
      yield {
        index,
        bank: index,
        layers: [0, numLayers],
        cells,
        tokens: [cells[0].tokens[0], end],
        frozen: overlap([windowStart(index), Infinity], [0, (index - queryPasses + 1) * chunkSize]),
        // Once its newest chunk is full, nothing will join this step any more.
        retained: end === (index + 1) * chunkSize ? 0 : null,
        kept: caches ? overlap([windowStart(oldest), Infinity], [0, end]) : [0, 0],
        lags: false,
      };
    }
  }
  return {
    steps,
    chunkLength: chunkSize,
    maxDistance: windowChunks === null
      ? Math.max(GLOBAL_MAX_DISTANCE, chunkSize * queryPasses)
      : chunkSize * windowChunks,
    span: null,
    isBounded: windowChunks !== null,
  };
}

// Models that are recurrent in depth only: tokens go up side by side.
function rungs({ span, passes = 1, order: layerOrder = "ABAB", lags = false }) {
  function* steps([start, stop], numLayers, order) {
    const each = Array.from({ length: numLayers }, (_, layer) => [layer, layer + 1]);
    const parts = layerOrder === "ABAB" ? [[0, numLayers]] : each;
    const length = order === "window" ? Math.max(span, LONGEST_RUN) : 1;
    for (let first = start; first < stop; first += length) {
      const tokens = [first, Math.min(stop, first + length)];
      for (const [part, layers] of parts.entries()) {
        for (let pass = 1; pass <= passes; pass++) {
          yield {
            index: part * passes + pass - 1,
            bank: pass,
            layers,
            cells: [{ chunk: first, pass, tokens, cached: null }],
            tokens,
            frozen: [0, 0],
            retained: span - 1,
            kept: [0, 0],
            lags: lags && pass > 1,
          };
        }
      }
    }
  }
  return { steps, chunkLength: 1, maxDistance: span, span, isBounded: true };
}

// For each schedule: its options with [least, most, first] for sliders, and what it makes of them.
const CHUNK = { chunk_size: [1, 16, 4] };
const SPAN = { span: [1, 12, 6] };
const PASSES = { num_passes: [1, 6, 3] };
export const SCHEDULES = {
  staircase: {
    options: { ...CHUNK, ...PASSES },
    make: ({ chunk_size, num_passes }) =>
      stairs({ chunkSize: chunk_size, windowChunks: num_passes, passes: num_passes }),
  },
  "cached-staircase": {
    options: { ...CHUNK, num_window_chunks: [1, 8, 4], num_passes: [0, 6, 2] },
    make: ({ chunk_size, num_window_chunks, num_passes }) =>
      stairs({ chunkSize: chunk_size, windowChunks: num_window_chunks, passes: num_passes }),
  },
  "global-cached-staircase": {
    options: { ...CHUNK, num_passes: [0, 6, 2] },
    make: ({ chunk_size, num_passes }) =>
      stairs({ chunkSize: chunk_size, windowChunks: null, passes: num_passes }),
  },
  ladder: {
    options: { ...SPAN, ...PASSES, order: ["ABAB", "AABB"] },
    make: ({ span, num_passes, order }) => rungs({ span, passes: num_passes, order }),
  },
  "transformer-xl": {
    options: SPAN,
    make: ({ span }) => rungs({ span }),
  },
  "universal-transformer": {
    options: { ...SPAN, ...PASSES },
    make: ({ span, num_passes }) => rungs({ span, passes: num_passes }),
  },
  "parallel-loop": {
    options: { ...SPAN, ...PASSES },
    make: ({ span, num_passes }) => rungs({ span, passes: num_passes, lags: true }),
  },
  "feedback-transformer": {
    options: SPAN,
    make: ({ span }) => ({
      ...stairs({ chunkSize: 1, windowChunks: span + 1, passes: 1 }),
      hidesSelf: true,
      mixes: true,
      shares: true,
    }),
  },
  "memory-network": {
    options: SPAN,
    make: ({ span }) => stairs({ chunkSize: 1, windowChunks: span, passes: 0 }),
  },
};

export function makeSchedule(name, options) {
  return { name, options, ...SCHEDULES[name].make(options) };
}

// The tokens that each bank and the cache hold, by number and position only.
export class Ledger {
  banks = new Map();
  cached = [0, 0];

  *follow(steps) {
    for (const step of steps) {
      const key = `${step.bank},${step.layers[0]}`;
      const held = this.banks.get(key)?.count ?? 0;
      yield [step, [step.tokens[0] - held, step.tokens[0]]];
      const all = held + size(step.tokens);
      const count = step.retained === null ? all : Math.min(all, step.retained);
      this.banks.delete(key);
      if (count) this.banks.set(key, { count, layers: size(step.layers) });
      if (step.lags) this.banks.set(`${step.bank},${CARRIED}`, { count: 1, layers: CARRIED });
      for (const { cached, tokens } of step.cells) {
        if (cached) this.cached = size(this.cached) ? [this.cached[0], tokens[1]] : tokens;
      }
      this.cached = overlap(this.cached, step.kept);
    }
  }
}

// The numbers of `staircase describe` for the paper's core, one batch row, float32.
export function describe(schedule, core) {
  const { width, numLayers, numHeads, vocabSize, segment } = core;
  const { mixes = false, shares = false, hidesSelf = false } = schedule;
  const start = ceiling(schedule.maxDistance, segment) * segment;
  const ledger = new Ledger();
  const walk = (range) => [...ledger.follow(schedule.steps(range, numLayers, "window"))];
  walk([0, start]);
  const steps = walk([start, start + segment]);
  let flops = segment * 2 * width * vocabSize;
  for (const [step, held] of steps) {
    const queries = size(step.tokens);
    const numKeys = size(step.frozen) + size(held) + (hidesSelf ? 0 : queries);
    const oldest = size(step.frozen) ? step.frozen[0] : held[0];
    const distances = numKeys ? step.tokens[1] - oldest : 0;
    const projected = numKeys ? 2 * width + (hidesSelf ? 0 : 2 * width) : 0;
    const columns = numKeys ? 2 * numKeys + distances : 0;
    flops += size(step.layers) * queries * 2 * width * (projected + 8 * width + columns);
    const cached = step.cells.reduce((sum, cell) => sum + (cell.cached ? size(cell.tokens) : 0), 0);
    const pairs = 4 * width * width * (shares ? 1 : numLayers);
    flops += cached * (pairs + (mixes ? 2 * width * (numLayers + 1) : 0));
  }
  const numbers = () => {
    let sum = 2 * width * (shares ? 1 : numLayers) * size(ledger.cached);
    for (const { count, layers } of ledger.banks.values()) {
      sum += layers === CARRIED ? width : 2 * width * layers * count;
    }
    return sum;
  };
  const stateNumbers = numbers();
  const found = [stateNumbers];
  const length = schedule.chunkLength;
  let position = start + segment;
  const chunkEnd = (Math.floor(position / length) + 1) * length;
  for (const stop of [chunkEnd - 1, chunkEnd, position + length]) {
    walk([position, stop]);
    found.push(numbers());
    position = stop;
  }
  const layer = 4 * width + (shares ? 2 : 4) * width ** 2 + 8 * width ** 2 + 5 * width;
  const shared = (mixes ? numLayers + 1 : 0) + (shares ? 2 * width + 2 * width ** 2 : 0);
  const around = 2 * vocabSize * width + vocabSize + 2 * width;
  return {
    num_parameters:
      around + shared + (schedule.maxDistance * width) / numHeads + numLayers * layer,
    forward_flops_per_token: flops / segment,
    sequential_steps_per_segment: steps.length,
    sequential_layers_per_segment: steps.reduce((sum, [step]) => sum + size(step.layers), 0),
    state_bytes: 4 * stateNumbers,
    most_state_bytes: 4 * Math.max(...found),
    is_state_bounded: schedule.isBounded,
  };
}
