// Draws the attention section of the page: lines between words, and a matrix with the same weights.

const ROW_HEIGHT = 28;
// Thousands of faint lines would slow the page down, so draw no line for a smaller weight. The second limit
// is for a word that has the focus.
const LEAST_LINE = 0.04;
const LEAST_LINE_OF_WORD = 0.005;
// In a matrix with more columns, the cells show no numbers.
const MOST_NUMBERED_COLUMNS = 16;

// Colour-blind people can tell most of these colours apart: palettes of Okabe and Ito (the first six), and of
// Paul Tol (the last eight).
const HEAD_COLOURS = [
  ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f"],
  ["#332288", "#882255", "#117733", "#aa4499", "#999933", "#44aa99", "#cc6677", "#661100"],
].flat();

const KINDS = { encoder: "Encoder", decoder: "Decoder", cross: "Cross-attention" };
const KIND_HELP = {
  encoder: "Each word of the text attends to all words of the text.",
  decoder:
    "Each word that the decoder reads attends to itself and to the words before it. At each word, the decoder predicts the next word.",
  cross:
    "Each word that the decoder reads attends to the words of the text. At each word, the decoder predicts the next word.",
};

function headColour(head) {
  return HEAD_COLOURS[head % HEAD_COLOURS.length];
}

// Return the indices of the chosen heads. `text` is "all", "none", or a list of numbers from 1 such as "1,3".
function chosenHeads(text, numHeads) {
  const all = Array.from({ length: numHeads }, (_, head) => head);
  if (text === "all") return all;
  const numbers = text.split(",").map((part) => Number(part) - 1);
  return all.filter((head) => numbers.includes(head));
}

// Return the text for the chosen heads, in the format that `chosenHeads` reads.
function headsText(heads, numHeads) {
  if (heads.length === numHeads) return "all";
  return heads.length === 0 ? "none" : heads.map((head) => head + 1).join(",");
}

// Return the tokens of the rows and of the columns of an attention matrix.
function sidesOf(explanation, kind) {
  const rows = kind === "encoder" ? explanation.source : explanation.decoder_input;
  const columns = kind === "decoder" ? explanation.decoder_input : explanation.source;
  return { rows, columns };
}

// `weights` maps "encoder", "decoder" and "cross" to decoded attention weights.
function attentionSection(explanation, weights, store) {
  const section = element("section", { class: "attention", "aria-labelledby": "attention-title" });
  const kind = choice("Attention", KINDS, (value) => store.set({ kind: value, pin: "" }));
  const unit = choice("Unit", { words: "Words", tokens: "Sub-words" }, (value) =>
    store.set({ unit: value, pin: "" }),
  );
  const layer = slider("Layer", {
    min: 1,
    max: 1,
    value: 1,
    format: (value) => `${value} of ${weights[store.state.kind].shape[0]}`,
    onInput: (value) => store.set({ layer: value }),
  });
  const chips = element("div", { class: "chips", role: "group", "aria-label": "Heads" });
  const help = element("p", { class: "help" });
  const links = element("div", { class: "links" });
  const detail = element("p", { class: "detail", "aria-live": "polite" });
  const matrix = element("div", { class: "matrix", role: "region", "aria-label": "Matrix", tabindex: 0 });
  section.append(
    element("h2", { id: "attention-title" }, "Attention"),
    element("div", { class: "controls" }, kind, unit, layer),
    chips,
    help,
    element("div", { class: "pair" }, links, matrix),
    // `detail` is below the words. If `detail` were above the words, a text of several lines would move the
    // words away from the mouse pointer.
    detail,
  );

  // The word with the mouse pointer or the keyboard focus, such as {side: "row", index: 2}, or null.
  let hovered = null;
  let view = null;

  function drawAll() {
    const { state } = store;
    const { shape } = weights[state.kind];
    kind.setValue(state.kind);
    unit.setValue(state.unit);
    layer.setMax(shape[0]);
    layer.setValue(state.layer);
    help.textContent = KIND_HELP[state.kind];
    hovered = null;
    view = attentionView(explanation, weights[state.kind], state);
    drawChips(chips, shape[1], store);
    drawWords(links, view, store, hover);
    drawMatrix(matrix, view, hover);
    drawFocus();
  }

  function hover(place) {
    hovered = place;
    drawFocus();
  }

  function drawFocus() {
    const focus = hovered ?? parsePin(store.state.pin, view);
    drawLines(links, view, focus);
    markWords(links, matrix, view, focus, store.state.pin);
    detail.textContent = describeFocus(explanation, view, focus, store.state);
  }

  section.addEventListener("keydown", (event) => {
    if (event.key === "Escape") store.set({ pin: "" });
  });
  store.subscribe(["kind", "unit", "layer", "heads"], drawAll);
  store.subscribe(["pin"], drawFocus);
  drawAll();
  return section;
}

