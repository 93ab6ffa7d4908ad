// Paints the message of head_grid/__init__.py: small maps of all heads, one crosshair over all of them, bars of the row
// under it. A click or Enter picks a head and a query; arrow keys move between heads, with Shift the crosshair moves.

const HIDDEN = 0, NOT_A_NUMBER = 1, LOWEST = 2, LEVELS = 253;
const SVG = "http://www.w3.org/2000/svg";
const grids = new WeakMap();

async function decode(png, width, height) {
  const bitmap = await createImageBitmap(new Blob([png], { type: "image/png" }), { colorSpaceConversion: "none" });
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  const pixels = context.getImageData(0, 0, width, height).data;
  const levels = new Uint8Array(width * height);
  for (let i = 0; i < levels.length; i++) levels[i] = pixels[4 * i];
  return levels;
}

class Grid {
  constructor(root) {
    this.root = root;
    this.sequence = 0;
    this.tokens = element("div", "tokens", root);
    this.tiles = element("div", "tiles", root);
    this.tiles.setAttribute("role", "listbox");
    this.tiles.setAttribute("aria-label", "Attention heads. Arrow keys choose a head, Shift and arrow keys move the crosshair, Enter picks the query under it.");
    this.readout = element("div", "readout", root);
    this.readout.setAttribute("aria-live", "polite");
    this.legend = element("div", "legend", root);
    this.heads = [];
    this.tokenNodes = [];
  }

  async update(bytes, pick) {
    this.pick = pick;
    const sequence = ++this.sequence;
    const { header, table, floats: exact, rest } = parse(bytes, ({ heads, columns }) => heads * columns);
    let levels = rest;
    if (header.png) {
      levels = await decode(rest, header.columns, header.rows * header.heads);
      if (sequence !== this.sequence) return; // a newer message overtook this one
    }
    Object.assign(this, { header, table, exact, levels });
    this.chosen = { head: header.head, rows: header.chosen };
    this.cursor = { row: this.lastChosen(), column: null };
    this.layOut();
    this.paint();
    this.drawCursor();
    this.root.dataset.painted = String(Number(this.root.dataset.painted || 0) + 1);
    this.root.dataset.heads = header.heads;
  }

  lastChosen() {
    return this.chosen.rows[this.chosen.rows.length - 1];
  }

  layOut() {
    while (this.heads.length > this.header.heads) this.heads.pop().tile.remove();
    while (this.heads.length < this.header.heads) this.heads.push(this.makeTile(this.heads.length));
    this.root.classList.toggle("many", this.header.perLine > 0);
    this.tiles.style.setProperty("--per-line", this.header.perLine);
    const labels = this.header.perLine ? [] : this.header.q;
    while (this.tokenNodes.length > labels.length) this.tokenNodes.pop().remove();
    while (this.tokenNodes.length < labels.length) this.tokenNodes.push(this.makeToken(this.tokenNodes.length));
    labels.forEach((label, row) => {
      if (this.tokenNodes[row].textContent !== label) this.tokenNodes[row].textContent = label;
    });
    this.drawLegend();
  }

  makeToken(row) {
    const node = element("button", "token", this.tokens);
    node.type = "button";
    node.dir = "auto";
    node.onmouseenter = node.onfocus = () => this.moveCursor(row, null);
    node.onclick = (event) => this.choose(this.chosen.head, row, event.ctrlKey || event.metaKey || event.shiftKey);
    return node;
  }

  makeTile(head) {
    const tile = element("div", "tile", this.tiles);
    tile.setAttribute("role", "option");
    const name = element("div", "name", tile);
    const title = element("span", "title", name);
    const value = element("span", "value", name);
    const map = element("div", "map", tile);
    const canvas = element("canvas", "", map);
    const across = element("div", "line across", map);
    const down = element("div", "line down", map);
    const bars = this.makeBars(tile);
    map.onpointermove = (event) => this.header.perLine ? this.name(head) : this.moveCursor(...this.cellAt(map, event));
    map.onpointerleave = () => this.header.perLine ? this.name(this.chosen.head) : this.moveCursor(this.lastChosen(), null);
    map.onclick = (event) => this.choose(head, this.cellAt(map, event)[0], event.ctrlKey || event.metaKey || event.shiftKey);
    tile.onkeydown = (event) => this.onKey(event, head);
    return { tile, title, value, canvas, across, down, bars };
  }

