// Divides texts into sentences and detects loops, with the rules of vaswani_hf/model/text_rules_vaswani.py. The
// export copies the lists of words, the patterns and the numbers of text_rules_vaswani.py into the page.

import { PYTHON_SPACE, splitWords, strip, stripLeft } from "./tokenizer.mjs";

// Convert a regular expression of Python. `\s`, `\w` and `\d` must be outside of brackets.
function fromPython(pattern, flags) {
  const classes = { s: `[${PYTHON_SPACE}]`, w: "[\\p{L}\\p{N}_]", d: "\\p{Nd}" };
  const source = pattern.replaceAll("(?P<", "(?<").replace(/\\([swd])/g, (_, letter) => classes[letter]);
  return new RegExp(source, flags);
}

// Return a text for comparisons without case, as `str.casefold` of Python does.
function fold(text) {
  return Array.from(text, (character) => character.toUpperCase().toLowerCase()).join("");
}

// Remove characters at the beginning of a text, as `str.lstrip` of Python does.
function stripStart(text, characters) {
  let start = 0;
  while (start < text.length && characters.includes(text[start])) {
    start += 1;
  }
  return text.slice(start);
}

// Remove characters at the end of a text, as `str.rstrip` of Python does.
function stripEnd(text, characters) {
  let stop = text.length;
  while (stop > 0 && characters.includes(text[stop - 1])) {
    stop -= 1;
  }
  return text.slice(0, stop);
}

// For each length of a unit (in symbols), return the length and the largest number of equal adjacent units.
function repeatsOf(symbols, longestUnit) {
  const repeats = [];
  const longest = Math.min(Math.floor(symbols.length / 2), longestUnit);
  for (let length = 1; length <= longest; length++) {
    let run = 0;
    let longestRun = 0;
    for (let i = 0; i + length < symbols.length; i++) {
      run = symbols[i] === symbols[i + length] ? run + 1 : 0;
      longestRun = Math.max(longestRun, run);
    }
    repeats.push({ length, count: 1 + Math.floor(longestRun / length) });
  }
  return repeats;
}

export class TextRules {
  // `rules` is the JSON object that `page_text_rules` of vaswani_hf/convert/html_page.py returns.
  constructor(rules) {
    this.rules = rules;
    const { words, patterns } = rules;
    this.words = Object.fromEntries(Object.entries(words).map(([name, list]) => [name, new Set(list)]));
    this.lineBreak = fromPython(patterns.line_break, "gu");
    this.candidate = fromPython(patterns.candidate, "gu");
    this.spacedAbbreviation = fromPython(patterns.spaced_abbreviation, "iu");
    this.ordinal = fromPython(`^(?:${patterns.ordinal})$`, "u");
    this.initial = fromPython(`^(?:${patterns.initial})$`, "u");
    this.wordCharacters = fromPython("^\\w*", "u");
  }

  // Return the N sentences of a text and the N + 1 separators around the sentences.
  split(text) {
    const sentences = [];
    const separators = [""];
    let position = 0;
    for (const lineBreak of [...text.matchAll(this.lineBreak), null]) {
      const end = lineBreak ? lineBreak.index : text.length;
      for (const [sentence, separator] of this.splitLine(text.slice(position, end))) {
        if (sentence) {
          sentences.push(sentence);
          separators.push(separator);
        } else {
          separators[separators.length - 1] += separator;
        }
      }
      if (lineBreak) {
        separators[separators.length - 1] += lineBreak[0];
        position = end + lineBreak[0].length;
      }
    }
    return { sentences, separators };
  }

  hasWords(text) {
    return /[\p{L}\p{N}]/u.test(text);
  }

  // Move each sentence without letters and digits into the separator before the sentence.
  copySymbols({ sentences, separators }) {
    const kept = [];
    const around = separators.slice(0, 1);
    sentences.forEach((sentence, i) => {
      if (this.hasWords(sentence)) {
        kept.push(sentence);
        around.push(separators[i + 1]);
      } else {
        around[around.length - 1] += sentence + separators[i + 1];
      }
    });
    return { sentences: kept, separators: around };
  }

  // Join N translated sentences and the N + 1 separators around the sentences.
  join(sentences, separators) {
    let text = separators[0];
    sentences.forEach((sentence, i) => {
      text += sentence + this.separatorAfter(i, sentence, separators);
    });
    return text;
  }

