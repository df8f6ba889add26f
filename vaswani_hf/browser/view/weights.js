// Decodes attention weights, and computes the weights between words.

// Decode stored weights (the class `Weights` in explanation.py) to numbers from 0 to 1 in row-major order.
function decodeWeights(stored) {
  const bytes = Uint8Array.from(atob(stored.data), (character) => character.charCodeAt(0));
  const integers = new DataView(bytes.buffer);
  const values = new Float64Array(bytes.length / 2);
  for (let i = 0; i < values.length; i++) {
    values[i] = integers.getUint16(2 * i, true) / 65535;
  }
  return { shape: stored.shape, values };
}

// Return the attention weights of one head as an array of rows.
function headMatrix(weights, layer, head) {
  const [, numHeads, numRows, numColumns] = weights.shape;
  const first = (layer * numHeads + head) * numRows * numColumns;
  const rows = [];
  for (let row = 0; row < numRows; row++) {
    const start = first + row * numColumns;
    rows.push(Array.from(weights.values.subarray(start, start + numColumns)));
  }
  return rows;
}

function meanMatrix(matrices) {
  return matrices[0].map((row, r) =>
    row.map((_, c) => matrices.reduce((sum, matrix) => sum + matrix[r][c], 0) / matrices.length),
  );
}

// Return the attention weights between groups of tokens, such as words: the sum of the attention to the
// tokens, and the mean of the attention of the tokens. Each row of the result adds up to 1.
function groupMatrix(matrix, rowGroups, columnGroups) {
  return rowGroups.map((rows) =>
    columnGroups.map((columns) => {
      let sum = 0;
      for (let row = rows.start; row < rows.stop; row++) {
        for (let column = columns.start; column < columns.stop; column++) {
          sum += matrix[row][column];
        }
      }
      return sum / (rows.stop - rows.start);
    }),
  );
}

// Return a group for each token. A hyphen before a text means that the token continues a word.
function tokenGroups(tokens) {
  return tokens.map((token, index) => ({
    text: tokenLabel(token.text, index === 0),
    start: index,
    stop: index + 1,
  }));
}

// Return the text that the page shows for a token.
function tokenLabel(text, isFirst) {
  const continuesWord = !isFirst && /^[\p{L}\p{N}]/u.test(text);
  return continuesWord ? `-${text}` : text.trim() || "␣";
}