  // Two paths: all bars, and the one under the crosshair. Not a canvas: each is a layer that every frame has to place.
  makeBars(tile) {
    const svg = tile.appendChild(document.createElementNS(SVG, "svg"));
    svg.setAttribute("class", "bars");
    svg.setAttribute("preserveAspectRatio", "none");
    const path = (name) => {
      const node = svg.appendChild(document.createElementNS(SVG, "path"));
      node.setAttribute("class", name);
      return node;
    };
    return { svg, all: path("all"), one: path("one") };
  }

  cellAt(map, event) {
    const box = map.getBoundingClientRect();
    const cell = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
    return [
      cell((event.clientY - box.top) / box.height, this.header.rows),
      cell((event.clientX - box.left) / box.width, this.header.columns),
    ];
  }

  onKey(event, head) {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const step = steps[event.key];
    if (event.key === "Enter" || event.key === " ") this.choose(head, this.cursor.row, event.ctrlKey);
    else if (step && event.shiftKey) {
      const column = this.cursor.column === null ? 0 : this.cursor.column + step[1];
      const clamp = (value, count) => Math.max(0, Math.min(count - 1, value));
      this.moveCursor(clamp(this.cursor.row + step[0], this.header.rows), clamp(column, this.header.columns));
    } else if (step) {
      const perRow = getComputedStyle(this.tiles).gridTemplateColumns.split(" ").length;
      const next = head + step[1] + step[0] * perRow;
      if (next >= 0 && next < this.header.heads) {
        this.choose(next, null);
        this.heads[next].tile.focus();
      }
    } else return;
    event.preventDefault();
  }

  // Choose a head and a query; `add` adds the query to those chosen or takes it out, and no query keeps them.
  choose(head, row, add = false) {
    let rows = this.chosen.rows;
    if (row !== null && !add) rows = [row];
    else if (row !== null) rows = rows.includes(row) ? rows.filter((other) => other !== row) : [...rows, row];
    if (!rows.length) return;
    this.chosen = { head, rows };
    this.drawCursor();
    this.pick({ head, rows });
  }

  moveCursor(row, column) {
    if (!this.header) return;
    this.cursor = { row, column };
    this.drawCursor();
  }

  // Among hundreds of maps the readout says which one is under the pointer, and no crosshair is drawn.
  name(head) {
    const which = head in this.header.names ? `Layer.head ${this.header.names[head]}. ` : "";
    this.readout.textContent = `${which}Click a map to look at its head.`;
  }

  // Where a value lies on the colour ramp, 0 to 1.
  place(value, head) {
    const { scale, range, low, high } = this.header;
    if (scale === "log") return 1 - Math.log(Math.max(value, LOG_FLOOR)) / Math.log(LOG_FLOOR);
    const [from, to] = scale === "head" ? [low[head], high[head]] : range;
    return to > from ? (value - from) / (to - from) : 0.5;
  }

  value(level, head) {
    const { low, high } = this.header;
    return low[head] + ((level - LOWEST) / LEVELS) * (high[head] - low[head]);
  }

  pixelTable(head) {
    const pixels = new Uint32Array(256);
    pixels[NOT_A_NUMBER] = NAN_PIXEL;
    for (let level = LOWEST; level < 256; level++) {
      const at = 3 * Math.round(255 * Math.max(0, Math.min(1, this.place(this.value(level, head), head))));
      pixels[level] = 0xff000000 | (this.table[at + 2] << 16) | (this.table[at + 1] << 8) | this.table[at];
    }
    return pixels;
  }

  paint() {
    const { rows, columns } = this.header;
    const size = rows * columns;
    this.heads.forEach(({ canvas }, head) => {
      if (canvas.width !== columns || canvas.height !== rows) Object.assign(canvas, { width: columns, height: rows });
      const context = canvas.getContext("2d");
      const image = context.createImageData(columns, rows);
      const pixels = new Uint32Array(image.data.buffer);
      const table = this.pixelTable(head);
      for (let i = 0, from = head * size; i < size; i++) pixels[i] = table[this.levels[from + i]];
      context.putImageData(image, 0, 0);
    });
  }

  cell(head, row, column) {
    const level = this.levels[(head * this.header.rows + row) * this.header.columns + column];
    if (this.header.chosen.length === 1 || !this.header.chosen.includes(row)) {
      if (level === HIDDEN) return { hidden: true, text: "hidden" };
      if (level === NOT_A_NUMBER) return { value: NaN, text: "NaN" };
    }
    if (this.header.chosen.includes(row)) {
      const value = this.exact[head * this.header.columns + column];
      return { value, text: value.toFixed(4) };
    }
    const value = this.value(level, head);
    return { value, text: "≈" + value.toFixed(2) };
  }

