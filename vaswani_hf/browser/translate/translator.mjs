// Translates texts. The class `Translator` follows the same rules as vaswani_hf/model/translator_vaswani.py.

import { Decoder, Model, readWeights } from "./model.mjs";
import { OWN_OPTIONS, checkArguments } from "./options.mjs";
import { PhraseSearch, contains, fitPhrases, numTokens, repeatsNgram, searchPhrases } from "./phrases.mjs";
import {
  BeamSearch,
  logProbsOf,
  logSumExp,
  maxNewTokens,
  meanOverHeads,
  penalizedScore,
  tokensOf,
} from "./search.mjs";
import { TextRules } from "./text_rules.mjs";
import { Tokenizer, splitWords, strip, stripLeft, wordsAt } from "./tokenizer.mjs";

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
    this.textRules = new TextRules(settings.text_rules);
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

  // Return a list of translations, best first, with the fields of the Python class `Translation`. A wrong
  // argument is a TypeError. `options` may contain search settings of `generate`, such as `num_beams`, and
  // these options: `target_prefix` is a text that the translation must begin with. `must_contain` is a list
  // of phrases that the translation must contain; the field `unmet_phrases` of a translation has the missing
  // phrases, or null. If `split_sentences` is true, each sentence is translated separately. If
  // `repetition_guard` is true, a sentence is translated again, without repetition, if its translation
  // repeats itself in a loop.
  translate(text, options = {}) {
    const job = this.begin(text, options);
    while (!job.isOver) {
      job.step();
    }
    return job.result();
  }

  // Return a `Job`. The caller must call its method `step` until `isOver` is true, and then `result`. A page
  // can handle events between two steps.
  begin(text, options = {}) {
    checkArguments(text, options);
    return new Job(this, text, options);
  }

  // Return a `Decoder` for source tokens. Several searches can use the same decoder.
  decoder(sourceIds) {
    return new Decoder(this.model, this.model.encode(sourceIds), sourceIds.length);
  }

  // Return a `BeamSearch`. The translation must begin with the token ids `forced`, and must contain the
  // phrases (lists of token ids).
  search(decoder, forced, settings, { phrases = [], onStep = null } = {}) {
    const prompt = [this.start, ...forced];
    const limit = Math.max(1, maxNewTokens(settings, decoder.source.length, prompt.length, this.maxPositions));
    const options = { settings, limit, ends: this.ends, excluded: this.excluded, onStep };
    if (phrases.length === 0) {
      return new BeamSearch(this, decoder, prompt, options);
    }
    const fitting = fitPhrases(phrases, prompt, limit);
    if (fitting === null) {
      throw new RangeError(
        `\`must_contain\` has phrases of ${numTokens(phrases)} tokens, and the translation has room for at most ` +
          `${limit}; give fewer phrases.`,
      );
    }
    return new PhraseSearch(this, decoder, prompt, fitting, options);
  }

  // Return the search settings: the default settings of the page, replaced by the given options.
  settingsOf(options) {
    const settings = { ...this.defaults };
    for (const [name, value] of Object.entries(options)) {
      if (value !== undefined && value !== null && !OWN_OPTIONS.includes(name)) {
        settings[name] = value;
      }
    }
    if (options.max_new_tokens) {
      settings.max_length = null;
    }
    if (settings.num_return_sequences > settings.num_beams) {
      throw new RangeError(
        `\`num_return_sequences\` must be at most \`num_beams\`, which is ${settings.num_beams}, but is ` +
          `${settings.num_return_sequences}.`,
      );
    }
    return settings;
  }

  // Divide a text into segments that are translated separately. Return the N segments, and the N + 1 separators
  // before, between and after the translations of the segments. A segment has a text, token ids (`ids`), and the
  // index of the word of each token (`words`), counted from the beginning of the text.
  layout(text, splitsSentences, isConstrained) {
    const tag = this.tagOf(strip(text));
    const { sentences, separators } = this.sentences(text, tag, splitsSentences, isConstrained);
    let position = text.length - withoutTag(text, tag).length;
    const starts = sentences.map((sentence, i) => {
      const start = position + separators[i].length;
      position = start + withoutTag(sentence, tag).length;
      return start;
    });
    const firstWords = wordsAt(text, starts);
    const segments = [];
    const between = separators.slice(0, 1);
    sentences.forEach((sentence, i) => {
      const { ids, words } = this.sourceTokenizer.encode(sentence);
      const start = sentence.length - withoutTag(sentence, tag).length;
      const shift = firstWords[i] - wordsAt(sentence, [start])[0];
      const shifted = words.map((word) => (word >= 0 ? word + shift : -1));
      if (tag) {
        shifted[0] = i === 0 ? words[0] : -1;
      }
      const pieces = this.cut({ text: sentence, ids, words: shifted });
      segments.push(...pieces);
      between.push(...Array(pieces.length - 1).fill(" "), separators[i + 1]);
    });
    return { segments, separators: between };
  }

  // Return the sentences of a text, and the separators. Repeat the tag of the target language before each
  // sentence. Unless the translation `isConstrained` by a target prefix or phrases, sentences without letters
  // and digits belong to the separators.
  sentences(text, tag, splitsSentences, isConstrained) {
    const untagged = withoutTag(text, tag);
    const isBlank = strip(untagged) === "";
    if (isBlank || !(isConstrained || this.textRules.hasWords(untagged))) {
      return { sentences: [], separators: [splitsSentences ? untagged : strip(untagged)] };
    }
    if (!splitsSentences) {
      return { sentences: [strip(text)], separators: ["", ""] };
    }
    const split = this.textRules.split(untagged);
    const { sentences, separators } = isConstrained ? split : this.textRules.copySymbols(split);
    return { sentences: sentences.map((sentence) => (tag ? `${tag} ${sentence}` : sentence)), separators };
  }

  // Return the tag of the target language at the beginning of a text, such as ">>en<<", or an empty text.
  tagOf(text) {
    const found = /^>>\S+?<</u.exec(text);
    return found && this.sourceTokenizer.tags.has(found[0]) ? found[0] : "";
  }

  // Divide a segment into pieces of at most `maxLength` tokens.
  cut(segment) {
    const { ids, words } = segment;
    if (ids.length <= this.maxLength) {
      return [segment];
    }
    const ends = this.sourceTokenizer.after;
    const own = ids.slice(0, ids.length - ends.length);
    const tags = [...this.sourceTokenizer.tags.values()].includes(own[0]) ? own.slice(0, 1) : [];
    // The number of tokens of a piece without the tag and without `</s>`.
    const room = this.maxLength - ends.length - tags.length;
    if (room < 1) {
      throw new Error(`The model can read at most ${this.maxLength} tokens, which is too few for a text.`);
    }
    const pieces = [];
    let start = tags.length;
    while (start < own.length) {
      let stop = Math.min(start + room, own.length);
      if (stop < own.length) {
        // End the piece between two words. If a single word fills the piece, divide the word.
        let boundary = stop;
        while (boundary > start && words[boundary] === words[boundary - 1]) {
          boundary -= 1;
        }
        stop = boundary > start ? boundary : stop;
      }
      const tagWords = tags.map(() => (pieces.length ? -1 : words[0]));
      pieces.push({
        text: this.sourceTokenizer.decode(own.slice(start, stop)),
        ids: [...tags, ...own.slice(start, stop), ...ends],
        words: [...tagWords, ...words.slice(start, stop), ...ends.map(() => -1)],
      });
      start = stop;
    }
    return pieces;
  }

  // Return the log-probabilities of a given translation and, if `withCoverage`, the coverage of the source.
  logProbs(sourceIds, targetIds, withCoverage = false) {
    const decoder = this.decoder(sourceIds);
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

  prefixIds(prefix) {
    return prefix ? this.targetTokenizer.encode(prefix, { bare: true }).ids : [];
  }

  // Return the token ids of a phrase inside a sentence, where a space precedes the phrase.
  phraseIds(phrase) {
    // Tokenize the phrase together with a word before the phrase, and remove the tokens of the word.
    const word = this.prefixIds("a");
    const ids = this.prefixIds(`a ${strip(phrase)}`);
    const beginsWithWord = word.every((token, i) => ids[i] === token);
    return beginsWithWord ? ids.slice(word.length) : this.prefixIds(strip(phrase));
  }

  // Return the logits [n, V] of the next tokens, without the excluded token.
  logits(states, numRows) {
    return withoutToken(this.model.logits(states), numRows, this.excluded);
  }

  // Return the attention weights of all layers and heads, and the output states of the decoder.
  attention(sourceIds, decoderInput) {
    const encoder = [];
    const decoder = new Decoder(this.model, this.model.encode(sourceIds, encoder), sourceIds.length);
    const recorded = { self: [], cross: [] };
    const { states } = decoder.read(decoderInput, chain(decoderInput), recorded);
    return { encoder, ...recorded, states };
  }
}

