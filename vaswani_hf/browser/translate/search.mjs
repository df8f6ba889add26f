// Implements beam search for one sentence. The search follows the same rules as
// vaswani_hf/model/beam_search_vaswani.py.
//
// In comments, K is the number of beams and V the size of the target vocabulary.

// The stopping rule uses this score for a finished hypothesis that does not exist yet.
const MISSING = -1e9;

// Return the maximum number of new tokens in the translation of a source with `sourceLength` tokens. The function
// states the same rule as `max_new_tokens_of` in vaswani_hf/model/length_limits_vaswani.py. `promptLength` is the
// number of tokens in the prompt, and `numPositions` the number of tokens that the decoder can read.
export function maxNewTokens(settings, sourceLength, promptLength, numPositions) {
  const { max_new_tokens, max_length } = settings;
  let { max_length_a: a, max_length_b: b } = settings;
  const isSet = (value) => value !== null && value !== undefined;
  const limits = [Math.max(1, numPositions - promptLength + 1)];
  if (isSet(max_new_tokens)) {
    limits.push(max_new_tokens);
  } else if (isSet(max_length)) {
    limits.push(max_length - promptLength);
  }
  if (![max_new_tokens, max_length, a, b].some(isSet)) {
    // The default limit is "input length + 50" (Section 6.1 of the paper).
    a = 1;
    b = 50;
  }
  if (isSet(a) || isSet(b)) {
    // Add 1e-6 before rounding down, because 0.29 * 100 is a little less than 29 in floating point.
    limits.push(Math.max(1, Math.floor((a ?? 0) * sourceLength + (b ?? 0) + 1e-6)));
  }
  return Math.min(...limits);
}

// Return ((5 + length) / 6)^penalty for the type "gnmt" (Wu et al. 2016, Equation 14), else length^penalty.
function lengthPenalty(length, settings) {
  const base = settings.length_penalty_type === "gnmt" ? (5 + length) / 6 : length;
  return base ** settings.length_penalty;
}

// Return the sum of log(min(coverage, 1)) over the source tokens (Wu et al. 2016, Equation 14).
export function coverageScore(coverage) {
  const smallest = 2 ** -126;
  return coverage.reduce((sum, value) => sum + Math.log(Math.min(Math.max(value, smallest), 1)), 0);
}

// Return the score of a hypothesis, as `penalized_score` in model/search_strategies_vaswani.py computes it. The
// argument `coverage` is null if the search has no coverage penalty.
export function penalizedScore(logProb, length, coverage, settings) {
  const score = logProb / lengthPenalty(length, settings);
  return coverage ? score + settings.coverage_penalty * coverageScore(coverage) : score;
}

// Return log(sum(exp(logits / temperature))) over the `number` logits that begin at index `start`.
export function logSumExp(logits, start, number, temperature = 1) {
  let largest = -Infinity;
  for (let i = start; i < start + number; i++) {
    largest = logits[i] > largest ? logits[i] : largest;
  }
  let sum = 0;
  for (let i = start; i < start + number; i++) {
    sum += Math.exp((logits[i] - largest) / temperature);
  }
  return largest / temperature + Math.log(sum);
}

// Return the hypothesis that adds a token to a beam.
export function continuation(beam, token, logProb) {
  return { parent: beam, token, score: beam.score + logProb, logProb };
}

// Return the `number` best continuations of all beams, best first. `logits` [K, V] are the logits of the next
// tokens, and `normalizers` [K] their `logSumExp`. The search must not select the token `excluded`.
export function bestContinuations(logits, beams, normalizers, number, excluded) {
  const numClasses = logits.length / beams.length;
  const best = [];
  beams.forEach((beam, k) => {
    const first = k * numClasses;
    let lowest = best.length < number ? -Infinity : best[number - 1].score;
    for (let token = 0; token < numClasses; token++) {
      const logProb = logits[first + token] - normalizers[k];
      const score = beam.score + logProb;
      if (score > lowest && token !== excluded) {
        let place = best.length;
        while (place > 0 && best[place - 1].score < score) {
          place -= 1;
        }
        best.splice(place, 0, continuation(beam, token, logProb));
        if (best.length > number) {
          best.pop();
        }
        lowest = best.length < number ? -Infinity : best[number - 1].score;
      }
    }
  });
  return best;
}

