// Translates texts with transformers.js. Reads a JSON object from the standard input, and writes a JSON list of the
// translations of each batch to the standard output. With the argument --check, only looks for transformers.js.

const path = require("node:path");
const { createRequire } = require("node:module");

// Look for the package in the current folder and in the folders of NODE_PATH.
const library = createRequire(path.join(process.cwd(), "x"));
const name = library.resolve("@huggingface/transformers");

async function main() {
  const { env, pipeline } = library(name);
  const job = JSON.parse(require("node:fs").readFileSync(0, "utf-8"));
  env.allowRemoteModels = false;
  env.localModelPath = path.dirname(job.folder);
  const translator = await pipeline("translation", path.basename(job.folder), { dtype: job.dtype });
  const translations = [];
  for (const texts of job.batches) {
    const rows = await translator(texts);
    translations.push(rows.map((row) => row.translation_text));
  }
  process.stdout.write(JSON.stringify(translations));
}

if (!process.argv.includes("--check")) {
  main();
}
