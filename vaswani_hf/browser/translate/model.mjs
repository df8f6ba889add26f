// Implements the Transformer of a checkpoint: the weights, the encoder and the decoder. The target tokens of
// all beams form a tree, so that beams with the same prefix share the nodes of the prefix. In comments, S is
// the number of source tokens, D the model width, H the number of heads, K the width of the keys of a head,
// and V the size of the target vocabulary. A matrix [n, m] is a Float32Array of n * m numbers in row-major
// order.

import { createMatrices } from "./matrix.mjs";

// Return a map from names to matrices and vectors of a safetensors file. An int8 matrix has a scale for each
// row.
export function readWeights(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const headerLength = Number(view.getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + headerLength)));
  const content = bytes.slice(8 + headerLength).buffer;
  const types = { F32: Float32Array, I8: Int8Array };
  const weights = new Map();
  const shapes = new Map();
  for (const [name, tensor] of Object.entries(header)) {
    if (name !== "__metadata__") {
      const [start, end] = tensor.data_offsets;
      const Type = types[tensor.dtype];
      weights.set(name, new Type(content, start, (end - start) / Type.BYTES_PER_ELEMENT));
      if (tensor.shape.length === 2) {
        shapes.set(name, tensor.shape);
      }
    }
  }
  for (const [name, matrix] of createMatrices(shapes)) {
    const values = weights.get(name);
    const scales = weights.get(`${name}.scale`);
    for (let row = 0; row < matrix.numRows; row++) {
      const scale = scales ? scales[row] : 1;
      const numbers = matrix.row(row);
      for (let i = 0; i < matrix.width; i++) {
        numbers[i] = values[row * matrix.width + i] * scale;
      }
    }
    weights.set(name, matrix);
  }
  return weights;
}

// The error function, with an error below 1.5e-7 (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26).
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const sum = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return Math.sign(x) * (1 - sum * Math.exp(-x * x));
}

const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const geluTanh = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
const ACTIVATIONS = {
  relu: (x) => (x > 0 ? x : 0),
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  gelu_new: geluTanh,
  gelu_pytorch_tanh: geluTanh,
  silu: (x) => x * sigmoid(x),
  swish: (x) => x * sigmoid(x),
  tanh: Math.tanh,
};

class Linear {
  constructor(weights, name) {
    this.weight = weights.get(`${name}.weight`);
    this.bias = weights.get(`${name}.bias`);
  }

  apply(inputs) {
    return this.weight.multiply(inputs, this.bias);
  }
}

class LayerNorm {
  constructor(weights, name, epsilon) {
    this.weight = weights.get(`${name}.weight`);
    this.bias = weights.get(`${name}.bias`);
    this.epsilon = epsilon;
  }

  apply(inputs) {
    const width = this.weight.length;
    const outputs = new Float32Array(inputs.length);
    for (let start = 0; start < inputs.length; start += width) {
      let mean = 0;
      for (let i = 0; i < width; i++) {
        mean += inputs[start + i];
      }
      mean /= width;
      let variance = 0;
      for (let i = 0; i < width; i++) {
        variance += (inputs[start + i] - mean) ** 2;
      }
      const factor = 1 / Math.sqrt(variance / width + this.epsilon);
      for (let i = 0; i < width; i++) {
        outputs[start + i] = (inputs[start + i] - mean) * factor * this.weight[i] + this.bias[i];
      }
    }
    return outputs;
  }
}

// A matrix to which rows can be appended.
class Rows {
  constructor(values = new Float32Array(0)) {
    this.values = values;
    this.length = values.length;
  }

  add(rows) {
    if (this.length + rows.length > this.values.length) {
      const larger = new Float32Array(2 * (this.length + rows.length));
      larger.set(this.values.subarray(0, this.length));
      this.values = larger;
    }
    this.values.set(rows, this.length);
    this.length += rows.length;
  }
}

// Implements multi-head attention (Section 3.2.2 of the paper) with scaled dot products.
class Attention {
  constructor(weights, name, numHeads) {
    this.numHeads = numHeads;
    this.queries = new Linear(weights, `${name}.q_proj`);
    this.keys = new Linear(weights, `${name}.k_proj`);
    this.values = new Linear(weights, `${name}.v_proj`);
    this.output = new Linear(weights, `${name}.out_proj`);
  }

