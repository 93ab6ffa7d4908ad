// Paints the message of large_map/__init__.py: one map with its tokens, a crosshair with the exact value, and a zoom.
// Drag over a region with the mouse to see it alone, double-click to see all again. Arrow keys move the crosshair.

const ALL_LABELLED = 24; // tokens up to which every one has its label
const FEW_LABELS = 9;
const maps = new WeakMap();

class LargeMap {
  constructor(root) {
    this.root = root;
    this.title = element("div", "title", root);
    const plot = element("div", "plot", root);
    element("div", "corner", plot).textContent = "query ↓ key →";
    this.columns = element("div", "labels columns", plot);
    this.rows = element("div", "labels rows", plot);
    this.map = element("div", "map", plot);
    this.canvas = element("canvas", "", this.map);
    this.across = element("div", "line across", this.map);
    this.down = element("div", "line down", this.map);
    this.region = element("div", "region", this.map);
    this.readout = element("div", "readout", root);
    this.readout.setAttribute("aria-live", "polite");
    this.map.setAttribute("role", "img");
    this.map.tabIndex = 0;
    this.map.onpointermove = (event) => this.onMove(event);
    this.map.onpointerleave = () => this.point(null);
    this.map.onpointerdown = (event) => this.onDown(event);
    this.map.onpointerup = (event) => this.onUp(event);
    this.map.ondblclick = () => this.zoom(null);
    this.map.onkeydown = (event) => this.onKey(event);
  }

  update(bytes) {
    const before = this.header;
    const { header, table, floats: values, rest: hidden } = parse(bytes, ({ rows, columns }) => rows * columns);
    Object.assign(this, { header, table, values, hidden });
    const { rows, columns, title } = header;
    if (!before || before.rows !== rows || before.columns !== columns) this.view = { top: 0, left: 0, rows, columns };
    this.cursor = null;
    this.title.textContent = title;
    this.map.setAttribute("aria-label", `${title}. Arrow keys move the crosshair.`);
    this.paint();
    this.root.dataset.painted = String(Number(this.root.dataset.painted || 0) + 1);
  }

  // Where a value lies on the colour ramp, 0 to 1.
  place(value) {
    const [from, to] = this.header.range;
    if (this.header.scale === "log") return 1 - Math.log(Math.max(value, LOG_FLOOR)) / Math.log(LOG_FLOOR);
    return to > from ? (value - from) / (to - from) : 0.5;
  }

  paint() {
    const { top, left, rows, columns } = this.view;
    if (this.canvas.width !== columns || this.canvas.height !== rows) Object.assign(this.canvas, { width: columns, height: rows });
    const context = this.canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    const pixels = new Uint32Array(image.data.buffer);
    for (let row = 0, at = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++, at++) {
        const from = (top + row) * this.header.columns + left + column;
        if (this.hidden[from]) continue; // transparent: the ground shows that it is hidden
        const value = this.values[from];
        const colour = 3 * Math.round(255 * Math.max(0, Math.min(1, this.place(value))));
        pixels[at] = Number.isNaN(value) ? NAN_PIXEL : 0xff000000 | (this.table[colour + 2] << 16) | (this.table[colour + 1] << 8) | this.table[colour];
      }
    }
    context.putImageData(image, 0, 0);
    this.map.style.aspectRatio = `${columns} / ${Math.max(rows, columns / 4)}`;
    this.label(this.rows, this.header.q, top, rows, "top");
    this.label(this.columns, this.header.k, left, columns, "left");
    this.point(this.cursor);
  }

  label(parent, words, first, count, side) {
    const step = count <= ALL_LABELLED ? 1 : Math.ceil(count / FEW_LABELS);
    const nodes = parent.children;
    const shown = Math.ceil(count / step);
    while (nodes.length > shown) parent.lastChild.remove();
    while (nodes.length < shown) element("span", "", parent).dir = "auto";
    for (let i = 0; i < shown; i++) {
      const text = words[first + i * step];
      if (nodes[i].textContent !== text) nodes[i].textContent = text;
      nodes[i].style[side] = `${((i * step + 0.5) / count) * 100}%`;
    }
  }

  cellAt(event) {
    const box = this.map.getBoundingClientRect();
    const cell = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
    return {
      row: cell((event.clientY - box.top) / box.height, this.view.rows),
      column: cell((event.clientX - box.left) / box.width, this.view.columns),
    };
  }

  onMove(event) {
    const cell = this.cellAt(event);
    this.point(cell);
    if (this.start) this.drawRegion(this.start, cell);
  }

  onDown(event) {
    if (event.pointerType !== "mouse" || event.button) return; // a finger scrolls the page
    this.start = this.cellAt(event);
    this.map.setPointerCapture(event.pointerId);
  }

  onUp(event) {
    const start = this.start;
    this.start = null;
    this.region.style.display = "none";
    if (!start) return;
    const end = this.cellAt(event);
    const rows = Math.abs(end.row - start.row) + 1, columns = Math.abs(end.column - start.column) + 1;
    if (rows < 2 || columns < 2) return; // a click
    this.zoom({ top: this.view.top + Math.min(start.row, end.row), left: this.view.left + Math.min(start.column, end.column), rows, columns });
  }

  zoom(view) {
    this.view = view || { top: 0, left: 0, rows: this.header.rows, columns: this.header.columns };
    this.cursor = null;
    this.paint();
  }

  drawRegion(start, end) {
    const { rows, columns } = this.view;
    const share = (from, to, count) => [`${(Math.min(from, to) / count) * 100}%`, `${((Math.abs(from - to) + 1) / count) * 100}%`];
    const [top, height] = share(start.row, end.row, rows);
    const [left, width] = share(start.column, end.column, columns);
    Object.assign(this.region.style, { top, left, width, height, display: "block" });
  }

  onKey(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    const { row, column } = this.cursor || { row: 0, column: 0 };
    const clamp = (value, count) => Math.max(0, Math.min(count - 1, value));
    this.point({ row: clamp(row + step[0], this.view.rows), column: clamp(column + step[1], this.view.columns) });
    event.preventDefault();
  }

  point(cell) {
    this.cursor = cell;
    const { header, view } = this;
    this.across.style.display = this.down.style.display = cell ? "block" : "none";
    if (!cell) {
      const isAll = view.rows === header.rows && view.columns === header.columns;
      this.readout.textContent = isAll ? "Point at a cell for its exact value; drag over a region to see it alone." : "Double-click to see all again.";
      return;
    }
    this.across.style.top = `${((cell.row + 0.5) / view.rows) * 100}%`;
    this.down.style.left = `${((cell.column + 0.5) / view.columns) * 100}%`;
    const row = view.top + cell.row, column = view.left + cell.column;
    const at = row * header.columns + column;
    const value = this.hidden[at] ? "hidden by the mask" : Number.isNaN(this.values[at]) ? "not a number" : `${header.unit} ${this.values[at].toPrecision(5)}`;
    this.readout.textContent = `query “${header.q[row]}” → key “${header.k[column]}”: ${value}`;
  }
}

export default function ({ data, parentElement }) {
  const root = parentElement.querySelector(".large-map");
  if (!maps.has(root)) maps.set(root, new LargeMap(root));
  maps.get(root).update(data);
}