// Return the words of the rows and of the columns, and the matrix of each chosen head.
function attentionView(explanation, weights, state) {
  const sides = sidesOf(explanation, state.kind);
  const groups = (side) => (state.unit === "words" ? side.words : tokenGroups(side.tokens));
  const rows = groups(sides.rows);
  const columns = groups(sides.columns);
  const heads = chosenHeads(state.heads, weights.shape[1]);
  const matrices = heads.map((head) =>
    groupMatrix(headMatrix(weights, state.layer - 1, head), rows, columns),
  );
  return { rows, columns, heads, matrices, mean: matrices.length > 0 ? meanMatrix(matrices) : null };
}

// Draw a button for each head. A click shows or hides the head, and a double click shows the head alone.
function drawChips(chips, numHeads, store) {
  const heads = chosenHeads(store.state.heads, numHeads);
  const choose = (chosen) => store.set({ heads: headsText(chosen, numHeads) });
  const toggle = (head) => {
    const isChosen = chosenHeads(store.state.heads, numHeads).includes(head);
    const others = chosenHeads(store.state.heads, numHeads).filter((other) => other !== head);
    choose(isChosen ? others : [...others, head].sort((a, b) => a - b));
  };
  if (chips.children.length !== numHeads + 1) {
    chips.replaceChildren();
    for (let head = 0; head < numHeads; head++) {
      const chip = element("button", {
        type: "button",
        class: "chip",
        title: "Click: show or hide. Double click or Shift+Enter: show alone.",
        onclick: () => toggle(head),
        ondblclick: () => choose([head]),
        onkeydown: (event) => {
          if (event.key !== "Enter" || !event.shiftKey) return;
          event.preventDefault();
          choose([head]);
        },
      });
      chip.style.setProperty("--colour", headColour(head));
      chip.append(element("span", { class: "swatch" }), `Head ${head + 1}`);
      chips.append(chip);
    }
    const all = () => choose(chosenHeads("all", numHeads));
    chips.append(element("button", { type: "button", class: "plain", onclick: all }, "All heads"));
  }
  Array.from(chips.children)
    .slice(0, numHeads)
    .forEach((chip, head) => chip.setAttribute("aria-pressed", String(heads.includes(head))));
}

// Draw two lists of buttons, with space for the lines between the lists.
function drawWords(links, view, store, hover) {
  const height = ROW_HEIGHT * Math.max(view.rows.length, view.columns.length);
  const canvas = svgElement("svg", {
    viewBox: `0 0 100 ${height}`,
    preserveAspectRatio: "none",
    height,
    "aria-hidden": "true",
  });
  const list = (side, words, label) => {
    const buttons = words.map((word, index) => {
      const pin = `${side}-${index + 1}`;
      return element(
        "button",
        {
          type: "button",
          "data-place": pin,
          title: word.text,
          onmouseenter: () => hover({ side, index }),
          onmouseleave: () => hover(null),
          onfocus: () => hover({ side, index }),
          onblur: () => hover(null),
          onclick: () => store.set({ pin: store.state.pin === pin ? "" : pin }),
        },
        word.text,
      );
    });
    const group = element("div", { class: `words ${side}`, role: "group", "aria-label": label }, ...buttons);
    moveFocusByKeys(group, buttons, { ArrowDown: 1, ArrowUp: -1 });
    return group;
  };
  links.replaceChildren(
    list("row", view.rows, "Words that attend (rows)"),
    canvas,
    list("column", view.columns, "Words that receive attention (columns)"),
  );
}

// Return the word that a text such as "row-3" names, as {side: "row", index: 2}, or null.
function parsePin(pin, view) {
  const [side, number] = pin.split("-");
  const words = { row: view.rows, column: view.columns }[side];
  const index = Number(number) - 1;
  return words !== undefined && words[index] !== undefined ? { side, index } : null;
}

// Draw a line for each large weight. If a word has the focus, draw only the lines of this word.
function drawLines(links, view, focus) {
  const canvas = links.querySelector("svg");
  const least = focus === null ? LEAST_LINE : LEAST_LINE_OF_WORD;
  const lines = document.createDocumentFragment();
  view.matrices.forEach((matrix, number) => {
    matrix.forEach((weightsOfRow, row) => {
      weightsOfRow.forEach((weight, column) => {
        if (weight < least || !touches(focus, row, column)) return;
        const line = svgElement("line", {
          x1: 0,
          y1: (row + 0.5) * ROW_HEIGHT,
          x2: 100,
          y2: (column + 0.5) * ROW_HEIGHT,
          "stroke-opacity": weight.toFixed(3),
          "stroke-width": (1 + 3 * weight).toFixed(2),
          "vector-effect": "non-scaling-stroke",
          "data-row": row,
          "data-column": column,
          "data-head": view.heads[number],
        });
        line.style.setProperty("--colour", headColour(view.heads[number]));
        lines.append(line);
      });
    });
  });
  canvas.replaceChildren(lines);
}

