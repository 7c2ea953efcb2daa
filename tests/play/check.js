// What the page computes, for a test to compare with the package: in Node or in a browser.

export async function check(request, base, read) {
  const { describe, makeSchedule, Ledger } = await import(`${base}timetable.js`);
  const { Model, Tokeniser } = await import(`${base}model.js`);
  const plain = (value) => JSON.parse(JSON.stringify(value));
  const answers = { costs: [], steps: [], models: {}, dials: {}, texts: [] };
  for (const { name, core, ...options } of request.costs) {
    answers.costs.push(describe(makeSchedule(name, options), core));
  }
  for (const { name, tokens, order, ...options } of request.steps) {
    const schedule = makeSchedule(name, options);
    answers.steps.push([...new Ledger().follow(schedule.steps([0, tokens], 2, order))].map(plain));
  }
  const load = async (name) => {
    const config = JSON.parse(new TextDecoder().decode(await read(`models/${name}/config.json`)));
    return new Model(config, await read(`models/${name}/weights.safetensors`));
  };
  for (const [name, tokens] of Object.entries(request.models)) {
    const model = await load(name);
    const start = performance.now();
    const logits = tokens.map((token) => model.step(token).map((row) => Array.from(row)));
    const seconds = (performance.now() - start) / 1000;
    answers.models[name] = { logits, rate: tokens.length / seconds };
  }
  for (const [name, streams] of Object.entries(request.dials)) {
    const dialled = await load(name);
    // Each begins a stream, in which the dial is turned now and then.
    answers.dials[name] = streams.map((turns) => {
      dialled.reset();
      return turns.map(({ passes, tokens }) => {
        dialled.setPasses(passes);
        return tokens.map((token) => dialled.step(token).map((row) => Array.from(row)));
      });
    });
  }
  if (request.texts.length) {
    const file = await read("models/novels-and-talk/tokeniser/tokenizer.json");
    const tokeniser = new Tokeniser(JSON.parse(new TextDecoder().decode(file)));
    answers.texts = request.texts.map((text) => {
      const tokens = tokeniser.encode(text);
      return { tokens, text: new TextDecoder().decode(tokeniser.decode(tokens)) };
    });
  }
  return answers;
}
