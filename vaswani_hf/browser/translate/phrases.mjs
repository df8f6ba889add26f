// Grid beam search for translations that contain given phrases, with the rules of
// vaswani_hf/model/phrase_search_vaswani.py. A phrase is a list of token ids.

import { BeamSearch, bestContinuations, continuation } from "./search.mjs";

// If a sentence has at most this number of phrases, all orders of the phrases are tried.
const MOST_REORDERED = 6;

// Return true if a list of tokens contains a phrase.
export function contains(tokens, phrase) {
  for (let start = 0; start + phrase.length <= tokens.length; start++) {
    if (phrase.every((token, i) => tokens[start + i] === token)) {
      return true;
    }
  }
  return false;
}

// Return the total number of tokens of the phrases.
export function numTokens(phrases) {
  return phrases.reduce((sum, phrase) => sum + phrase.length, 0);
}

// Return true if an n-gram of `size` tokens occurs twice in a list of tokens.
export function repeatsNgram(tokens, size) {
  const seen = new Set();
  for (let start = 0; start + size <= tokens.length; start++) {
    const ngram = tokens.slice(start, start + size).join(" ");
    if (seen.has(ngram)) {
      return true;
    }
    seen.add(ngram);
  }
  return false;
}

// Return how many first tokens of a phrase a list of tokens ends with, or all if the list contains the
// phrase.
function numMatched(tokens, phrase) {
  if (contains(tokens, phrase)) {
    return phrase.length;
  }
  for (let length = Math.min(phrase.length, tokens.length); length > 0; length--) {
    if (contains(tokens.slice(-length), phrase.slice(0, length))) {
      return length;
    }
  }
  return 0;
}

// Return the number of tokens that a translation still needs to contain all phrases.
function numMissing(tokens, phrases) {
  let missing = 0;
  let longest = 0;
  for (const phrase of phrases) {
    const matched = numMatched(tokens, phrase);
    if (matched < phrase.length) {
      missing += phrase.length;
      longest = Math.max(longest, matched);
    }
  }
  return missing - longest;
}

// Return all orders of a list, in the order of `itertools.permutations` of Python.
function ordersOf(items) {
  if (items.length < 2) {
    return [items];
  }
  return items.flatMap((first, i) => ordersOf(items.filter((_, j) => j !== i)).map((rest) => [first, ...rest]));
}

// Return the shortest list of tokens in which the phrases overlap.
function shortestSequence(phrases) {
  const orders = phrases.length <= MOST_REORDERED ? ordersOf(phrases) : [phrases];
  const append = (tokens, phrase) => [...tokens, ...phrase.slice(numMatched(tokens, phrase))];
  const sequences = orders.map((order) => order.reduce(append, []));
  return sequences.reduce((best, sequence) => (sequence.length < best.length ? sequence : best));
}

// Return the phrases if the prompt lacks at most `capacity` of their tokens, else one phrase in which the
// phrases overlap, or null if the prompt lacks too many tokens of this phrase, too.
export function fitPhrases(phrases, prompt, capacity) {
  if (numMissing(prompt, phrases) <= capacity) {
    return phrases;
  }
  const merged = [shortestSequence(phrases.filter((phrase) => !contains(prompt, phrase)))];
  return numMissing(prompt, merged) <= capacity ? merged : null;
}

// A beam search whose translations must contain `phrases`.
export class PhraseSearch extends BeamSearch {
  constructor(model, decoder, prompt, phrases, options) {
    super(model, decoder, prompt, options);
    this.phrases = phrases;
    this.numKept = this.numBeams;
    this.numBeams *= 1 + numTokens(phrases);
    this.numCounted = this.numKept;
    // A hypothesis that misses a phrase may not end yet, and can have its best score at any length.
    this.considersAllLengths = true;
    this.stopsWhenFull = false;
  }

  // A candidate ends only if it contains all phrases. Other candidates compete only with candidates that miss
  // the same number of phrase tokens.
  select(logits, normalizers) {
    const isLast = this.numSteps + 1 >= this.limit;
    const numOfMissing = new Map();
    let numComplete = 0;
    const entering = [];
    const beams = [];
    for (const option of this.options(logits, normalizers)) {
      numComplete += option.missing === 0 ? 1 : 0;
      const rank = 1 + (numOfMissing.get(option.missing) || 0);
      if (isLast || this.ends.has(option.token)) {
        if (numComplete <= this.numKept) {
          entering.push(option);
        }
      } else if (rank <= this.numKept) {
        numOfMissing.set(option.missing, rank);
        beams.push(option);
      }
    }
    return { entering, beams };
  }

  // Return the next tokens of all beams, best first: the most probable tokens, and the next token of each
  // phrase. Leave out a token if the missing phrases would not fit into the rest of the translation.
  options(logits, normalizers) {
    const number = this.numKept + this.ends.size + 2 * this.phrases.length;
    const numClasses = logits.length / this.beams.length;
    const possible = [];
    this.beams.forEach((beam, k) => {
      const row = logits.subarray(k * numClasses, (k + 1) * numClasses);
      const before = this.tokensOf(beam);
      const options = bestContinuations(row, [beam], [normalizers[k]], number, this.excluded);
      const known = new Set(options.map((option) => option.token));
      for (const phrase of this.phrases) {
        const next = phrase[numMatched(before, phrase)];
        if (next !== undefined && !known.has(next)) {
          known.add(next);
          options.push(continuation(beam, next, row[next] - normalizers[k]));
        }
      }
      for (const option of options) {
        option.missing = numMissing([...before, option.token], this.phrases);
        const room = this.ends.has(option.token) ? 0 : this.limit - this.numSteps - 1;
        if (option.score > -Infinity && option.missing <= room) {
          possible.push(option);
        }
      }
    });
    return possible.sort((left, right) => right.score - left.score);
  }
}

// Search a translation that contains phrases, and return the finished search. `makeSearch(phrases)` returns a
// `BeamSearch`, and `number` is the number of translations that the caller needs. If no translation contains
// all phrases, add the phrases one after another, and keep a phrase only if a translation is found.
export function* searchPhrases(makeSearch, phrases, number) {
  const plain = makeSearch([]);
  yield* plain.steps();
  const found = plain.finished.slice(0, number);
  const hasAll = ({ hypothesis }) => numMissing(plain.tokensOf(hypothesis), phrases) === 0;
  if (phrases.length === 0 || (found.length === number && found.every(hasAll))) {
    return plain;
  }
  const whole = makeSearch(phrases);
  yield* whole.steps();
  if (whole.finished.length > 0) {
    return whole;
  }
  let best = plain;
  let possible = [];
  for (const phrase of phrases) {
    const search = makeSearch([...possible, phrase]);
    yield* search.steps();
    if (search.finished.length > 0) {
      best = search;
      possible = [...possible, phrase];
    }
  }
  return best;
}
