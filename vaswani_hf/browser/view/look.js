// Draws all sections of an explanation into an element of a page.

// Draw an `Explanation` (explanation.py) into the element `container`, in place of an earlier explanation.
// `heading` is the name of the element that contains the translation. A page has only one `h1`.
function show(container, explanation, heading = "h1") {
  container.closeView?.();
  const weights = Object.fromEntries(
    Object.keys(KINDS).map((kind) => [kind, decodeWeights(explanation.attention[kind])]),
  );
  const store = createStore(defaultState(explanation), (state) => checkState(state, explanation, weights));
  container.replaceChildren(
    header(explanation, heading),
    attentionSection(explanation, weights, store),
    wordsSection(explanation, weights.cross, store),
    replaySection(explanation, store),
  );
  container.closeView = store.close;
}

function defaultState(explanation) {
  return {
    kind: "cross",
    unit: "words",
    layer: explanation.attention.cross.shape[0],
    heads: "all",
    pin: "",
    word: 0,
    step: 0,
    node: 0,
    temperature: 1,
    penalty: explanation.search?.length_penalty ?? 1,
  };
}

// A user may edit the URL of the page, so replace impossible values of the state.
function checkState(state, explanation, weights) {
  const kind = state.kind in KINDS ? state.kind : "cross";
  const [numLayers, numHeads] = weights[kind].shape;
  const { search } = explanation;
  const hasTemperature = search?.temperatures.includes(state.temperature);
  return {
    kind,
    unit: state.unit === "tokens" ? "tokens" : "words",
    layer: clamp(state.layer, 1, numLayers),
    heads: headsText(chosenHeads(state.heads, numHeads), numHeads),
    pin: state.pin,
    word: clamp(state.word, 0, explanation.target.words.length),
    step: Math.max(0, Math.round(state.step)),
    node: clamp(state.node, 0, (search?.nodes.length ?? 1) - 1),
    temperature: hasTemperature ? state.temperature : 1,
    penalty: Math.min(Math.max(state.penalty, -10), 10),
  };
}

function header(explanation, heading) {
  const origin = explanation.is_given ? "given translation" : "translation";
  const confidence = Math.exp(mean(explanation.log_probs));
  const facts = `${origin} · score ${decimal(explanation.score, 3)} · mean probability of a token ${percent(confidence)} · model ${explanation.model}`;
  return element(
    "header",
    {},
    element("p", { class: "source" }, explanation.source_text),
    element(heading, { class: "title" }, explanation.target_text || "(empty translation)"),
    element("p", { class: "facts" }, facts),
  );
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
}
