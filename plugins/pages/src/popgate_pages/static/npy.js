/** Tensors as `.npy`, the smallest way to send one that is large. */

const KINDS = {
  FP32: ["<f4", Float32Array], FP64: ["<f8", Float64Array],
  INT8: ["|i1", Int8Array], INT16: ["<i2", Int16Array], INT32: ["<i4", Int32Array],
  UINT8: ["|u1", Uint8Array], UINT16: ["<u2", Uint16Array], UINT32: ["<u4", Uint32Array],
};

export function canBeNpy(datatype) {
  return datatype in KINDS;
}

/** The bytes of a file with these numbers. */
export function npy(datatype, shape, numbers) {
  const [descr, Kind] = KINDS[datatype];
  const tuple = shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`;
  let head = `{'descr': '${descr}', 'fortran_order': False, 'shape': ${tuple}, }`;
  head += " ".repeat(63 - ((10 + head.length) % 64)) + "\n";
  const size = [head.length & 255, head.length >> 8];
  return new Blob([new Uint8Array([0x93, 78, 85, 77, 80, 89, 1, 0, ...size]), head, Kind.from(numbers)]);
}
