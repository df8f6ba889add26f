// Repeats a recorded beam search (the class `SearchRecord` in explanation.py) with another temperature or
// length penalty. The search can select only recorded tokens. With the recorded settings, the result equals
// the recorded result.

function lengthDivisor(record, length, lengthPenalty) {
  const base = record.length_penalty_type === "gnmt" ? (5 + length) / 6 : length;
  return base ** lengthPenalty;
}

// Return for each node a list of the indices of its children, most probable child first.
function childrenOf(nodes) {
  const children = nodes.map(() => []);
  nodes.forEach((node, index) => {
    if (node.parent >= 0) children[node.parent].push(index);
  });
  return children;
}

// Search the recorded tree. Return an object with these fields:
//
// - `steps`: a list of the steps. Each step has the list `candidates`, best first. A candidate has a `node`,
//   the `sum` of its log-probabilities, and a `fate`: what happened to the candidate. The fate is "beam",
//   "finished", "dropped" or "unknown".
//   The fate "unknown" means that the recorded search did not continue this beam.
// - `finished`: the finished hypotheses, best first. A hypothesis has the fields `node`, `sum`, `length`,
//   `divisor`, `score` and `step`.
// - `numUnknown`: the number of beams with the fate "unknown".
function searchTree(record, temperature, lengthPenalty) {
  const { nodes } = record;
  const children = childrenOf(nodes);
  const finished = [];
  const steps = [];
  let numUnknown = 0;
  let beams = [{ node: 0, sum: 0 }];
  for (let length = 1; length <= record.limit && beams.length > 0; length++) {
    const candidates = beams
      .flatMap((beam) => continuations(record, beam, children[beam.node], temperature))
      .sort((a, b) => b.sum - a.sum)
      .slice(0, record.num_candidates);
    beams = [];
    candidates.forEach((candidate, rank) => {
      const hasEnded = length === record.limit || record.end_ids.includes(nodes[candidate.node].token);
      if (hasEnded && rank < record.num_beams) {
        candidate.fate = "finished";
        finished.push(finishedHypothesis(record, candidate, length, lengthPenalty));
      } else if (!hasEnded && beams.length < record.num_beams) {
        candidate.fate = "beam";
        beams.push(candidate);
      }
    });
    steps.push({ candidates });
    finished.sort((a, b) => b.score - a.score);
    if (isOver(record, beams, finished, length, lengthPenalty)) break;
    const unknown = beams.filter((beam) => nodes[beam.node].normalizers === null);
    unknown.forEach((beam) => (beam.fate = "unknown"));
    numUnknown += unknown.length;
    beams = beams.filter((beam) => beam.fate === "beam");
  }
  return { steps, finished, numUnknown };
}

// Return the recorded continuations of a beam, with sums of log-probabilities at `temperature`.
function continuations(record, beam, children, temperature) {
  const normalizers = record.nodes[beam.node].normalizers;
  const normalizer = normalizers[record.temperatures.indexOf(temperature)];
  return children.map((node) => ({
    node,
    sum: beam.sum + record.nodes[node].log_prob / temperature - normalizer,
    fate: "dropped",
  }));
}

function finishedHypothesis(record, candidate, length, lengthPenalty) {
  const divisor = lengthDivisor(record, length, lengthPenalty);
  const coverage = record.nodes[record.nodes[candidate.node].parent].coverage;
  const score = candidate.sum / divisor + (coverage === null ? 0 : record.coverage_penalty * coverage);
  return { node: candidate.node, sum: candidate.sum, length, divisor, score, step: length };
}

// Return true if the stopping rule (`SearchRecord`) ends the search after the step with the number `length`.
function isOver(record, beams, finished, length, lengthPenalty) {
  if (beams.length === 0) return true;
  if (record.stops_when_full && finished.length >= record.num_beams) return true;
  if (finished.length < record.num_counted) return false;
  const considered = record.considers_all_lengths && lengthPenalty > 0 ? record.limit : length;
  const bound = beams[0].sum / lengthDivisor(record, considered, lengthPenalty);
  return bound <= finished[record.num_counted - 1].score;
}

// Return the indices of the nodes of a hypothesis, from the first token to `node`. Leave out the root.
function pathTo(nodes, node) {
  const path = [];
  for (let index = node; nodes[index].parent >= 0; index = nodes[index].parent) path.push(index);
  return path.reverse();
}

// Return the text of the hypothesis that ends at `node`, without end tokens.
function hypothesisText(record, node) {
  const isEnd = (index) => record.end_ids.includes(record.nodes[index].token);
  const path = pathTo(record.nodes, node);
  const text = path.filter((index) => !isEnd(index)).map((index) => record.texts[record.nodes[index].token]);
  return text.join("").trim();
}

// Return the sum of the recorded log-probabilities of the hypothesis that ends at `node`.
function sumOf(nodes, node) {
  return pathTo(nodes, node).reduce((sum, index) => sum + nodes[index].log_prob, 0);
}

// Return the last node of the hypothesis with these token ids, or null if the tree has no such hypothesis.
function findNode(record, tokenIds) {
  const children = childrenOf(record.nodes);
  let node = 0;
  for (const id of tokenIds) {
    node = children[node].find((index) => record.nodes[index].token === id);
    if (node === undefined) return null;
  }
  return node;
}
