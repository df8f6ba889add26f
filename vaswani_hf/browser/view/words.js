// Draws the section "Why this word": the source words of a target word, the most probable other words (the
// runners-up), and the steps at which the beam search dropped the runners-up.

// The weights are the mean cross-attention of the last two decoder layers, as in the word alignments of the
// package (`ALIGNMENT_LAYERS` in translations_vaswani.py).
const ALIGNMENT_LAYERS = 2;
const MOST_SOURCE_WORDS = 4;

// Return the source words with the largest attention weights for a target word, largest weight first.
function sourceWords(explanation, cross, word) {
  const [numLayers, numHeads] = cross.shape;
  const matrices = [];
  for (let layer = Math.max(0, numLayers - ALIGNMENT_LAYERS); layer < numLayers; layer++) {
    for (let head = 0; head < numHeads; head++) matrices.push(headMatrix(cross, layer, head));
  }
  const [weights] = groupMatrix(meanMatrix(matrices), [word], explanation.source.words);
  return explanation.source.words
    .map(({ text }, index) => ({ text, weight: weights[index] }))
    .sort((a, b) => b.weight - a.weight)
    .slice(0, MOST_SOURCE_WORDS);
}

// Say at which step and at which rank the beam search dropped a runner-up.
function describeFate(explanation, runnerUp) {
  const record = explanation.search;
  if (record === null) return explanation.search_note;
  const before = explanation.target.tokens.slice(0, runnerUp.position).map((token) => token.id);
  const parent = findNode(record, before);
  if (parent === null || record.nodes[parent].normalizers === null) {
    return "The beam search did not continue this beginning of the translation.";
  }
  const node = findNode(record, [...before, runnerUp.token]);
  if (node === null) {
    return `Not among the ${record.num_candidates} best continuations of its beam.`;
  }
  return describeNode(record, node);
}

// Say what happened to the hypothesis that ends at a node of the recorded search.
function describeNode(record, node) {
  const { step, state, left } = record.nodes[node];
  if (state === "dropped") {
    const beams = counted(record.num_beams, "beam goes on", "beams go on");
    return `Left the search at step ${step}: its sum ${decimal(sumOf(record.nodes, node))} was ${rankAt(record, node)}, and ${beams}.`;
  }
  if (state === "finished") {
    const rank = record.finished.findIndex((hypothesis) => hypothesis.node === node);
    return `Finished at step ${step} with the score ${decimal(record.finished[rank].score)}, rank ${rank + 1}.`;
  }
  if (left === null) return `Stayed in the beam from step ${step} to a result or to the end of the search.`;
  const best = bestDescendant(record, node, left);
  const sum = decimal(sumOf(record.nodes, best));
  return `Entered the beam at step ${step} and left it at step ${left}: its best continuation “${hypothesisText(record, best)}” had the sum ${sum} and was ${rankAt(record, best)}.`;
}

// Return the rank of a node among the recorded nodes of its step, such as "number 7 of 10".
function rankAt(record, node) {
  const { step } = record.nodes[node];
  const sums = record.nodes.map((_, index) => index).filter((index) => record.nodes[index].step === step);
  const better = sums.filter((index) => sumOf(record.nodes, index) > sumOf(record.nodes, node));
  return `number ${better.length + 1} of ${sums.length}`;
}

// Among the descendants of `node` at a step, return the descendant with the largest sum of log-probabilities.
function bestDescendant(record, node, step) {
  let best = null;
  record.nodes.forEach((candidate, index) => {
    if (candidate.step !== step || !pathTo(record.nodes, index).includes(node)) return;
    if (best === null || sumOf(record.nodes, index) > sumOf(record.nodes, best)) best = index;
  });
  return best;
}

function wordsSection(explanation, cross, store) {
  const { words } = explanation.target;
  const buttons = words.map((word, index) => {
    const { probability } = explanation.words[index];
    const button = element(
      "button",
      {
        type: "button",
        title: `Probability ${percent(probability)}`,
        onclick: () => store.set({ word: store.state.word === index + 1 ? 0 : index + 1 }),
      },
      element("span", { class: "text" }, word.text),
      element("span", { class: "probability" }, percent(probability)),
    );
    button.style.setProperty("--doubt", (1 - probability).toFixed(3));
    return button;
  });
  const line = element("div", { class: "sentence", role: "group", "aria-label": "Words of the translation" });
  line.append(...buttons);
  moveFocusByKeys(line, buttons, { ArrowRight: 1, ArrowLeft: -1 });
  const panel = element("div", { class: "panel", "aria-live": "polite" });

  function draw() {
    const chosen = store.state.word - 1;
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(index === chosen)));
    panel.replaceChildren(
      ...(chosen < 0
        ? [element("p", { class: "help" }, "Click a word to see where it comes from and what else was possible.")]
        : wordPanel(explanation, cross, chosen)),
    );
  }

  store.subscribe(["word"], draw);
  draw();
  return element(
    "section",
    { class: "why", "aria-labelledby": "why-title" },
    element("h2", { id: "why-title" }, "Why this word"),
    line,
    panel,
  );
}

function wordPanel(explanation, cross, index) {
  const word = explanation.target.words[index];
  const { probability, runners_up: runnersUp } = explanation.words[index];
  const sources = element("ul", { class: "bars" });
  for (const { text, weight } of sourceWords(explanation, cross, word)) {
    const bar = element("span", { class: "bar" });
    bar.style.setProperty("--weight", weight.toFixed(3));
    sources.append(element("li", {}, element("span", { class: "name" }, text), bar, decimal(weight)));
  }
  return [
    element("h3", {}, `“${word.text}” has the probability ${percent(probability)}`),
    element("h4", {}, "Source words"),
    sources,
    element("p", { class: "help" }, "The weights are the mean of all heads in the last two decoder layers."),
    element("h4", {}, "Runners-up"),
    runnersUp.length > 0
      ? runnersUpTable(explanation, runnersUp)
      : element("p", {}, "No other word has a probability of 0.1 % or more."),
  ];
}

function runnersUpTable(explanation, runnersUp) {
  const head = ["Word", "Probability", "The translation would have gone on", "Score", "In the beam search"];
  const body = element("tbody", {});
  for (const runnerUp of runnersUp) {
    body.append(
      element(
        "tr",
        {},
        element("th", { scope: "row" }, runnerUp.text || "(end)"),
        element("td", { "data-label": head[1] }, percent(runnerUp.probability)),
        element("td", { "data-label": head[2] }, runnerUp.translation),
        element("td", { "data-label": head[3] }, decimal(runnerUp.score)),
        element("td", { "data-label": head[4] }, describeFate(explanation, runnerUp)),
      ),
    );
  }
  const cells = head.map((text) => element("th", { scope: "col" }, text));
  const table = element("table", { class: "list" }, element("thead", {}, element("tr", {}, ...cells)), body);
  table.prepend(
    element("caption", {}, `The translation of this page has the score ${decimal(explanation.score)}.`),
  );
  return table;
}