  // Return the output [n, D]. Row i of `states` [n, D] attends to the rows `attended[i]` of the keys and
  // values in `memory`. If `recorded` is given, append the attention weights [H, attended[i].length] of each
  // row i.
  apply(states, memory, attended, recorded) {
    const numRows = attended.length;
    const queries = this.queries.apply(states);
    const widthOfKeys = this.queries.weight.numRows;
    const keyWidth = widthOfKeys / this.numHeads;
    const widthOfValues = this.output.weight.width;
    const valueWidth = widthOfValues / this.numHeads;
    const scaling = 1 / Math.sqrt(keyWidth);
    const keys = memory.keys.values;
    const values = memory.values.values;
    const mixed = new Float32Array(numRows * widthOfValues);
    for (let row = 0; row < numRows; row++) {
      const rows = attended[row];
      const number = rows.length;
      const weights = new Float64Array(this.numHeads * number);
      for (let head = 0; head < this.numHeads; head++) {
        const first = head * number;
        const query = row * widthOfKeys + head * keyWidth;
        for (let i = 0; i < number; i++) {
          const key = rows[i] * widthOfKeys + head * keyWidth;
          weights[first + i] = dot(queries, query, keys, key, keyWidth) * scaling;
        }
        softmax(weights, first, number);
        const place = row * widthOfValues + head * valueWidth;
        for (let i = 0; i < number; i++) {
          const weight = weights[first + i];
          const value = rows[i] * widthOfValues + head * valueWidth;
          for (let k = 0; k < valueWidth; k++) {
            mixed[place + k] += weight * values[value + k];
          }
        }
      }
      if (recorded) {
        recorded.push(weights);
      }
    }
    return this.output.apply(mixed);
  }
}

function dot(left, leftStart, right, rightStart, width) {
  let sum = 0;
  for (let k = 0; k < width; k++) {
    sum += left[leftStart + k] * right[rightStart + k];
  }
  return sum;
}

function softmax(values, start, number) {
  let largest = -Infinity;
  for (let i = start; i < start + number; i++) {
    largest = Math.max(largest, values[i]);
  }
  let sum = 0;
  for (let i = start; i < start + number; i++) {
    values[i] = Math.exp(values[i] - largest);
    sum += values[i];
  }
  for (let i = start; i < start + number; i++) {
    values[i] /= sum;
  }
}

// Implements a layer of the encoder or of the decoder.
class Layer {
  constructor(weights, name, config, stack) {
    const norm = (of) => new LayerNorm(weights, `${name}.${of}`, config.layer_norm_eps);
    const numHeads = config[`${stack}_attention_heads`];
    this.isPreNorm = config.norm_position === "pre";
    if (stack === "decoder" && config.norm_position_of_decoder) {
      this.isPreNorm = config.norm_position_of_decoder === "pre";
    }
    this.selfAttention = new Attention(weights, `${name}.self_attn`, numHeads);
    this.selfNorm = norm("self_attn_layer_norm");
    if (stack === "decoder") {
      this.crossAttention = new Attention(weights, `${name}.encoder_attn`, numHeads);
      this.crossNorm = norm("encoder_attn_layer_norm");
    }
    this.inner = new Linear(weights, `${name}.fc1`);
    this.outer = new Linear(weights, `${name}.fc2`);
    this.finalNorm = norm("final_layer_norm");
    this.activation = ACTIVATIONS[config.activation_function];
  }

  // Compute LayerNorm(x + f(x)) with post-norm, or x + f(LayerNorm(x)) with pre-norm.
  sublayer(states, norm, compute) {
    const output = compute(this.isPreNorm ? norm.apply(states) : states);
    for (let i = 0; i < output.length; i++) {
      output[i] += states[i];
    }
    return this.isPreNorm ? output : norm.apply(output);
  }

  feedForward(states) {
    return this.sublayer(states, this.finalNorm, (inputs) => {
      const inner = this.inner.apply(inputs);
      for (let i = 0; i < inner.length; i++) {
        inner[i] = this.activation(inner[i]);
      }
      return this.outer.apply(inner);
    });
  }
}

// Contains the token embeddings, the position embeddings and the layers of the encoder or of the decoder.
class Stack {
  constructor(weights, config, stack) {
    this.config = config;
    const ownName = `model.${stack}.embed_tokens.weight`;
    this.embeddings = weights.get(config.share_encoder_decoder_embeddings ? "model.shared.weight" : ownName);
    this.positions = weights.get(`model.${stack}.embed_positions.weight`);
    this.layers = [];
    for (let i = 0; i < config[`${stack}_layers`]; i++) {
      this.layers.push(new Layer(weights, `model.${stack}.layers.${i}`, config, stack));
    }
    const normName = `model.${stack}.layer_norm`;
    this.norm = weights.has(`${normName}.weight`) ? new LayerNorm(weights, normName, config.layer_norm_eps) : null;
  }

  // Return the states [n, D] before the first layer: embedding * sqrt(D) + position embedding (Section 3.4 of
  // the paper).
  embed(tokens, positions) {
    const width = this.config.d_model;
    const scale = this.config.scale_embedding ? Math.sqrt(width) : 1;
    const states = new Float32Array(tokens.length * width);
    tokens.forEach((token, row) => {
      const embedding = this.embeddings.row(token);
      for (let i = 0; i < width; i++) {
        const position = this.position(positions[row], i);
        states[row * width + i] = embedding[i] * scale + position;
      }
    });
    return states;
  }

