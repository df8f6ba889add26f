// Translates texts. The class `Translator` follows the same rules as vaswani_hf/model/translator_vaswani.py.

import { Decoder, Model, readWeights } from "./model.mjs";
import { BeamSearch, coverageScore, lengthPenalty, logProbsOf, logSumExp, meanOverHeads, tokensOf } from "./search.mjs";
import { Tokenizer, splitWords, strip } from "./tokenizer.mjs";

// Word alignments use the mean cross-attention of the last two decoder layers.
const ALIGNMENT_LAYERS = 2;

export function decodeBase64(text) {
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < characters.length; i++) {
    bytes[i] = characters.charCodeAt(i);
  }
  return bytes;
}

// Read the model of a page that `vaswani export --format html` has written. `page` is the HTML of the page.
export function readPage(page) {
  const content = (id) => new RegExp(`<script type="[^"]*" id="${id}">([^<]*)<`).exec(page)[1];
  return new Translator(JSON.parse(content("vaswani-settings")), decodeBase64(content("vaswani-weights").trim()));
}

export class Translator {
  // `settings` is the JSON object that vaswani_hf/convert/html_page.py writes. `bytes` contains the weights
  // in the safetensors format.
  constructor(settings, bytes) {
    this.name = settings.name;
    this.defaults = settings.generation;
    this.config = settings.config;
    this.excluded = settings.excluded_token_id;
    this.ends = settings.end_token_ids;
    this.start = settings.start_token_id;
    this.sourceTokenizer = new Tokenizer(settings.source_tokenizer.file, settings.source_tokenizer);
    this.targetTokenizer = settings.target_tokenizer
      ? new Tokenizer(settings.target_tokenizer.file, settings.target_tokenizer)
      : this.sourceTokenizer;
    this.maxPositions =
      this.config.position_embedding === "learned" ? this.config.max_position_embeddings : Infinity;
    const limits = [this.sourceTokenizer.maxLength, this.maxPositions].filter((limit) => limit < 1e6);
    this.maxLength = limits.length ? Math.min(...limits) : 1024;
    this.model = new Model(this.config, readWeights(bytes));
  }

  // Translate a text, and return a list of translations, best first. Each translation has the fields of the
  // Python class `Translation`: text, score, log_prob, confidence, tokens, token_log_probs, words (objects
  // with `word` and `confidence`), alignment (pairs: the index of a source word, and the index of a target
  // word) and token_ids.
  //
  // `options` may contain search settings of `generate`, such as `num_beams`. The option `target_prefix` is a
  // text that the translation must begin with.
  translate(text, options = {}) {
    const job = this.begin(text, options);
    while (!job.isOver) {
      job.step();
    }
    return job.result();
  }

  // Begin a translation, and return a `Job`. The caller must call the method `step` of the job until `isOver`
  // is true, and then the method `result`. A page can handle events between two steps.
  begin(text, options = {}, onStep = null) {
    return new Job(this, text, options, onStep);
  }

  // Return a `BeamSearch` for source tokens. `forced` contains the token ids that the translation must begin
  // with. `onStep` is passed to `BeamSearch`.
  search(sourceIds, forced, settings, onStep = null) {
    const decoder = new Decoder(this.model, this.model.encode(sourceIds), sourceIds.length);
    const prompt = [this.start, ...forced];
    const limit = this.limitOf(settings, sourceIds.length, prompt.length);
    return new BeamSearch(this, decoder, prompt, {
      settings,
      limit,
      ends: this.ends,
      excluded: this.excluded,
      onStep,
    });
  }

  // Return the search settings: the default settings of the page, replaced by the given options.
  settingsOf(options) {
    const settings = { ...this.defaults };
    for (const [name, value] of Object.entries(options)) {
      if (value !== undefined && value !== null && name !== "target_prefix") {
        settings[name] = value;
      }
    }
    if (options.max_new_tokens) {
      settings.max_length = null;
    }
    if (settings.num_return_sequences > settings.num_beams) {
      throw new RangeError(
        `num_return_sequences must be at most num_beams, which is ${settings.num_beams}, but is ` +
          `${settings.num_return_sequences}.`,
      );
    }
    return settings;
  }

  // Return the maximum number of new tokens. `sourceLength` and `promptLength` are numbers of tokens.
  limitOf(settings, sourceLength, promptLength) {
    const { max_length: whole, max_new_tokens: added } = settings;
    let { max_length_a: a, max_length_b: b } = settings;
    const has = (value) => value !== null && value !== undefined;
    const limits = [Math.max(1, this.maxPositions - promptLength + 1)];
    if (!has(whole) && !has(added) && !has(a) && !has(b)) {
      // The default limit is "input length + 50" (Section 6.1 of the paper).
      [a, b] = [1, 50];
    }
    if (has(a) || has(b)) {
      // Add 1e-6 before rounding down, because 0.29 * 100 is a little less than 29 in floating point.
      limits.push(Math.max(1, Math.floor((a || 0) * sourceLength + (b || 0) + 1e-6)));
    }
    if (has(added)) {
      limits.push(added);
    } else if (has(whole)) {
      limits.push(whole - promptLength);
    }
    return Math.max(1, Math.min(...limits));
  }

