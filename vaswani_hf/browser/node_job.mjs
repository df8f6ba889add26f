// vaswani_hf/convert/html_engine.py starts this script in Node.js to run the model of an exported HTML page.
// The script reads a JSON object from the standard input, and writes a JSON list to the standard output.

import { readFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const job = JSON.parse(readFileSync(0, "utf-8"));
const { explain, readPage } = await import(pathToFileURL(path.join(job.folder, "vaswani.mjs")));
const translator = readPage(readFileSync(path.join(job.folder, "index.html"), "utf-8"));
const results = {
  translate: () => job.texts.map((text) => translator.translate(text, job.options)),
  logProbs: () => job.source_ids.map((ids, i) => translator.logProbs(ids, job.target_ids[i]).logProbs),
  encode: () => job.texts.map((text) => translator.sourceTokenizer.encode(text).ids),
  explain: () => Promise.all(job.texts.map((text) => explain(translator, text, job.options))),
  split: () => job.texts.map((text) => translator.textRules.split(text)),
  isLoop: () => job.texts.map((text, i) => translator.textRules.isLoop(text, job.sources[i])),
  decode: () => job.token_ids.map((ids) => translator.targetTokenizer.decode(ids)),
};
process.stdout.write(JSON.stringify(await results[job.method]()));
