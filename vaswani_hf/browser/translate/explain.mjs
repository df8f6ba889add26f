// Computes the explanation of a translation, as vaswani_hf/browser/explain.py does in Python. The class
// `Explanation` in vaswani_hf/browser/explanation.py describes the fields of an explanation.
//
// In comments, S is the number of source tokens, T the number of target tokens, and V the size of the vocabulary.

import { checkArguments } from "./options.mjs";
import { BeamSearch, bestContinuations, coverageScore, logSumExp, penalizedScore, tokensOf } from "./search.mjs";

const LARGEST_WEIGHT = 65535;
const TEMPERATURES = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3];
// The maximum number of runners-up of a word (the most probable other words), and their smallest probability.
const NUM_RUNNERS_UP = 3;
const LEAST_PROBABILITY = 0.001;
const UNSUPPORTED = ["must_contain", "split_sentences", "repetition_guard"];

// Translate a text as one sentence, and return the explanation of the best translation. `explain` awaits the
// async function `pause` after each step of a search. If `pause` throws an error, the computation ends.
export async function explain(translator, text, options = {}, pause = async () => {}) {
  checkArguments(text, options, UNSUPPORTED);
  const recorder = new Recorder(translator);
  const settings = translator.settingsOf(options);
  const [segment] = translator.layout(text, false, Boolean(options.target_prefix)).segments;
  if (segment === undefined) {
    throw new RangeError(`\`text\` must contain a word, but is ${JSON.stringify(text)}.`);
  }
  const sourceIds = segment.ids;
  const forced = translator.prefixIds(options.target_prefix || "");
  const decoder = translator.decoder(sourceIds);
  const search = translator.search(decoder, forced, settings, { onStep: (step) => recorder.add(step) });
  const context = { translator, settings, sourceIds, forced, decoder, pause };
  await finish(search, pause);
  const tokenIds = [...forced, ...tokensOf(search.finished[0].hypothesis)];
  const { config } = translator;
  const decoderInput = [translator.start, ...tokenIds.slice(0, -1)];
  const attention = translator.attention(context.sourceIds, decoderInput);
  const logits = translator.logits(attention.states, decoderInput.length);
  const scored = scoredTranslation(context, tokenIds);
  const target = tokensWithWords(tokenIds, translator.targetTokenizer);
  return {
    model: translator.name,
    source_text: text,
    target_text: scored.translation,
    is_given: false,
    source: tokensWithWords(context.sourceIds, translator.sourceTokenizer),
    target,
    decoder_input: tokensWithWords(decoderInput, translator.targetTokenizer),
    log_probs: scored.logProbs,
    score: scored.score,
    attention: {
      encoder: packedWeights(attention.encoder, config.encoder_attention_heads, context.sourceIds.length),
      decoder: packedWeights(attention.self, config.decoder_attention_heads, decoderInput.length),
      cross: packedWeights(attention.cross, config.decoder_attention_heads, context.sourceIds.length),
    },
    words: await wordChoices(context, tokenIds, target.words, scored.logProbs, logits),
    search: recorder.record(search),
    search_note: "",
  };
}

// Run a search to its end.
async function finish(search, pause) {
  while (!search.isOver) {
    search.step();
    await pause();
  }
}

// Return the text of each token, and the words that the tokens form. Each special token is a separate word.
function tokensWithWords(ids, tokenizer) {
  const texts = tokenizer.texts(ids);
  const { words: names, wordOfToken } = tokenizer.wordsOf(ids);
  const words = [];
  wordOfToken.forEach((number, i) => {
    if (number >= 0 && i > 0 && number === wordOfToken[i - 1]) {
      words[words.length - 1].stop = i + 1;
    } else {
      words.push({ text: number >= 0 ? names[number] : texts[i].trim(), start: i, stop: i + 1 });
    }
  });
  return { tokens: texts.map((text, i) => ({ text, id: ids[i] })), words };
}

// Return attention weights in the format of the class `Weights` in explanation.py. `layers[layer][row]`
// contains the weights [heads, n] of the first n columns.
function packedWeights(layers, numHeads, numColumns) {
  const numRows = layers[0].length;
  const integers = new Uint16Array(layers.length * numHeads * numRows * numColumns);
  layers.forEach((rows, layer) => {
    rows.forEach((weights, row) => {
      const number = weights.length / numHeads;
      for (let head = 0; head < numHeads; head++) {
        const first = ((layer * numHeads + head) * numRows + row) * numColumns;
        for (let i = 0; i < number; i++) {
          integers[first + i] = Math.round(weights[head * number + i] * LARGEST_WEIGHT);
        }
      }
    });
  });
  return { shape: [layers.length, numHeads, numRows, numColumns], data: encodeBase64(integers) };
}