// Return the parent of each token of a sequence: the index of the previous token, or -1 for the first token.
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
  constructor(translator, text, options) {
    this.translator = translator;
    this.settings = translator.settingsOf(options);
    this.guardsRepetition = Boolean(options.repetition_guard);
    this.prefix = strip(options.target_prefix || "");
    this.phrases = options.must_contain || [];
    const isConstrained = this.prefix !== "" || this.phrases.length > 0;
    const { segments, separators } = translator.layout(text, options.split_sentences, isConstrained);
    this.segments = segments.map((segment) => ({ ...segment, prefix: "", phrases: [] }));
    this.separators = separators;
    this.results = [];
    if (this.segments.length > 0) {
      this.constrain();
    }
    this.remaining = this.run();
    this.step();
  }

  // Assign each phrase to the first segment that contains it, for example a name, or else to the longest
  // segment.
  constrain() {
    this.segments[0].prefix = this.prefix;
    const lengths = this.segments.map((segment) => Array.from(segment.text).length);
    const longest = this.segments[lengths.indexOf(Math.max(...lengths))];
    for (const phrase of this.phrases) {
      const segment = this.segments.find(({ text }) => text.includes(phrase)) || longest;
      segment.phrases.push({ text: phrase, ids: this.translator.phraseIds(phrase) });
    }
  }

  step() {
    this.isOver = this.remaining.next().done;
  }

  // A generator that translates the segments, and yields after each step of a search.
  *run() {
    for (const segment of this.segments) {
      let found = yield* this.searched(segment, this.settings);
      const size = this.translator.textRules.ngramSize(segment.text);
      const mayMend = !segment.phrases.some(({ ids }) => repeatsNgram(ids, size));
      if (this.guardsRepetition && mayMend && this.isLoop(segment, found[0])) {
        const mended = yield* this.searched(segment, { ...this.settings, no_repeat_ngram_size: size });
        if (!this.isLoop(segment, mended[0]) && mended[0].unmet === null) {
          found = mended;
        }
      }
      this.results.push(found.map((hypothesis) => this.translation(segment, hypothesis)));
    }
  }

  // Return objects with the hypothesis, its token ids, its text and its missing phrases.
  *searched(segment, settings) {
    const { translator } = this;
    const forced = translator.prefixIds(segment.prefix);
    const decoder = translator.decoder(segment.ids);
    const makeSearch = (phrases) => translator.search(decoder, forced, settings, { phrases });
    const phrases = segment.phrases.map(({ ids }) => ids);
    const search = yield* searchPhrases(makeSearch, phrases, settings.num_return_sequences);
    if (search.finished.length === 0) {
      throw new Error(
        "No translation was found, because at some step every token is forbidden by `no_repeat_ngram_size`.",
      );
    }
    return search.finished.slice(0, settings.num_return_sequences).map(({ hypothesis }) => {
      const tokenIds = [...forced, ...tokensOf(hypothesis)];
      const decoded = translator.targetTokenizer.decode(tokenIds);
      // The translation of a line must be one line.
      const text = segment.text.includes("\n") ? decoded : decoded.replaceAll("\n", " ");
      const isMissing = (phrase) => !contains(tokenIds, phrase.ids) && !text.includes(strip(phrase.text));
      const unmet = segment.phrases.filter(isMissing).map((phrase) => phrase.text);
      return { hypothesis, forced, tokenIds, text, unmet: unmet.length ? unmet : null };
    });
  }

  isLoop(segment, { text }) {
    const phrases = segment.phrases.map((phrase) => phrase.text);
    const source = [segment.text, segment.prefix, ...phrases].join(" ");
    return this.translator.textRules.isLoop(text, source);
  }

  translation(segment, { hypothesis, forced, tokenIds, text, unmet }) {
    const { translator, settings } = this;
    const tokenizer = translator.targetTokenizer;
    const ownIds = tokensOf(hypothesis);
    const logProbs = logProbsOf(hypothesis);
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
    const coverage = settings.coverage_penalty ? coverageOf(cross.at(-1), segment.ids.length) : null;
    const score = penalizedScore(logProb, Math.max(1, logProbs.length), coverage, settings);
    return {
      text,
      score,
      log_prob: logProb,
      confidence: Math.exp(logProb / Math.max(1, logProbs.length)),
      tokens: tokenizer.texts(ownIds),
      token_log_probs: logProbs,
      words: words.map((word, i) => ({ word, confidence: Math.exp(wordLogProbs[i]) })),
      alignment: align(cross.slice(-ALIGNMENT_LAYERS), segment.words, wordOfToken),
      token_ids: tokenIds,
      unmet_phrases: unmet,
    };
  }

  // Return the translations of the text, best first. Translation i joins translation i of each segment.
  result() {
    const { textRules } = this.translator;
    if (this.results.length === 0) {
      const unmet = this.phrases.filter((phrase) => !this.prefix.includes(phrase));
      const text = this.prefix || this.separators[0];
      return Array.from({ length: this.settings.num_return_sequences }, () => blank(text, unmet));
    }
    const number = Math.min(...this.results.map((of) => of.length));
    return Array.from({ length: number }, (_, rank) =>
      joined(this.results.map((of) => of[rank]), this.separators, textRules),
    );
  }
}

