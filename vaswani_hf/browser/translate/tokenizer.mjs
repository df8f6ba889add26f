// Implements a byte-level BPE tokenizer that reads the tokenizer.json of a checkpoint.
// vaswani_hf/convert/html_page.py refuses settings in tokenizer.json that this script does not implement.

// SPACE contains the white space characters that match `\s` in the Rust crate `regex`. PYTHON_SPACE contains
// the characters for which `str.isspace` of Python is true.
const SPACE = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
export const PYTHON_SPACE = `\\x1c-\\x1f${SPACE}`;

// The pre-tokenizer "ByteLevel" of the library `tokenizers` splits a text with this pattern (byte_level.rs).
const WORDS = new RegExp(
  `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+|[${SPACE}]+(?![^${SPACE}])|[${SPACE}]+`,
  "gu",
);
const LEADING_SPACE = new RegExp(`^[${PYTHON_SPACE}]+`, "u");
const OUTER_SPACE = new RegExp(`^[${PYTHON_SPACE}]+|[${PYTHON_SPACE}]+$`, "gu");
const SPACES = new RegExp(`[${PYTHON_SPACE}]+`, "u");
const IS_SPACE = new RegExp(`[${PYTHON_SPACE}]`, "u");

// Remove white space at both ends of a text, as `str.strip` of Python does.
export function strip(text) {
  return text.replace(OUTER_SPACE, "");
}

// Remove white space at the beginning of a text, as `str.lstrip` of Python does.
export function stripLeft(text) {
  return text.replace(LEADING_SPACE, "");
}

// Return the words of a text, as `str.split` of Python does.
export function splitWords(text) {
  return text.split(SPACES).filter((word) => word);
}

// Return the index of the word at (or after) each character position in `starts`, or -1 after the last word.
export function wordsAt(text, starts) {
  const ended = [0];
  for (let i = 0; i < text.length; i++) {
    const isEnd = !IS_SPACE.test(text[i]) && (i + 1 === text.length || IS_SPACE.test(text[i + 1]));
    ended.push(ended[i] + (isEnd ? 1 : 0));
  }
  const total = ended[text.length];
  return starts.map((start) => (start >= 0 && ended[start] < total ? ended[start] : -1));
}

// A byte-level vocabulary writes each byte as one visible character, as in GPT-2.
const CHARACTER_OF_BYTE = [];
const BYTE_OF_CHARACTER = new Map();
for (let byte = 0, next = 256; byte < 256; byte++) {
  const isVisible = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  CHARACTER_OF_BYTE.push(String.fromCharCode(isVisible ? byte : next++));
  BYTE_OF_CHARACTER.set(CHARACTER_OF_BYTE[byte], byte);
}

const NORMALIZERS = {
  NFC: (text) => text.normalize("NFC"),
  NFD: (text) => text.normalize("NFD"),
  NFKC: (text) => text.normalize("NFKC"),
  NFKD: (text) => text.normalize("NFKD"),
  // The library `tokenizers` lowercases each character separately: a final Greek sigma becomes "σ", not "ς".
  Lowercase: (text) => Array.from(text, (character) => character.toLowerCase()).join(""),
  Prepend: (text, { prepend }) => (text ? prepend + text : text),
};

// Return the steps of a component of tokenizer.json, such as the normalizer: one step, or a "Sequence".
function parts(value, name) {
  if (value === null) {
    return [];
  }
  return value.type === "Sequence" ? value[name].flatMap((part) => parts(part, name)) : [value];
}

function escaped(text) {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}

