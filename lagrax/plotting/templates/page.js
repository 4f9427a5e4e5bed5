// Draws the panels one after the other, so that the page appears at once and stays responsive.
"use strict";

const waiting = [...document.querySelectorAll(".plot")];

const config = {
  responsive: true,
  displaylogo: false,
  modeBarButtons: [["zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]],
};

// A finger that moves over a drawing scrolls the page.
const touch = window.matchMedia("(hover: none)").matches ? { dragmode: false } : {};

// With a view box a printed drawing scales with its column instead of being cut off.
function scale(box) {
  for (const svg of box.querySelectorAll("svg.main-svg")) {
    svg.setAttribute("viewBox", `0 0 ${svg.getAttribute("width")} ${svg.getAttribute("height")}`);
  }
}

let drawings = [];

async function draw(box) {
  const panel = drawings[box.dataset.drawing];
  await Plotly.newPlot(box, panel.data, { ...panel.layout, ...touch }, config);
  scale(box);
  box.on("plotly_afterplot", () => scale(box));
  box.dataset.drawn = "true";
}

// The inverse of Python's base64.b85encode, with "," for "<".
function decodeBase85(text) {
  const digits =
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
  const values = new Uint8Array(128);
  [...digits].forEach((digit, value) => (values[digit.charCodeAt(0)] = value));
  const padding = (5 - (text.length % 5)) % 5;
  const padded = text + "~".repeat(padding);
  const view = new DataView(new ArrayBuffer((padded.length / 5) * 4));
  for (let i = 0; i < padded.length; i += 5) {
    let word = 0;
    for (let j = i; j < i + 5; j++) {
      word = word * 85 + values[padded.charCodeAt(j)];
    }
    view.setUint32((i / 5) * 4, word);
  }
  return new Uint8Array(view.buffer, 0, view.byteLength - padding);
}

async function unpack(name) {
  const packed = decodeBase85(document.getElementById(name).textContent);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

async function drawAll() {
  if (!waiting.length) {
    return;
  }
  if (!("DecompressionStream" in window)) {
    waiting.forEach((box) => (box.textContent = "Figures need a browser from 2023 or later."));
    return;
  }
  drawings = JSON.parse(await unpack("drawings"));
  const script = document.createElement("script");
  script.textContent = await unpack("plotly");
  document.head.append(script);
  while (waiting.length) {
    await draw(waiting.shift());
    await new Promise((resume) => setTimeout(resume));
  }
}

const closed = [];

window.addEventListener("beforeprint", () => {
  if (window.Plotly) {
    waiting.splice(0).forEach(draw);
  }
  closed.push(...document.querySelectorAll("details:not([open])"));
  closed.forEach((details) => (details.open = true));
});

window.addEventListener("afterprint", () => {
  closed.splice(0).forEach((details) => (details.open = false));
});

drawAll();
