// What the canvas components share; written in front of the JavaScript of each by wire.py.

const LOG_FLOOR = 1e-4;
const NAN_PIXEL = 0xffc800ff; // ABGR of #ff00c8

// Take a message of wire.py apart: header, colour table, `count(header)` floats, and what is left.
function parse(bytes, count) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const headerLength = view.getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + headerLength)));
  let at = 4 + headerLength;
  const table = bytes.subarray(at, (at += 768));
  const floats = new Float32Array(count(header));
  for (let i = 0; i < floats.length; i++) floats[i] = view.getFloat32(at + 4 * i, true);
  return { header, table, floats, rest: bytes.subarray(at + 4 * floats.length) };
}

function element(tag, className, parent) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (parent) parent.append(node);
  return node;
}