function encodeBase64(integers) {
  const bytes = new Uint8Array(2 * integers.length);
  integers.forEach((integer, i) => {
    bytes[2 * i] = integer & 255;
    bytes[2 * i + 1] = integer >> 8;
  });
  let characters = "";
  for (let i = 0; i < bytes.length; i += 8192) {
    characters += String.fromCharCode(...bytes.subarray(i, i + 8192));
  }
  return btoa(characters);
}

// Return a translation with its score. The tokens of a given prefix have the log-probability 0.
function scoredTranslation({ translator, settings, sourceIds, forced }, tokenIds) {
  const found = translator.logProbs(sourceIds, tokenIds, settings.coverage_penalty > 0);
  const logProbs = found.logProbs.map((logProb, i) => (i < forced.length ? 0 : logProb));
  const sum = logProbs.reduce((total, logProb) => total + logProb, 0);
  const score = penalizedScore(sum, Math.max(1, tokenIds.length - forced.length), found.coverage, settings);
  return { tokenIds, translation: translator.targetTokenizer.decode(tokenIds), logProbs, score };
}

// Return the probability and the runners-up of each target word.
async function wordChoices(context, tokenIds, words, logProbs, logits) {
  const { translator } = context;
  const choices = [];
  for (const word of words) {
    const isEnd = translator.ends.includes(tokenIds[word.start]);
    const found = new Map();
    for (const [i, change] of changesOf(context, word, tokenIds, logProbs, logits).entries()) {
      // Different changes may produce the same word.
      if (i === NUM_RUNNERS_UP && found.size >= NUM_RUNNERS_UP) {
        break;
      }
      const runnerUp = await runnerUpOf(context, word.start, change, tokenIds);
      // Different token sequences may spell the same word. Keep the most probable sequence.
      const known = found.get(runnerUp.text);
      if (runnerUp.text !== (isEnd ? "" : word.text) && !(known && known.probability >= runnerUp.probability)) {
        found.set(runnerUp.text, runnerUp);
      }
    }
    const runnersUp = [...found.values()].sort((left, right) => right.probability - left.probability);
    const ofWord = logProbs.slice(word.start, word.stop);
    const probability = Math.exp(ofWord.reduce((sum, logProb) => sum + logProb, 0));
    choices.push({ probability, runners_up: runnersUp.slice(0, NUM_RUNNERS_UP) });
  }
  return choices;
}

// Return the most probable changes of a word: (position of the replaced token, id of the new token).
function changesOf({ translator, forced }, word, tokenIds, logProbs, logits) {
  const numClasses = logits.length / tokenIds.length;
  const changes = [];
  let before = 0;
  for (let position = word.start; position < word.stop; position++) {
    if (position >= forced.length) {
      const row = logits.subarray(position * numClasses, (position + 1) * numClasses);
      const beam = { score: before };
      const normalizer = logSumExp(row, 0, numClasses);
      for (const best of bestContinuations(row, [beam], [normalizer], 4 * NUM_RUNNERS_UP, translator.excluded)) {
        const isSpecial = translator.targetTokenizer.special.has(best.token) && !translator.ends.includes(best.token);
        if (best.token !== tokenIds[position] && !isSpecial && best.score >= Math.log(LEAST_PROBABILITY)) {
          changes.push({ logProb: best.score, position, token: best.token });
        }
      }
    }
    before += logProbs[position];
  }
  changes.sort((left, right) => right.logProb - left.logProb);
  // Several changes may produce the same word.
  return changes.slice(0, NUM_RUNNERS_UP + 2);
}

