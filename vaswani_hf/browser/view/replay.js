// Draws the section that replays the beam search: the tree of tokens, the candidates of each step, and the
// finished hypotheses.

const COLUMN_WIDTH = 96;
const CELL_HEIGHT = 32;
const PLAY_INTERVAL = 700;

// If the search was not recorded, the section says why.
function replaySection(explanation, store) {
  const section = element(
    "section",
    { class: "replay", "aria-labelledby": "replay-title" },
    element("h2", { id: "replay-title" }, "The beam search"),
  );
  const record = explanation.search;
  if (record === null) {
    section.append(element("p", {}, explanation.search_note));
    return section;
  }
  const { temperatures } = record;
  let search = searchTree(record, store.state.temperature, store.state.penalty);
  let timer = null;
  let lastShown = null;
  const temperature = slider("Temperature", {
    min: 0,
    max: temperatures.length - 1,
    value: temperatures.indexOf(store.state.temperature),
    format: (index) => String(temperatures[index]),
    onInput: (index) => store.set({ temperature: temperatures[index], node: 0 }),
  });
  const penalty = slider("Length penalty", {
    min: Math.min(0, record.length_penalty),
    max: Math.max(3, record.length_penalty),
    step: 0.05,
    value: store.state.penalty,
    format: (value) => String(Math.round(100 * value) / 100),
    onInput: (value) => store.set({ penalty: value, node: 0 }),
  });
  const step = slider("Step", {
    min: 1,
    max: 1,
    value: 1,
    format: (value) => `${value} of ${search.steps.length}`,
    onInput: (value) => showStep(value),
  });
  const reset = element(
    "button",
    { type: "button", class: "plain", onclick: () => store.set(recordedSettings(record)) },
    "Recorded settings",
  );
  const play = element("button", { type: "button", class: "play", onclick: () => togglePlay() }, "Play");
  const note = element("p", { class: "note", "aria-live": "polite" });
  const tree = element("div", { class: "tree", role: "group", "aria-label": "Tree of tokens", tabindex: -1 });
  const detail = element("p", { class: "detail", "aria-live": "polite" });
  const candidates = element("div", { class: "scroll" });
  const finished = element("div", { class: "scroll" });
  section.append(
    element("p", { class: "help" }, introduction(explanation)),
    element("div", { class: "controls" }, temperature, penalty, reset),
    note,
    element("div", { class: "controls" }, play, step),
    tree,
    detail,
    candidates,
    finished,
  );

  function runSearch() {
    search = searchTree(record, store.state.temperature, store.state.penalty);
    temperature.setValue(temperatures.indexOf(store.state.temperature));
    penalty.setValue(store.state.penalty);
    step.setMax(search.steps.length);
    note.textContent = searchNote(record, search, store.state);
    draw();
  }

  // The step 0 means the step at which the final translation was complete.
  function currentStep() {
    const chosen = store.state.step || (search.finished[0]?.step ?? search.steps.length);
    return Math.min(chosen, search.steps.length);
  }

  function draw() {
    const shown = currentStep();
    step.setValue(shown);
    const left = shown === lastShown ? tree.scrollLeft : Infinity;
    drawTree(tree, record, search, shown, store);
    tree.scrollTo({ left: Math.min(left, tree.scrollWidth), behavior: "instant" });
    lastShown = shown;
    detail.textContent = describeChoice(record, search, shown, store.state.node);
    candidates.replaceChildren(candidatesTable(record, search, shown, store.state.penalty));
    finished.replaceChildren(...finishedTable(record, search, shown));
  }

  function showStep(value) {
    store.set({ step: value === search.finished[0]?.step ? 0 : value });
  }

  function togglePlay() {
    if (timer !== null) {
      stop();
      return;
    }
    play.textContent = "Pause";
    if (isAtEnd()) showStep(1);
    timer = setInterval(() => {
      if (isAtEnd()) stop();
      else showStep(currentStep() + 1);
    }, PLAY_INTERVAL);
  }

  // The animation stops when the final translation is complete or, after that step, at the last step.
  function isAtEnd() {
    return store.state.step === 0 || currentStep() === search.steps.length;
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }

  store.subscribe(["temperature", "penalty"], runSearch);
  store.subscribe(["step", "node"], draw);
  runSearch();
  // The tree can scroll only after the section is in the document.
  requestAnimationFrame(() => tree.scrollTo({ left: tree.scrollWidth, behavior: "instant" }));
  return section;
}

function recordedSettings(record) {
  return { temperature: 1, penalty: record.length_penalty, step: 0, node: 0 };
}

function introduction(explanation) {
  const record = explanation.search;
  const beams = record.num_beams === 1 ? "the best hypothesis" : `the ${record.num_beams} best hypotheses`;
  const numSteps = Math.max(...record.nodes.map((node) => node.step));
  const [best] = record.finished;
  const resultStep = record.nodes[best.node].step;
  let text = `Each step keeps ${beams}. The result finished at step ${resultStep} of ${numSteps}.`;
  if (resultStep < numSteps) text += " The later steps show that no other hypothesis reaches a higher score.";
  return explanation.is_given ? `${text} ${compareGiven(explanation)}` : text;
}