// Return the token ids of a hypothesis, without the prompt.
export function tokensOf(hypothesis) {
  const tokens = [];
  for (let last = hypothesis; last.parent; last = last.parent) {
    tokens.push(last.token);
  }
  return tokens.reverse();
}

export function logProbsOf(hypothesis) {
  const logProbs = [];
  for (let last = hypothesis; last.parent; last = last.parent) {
    logProbs.push(last.logProb);
  }
  return logProbs.reverse();
}

// The fields of a hypothesis: `parent` is the hypothesis without its last token, or null for the prompt.
// `token` is the id of the last token, and `logProb` its log-probability. `score` is the sum of all
// log-probabilities. After the decoder has read the token, `node` is the node of the token in the decoder,
// and `coverage` is the coverage of each source token.
export class BeamSearch {
  // `limit` is the maximum number of new tokens. `settings` has fields of the generation config. `onStep`
  // receives the object at the end of `step` after each step. Its `logits` [K, V] and `normalizers` [K]
  // belong to the beams `before` the step. `entering` are the hypotheses that have finished at the step, and
  // `beams` the beams after the step.
  constructor(model, decoder, prompt, { settings, limit, ends, excluded, onStep = null }) {
    this.model = model;
    this.decoder = decoder;
    this.prompt = prompt;
    this.settings = settings;
    this.limit = limit;
    this.ends = new Set(ends);
    this.excluded = excluded;
    this.onStep = onStep;
    this.numBeams = settings.num_beams;
    this.numCandidates = Math.max(2, 1 + ends.length) * this.numBeams;
    // Greedy search is a beam search with one beam that stops at the first end token, as in
    // beam_search_vaswani.py.
    this.stopsWhenFull = settings.early_stopping === true || this.numBeams === 1;
    const isGnmt = settings.length_penalty_type === "gnmt";
    this.considersAllLengths =
      !this.stopsWhenFull && (settings.early_stopping === "never" || (isGnmt && settings.early_stopping === false));
    // With `no_repeat_ngram_size`, a longer translation may exceed the highest score with which the stopping
    // rule compares. Therefore the search continues while any of the `num_beams` best translations may
    // improve.
    const isExact = this.considersAllLengths && !settings.no_repeat_ngram_size;
    this.numCounted = isExact ? settings.num_return_sequences : this.numBeams;
    this.beams = [{ parent: null, token: null, score: 0, logProb: 0, node: -1 }];
    this.numSteps = 0;
    this.finished = [];
    this.isOver = false;
  }

  step() {
    const logits = this.numSteps === 0 ? this.readPrompt() : this.readBeams();
    const numClasses = logits.length / this.beams.length;
    const normalizers = this.beams.map((beam, k) => logSumExp(logits, k * numClasses, numClasses));
    if (normalizers.some((normalizer) => !Number.isFinite(normalizer))) {
      throw new Error("The logits of the model are NaN or infinite: the weights of the model are damaged.");
    }
    this.forbidRepetition(logits);
    const { entering, beams } = this.select(logits, normalizers);
    this.numSteps += 1;
    const before = this.beams;
    for (const candidate of entering) {
      const score = penalizedScore(candidate.score, this.numSteps, candidate.parent.coverage, this.settings);
      this.finished.push({ hypothesis: candidate, score });
    }
    this.finished.sort((left, right) => right.score - left.score);
    this.finished.length = Math.min(this.finished.length, this.numBeams);
    this.beams = beams;
    this.isOver = this.beams.length === 0 || this.isFinal();
    if (this.onStep) {
      this.onStep({ search: this, before, logits, normalizers, entering, beams, step: this.numSteps });
    }
  }