// Return the word with the token `start` in the best translation that begins with the changed tokens.
async function runnerUpOf(context, start, { position, token }, tokenIds) {
  const { translator, settings, decoder, pause } = context;
  const prefix = [...tokenIds.slice(0, position), token];
  let changed = prefix;
  if (!translator.ends.includes(token)) {
    const search = translator.search(decoder, prefix, settings);
    await finish(search, pause);
    changed = [...prefix, ...tokensOf(search.finished[0].hypothesis)];
  }
  const scored = scoredTranslation(context, changed);
  const { words } = tokensWithWords(changed, translator.targetTokenizer);
  const word = words.find((candidate) => candidate.start <= start && start < candidate.stop);
  // If the new token comes after the end of the runner-up, multiply the probability of the runner-up by the
  // probability of the new token, because only the new token shows that the runner-up has ended.
  const stop = Math.max(word.stop, position + 1);
  const sum = scored.logProbs.slice(start, stop).reduce((total, logProb) => total + logProb, 0);
  return {
    text: translator.ends.includes(changed[word.start]) ? "" : word.text,
    probability: Math.exp(sum),
    position,
    token,
    translation: scored.translation,
    score: scored.score,
  };
}

// Records a beam search in the format of the class `SearchRecord` in explanation.py.
class Recorder {
  constructor(translator) {
    this.translator = translator;
    this.nodes = [];
    this.finished = [];
    // `children[i]` maps the token id of each child of node i to the index of the child.
    this.children = [];
  }

  // Record a step of the search. The argument is the object that `BeamSearch` passes to `onStep`.
  add({ search, before, logits, normalizers, entering, beams, step }) {
    if (this.nodes.length === 0) {
      before[0].record = this.push(-1, search.prompt[search.prompt.length - 1], 0, 0);
      this.nodes[0].state = "beam";
    }
    const numClasses = logits.length / before.length;
    before.forEach((beam, k) => {
      const row = logits.subarray(k * numClasses, (k + 1) * numClasses);
      const node = this.nodes[beam.record];
      node.normalizers = TEMPERATURES.map((t) => logSumExp(row, 0, numClasses, t) - normalizers[k] / t);
      node.coverage = beam.coverage ? coverageScore(beam.coverage) : null;
      const best = bestContinuations(row, [{ score: 0 }], [normalizers[k]], search.numCandidates, search.excluded);
      for (const { token, logProb } of best) {
        this.push(beam.record, token, logProb, step);
      }
    });
    for (const hypothesis of [...entering, ...beams]) {
      hypothesis.record = this.children[hypothesis.parent.record].get(hypothesis.token);
      this.nodes[hypothesis.record].state = "beam";
    }
    for (const hypothesis of entering) {
      this.nodes[hypothesis.record].state = "finished";
      const score = penalizedScore(hypothesis.score, step, hypothesis.parent.coverage, search.settings);
      this.finished.push({ node: hypothesis.record, score });
    }
  }

  push(parent, token, logProb, step) {
    const index = this.nodes.length;
    const rest = { state: "dropped", left: null, normalizers: null, coverage: null };
    this.nodes.push({ parent, token, log_prob: logProb, step, ...rest });
    this.children.push(new Map());
    if (parent >= 0) {
      this.children[parent].set(token, index);
    }
    return index;
  }

  record(search) {
    this.setLeft(search.numSteps);
    this.finished.sort((left, right) => right.score - left.score);
    const { settings } = search;
    const ids = [...new Set(this.nodes.map((node) => node.token))].sort((left, right) => left - right);
    const texts = this.translator.targetTokenizer.texts(ids);
    return {
      num_beams: search.numBeams,
      length_penalty: settings.length_penalty,
      length_penalty_type: settings.length_penalty_type,
      coverage_penalty: settings.coverage_penalty,
      limit: search.limit,
      num_counted: search.numCounted,
      considers_all_lengths: search.considersAllLengths,
      stops_when_full: search.stopsWhenFull,
      num_candidates: search.numCandidates,
      end_ids: this.translator.ends,
      temperatures: TEMPERATURES,
      nodes: this.nodes,
      finished: this.finished,
      texts: Object.fromEntries(ids.map((id, i) => [id, texts[i]])),
    };
  }

  // Set `left` of each node (see the class `Node` in explanation.py).
  setLeft(lastStep) {
    const latest = this.nodes.map((node) => node.step);
    const survives = this.nodes.map(
      (node) => node.state === "finished" || (node.state === "beam" && node.step === lastStep),
    );
    // Visit the last node first, so that each node is visited after its children.
    for (let i = this.nodes.length - 1; i > 0; i--) {
      const { parent } = this.nodes[i];
      latest[parent] = Math.max(latest[parent], latest[i]);
      survives[parent] = survives[parent] || survives[i];
    }
    this.nodes.forEach((node, i) => {
      node.left = survives[i] ? null : latest[i];
    });
  }
}
