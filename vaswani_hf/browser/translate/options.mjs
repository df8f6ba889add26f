// Validates the arguments of `translate`, `begin` and `explain`. The rules and the sentences of the options are
// those of vaswani_hf/model/inputs_vaswani.py.

import { strip } from "./tokenizer.mjs";

const A_SIZE = { words: "a positive integer", accepts: (value) => Number.isInteger(value) && value >= 1 };
const A_COUNT = { words: "an integer of 0 or more", accepts: (value) => Number.isInteger(value) && value >= 0 };
const A_NUMBER = { words: "a finite number", accepts: (value) => Number.isFinite(value) };
const NOT_NEGATIVE = { words: "a number of 0 or more", accepts: (value) => Number.isFinite(value) && value >= 0 };
const A_SWITCH = { words: "true or false", accepts: (value) => typeof value === "boolean" };
const A_TEXT = { words: "a string", accepts: (value) => typeof value === "string" };
const PHRASES = {
  words: "a list of strings that are not blank",
  accepts: (value) => Array.isArray(value) && value.every((phrase) => typeof phrase === "string" && strip(phrase)),
};

function oneOf(...choices) {
  const words = choices.map((choice) => JSON.stringify(choice));
  const last = words.pop();
  return { words: `${words.join(", ")} or ${last}`, accepts: (value) => choices.includes(value) };
}

const RULES = {
  num_beams: A_SIZE,
  num_return_sequences: A_SIZE,
  length_penalty: A_NUMBER,
  length_penalty_type: oneOf("gnmt", "power"),
  coverage_penalty: NOT_NEGATIVE,
  early_stopping: oneOf(false, true, "never"),
  no_repeat_ngram_size: A_COUNT,
  max_length: A_SIZE,
  max_new_tokens: A_SIZE,
  max_length_a: NOT_NEGATIVE,
  max_length_b: A_COUNT,
  target_prefix: A_TEXT,
  must_contain: PHRASES,
  split_sentences: A_SWITCH,
  repetition_guard: A_SWITCH,
};

// The options of a translation that are no settings of `generate`.
export const OWN_OPTIONS = ["target_prefix", "must_contain", "split_sentences", "repetition_guard"];

// Throw a TypeError if the text is no string, if an option is unknown or unsupported, or if its value is
// impossible. An option that is undefined or null has its default value.
export function checkArguments(text, options, unsupported = []) {
  check("text", text, A_TEXT);
  if (typeof options !== "object" || options === null || Array.isArray(options)) {
    throw new TypeError(`\`options\` must be an object, but is ${shown(options)}.`);
  }
  const names = Object.keys(RULES).filter((name) => !unsupported.includes(name));
  for (const [name, value] of Object.entries(options)) {
    if (!names.includes(name)) {
      throw new TypeError(`\`${name}\` must be left out, because the options are ${names.join(", ")}.`);
    }
    if (value !== undefined && value !== null) {
      check(name, value, RULES[name]);
    }
  }
}

function check(name, value, { words, accepts }) {
  if (!accepts(value)) {
    throw new TypeError(`\`${name}\` must be ${words}, but is ${shown(value)}.`);
  }
}

// Return the text of a value for an error message, such as "Haus" with its quotation marks.
function shown(value) {
  const isJson = typeof value === "object" || typeof value === "string";
  return isJson ? JSON.stringify(value) : String(value);
}
