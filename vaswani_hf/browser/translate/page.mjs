// Runs the page that translates while the user types. The scripts in the folder `view` draw explanations.

import { explain } from "./explain.mjs";
import { Translator, decodeBase64 } from "./translator.mjs";

// The page translates when the user has not typed for this number of milliseconds.
const DELAY = 200;
// A computation pauses after this number of milliseconds, so that the page can react to the user.
const LONGEST_STEP = 30;
const MOST_BEAMS = 10;

const { decimal, element, percent } = vaswaniView;
const byId = (id) => document.getElementById(id);
const [source, beams, number, prefix, phrases] = ["source", "beams", "number", "prefix", "phrases"].map(byId);
const state = byId("status");

// The number of the newest computation. All computations with lower numbers stop at their next step.
let newest = 0;

class Cancelled extends Error {}

// Begin a computation, which must await the returned function `pause` after each step.
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

// The target prefix and the phrases are only for the translation of the first line.
function optionsOf(place) {
  const isFirst = place === 0;
  return {
    num_beams: Number(beams.value),
    num_return_sequences: Math.min(number.value, beams.value),
    split_sentences: true,
    repetition_guard: true,
    target_prefix: isFirst ? prefix.value : "",
    must_contain: isFirst ? phrases.value.split(";").map((phrase) => phrase.trim()).filter(Boolean) : [],
  };
}

async function translateLines() {
  const pause = beginComputation();
  const lines = source.value.split("\n").filter((line) => line.trim());
  byId("view").replaceChildren();
  const start = performance.now();
  const results = [];
  state.textContent = lines.length ? "Translating …" : "";
  for (const [place, line] of lines.entries()) {
    const options = optionsOf(place);
    const job = translator.begin(line, options);
    while (!job.isOver) {
      job.step();
      await pause();
    }
    results.push(lineResult(line, job.result(), explainButtons(job, options)));
    byId("translations").replaceChildren(...results);
  }
  byId("translations").replaceChildren(...results);
  const milliseconds = Math.round(performance.now() - start);
  state.textContent = lines.length ? `Translated in ${milliseconds} ms.` : "";
}

// Return the element of a translated line: the source, the words of the best translation, and the next-best
// translations.
function lineResult(line, translations, buttons) {
  const [best, ...others] = translations;
  const detail = element("p", { class: "facts detail" }, "Choose a word to see its probability and its source word.");
  const sourceWords = line
    .trim()
    .split(/\s+/u)
    .map((text) => element("span", {}, text));
  const words = best.words.map(({ word, confidence }, i) => {
    const aligned = best.alignment.filter(([, target]) => target === i).map(([from]) => sourceWords[from]);
    const button = element("button", { class: "target", type: "button" }, word);
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
  const unmet = (best.unmet_phrases || []).map((phrase) => `“${phrase}”`).join(", ");
  const facts = (translation) => `score ${decimal(translation.score, 3)} · mean probability of a token ${percent(translation.confidence)}`;
  const list = others.map((other) => element("li", {}, other.text, element("span", { class: "facts" }, ` ${facts(other)}`)));
  return element(
    "section",
    { class: "line" },
    element("p", { class: "source", lang: source.lang }, ...spaced(sourceWords)),
    element("p", { class: "translation" }, ...spaced(words)),
    element("p", { class: "facts" }, facts(best)),
    ...(unmet ? [element("p", { class: "facts" }, `No translation with ${unmet} was found.`)] : []),
    detail,
    ...(list.length ? [element("ol", { start: 2 }, ...list)] : []),
    ...buttons,
  );
}

// Return a button for each sentence that explains its translation. Return no button for a translation with a
// prefix or phrases, because `explain` searches without a prefix and without phrases.
function explainButtons(job, { target_prefix: begin, must_contain: needed }) {
  if (begin.trim() || needed.length) {
    return [];
  }
  return job.segments.map(({ text }, i) => {
    const label = job.segments.length > 1 ? `Explain sentence ${i + 1}` : "Explain this translation";
    const explainThis = () => guarded(() => explainSentence(text));
    return element("button", { class: "plain", type: "button", onclick: explainThis }, label);
  });
}

function spaced(elements) {
  return elements.flatMap((one) => [one, " "]);
}

async function explainSentence(sentence) {
  const pause = beginComputation();
  state.textContent = "Computing the explanation …";
  // Let the browser show the status text before the first step of the search.
  await new Promise((resolve) => setTimeout(resolve));
  const explanation = await explain(translator, sentence, { num_beams: Number(beams.value) }, pause);
  const view = element("div", {});
  byId("view").replaceChildren(view);
  vaswaniView.show(view, explanation, "h2");
  state.textContent = "";
  view.scrollIntoView({ behavior: "smooth" });
}

// Run a computation, and show its error message. `Cancelled` only means that a newer computation has started.
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
for (const input of [source, prefix, phrases]) {
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
