// What the page computes, for a test to compare with the package: in Node or in a browser.

export async function check(request, base, read) {
  const { describe, makeSchedule, Ledger } = await import(`${base}timetable.js`);
  const { Model, Tokeniser } = await import(`${base}model.js`);
  const plain = (value) => JSON.parse(JSON.stringify(value));
  const answers = { costs: [], steps: [], models: {}, texts: [] };
  for (const { name, core, ...options } of request.costs) {
    answers.costs.push(describe(makeSchedule(name, options), core));
  }
  for (const { name, tokens, order, ...options } of request.steps) {
    const schedule = makeSchedule(name, options);
    answers.steps.push([...new Ledger().follow(schedule.steps([0, tokens], 2, order))].map(plain));
  }
  for (const [name, tokens] of Object.entries(request.models)) {
    const config = JSON.parse(new TextDecoder().decode(await read(`models/${name}/config.json`)));
    const model = new Model(config, await read(`models/${name}/weights.safetensors`));
    const start = performance.now();
    const logits = tokens.map((token) => model.step(token).map((row) => Array.from(row)));
    const seconds = (performance.now() - start) / 1000;
    answers.models[name] = { logits, rate: tokens.length / seconds, state: model.stateSize };
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