// Return a text without the language tag at its beginning, and without the white space around the tag.
function withoutTag(text, tag) {
  return tag ? stripLeft(stripLeft(text).slice(tag.length)) : text;
}

// Return the words of a text that is copied instead of translated.
function copiedWords(text) {
  return splitWords(text).map((word) => ({ word, confidence: 1 }));
}

function blank(text, unmet) {
  const words = copiedWords(text);
  const scores = { score: 0, log_prob: 0, confidence: 1, tokens: [], token_log_probs: [] };
  return { text, ...scores, words, alignment: [], token_ids: [], unmet_phrases: unmet.length ? unmet : null };
}

function joined(translations, separators, textRules) {
  const sum = (name) => translations.reduce((total, part) => total + part[name], 0);
  const concatenated = (name) => translations.flatMap((part) => part[name]);
  const logProbs = concatenated("token_log_probs");
  const { words, firstWords } = joinedWords(translations, separators, textRules);
  return {
    text: textRules.join(translations.map((part) => part.text), separators),
    score: sum("score"),
    log_prob: sum("log_prob"),
    confidence: Math.exp(sum("log_prob") / Math.max(1, logProbs.length)),
    tokens: concatenated("tokens"),
    token_log_probs: logProbs,
    words,
    alignment: joinedAlignment(translations, firstWords),
    token_ids: concatenated("token_ids"),
    unmet_phrases: translations.every((part) => part.unmet_phrases === null)
      ? null
      : translations.flatMap((part) => part.unmet_phrases || []),
  };
}