  // Return feature number `i` of the embedding of a position (Section 3.5 of the paper).
  position(position, i) {
    const { d_model: width, position_embedding, position_offset, position_timescales } = this.config;
    if (position_embedding === "learned") {
      return this.positions.row(position)[i];
    }
    if (position_embedding === "none") {
      return 0;
    }
    const pair = i - (i % 2);
    const divisor = position_timescales === "paper" ? width : Math.max(width - 2, 1);
    const angle = (position + position_offset) * Math.pow(10000, -pair / divisor);
    return i % 2 ? Math.cos(angle) : Math.sin(angle);
  }

  finish(states) {
    return this.norm ? this.norm.apply(states) : states;
  }
}

export class Model {
  // `config` has the fields of config.json, and `weights` is the result of `readWeights`.
  constructor(config, weights) {
    this.config = config;
    this.encoder = new Stack(weights, config, "encoder");
    this.decoder = new Stack(weights, config, "decoder");
    this.head = new Linear(weights, "lm_head");
    if (config.tie_word_embeddings) {
      this.head.weight = this.decoder.embeddings;
    }
    this.vocabularySize = this.head.weight.numRows;
  }

  // Return the output [S, D] of the encoder. If `recorded` is given, append a list for each layer: the
  // attention weights [H, S] of each token.
  encode(tokens, recorded) {
    const numRows = tokens.length;
    const all = Int32Array.from(tokens.keys());
    const attended = tokens.map(() => all);
    let states = this.encoder.embed(tokens, all);
    for (const layer of this.encoder.layers) {
      const weights = recorded ? [] : null;
      const attention = layer.selfAttention;
      states = layer.sublayer(states, layer.selfNorm, (inputs) => {
        const memory = {
          keys: new Rows(attention.keys.apply(inputs)),
          values: new Rows(attention.values.apply(inputs)),
        };
        return attention.apply(inputs, memory, attended, weights);
      });
      states = layer.feedForward(states);
      if (recorded) {
        recorded.push(weights);
      }
    }
    return this.encoder.finish(states);
  }

  // Return the logits [n, V] of the next tokens for the output states [n, D] of the decoder.
  logits(states) {
    return this.head.apply(states);
  }
}

// Runs the decoder. Beams with the same prefix share the keys and values of the nodes of the prefix.
export class Decoder {
  constructor(model, source, numSourceTokens) {
    this.model = model;
    this.layers = model.decoder.layers;
    this.source = Int32Array.from(Array(numSourceTokens).keys());
    // For each layer: the keys and values of the source tokens, and the keys and values of the nodes.
    this.sourceMemories = this.layers.map(({ crossAttention }) => ({
      keys: new Rows(crossAttention.keys.apply(source)),
      values: new Rows(crossAttention.values.apply(source)),
    }));
    this.memories = this.layers.map(() => ({ keys: new Rows(), values: new Rows() }));
    // `paths[i]` contains the indices of the nodes from the root to node i. Node i is the last entry.
    this.paths = [];
  }

  // Read n tokens. `parents[i]` is the index of the node before token i, possibly a token of the same call,
  // or -1. Return the states [n, D] and the indices of the new nodes. If `recorded` is given, append a list
  // for each layer to `recorded.self` and `recorded.cross`: the attention weights [H, number of attended
  // tokens] of each token.
  read(tokens, parents, recorded) {
    const numRows = tokens.length;
    const nodes = tokens.map((token, i) => {
      const path = parents[i] < 0 ? [] : this.paths[parents[i]];
      return this.paths.push(Int32Array.of(...path, this.paths.length)) - 1;
    });
    const attended = nodes.map((node) => this.paths[node]);
    const sources = nodes.map(() => this.source);
    const stack = this.model.decoder;
    let states = stack.embed(
      tokens,
      attended.map((path) => path.length - 1),
    );
    this.layers.forEach((layer, i) => {
      const ofSelf = recorded ? [] : null;
      const ofCross = recorded ? [] : null;
      const { selfAttention, crossAttention } = layer;
      states = layer.sublayer(states, layer.selfNorm, (inputs) => {
        this.memories[i].keys.add(selfAttention.keys.apply(inputs));
        this.memories[i].values.add(selfAttention.values.apply(inputs));
        return selfAttention.apply(inputs, this.memories[i], attended, ofSelf);
      });
      states = layer.sublayer(states, layer.crossNorm, (inputs) =>
        crossAttention.apply(inputs, this.sourceMemories[i], sources, ofCross),
      );
      states = layer.feedForward(states);
      if (recorded) {
        recorded.self.push(ofSelf);
        recorded.cross.push(ofCross);
      }
    });
    return { states: stack.finish(states), nodes };
  }
}
