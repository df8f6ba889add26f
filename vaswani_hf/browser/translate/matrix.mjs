// Computes matrix products in float32. The products run in WebAssembly with SIMD instructions, because the
// output projection takes eight times as long in JavaScript (scripts/benchmarks/browser.md).
//
// In comments, a matrix [n, m] is a Float32Array of n * m numbers in row-major order. The class `Matrix` is a
// weight matrix in the memory of WebAssembly. Each row of a `Matrix` is padded with zeros to a multiple of 4
// numbers, because each SIMD instruction computes 4 products.

const LANES = 4;
const BYTES = 4;
const PAGE = 65536;
// The number of input rows that one call of the WebAssembly function multiplies.
const BLOCK = 4;

function padded(width) {
  return Math.ceil(width / LANES) * LANES;
}

function section(id, content) {
  return [id, ...leb(content.length), ...content];
}

// Encode a number of at most 14 bits in the format LEB128.
function leb(number) {
  return number < 128 ? [number] : [(number & 127) | 128, number >> 7];
}

// Return the bytes of the WebAssembly module. The module imports the memory "m"."m", and exports this
// function:
//
//     k(x, w, y, width, columns, stride)
//
// The function computes y[i][j] = sum over k of x[i][k] * w[j][k] for 4 rows i of y and for all columns j of
// y. `x`, `w` and `y` are addresses, and `columns` is the number of columns of y. `width` is the length in
// bytes of a row of x and of a row of w. `stride` is the length in bytes of a row of y.
function kernelModule() {
  const [x, w, y, width, columns, stride, twice, thrice, place, end] = Array(10).keys();
  const sums = [10, 11, 12, 13];
  const four = 14;
  const get = (local) => [0x20, local];
  const set = (local) => [0x21, local];
  const add = [0x6a];
  const constant = (number) => [0x41, number];
  const load = [0xfd, 0x00, 4, 0];
  const addFour = [0xfd, 0xe4, 0x01];
  const multiplyFour = [0xfd, 0xe6, 0x01];
  const increase = (local, amount) => [...get(local), ...amount, ...add, ...set(local)];
  const offsets = [[], get(width), get(twice), get(thrice)];
  const accumulate = (sum, offset) => [
    ...get(sum),
    ...get(four),
    ...get(place),
    ...(offset.length ? [...offset, ...add] : []),
    ...load,
    ...multiplyFour,
    ...addFour,
    ...set(sum),
  ];
  const lane = (sum, number) => [...get(sum), 0xfd, 0x1f, number];
  const addFloats = [0x92];
  const total = (sum) => [
    ...[...lane(sum, 0), ...lane(sum, 1), ...addFloats],
    ...[...lane(sum, 2), ...lane(sum, 3), ...addFloats],
    ...addFloats,
  ];
  const store = [0x38, 2, 0];
  const body = [
    ...[...get(width), ...get(width), ...add, ...set(twice)],
    ...[...get(twice), ...get(width), ...add, ...set(thrice)],
    // loop over the columns
    ...[0x03, 0x40],
    // sums = 0
    ...sums.flatMap((sum) => [...constant(0), 0xfd, 0x11, ...set(sum)]),
    // end = w + width; place = x
    ...[...get(w), ...get(width), ...add, ...set(end)],
    ...[...get(x), ...set(place)],
    // loop over 4 features at a time
    ...[0x03, 0x40],
    ...[...get(w), ...load, ...set(four)],
    ...sums.flatMap((sum, i) => accumulate(sum, offsets[i])),
    ...increase(place, constant(16)),
    ...increase(w, constant(16)),
    // repeat if w < end
    ...[...get(w), ...get(end), 0x49, 0x0d, 0, 0x0b],
    // Store the four sums in four rows.
    ...get(y),
    ...set(place),
    ...sums.flatMap((sum) => [...get(place), ...total(sum), ...store, ...increase(place, get(stride))]),
    ...increase(y, constant(4)),
    // columns = columns - 1; repeat if columns is not 0
    ...[...get(columns), ...constant(1), 0x6b, 0x22, columns, 0x0d, 0, 0x0b],
    0x0b,
  ];
  const i32 = 0x7f;
  const v128 = 0x7b;
  const code = [...[2, 4, i32, 5, v128], ...body];
  return Uint8Array.from([
    ...[0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00],
    ...section(1, [1, 0x60, 6, ...Array(6).fill(i32), 0]),
    ...section(2, [1, 1, 0x6d, 1, 0x6d, 2, 0, 1]),
    ...section(3, [1, 0]),
    ...section(7, [1, 1, 0x6b, 0, 0]),
    ...section(10, [1, ...leb(code.length), ...code]),
  ]);
}

// A weight matrix [numRows, width].
export class Matrix {
  constructor(kernel, address, numRows, width) {
    this.kernel = kernel;
    this.address = address;
    this.numRows = numRows;
    this.width = width;
    this.rowLength = padded(width);
    this.values = new Float32Array(kernel.memory.buffer, address, numRows * this.rowLength);
  }

  row(number) {
    return this.values.subarray(number * this.rowLength, number * this.rowLength + this.width);
  }

  // Return `inputs` [n, width] times the transposed matrix, plus `bias` [numRows] if given: a matrix [n, numRows].
  multiply(inputs, bias) {
    const { kernel, width, rowLength, numRows } = this;
    const number = inputs.length / width;
    const outputs = new Float32Array(number * numRows);
    for (let first = 0; first < number; first += BLOCK) {
      const size = Math.min(BLOCK, number - first);
      for (let i = 0; i < size; i++) {
        const start = (first + i) * width;
        kernel.inputs.set(inputs.subarray(start, start + width), i * rowLength);
        kernel.inputs.fill(0, i * rowLength + width, (i + 1) * rowLength);
      }
      kernel.run(this.address, rowLength * BYTES, numRows);
      outputs.set(kernel.outputs.subarray(0, size * numRows), first * numRows);
    }
    if (bias) {
      for (let i = 0, column = 0; i < outputs.length; i++) {
        outputs[i] += bias[column];
        column = column + 1 === numRows ? 0 : column + 1;
      }
    }
    return outputs;
  }
}

// Create matrices that contain zeros. `shapes` maps the name of each matrix to its shape [numRows, width].
export function createMatrices(shapes) {
  const sizes = [...shapes.values()];
  const largest = (index) => Math.max(1, ...sizes.map((shape) => padded(shape[index])));
  const inputSize = BLOCK * largest(1);
  const outputSize = BLOCK * largest(0);
  let address = BYTES * (inputSize + outputSize);
  const total = sizes.reduce((sum, [rows, width]) => sum + BYTES * rows * padded(width), address);
  const memory = new WebAssembly.Memory({ initial: Math.ceil(total / PAGE) });
  const { exports } = new WebAssembly.Instance(new WebAssembly.Module(kernelModule()), { m: { m: memory } });
  const kernel = {
    memory,
    inputs: new Float32Array(memory.buffer, 0, inputSize),
    outputs: new Float32Array(memory.buffer, BYTES * inputSize, outputSize),
    run: (weight, width, columns) => exports.k(0, weight, BYTES * inputSize, width, columns, BYTES * columns),
  };
  const matrices = new Map();
  for (const [name, [rows, width]] of shapes) {
    matrices.set(name, new Matrix(kernel, address, rows, width));
    address += BYTES * rows * padded(width);
  }
  return matrices;
}