  // Return the text between the translated sentence with the index `i` and the next sentence. If no white space
  // follows the sentence inside the text, add a space before the separator, unless the sentence ends with a
  // Chinese or Japanese full stop.
  separatorAfter(i, sentence, separators) {
    const separator = separators[i + 1];
    const isEnd = !separator && i + 2 === separators.length;
    const isGlued = !isEnd && stripLeft(separator.slice(0, 1)) === separator.slice(0, 1);
    const last = stripEnd(sentence, this.rules.wide_closing).slice(-1);
    const endsWide = last !== "" && this.rules.wide_stops.includes(last);
    const space = isGlued && sentence && !endsWide ? " " : "";
    return space + separator;
  }

  // Return the sentences of a line, each with the white space that follows the sentence.
  splitLine(line) {
    let start = line.length - stripLeft(line).length;
    const pieces = [["", line.slice(0, start)]];
    const hasCase = line !== line.toLowerCase();
    // `ends` contains at most three positions: the last three of the start of the sentence and the ends of the
    // refused candidates. The text from `ends[0]` to the next candidate contains the last two words before the
    // candidate.
    let ends = [start];
    for (const candidate of line.matchAll(this.candidate)) {
      const end = candidate.index + candidate[0].length;
      if (end === line.length) {
        break;
      }
      const isWide = candidate.groups.wide !== undefined;
      const space = isWide ? candidate.groups.wide : candidate.groups.space;
      const before = line.slice(ends[0], candidate.index);
      if (isWide || this.isBoundary(before, candidate.groups, line.slice(end), hasCase)) {
        pieces.push([line.slice(start, end - space.length), space]);
        start = end;
        ends = [];
      }
      ends = [...ends, end].slice(-3);
    }
    const rest = strip(line.slice(start));
    pieces.push([rest, line.slice(start + rest.length)]);
    return pieces;
  }

  // Return true if a sentence ends at a match of `candidate`. `before` is the text directly before the match.
  // `before` contains at least the last two words of the sentence, or the whole sentence if the sentence has
  // only one word.
  isBoundary(before, { stop, close }, after, hasCase) {
    const { opening } = this.rules;
    const following = stripStart(after, `${opening} `);
    if (/^\p{Lowercase}/u.test(following) && (hasCase || close)) {
      return false;
    }
    if (stop !== ".") {
      return true;
    }
    const parts = splitWords(before);
    const word = parts.length ? stripStart(parts[parts.length - 1], opening) : "";
    const previous = parts.length > 1 ? parts[parts.length - 2].toLowerCase() : "";
    const next = this.wordCharacters.exec(following)[0].toLowerCase();
    if (this.words.abbreviations.has(word.toLowerCase()) || this.spacedAbbreviation.test(before)) {
      return false;
    }
    if (this.words.before_numbers.has(word.toLowerCase()) && /^\p{Nd}/u.test(next)) {
      return false;
    }
    if (this.ordinal.test(word)) {
      const isOrdinal = this.words.before_ordinals.has(previous) || this.words.after_ordinals.has(next);
      return Boolean(previous) && !isOrdinal;
    }
    if (word === "I" && previous) {
      return true;
    }
    return !this.initial.test(word) || this.words.sentence_starters.has(next);
  }

  // Return true if a translation repeats a word or phrase in a row much more often than its source.
  isLoop(translation, source) {
    const { punctuation, word_repeats, phrase_repeats, characters_of_loop, longest_unit } = this.rules;
    const words = splitWords(translation);
    const folded = words.map((word) => stripEnd(stripStart(fold(word), punctuation), punctuation) || word);
    let most = 0;
    for (const { length, count } of repeatsOf(folded, longest_unit)) {
      if (count >= (length === 1 ? word_repeats : phrase_repeats)) {
        most = Math.max(most, count);
      }
    }
    for (const word of words) {
      for (const { length, count } of repeatsOf(Array.from(word), longest_unit)) {
        if (count * length >= characters_of_loop && count >= word_repeats) {
          most = Math.max(most, count);
        }
      }
    }
    return most > 0 && most > 2 * this.mostRepeats(source);
  }

  // Return the largest number of times that a unit is repeated in a row in the source.
  mostRepeats(source) {
    const folded = splitWords(fold(source));
    const characters = Array.from(folded.join(""));
    const letters = characters.filter((character) => /[\p{L}\p{N}]/u.test(character));
    const { longest_unit: longestUnit } = this.rules;
    const counts = [1];
    for (const symbols of [characters, letters]) {
      for (const { length, count } of repeatsOf(symbols, longestUnit)) {
        if (length * count > 2) {
          counts.push(count);
        }
      }
    }
    for (const { count } of repeatsOf(folded, longestUnit)) {
      counts.push(count);
    }
    return Math.max(...counts);
  }

  // Return the `no_repeat_ngram_size` for the second translation of a text whose first translation is a loop.
  ngramSize(source) {
    return splitWords(source).length <= this.rules.short_text ? 2 : 3;
  }
}
