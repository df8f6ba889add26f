// Runs the page that translates while the user types. The scripts in the folder `view` draw explanations.

import { explain } from "./explain.mjs";
import { Translator, decodeBase64 } from "./translator.mjs";

// The page translates when the user has not typed for this number of milliseconds.
const DELAY = 200;
// A computation pauses after this number of milliseconds, so that the page can react to the user.
const LONGEST_STEP = 30;
const MOST_BEAMS = 10;

const byId = (id) => document.getElementById(id);
const [source, beams, number, prefix] = ["source", "beams", "number", "prefix"].map(byId);
const state = byId("status");

function element(name, properties, ...children) {
  const created = Object.assign(document.createElement(name), properties);
  created.append(...children);
  return created;
}

function percent(probability) {
  return `${(100 * probability).toFixed(probability < 0.1 ? 1 : 0)} %`;
}

// The number of the newest computation. All computations with lower numbers stop at their next step.
let newest = 0;

class Cancelled extends Error {}

// Begin a computation. Return an async function `pause`. The computation must call `pause` after each step.
function beginComputation() {
  newest += 1;
  const own = newest;
  let last = performance.now();
  return async () => {
    if (performance.now() - last > LONGEST_STEP) {
      await new Promise((resolve) => setTimeout(resolve));
      last = performance.now();
    }
    if (own !== newest) {
      throw new Cancelled();
    }
  };
}

function options() {
  return { num_beams: Number(beams.value), num_return_sequences: Math.min(number.value, beams.value) };
}

async function translateLines() {
  const pause = beginComputation();
  const lines = source.value.split("\n").filter((line) => line.trim());
  byId("view").replaceChildren();
  const start = performance.now();
  const results = [];
  state.textContent = lines.length ? "Translating …" : "";
  for (const [place, line] of lines.entries()) {
    const job = translator.begin(line, { ...options(), target_prefix: place === 0 ? prefix.value : "" });
    while (!job.isOver) {
      job.step();
      await pause();
    }
    results.push(lineResult(line, job.result()));
    byId("translations").replaceChildren(...results);
  }
  byId("translations").replaceChildren(...results);
  const milliseconds = Math.round(performance.now() - start);
  state.textContent = lines.length ? `Translated in ${milliseconds} ms.` : "";
}

// Return the HTML element of a translated line. The element shows the source, the best translation word by
// word, and the next-best translations.
function lineResult(line, translations) {
  const [best, ...others] = translations;
  const detail = element("p", { className: "facts detail" }, "Choose a word to see its probability and its source word.");
  const sourceWords = line
    .trim()
    .split(/\s+/u)
    .map((text) => element("span", {}, text));
  const words = best.words.map(({ word, confidence }, i) => {
    const aligned = best.alignment.filter(([, target]) => target === i).map(([from]) => sourceWords[from]);
    const button = element("button", { className: "target", type: "button" }, word);
    button.style.setProperty("--doubt", (1 - confidence).toFixed(3));
    button.setAttribute("aria-description", `probability ${percent(confidence)}`);
    const show = (isShown) => {
      aligned.forEach((from) => from?.classList.toggle("aligned", isShown));
      if (isShown) {
        const origin = aligned.map((from) => `“${from?.textContent}”`).join(" ");
        detail.textContent = `${word}: probability ${percent(confidence)}${origin ? `, most attention to ${origin}` : ""}`;
      }
    };
    button.addEventListener("mouseenter", () => show(true));
    button.addEventListener("mouseleave", () => show(false));
    button.addEventListener("focus", () => show(true));
    button.addEventListener("blur", () => show(false));
    return button;
  });
  const explainButton = element("button", { className: "plain", type: "button" }, "Explain this translation");
  explainButton.addEventListener("click", () => guarded(() => explainLine(line)));
  const facts = (translation) => `score ${translation.score.toFixed(3)} · mean probability of a token ${percent(translation.confidence)}`;
  const list = others.map((other) => element("li", {}, other.text, element("span", { className: "facts" }, ` ${facts(other)}`)));
  return element(
    "section",
    { className: "line" },
    element("p", { className: "source", lang: source.lang }, ...spaced(sourceWords)),
    element("p", { className: "translation" }, ...spaced(words)),
    element("p", { className: "facts" }, facts(best)),
    detail,
    ...(list.length ? [element("ol", { start: 2 }, ...list)] : []),
    explainButton,
  );
}

function spaced(elements) {
  return elements.flatMap((one) => [one, " "]);
}

async function explainLine(line) {
  const pause = beginComputation();
  state.textContent = "Computing the explanation …";
  // Let the browser show the status text before the first step of the search.
  await new Promise((resolve) => setTimeout(resolve));
  const explanation = await explain(translator, line, { num_beams: Number(beams.value) }, pause);
  const view = element("div", {});
  byId("view").replaceChildren(view);
  vaswaniView.show(view, explanation);
  state.textContent = "";
  view.scrollIntoView({ behavior: "smooth" });
}

// Run a computation. If the computation fails, show the error message. Ignore the error `Cancelled`, because
// it means that a newer computation has started.
async function guarded(compute) {
  try {
    await compute();
  } catch (error) {
    if (!(error instanceof Cancelled)) {
      state.textContent = error.message;
      throw error;
    }
  }
}

function fill(select, most, chosen) {
  for (let i = 1; i <= most; i++) {
    select.append(element("option", { value: i, selected: i === chosen }, String(i)));
  }
}

const translator = new Translator(
  JSON.parse(byId("vaswani-settings").textContent),
  decodeBase64(byId("vaswani-weights").textContent.trim()),
);
const { num_beams: ownBeams, num_return_sequences: ownNumber } = translator.defaults;
fill(beams, Math.max(MOST_BEAMS, ownBeams), ownBeams);
fill(number, Math.max(MOST_BEAMS, ownBeams), ownNumber > 1 ? ownNumber : Math.min(3, ownBeams));
let timer = 0;
for (const input of [source, prefix]) {
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => guarded(translateLines), DELAY);
  });
}
for (const select of [beams, number]) {
  select.addEventListener("change", () => guarded(translateLines));
}
guarded(translateLines);
// Make the translator available to other scripts and to the console of the browser.
globalThis.vaswani = { translator, explain };