  // Divide a text into segments of at most `maxLength` tokens. A segment contains token ids (`ids`), and the
  // index of the word of each token (`words`).
  segments(text) {
    const { ids, words } = this.sourceTokenizer.encode(text);
    if (ids.length <= this.maxLength) {
      return [{ ids, words }];
    }
    const end = ids[ids.length - 1];
    const own = ids.slice(0, -1);
    const tags = [...this.sourceTokenizer.tags.values()].includes(own[0]) ? own.slice(0, 1) : [];
    const segments = [];
    let start = tags.length;
    while (start < own.length) {
      let stop = Math.min(start + this.maxLength - 1 - tags.length, own.length);
      if (stop < own.length) {
        // End the segment between two words. If a single word fills the segment, divide the word.
        let boundary = stop;
        while (boundary > start && words[boundary] === words[boundary - 1]) {
          boundary -= 1;
        }
        stop = boundary > start ? boundary : stop;
      }
      const tagWords = tags.map(() => (segments.length ? -1 : words[0]));
      segments.push({
        ids: [...tags, ...own.slice(start, stop), end],
        words: [...tagWords, ...words.slice(start, stop), -1],
      });
      start = stop;
    }
    return segments;
  }

  // Return the log-probabilities of the tokens of a given translation. If `withCoverage` is true, also return
  // the coverage of the source.
  logProbs(sourceIds, targetIds, withCoverage = false) {
    const decoder = new Decoder(this.model, this.model.encode(sourceIds), sourceIds.length);
    const inputs = [this.start, ...targetIds.slice(0, -1)];
    const recorded = withCoverage ? { self: [], cross: [] } : null;
    const { states } = decoder.read(inputs, chain(inputs), recorded);
    const logits = this.logits(states, inputs.length);
    const numClasses = this.model.vocabularySize;
    const logProbs = targetIds.map(
      (token, t) => logits[t * numClasses + token] - logSumExp(logits, t * numClasses, numClasses),
    );
    return { logProbs, coverage: withCoverage ? coverageOf(recorded.cross.at(-1), sourceIds.length) : null };
  }

  // Return the logits [n, V] of the next tokens. The logit of the excluded token is -1000, so that its
  // probability is 0.
  logits(states, numRows) {
    return withoutToken(this.model.logits(states), numRows, this.excluded);
  }

  // Return the attention weights of all layers and heads for given source tokens and given decoder input
  // tokens. Also return the output states of the decoder.
  attention(sourceIds, decoderInput) {
    const encoder = [];
    const decoder = new Decoder(this.model, this.model.encode(sourceIds, encoder), sourceIds.length);
    const recorded = { self: [], cross: [] };
    const { states } = decoder.read(decoderInput, chain(decoderInput), recorded);
    return { encoder, ...recorded, states };
  }
}

// Return the parent of each token of a sequence: the index of the token before it, or -1 for the first token.
function chain(tokens) {
  return tokens.map((token, i) => i - 1);
}

function withoutToken(logits, numRows, excluded) {
  if (excluded !== null) {
    const numClasses = logits.length / numRows;
    for (let row = 0; row < numRows; row++) {
      logits[row * numClasses + excluded] = -1e3;
    }
  }
  return logits;
}

// Translates one text step by step.
class Job {
  constructor(translator, text, options, onStep) {
    this.translator = translator;
    this.onStep = onStep;
    this.settings = translator.settingsOf(options);
    this.prefix = strip(options.target_prefix || "");
    const stripped = strip(text);
    this.isOneLine = !stripped.includes("\n");
    this.segments = stripped ? translator.segments(stripped) : [];
    this.results = [];
    this.isOver = this.segments.length === 0;
    if (!this.isOver) {
      this.beginSegment();
    }
  }

  beginSegment() {
    const { translator, settings } = this;
    const { ids } = this.segments[this.results.length];
    const isFirst = this.results.length === 0;
    this.forced =
      isFirst && this.prefix ? translator.targetTokenizer.encode(this.prefix, { bare: true }).ids : [];
    this.search = translator.search(ids, this.forced, settings, this.onStep);
  }

  step() {
    this.search.step();
    if (this.search.isOver) {
      const segment = this.segments[this.results.length];
      const best = this.search.finished.slice(0, this.settings.num_return_sequences);
      this.results.push(best.map(({ hypothesis }) => this.translation(segment, hypothesis)));
      if (this.results.length === this.segments.length) {
        this.isOver = true;
      } else {
        this.beginSegment();
      }
    }
  }