// Compare a translation that the user has given with the translation that the search has found.
function compareGiven(explanation) {
  const [best] = explanation.search.finished;
  const result = hypothesisText(explanation.search, best.node);
  const scores = `The search found “${result}” with the score ${decimal(best.score)}, and the given translation has the score ${decimal(explanation.score)}.`;
  const isMissed = explanation.score > best.score + 1e-4;
  return `The picture shows the search, not the given translation. ${scores} ${isMissed ? "The search has missed the given translation." : "The model prefers the result of the search."}`;
}

// Describe the result of a search with changed settings. Hypotheses leave the recorded tree if the recorded
// search did not continue their beams.
function searchNote(record, search, state) {
  const isRecorded = state.temperature === 1 && state.penalty === record.length_penalty;
  if (isRecorded) return "";
  const [best] = search.finished;
  const result = best ? `The result is ${quotedAtEnd(hypothesisText(record, best.node))}` : "No hypothesis has finished.";
  if (search.numUnknown === 0) return `${result} All hypotheses are in the recorded tree.`;
  const unknown = counted(search.numUnknown, "hypothesis", "hypotheses");
  return `${result} ${unknown} left the recorded tree, so a new search could find another result.`;
}

// Return a column for each step up to `lastStep`: the beams by rank, and then the finished hypotheses.
function treeColumns(search, lastStep) {
  return search.steps.slice(0, lastStep).map(({ candidates }) => {
    const kept = candidates.filter(({ fate }) => fate === "beam" || fate === "unknown");
    return [...kept, ...candidates.filter(({ fate }) => fate === "finished")];
  });
}

// Return the nodes of all hypotheses that the search has not dropped.
function survivingNodes(record, columns) {
  const surviving = new Set([0]);
  columns.forEach((column, index) => {
    for (const { node, fate } of column) {
      const isLast = index === columns.length - 1;
      if (!isLast && fate === "beam") continue;
      for (const ancestor of pathTo(record.nodes, node)) surviving.add(ancestor);
    }
  });
  return surviving;
}

// Return the last node of the result if it has finished at the step `shown`, else of the best beam.
function leadingNode(search, columns, shown) {
  if (shown >= search.finished[0]?.step) return search.finished[0].node;
  return columns[columns.length - 1][0]?.node ?? 0;
}

// Draw the tree of tokens with a column for each step and a row for each rank.
function drawTree(tree, record, search, shown, store) {
  const columns = treeColumns(search, shown);
  const surviving = survivingNodes(record, columns);
  const leading = new Set(pathTo(record.nodes, leadingNode(search, columns, shown)));
  const chosen = new Set(store.state.node > 0 ? pathTo(record.nodes, store.state.node) : []);
  const width = COLUMN_WIDTH * (columns.length + 1);
  const height = CELL_HEIGHT * Math.max(...columns.map((column) => column.length));
  const edges = svgElement("svg", { width, height, "aria-hidden": "true" });
  const places = new Map([[0, { column: 0, row: 0 }]]);
  const buttons = [];
  columns.forEach((column, index) => {
    column.forEach((candidate, row) => {
      const place = { column: index + 1, row };
      places.set(candidate.node, place);
      const edge = svgElement("path", { d: edgePath(places.get(record.nodes[candidate.node].parent), place) });
      const button = nodeButton(record, candidate, place, store);
      for (const drawn of [edge, button]) {
        drawn.classList.add(candidate.fate);
        drawn.classList.toggle("lost", !surviving.has(candidate.node));
        drawn.classList.toggle("leading", leading.has(candidate.node));
        drawn.classList.toggle("chosen", chosen.has(candidate.node));
      }
      button.setAttribute("aria-pressed", String(store.state.node === candidate.node));
      edges.append(edge);
      buttons.push(button);
    });
  });
  const focused = tree.contains(document.activeElement) ? document.activeElement.dataset.node : null;
  const root = element("span", { class: "root" }, tokenLabel(record.texts[record.nodes[0].token], true));
  const plane = element("div", { class: "plane" }, edges, root, ...buttons);
  plane.style.width = `${width}px`;
  plane.style.height = `${height}px`;
  tree.replaceChildren(plane);
  moveFocusByKeys(plane, buttons, { ArrowDown: 1, ArrowUp: -1, ArrowRight: 1, ArrowLeft: -1 });
  if (focused !== null) buttons.find((button) => button.dataset.node === focused)?.focus();
}

function edgePath(from, to) {
  const x1 = from.column * COLUMN_WIDTH + COLUMN_WIDTH - 12;
  const x2 = to.column * COLUMN_WIDTH;
  const y1 = (from.row + 0.5) * CELL_HEIGHT;
  const y2 = (to.row + 0.5) * CELL_HEIGHT;
  return `M${x1},${y1} C${x1 + 6},${y1} ${x2 - 6},${y2} ${x2},${y2}`;
}