export class Tokenizer {
  // `file` is the content of tokenizer.json, and `settings` has the fields `split_special_tokens` and
  // `model_max_length` of tokenizer_config.json.
  constructor(file, settings) {
    this.normalizers = parts(file.normalizer, "normalizers");
    this.preTokenizer = file.pre_tokenizer;
    this.decoders = parts(file.decoder, "decoders");
    this.ids = new Map(Object.entries(file.model.vocab));
    this.ranks = new Map(file.model.merges.map((pair, rank) => [pair.join(" "), rank]));
    this.ignoreMerges = file.model.ignore_merges;
    this.entries = [];
    for (const [entry, id] of this.ids) {
      this.entries[id] = entry;
    }
    this.special = new Set();
    this.added = new Map();
    const found = [];
    for (const token of file.added_tokens) {
      this.entries[token.id] = token.content;
      this.added.set(token.content, token);
      if (token.special) {
        this.special.add(token.id);
      }
      if (!token.special || !settings.split_special_tokens) {
        found.push(token);
      }
    }
    // The library `tokenizers` finds the longest added token.
    found.sort((left, right) => right.content.length - left.content.length);
    const patterns = found.map(
      (token) =>
        `${token.lstrip ? `[${SPACE}]*` : ""}${escaped(token.content)}${token.rstrip ? `[${SPACE}]*` : ""}`,
    );
    this.addedPattern = patterns.length ? new RegExp(`(${patterns.join("|")})`, "gu") : null;
    // Maps the tag of each target language, such as ">>de<<", to its token id.
    this.tags = new Map();
    for (const token of found) {
      if (!token.special && /^>>\S+?<<$/u.test(token.content)) {
        this.tags.set(token.content, token.id);
      }
    }
    const template = file.post_processor ? file.post_processor.single : [{ Sequence: {} }];
    const place = template.findIndex((part) => "Sequence" in part);
    const idsOf = (part) => file.post_processor.special_tokens[part.SpecialToken.id].ids;
    this.before = template.slice(0, place).flatMap(idsOf);
    this.after = template.slice(place + 1).flatMap(idsOf);
    this.maxLength = settings.model_max_length;
    this.cache = new Map();
  }

  // Return the token ids of a text, and the index of the word of each token; -1 for special tokens. Without
  // `bare`, add special tokens before and after the text.
  encode(text, { bare = false } = {}) {
    const ids = [];
    const words = [];
    let numWords = 0;
    // The result of `split` contains the matches of the pattern at odd indices.
    const pieces = this.addedPattern ? text.split(this.addedPattern) : [text];
    for (const [place, piece] of pieces.entries()) {
      if (place % 2) {
        ids.push(this.added.get(strip(piece)).id);
        words.push(numWords);
        numWords += 1;
      } else if (piece) {
        numWords += this.encodePiece(piece, numWords, ids, words);
      }
    }
    if (bare) {
      return { ids, words };
    }
    const none = (part) => part.map(() => -1);
    return {
      ids: [...this.before, ...ids, ...this.after],
      words: [...none(this.before), ...words, ...none(this.after)],
    };
  }

  // Encode a text without added tokens: append to `ids` and `words`, and return the number of words of the
  // text.
  encodePiece(text, numWords, ids, words) {
    let normalized = text;
    for (const step of this.normalizers) {
      normalized = NORMALIZERS[step.type](normalized, step);
    }
    if (this.preTokenizer.add_prefix_space && !normalized.startsWith(" ")) {
      normalized = ` ${normalized}`;
    }
    const pieces = this.preTokenizer.use_regex ? normalized.match(WORDS) || [] : [normalized];
    const starts = [];
    let place = 0;
    for (const piece of pieces) {
      const bytes = new TextEncoder().encode(piece);
      const placeOfByte = characterOfEachByte(piece);
      let byte = 0;
      for (const entry of this.split(bytes)) {
        ids.push(this.ids.get(entry));
        starts.push(place + placeOfByte[byte]);
        byte += entry.length;
      }
      place += piece.length;
    }
    for (const word of wordsAt(normalized, starts)) {
      words.push(word < 0 ? -1 : numWords + word);
    }
    return splitWords(normalized).length;
  }