  translation(segment, hypothesis) {
    const { translator, settings, forced } = this;
    const tokenizer = translator.targetTokenizer;
    const ownIds = tokensOf(hypothesis);
    const logProbs = logProbsOf(hypothesis);
    const tokenIds = [...forced, ...ownIds];
    const decoderInput = [translator.start, ...tokenIds.slice(0, -1)];
    const { cross } = translator.attention(segment.ids, decoderInput);
    const { words, wordOfToken } = tokenizer.wordsOf(tokenIds);
    const wordLogProbs = words.map(() => 0);
    logProbs.forEach((logProb, i) => {
      const word = wordOfToken[forced.length + i];
      if (word >= 0) {
        wordLogProbs[word] += logProb;
      }
    });
    const logProb = logProbs.reduce((sum, value) => sum + value, 0);
    let score = logProb / lengthPenalty(Math.max(1, logProbs.length), settings);
    if (settings.coverage_penalty) {
      score += settings.coverage_penalty * coverageScore(coverageOf(cross.at(-1), segment.ids.length));
    }
    return {
      text: this.onOneLine(tokenizer.decode(tokenIds)),
      score,
      log_prob: logProb,
      confidence: Math.exp(logProb / Math.max(1, logProbs.length)),
      tokens: tokenizer.texts(ownIds),
      token_log_probs: logProbs,
      words: words.map((word, i) => ({ word, confidence: Math.exp(wordLogProbs[i]) })),
      alignment: align(cross.slice(-ALIGNMENT_LAYERS), segment.words, wordOfToken),
      token_ids: tokenIds,
    };
  }

  // Replace line breaks by spaces if the source text has one line, because its translation must also have one
  // line.
  onOneLine(translation) {
    return this.isOneLine ? translation.replaceAll("\n", " ") : translation;
  }

  // Return the translations of the text, best first. The best translation of the text joins the best
  // translations of all segments, the second-best translation joins the second-best translations, and so on.
  result() {
    if (this.results.length === 0) {
      return Array.from({ length: this.settings.num_return_sequences }, () => blank(this.prefix));
    }
    const number = Math.min(...this.results.map((of) => of.length));
    return Array.from({ length: number }, (_, rank) => joined(this.results.map((of) => of[rank])));
  }
}

function blank(text) {
  const words = splitWords(text).map((word) => ({ word, confidence: 1 }));
  const scores = { score: 0, log_prob: 0, confidence: 1, tokens: [], token_log_probs: [] };
  return { text, ...scores, words, alignment: [], token_ids: [] };
}

function joined(translations) {
  if (translations.length === 1) {
    return translations[0];
  }
  const sum = (name) => translations.reduce((total, part) => total + part[name], 0);
  const concatenated = (name) => translations.flatMap((part) => part[name]);
  const logProbs = concatenated("token_log_probs");
  let numWords = 0;
  const alignment = translations.flatMap((part) => {
    const pairs = part.alignment.map(([source, target]) => [source, target + numWords]);
    numWords += part.words.length;
    return pairs;
  });
  return {
    text: translations.map((part) => part.text).join(" "),
    score: sum("score"),
    log_prob: sum("log_prob"),
    confidence: Math.exp(sum("log_prob") / Math.max(1, logProbs.length)),
    tokens: concatenated("tokens"),
    token_log_probs: logProbs,
    words: concatenated("words"),
    alignment,
    token_ids: concatenated("token_ids"),
  };
}

// Return the coverage of each source token: the sum of its attention weights over all target tokens.
// `weights` contains the cross-attention weights [H, S] of one layer for each target token, and the heads are
// averaged.
function coverageOf(weights, numSourceTokens) {
  const coverage = new Float64Array(numSourceTokens);
  for (const ofToken of weights) {
    meanOverHeads(ofToken, numSourceTokens).forEach((value, i) => {
      coverage[i] += value;
    });
  }
  return coverage;
}

// Return for each target word the source word with the highest attention, as a pair of indices [source word,
// target word]. The attention to a source word is the maximum over the tokens of the source word. The
// attention of a target word is the sum over the tokens of the target word.
function align(layers, sourceWords, wordOfToken) {
  const numSource = Math.max(-1, ...sourceWords) + 1;
  const numTarget = Math.max(-1, ...wordOfToken) + 1;
  if (numSource === 0) {
    return [];
  }
  const attention = Array.from({ length: numTarget }, () => new Float64Array(numSource));
  wordOfToken.forEach((word, t) => {
    if (word >= 0) {
      const ofToken = new Float64Array(numSource);
      const means = layers.map((layer) => meanOverHeads(layer[t], sourceWords.length));
      sourceWords.forEach((sourceWord, s) => {
        const value = means.reduce((sum, mean) => sum + mean[s], 0);
        if (sourceWord >= 0) {
          ofToken[sourceWord] = Math.max(ofToken[sourceWord], value);
        }
      });
      ofToken.forEach((value, i) => {
        attention[word][i] += value;
      });
    }
  });
  return attention.map((row, target) => [row.indexOf(Math.max(...row)), target]);
}