// Return true if no word has the focus, or if the weight belongs to the word with the focus.
function touches(focus, row, column) {
  return focus === null || (focus.side === "row" ? row : column) === focus.index;
}

// Draw the mean of the chosen heads as a table, so that a screen reader can read the weights.
function drawMatrix(matrix, view, hover) {
  if (view.mean === null) {
    matrix.replaceChildren();
    return;
  }
  const head = element("tr", {}, element("td", {}));
  for (const column of view.columns) {
    head.append(element("th", { scope: "col", title: column.text }, element("span", {}, column.text)));
  }
  const body = element("tbody", {});
  view.mean.forEach((weightsOfRow, row) => {
    const line = element("tr", { "data-row": row }, element("th", { scope: "row" }, view.rows[row].text));
    weightsOfRow.forEach((weight, column) => {
      const title = `${view.rows[row].text} → ${view.columns[column].text}: ${decimal(weight, 3)}`;
      const cell = element("td", { title }, element("span", {}, decimal(weight)));
      cell.style.setProperty("--weight", weight.toFixed(3));
      line.append(cell);
    });
    line.addEventListener("mouseenter", () => hover({ side: "row", index: row }));
    line.addEventListener("mouseleave", () => hover(null));
    body.append(line);
  });
  const table = element("table", {}, element("thead", {}, head), body);
  table.prepend(element("caption", {}, matrixCaption(view)));
  if (view.columns.length > MOST_NUMBERED_COLUMNS) table.classList.add("dense");
  matrix.replaceChildren(table);
}

function matrixCaption(view) {
  if (view.heads.length === 1) return `Weights of head ${view.heads[0] + 1}: each row adds up to 1.`;
  return `Mean weights of ${view.heads.length} heads: each row adds up to 1.`;
}

// Mark the word with the focus, and colour the words on the other side by their mean weights.
function markWords(links, matrix, view, focus, pin) {
  for (const button of links.querySelectorAll("button")) {
    const [side, number] = button.dataset.place.split("-");
    const weight = weightOfFocus(view, focus, side, Number(number) - 1);
    button.style.setProperty("--weight", weight.toFixed(3));
    const isFocus = focus !== null && focus.side === side && focus.index === Number(number) - 1;
    button.classList.toggle("focused", isFocus);
    button.setAttribute("aria-pressed", String(pin === button.dataset.place));
  }
  for (const line of matrix.querySelectorAll("tbody tr")) {
    const isFocus = focus !== null && focus.side === "row" && focus.index === Number(line.dataset.row);
    line.classList.toggle("focused", isFocus);
  }
}

function weightOfFocus(view, focus, side, index) {
  if (focus === null || focus.side === side || view.mean === null) return 0;
  return side === "column" ? view.mean[focus.index][index] : view.mean[index][focus.index];
}

// Describe the weights of the word with the focus. Screen readers read the description aloud.
function describeFocus(explanation, view, focus, state) {
  if (view.mean === null) return "Choose a head to see its weights.";
  if (focus === null) return "Point at a word to see only its lines. Click a word to keep them.";
  const others = focus.side === "row" ? view.columns : view.rows;
  const side = focus.side === "row" ? "column" : "row";
  const weights = others.map((word, index) => ({
    text: word.text,
    weight: weightOfFocus(view, focus, side, index),
  }));
  weights.sort((a, b) => b.weight - a.weight);
  const listed = weights
    .slice(0, 5)
    .filter(({ weight }) => weight >= 0.005)
    .map(({ text, weight }) => `${text} ${decimal(weight)}`);
  const word = (focus.side === "row" ? view.rows : view.columns)[focus.index];
  if (focus.side === "column") {
    return `“${word.text}” receives attention from: ${listed.join(", ") || "no word"}.`;
  }
  const reader = state.kind === "encoder" ? `“${word.text}” attends` : describeReader(explanation, word);
  return `${reader} to: ${listed.join(", ")}.`;
}

function describeReader(explanation, word) {
  const predicted = explanation.target.tokens.slice(word.start, word.stop);
  const text = predicted.map((token) => token.text).join("").trim();
  return `The decoder reads “${word.text}”, predicts “${text}” and attends`;
}