  drawCursor() {
    const { rows, columns } = this.header;
    const { row, column } = this.cursor;
    const { names, nouns } = this.header;
    this.heads.forEach(({ tile, title, value, across, down, bars }, head) => {
      const chosen = head === this.chosen.head;
      tile.classList.toggle("chosen", chosen);
      tile.setAttribute("aria-selected", chosen);
      tile.tabIndex = chosen ? 0 : -1;
      across.style.top = `${((row + 0.5) / rows) * 100}%`;
      down.style.left = `${(((column ?? 0) + 0.5) / columns) * 100}%`;
      down.style.display = column === null ? "none" : "";
      value.textContent = column === null || this.header.perLine ? "" : this.cell(head, row, column).text;
      if (title.textContent !== names[head]) title.textContent = names[head];
      tile.setAttribute("aria-label", `${names[head]} ${value.textContent}`);
      if (!this.header.perLine) this.drawBars(bars, head, row, column);
    });
    this.tokenNodes.forEach((node, index) => {
      node.classList.toggle("hover", index === row);
      node.classList.toggle("chosen", this.chosen.rows.includes(index));
    });
    if (this.header.perLine) return this.name(this.chosen.head);
    const several = this.chosen.rows.length > 1 && this.chosen.rows.includes(row);
    const [rowNoun, columnNoun] = nouns;
    const from = several ? `${this.chosen.rows.length} queries` : `${rowNoun} “${this.header.q[row]}” (${row})`;
    const to = column === null ? "" : ` → ${columnNoun} “${this.header.k[column]}” (${column})`;
    const add = rowNoun === "query" ? " Ctrl and click adds a query." : "";
    this.readout.textContent = `${from}${to}: ${this.header.unit}. Bars below each map: ${several ? "these queries" : `this ${rowNoun}`} over all ${columnNoun}s.${add}`;
  }

  drawBars({ svg, all, one }, head, row, column) {
    const { columns } = this.header;
    const gap = columns > 64 ? 0 : 0.2;
    svg.setAttribute("viewBox", `0 0 ${columns} 1`);
    let bars = "", marked = "";
    for (let k = 0; k < columns; k++) {
      const { hidden, value } = this.cell(head, row, k);
      if (hidden || Number.isNaN(value)) continue;
      const height = Math.max(0.04, Math.min(1, this.place(value, head)));
      const bar = `M${k} 1v${-height.toFixed(3)}h${1 - gap}V1z`;
      if (k === column) marked = bar;
      else bars += bar;
    }
    all.setAttribute("d", bars);
    one.setAttribute("d", marked);
  }

  drawLegend() {
    const { scale, range } = this.header;
    const stops = [0, 64, 128, 191, 255].map((i) => `rgb(${[...this.table.subarray(3 * i, 3 * i + 3)]}) ${(i / 255) * 100}%`);
    const ends = { fixed: range.map((value) => Number(value.toPrecision(3))), head: ["head’s lowest", "head’s highest"], log: [LOG_FLOOR, "1 (log)"] }[scale];
    const wanted = JSON.stringify([ends, stops, this.levels.includes(HIDDEN), this.levels.includes(NOT_A_NUMBER)]);
    if (this.legend.dataset.shown === wanted) return;
    this.legend.dataset.shown = wanted;
    this.legend.replaceChildren();
    element("span", "", this.legend).textContent = ends[0];
    element("span", "ramp", this.legend).style.background = `linear-gradient(90deg, ${stops})`;
    element("span", "", this.legend).textContent = ends[1];
    for (const [className, text] of [["hidden", "hidden by the mask"], ["nan", "not a number"]]) {
      if (className === "hidden" ? !this.levels.includes(HIDDEN) : !this.levels.includes(NOT_A_NUMBER)) continue;
      const label = element("span", "", this.legend);
      element("span", `swatch ${className}`, label);
      label.append(text);
    }
  }
}

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".head-grid");
  if (!grids.has(root)) {
    grids.set(root, new Grid(root));
    root.dataset.mounts = String(Number(root.dataset.mounts || 0) + 1);
  }
  grids.get(root).update(data, (choice) => setTriggerValue("pick", choice));
}