  // Return the candidates of a step that end (`entering`), and those that become beams (`beams`), best first.
  select(logits, normalizers) {
    const best = bestContinuations(logits, this.beams, normalizers, this.numCandidates, this.excluded);
    const hasEnded = (candidate) => this.ends.has(candidate.token) || this.numSteps + 1 >= this.limit;
    return {
      entering: best.slice(0, this.numBeams).filter(hasEnded),
      beams: best.filter((candidate) => !hasEnded(candidate)).slice(0, this.numBeams),
    };
  }

  // Forbid each token that would repeat an n-gram (`no_repeat_ngram_size`).
  forbidRepetition(logits) {
    const size = this.settings.no_repeat_ngram_size;
    if (!size) {
      return;
    }
    const numClasses = logits.length / this.beams.length;
    this.beams.forEach((beam, k) => {
      const tokens = this.tokensOf(beam);
      const last = tokens.length - size + 1;
      for (let start = 0; start < last; start++) {
        if (tokens.slice(last).every((token, i) => token === tokens[start + i])) {
          logits[k * numClasses + tokens[start + size - 1]] = -Infinity;
        }
      }
    });
  }

  // Return the token ids of a hypothesis, including the prompt.
  tokensOf(hypothesis) {
    return [...this.prompt, ...tokensOf(hypothesis)];
  }

  // Return true if the stopping rule ends the search.
  isFinal() {
    if (this.stopsWhenFull && this.finished.length === this.numBeams) {
      return true;
    }
    const worst = this.finished.length < this.numCounted ? MISSING : this.finished[this.numCounted - 1].score;
    const isLimit = this.considersAllLengths && this.settings.length_penalty > 0;
    const length = isLimit ? this.limit : this.numSteps;
    return penalizedScore(this.beams[0].score, length, null, this.settings) <= worst;
  }

  // A generator that runs the search, and yields after each step.
  *steps() {
    while (!this.isOver) {
      this.step();
      yield;
    }
  }

  // Read the prompt, and return the logits [1, V] of the next token.
  readPrompt() {
    const first = this.decoder.paths.length;
    const parents = this.prompt.map((token, i) => (i === 0 ? -1 : first + i - 1));
    const { states, nodes } = this.read(this.prompt, parents, this.prompt.map(() => this.beams[0]));
    this.beams[0].node = nodes[nodes.length - 1];
    return this.model.logits(states.subarray(states.length - states.length / nodes.length), 1);
  }

  // Read the last token of each beam, and return the logits [K, V] of the next tokens.
  readBeams() {
    const tokens = this.beams.map((beam) => beam.token);
    const parents = this.beams.map((beam) => beam.parent.node);
    const { states, nodes } = this.read(tokens, parents, this.beams);
    this.beams.forEach((beam, k) => {
      beam.node = nodes[k];
    });
    return this.model.logits(states, nodes.length);
  }

  // Read tokens with the decoder. With a coverage penalty, add the cross-attention of each token to the
  // coverage.
  read(tokens, parents, hypotheses) {
    if (!this.settings.coverage_penalty) {
      return this.decoder.read(tokens, parents);
    }
    const recorded = { self: [], cross: [] };
    const result = this.decoder.read(tokens, parents, recorded);
    const ofLastLayer = recorded.cross[recorded.cross.length - 1];
    hypotheses.forEach((hypothesis, i) => {
      const attention = meanOverHeads(ofLastLayer[i], this.decoder.source.length);
      const before = hypothesis.coverage || (hypothesis.parent && hypothesis.parent.coverage);
      hypothesis.coverage = before ? attention.map((value, place) => value + before[place]) : attention;
    });
    return result;
  }
}

// Return the mean [n] of attention weights [H, n] over the heads.
export function meanOverHeads(weights, number) {
  const mean = new Float64Array(number);
  const numHeads = weights.length / number;
  for (let i = 0; i < weights.length; i++) {
    mean[i % number] += weights[i] / numHeads;
  }
  return mean;
}