function nodeButton(record, candidate, { column, row }, store) {
  const node = candidate.node;
  const token = tokenLabel(record.texts[record.nodes[node].token], column === 1);
  // The name for screen readers begins with the visible text, so that users of speech input can say this text.
  const label = `${token}: step ${column}, rank ${row + 1}, ${candidate.fate}, “${hypothesisText(record, node)}”`;
  const button = element(
    "button",
    {
      type: "button",
      "aria-label": label,
      title: `${hypothesisText(record, node)} (${decimal(candidate.sum)})`,
      "data-node": node,
      onclick: () => store.set({ node: store.state.node === node ? 0 : node }),
    },
    token,
  );
  button.style.left = `${column * COLUMN_WIDTH}px`;
  button.style.top = `${row * CELL_HEIGHT}px`;
  return button;
}

// Describe the hypothesis that ends at the chosen node of the tree, and its fate.
function describeChoice(record, search, shown, node) {
  if (node === 0) return "Click a token of the tree to follow its hypothesis.";
  const { step } = record.nodes[node];
  const candidate = search.steps[step - 1]?.candidates.find((other) => other.node === node);
  if (candidate === undefined || step > shown) return "The chosen token is not in this part of the tree.";
  const text = `“${hypothesisText(record, node)}” has the sum ${decimal(candidate.sum)} after ${counted(step, "token")}.`;
  return `${text} ${describeEnd(record, search, candidate, shown)}`;
}

// Say whether a candidate has finished, is still in the beam, or has left the beam.
function describeEnd(record, search, candidate, shown) {
  const { step } = record.nodes[candidate.node];
  if (candidate.fate === "finished") {
    const rank = search.finished.findIndex((hypothesis) => hypothesis.node === candidate.node);
    return `It finished at step ${step} with the score ${decimal(search.finished[rank].score)}.`;
  }
  if (candidate.fate === "unknown") return "The recorded search did not continue it.";
  const columns = treeColumns(search, shown);
  if (survivingNodes(record, columns).has(candidate.node)) return "It goes on in the beam, or it has a finished continuation.";
  const isContinued = (column) => column.some(({ node }) => pathTo(record.nodes, node).includes(candidate.node));
  const last = columns.findLastIndex(isContinued) + 1;
  const others = counted(record.num_beams, "other hypothesis", "other hypotheses");
  return `It left the beam at step ${last + 1}, because ${others} had larger sums.`;
}

const FATES = {
  beam: "stays in the beam",
  finished: "finished",
  dropped: "leaves",
  unknown: "not in the recorded tree",
};

function candidatesTable(record, search, shown, lengthPenalty) {
  const rows = search.steps[shown - 1].candidates.map(({ node, sum, fate }, index) => {
    const divisor = lengthDivisor(record, shown, lengthPenalty);
    const cells = [
      element("td", {}, String(index + 1)),
      element("td", { class: "text" }, hypothesisText(record, node) || "(empty)"),
      element("td", {}, decimal(sum)),
      element("td", {}, decimal(sum / divisor)),
      element("td", {}, FATES[fate]),
    ];
    return element("tr", { class: fate }, ...cells);
  });
  return listTable(
    `Candidates of step ${shown}: the sum is the sum of the log-probabilities of the tokens`,
    ["Rank", "Hypothesis", "Sum", "Sum / penalty", "What happens"],
    rows,
  );
}

// Return the table of finished hypotheses, and whether the length penalty changes the result.
function finishedTable(record, search, shown) {
  const finished = search.finished.filter(({ step }) => step <= shown);
  const bySum = [...finished].sort((a, b) => b.sum - a.sum);
  const rows = finished.map((hypothesis, index) =>
    element(
      "tr",
      { class: index < record.num_beams ? "finished" : "dropped" },
      element("td", {}, String(index + 1)),
      element("td", { class: "text" }, hypothesisText(record, hypothesis.node)),
      element("td", {}, String(hypothesis.step)),
      element("td", {}, decimal(hypothesis.sum)),
      element("td", {}, decimal(hypothesis.divisor)),
      element("td", {}, decimal(hypothesis.score)),
      element("td", {}, String(bySum.indexOf(hypothesis) + 1)),
    ),
  );
  if (finished.length === 0) return [element("p", { class: "help" }, "No hypothesis has finished yet.")];
  const head = ["Rank", "Finished hypothesis", "Tokens", "Sum", "Penalty", "Score", "Rank by sum"];
  return [
    listTable("Finished hypotheses: the score is the sum divided by the penalty", head, rows),
    element("p", { class: "effect" }, penaltyEffect(record, finished[0], bySum[0])),
  ];
}

function penaltyEffect(record, best, bestBySum) {
  const text = hypothesisText(record, best.node);
  if (best === bestBySum) return `The length penalty does not change the winner: “${text}” also has the largest sum.`;
  return `The length penalty changes the winner: “${hypothesisText(record, bestBySum.node)}” has a larger sum, but “${text}” has a higher score.`;
}

function listTable(caption, head, rows) {
  const cells = head.map((text) => element("th", { scope: "col" }, text));
  return element(
    "table",
    { class: "list" },
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...cells)),
    element("tbody", {}, ...rows),
  );
}
