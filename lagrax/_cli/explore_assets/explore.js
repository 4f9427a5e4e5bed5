// Keeps each slider and its box at one value. The server never sees a value that a box does not show.
"use strict";

function show(value) {
  return String(Number(value.toPrecision(12)));
}

// The reason to refuse a typed value, or nothing.
function refuse(value, typed, { name, least, most, whole, hint }) {
  if (typed === "" || !Number.isFinite(value)) {
    return `“${typed}” is not a number.`;
  }
  if (whole && !Number.isInteger(value)) {
    return `${name} = ${typed} is refused: it is a whole number.`;
  }
  if (value < least || value > most) {
    return `${name} = ${typed} is refused: it goes from ${least} to ${most} here. ${hint}`;
  }
  return "";
}

// A refusal is about the last thing typed, so it goes when the reader types or chooses the next one.
function forget() {
  for (const { id, textContent } of document.querySelectorAll(".refusal")) {
    if (textContent) {
      const of = id.startsWith("{") ? JSON.parse(id) : id;
      window.dash_clientside.set_props(of, { children: "" });
    }
  }
}
document.addEventListener("input", forget);
document.addEventListener("focusin", forget);

window.dash_clientside = Object.assign({}, window.dash_clientside, {
  explore: {
    // A moved slider sets its box. A typed value sets the slider, whose range grows if needed; a
    // refused one leaves the slider alone and gives the box its value back.
    settle(value, text, low, high, limits) {
      const { no_update, callback_context } = window.dash_clientside;
      const triggered = callback_context.triggered_id;
      if (!triggered || triggered.part !== "box") {
        return [no_update, no_update, no_update, no_update, show(value), ""];
      }
      const typed = String(text ?? "").trim();
      const asked = Number(typed.replace(",", ".").replace("−", "-"));
      const refusal = refuse(asked, typed, limits);
      if (refusal) {
        return [no_update, no_update, no_update, no_update, show(value), refusal];
      }
      const ends = [Math.min(low, asked), Math.max(high, asked)];
      const marks = Object.fromEntries(ends.map((end) => [show(end), show(end)]));
      return [asked, ...ends, marks, show(asked), ""];
    },

    // While one request is on its way, moves wait for its answer: Dash would drop that answer for
    // the next one, and a slider that is dragged would show nothing until it stops.
    ask(values, lows, highs, axis, busy, asked) {
      const { no_update, callback_context } = window.dash_clientside;
      const ids = callback_context.inputs_list[0].map(({ id }) => id);
      const sliders = ids.map((id, i) => [id.of, id.name, values[i], lows[i], highs[i]]);
      const now = { sliders, axis };
      return busy || JSON.stringify(now) === JSON.stringify(asked) ? no_update : now;
    },
  },
});