  // Divide the bytes of a word into entries of the vocabulary. Repeatedly merge the neighbouring pair of
  // entries with the lowest rank.
  split(bytes) {
    const characters = Array.from(bytes, (byte) => CHARACTER_OF_BYTE[byte]);
    const word = characters.join("");
    const known = this.cache.get(word);
    if (known) {
      return known;
    }
    let entries = characters;
    if (this.ignoreMerges && this.ids.has(word)) {
      entries = [word];
    }
    while (entries.length > 1) {
      let lowest = Infinity;
      let place = -1;
      for (let i = 0; i + 1 < entries.length; i++) {
        const rank = this.ranks.get(`${entries[i]} ${entries[i + 1]}`);
        if (rank < lowest) {
          lowest = rank;
          place = i;
        }
      }
      if (place < 0) {
        break;
      }
      entries.splice(place, 2, entries[place] + entries[place + 1]);
    }
    this.cache.set(word, entries);
    return entries;
  }

  // Return the vocabulary entry of a token id. The model can have more classes than the vocabulary has entries.
  entryOf(id) {
    return this.entries[id] ?? "";
  }

  // Convert token ids to text. Leave out special tokens.
  decode(ids) {
    let tokens = ids.filter((id) => !this.special.has(id)).map((id) => this.entryOf(id));
    for (const step of this.decoders) {
      if (step.type === "ByteLevel") {
        tokens = [decodeBytes(tokens.flatMap(bytesOf))];
      } else if (step.type === "Replace") {
        tokens = tokens.map((token) => token.replaceAll(step.pattern.String, step.content));
      } else {
        tokens = tokens.map((token) => withoutStart(token, step));
      }
    }
    return tokens.join("");
  }

  // Return the text of each token. The bytes of an incomplete character become escapes such as "\xe2".
  texts(ids) {
    return ids.map((id) => {
      const entry = this.entryOf(id);
      return this.added.has(entry) ? entry : escapeBytes(bytesOf(entry));
    });
  }

  // Return the words of a translation, and the index of the word of each token; -1 for special tokens.
  wordsOf(ids) {
    const text = this.decode(ids);
    const starts = ids.map((id, i) => {
      if (this.special.has(id)) {
        return -1;
      }
      const begun = this.decode(ids.slice(0, i));
      let common = 0;
      while (common < begun.length && begun[common] === text[common]) {
        common += 1;
      }
      return common;
    });
    return { words: splitWords(text), wordOfToken: wordsAt(text, starts) };
  }
}

// Return for each byte of a UTF-8 text the position of the character that contains the byte.
function characterOfEachByte(text) {
  const places = [];
  let place = 0;
  for (const character of text) {
    const numBytes = new TextEncoder().encode(character).length;
    for (let i = 0; i < numBytes; i++) {
      places.push(place);
    }
    place += character.length;
  }
  return places;
}

// Return the bytes of an entry of the vocabulary. An entry with other characters is plain text.
function bytesOf(entry) {
  const characters = Array.from(entry);
  if (characters.every((character) => BYTE_OF_CHARACTER.has(character))) {
    return characters.map((character) => BYTE_OF_CHARACTER.get(character));
  }
  return Array.from(new TextEncoder().encode(entry));
}

function decodeBytes(bytes) {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
}

function escapeBytes(bytes) {
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  let text = "";
  let place = 0;
  while (place < bytes.length) {
    let numBytes = 0;
    for (let length = 1; length <= 4 && numBytes === 0 && place + length <= bytes.length; length++) {
      try {
        text += decoder.decode(Uint8Array.from(bytes.slice(place, place + length)));
        numBytes = length;
      } catch {
        // The bytes are not a complete UTF-8 character, so try again with one more byte.
      }
    }
    if (numBytes === 0) {
      text += `\\x${bytes[place].toString(16).padStart(2, "0")}`;
      numBytes = 1;
    }
    place += numBytes;
  }
  return text;
}

function withoutStart(token, { content, start }) {
  let text = token;
  for (let i = 0; i < start && text.startsWith(content); i++) {
    text = text.slice(content.length);
  }
  return text;
}