// Return the words of the joined text, and for each part the index of its first word. Without white space
// between two parts, the confidence of the word at the joint is the product of the confidences of both parts of
// the word.
function joinedWords(parts, separators, textRules) {
  let text = separators[0];
  const starts = parts.map((part, i) => {
    const start = text.length;
    const ofPart = part.words.map(({ word }) => word).join(" ");
    text += ofPart + textRules.separatorAfter(i, ofPart, separators);
    return start;
  });
  const firstWords = wordsAt(text, starts);
  const words = copiedWords(text);
  parts.forEach((part, i) => {
    part.words.forEach(({ confidence }, number) => {
      words[firstWords[i] + number].confidence *= confidence;
    });
  });
  return { words, firstWords };
}

// Return the alignment of a text that was translated in parts. Two sentences without white space between them can
// have the same source word and the same target word: write such a pair once.
function joinedAlignment(parts, firstWords) {
  const pairs = new Map();
  parts.forEach((part, i) => {
    for (const [source, target] of part.alignment) {
      const pair = [source, target + firstWords[i]];
      pairs.set(pair.join("-"), pair);
    }
  });
  return [...pairs.values()];
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

// Return [source word, target word] for each target word: the source word with the highest attention. The
// attention to a source word is the maximum over its tokens. The attention of a target word is the sum over
// its tokens.
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
