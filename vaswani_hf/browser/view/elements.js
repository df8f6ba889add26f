// Functions that create elements of the page.

// Create an element. `attributes` are attributes, or listeners with names such as "onclick". Children are
// elements or texts.
function element(tag, attributes = {}, ...children) {
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) created.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) created.setAttribute(name, value === true ? "" : value);
  }
  created.append(...children);
  return created;
}

// Create an SVG element.
function svgElement(tag, attributes) {
  const created = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) created.setAttribute(name, value);
  return created;
}

// Make one of several buttons reachable by the Tab key, and the others by the arrow keys. `moves` maps keys to
// the difference of the index, such as {ArrowDown: 1, ArrowUp: -1}.
function moveFocusByKeys(container, buttons, moves) {
  buttons.forEach((button, index) => (button.tabIndex = index === 0 ? 0 : -1));
  container.addEventListener("focusin", (event) => {
    if (!buttons.includes(event.target)) return;
    buttons.forEach((button) => (button.tabIndex = button === event.target ? 0 : -1));
  });
  container.addEventListener("keydown", (event) => {
    const next = buttons[buttons.indexOf(event.target) + moves[event.key]];
    if (next === undefined) return;
    event.preventDefault();
    next.focus();
  });
}

// Create a slider with a label. `format(value)` returns the text of a value.
function slider(label, { min, max, step = 1, value, format, onInput }) {
  const output = element("output", {}, format(value));
  const input = element("input", { type: "range", min, max, step, "aria-label": label });
  input.value = value;
  const show = (number) => {
    output.textContent = format(number);
    input.setAttribute("aria-valuetext", format(number));
  };
  show(value);
  input.addEventListener("input", () => {
    show(Number(input.value));
    onInput(Number(input.value));
  });
  const field = element("label", { class: "slider" }, element("span", {}, label), input, output);
  field.setValue = (number) => {
    input.value = number;
    show(number);
  };
  field.setMax = (number) => (input.max = number);
  return field;
}

// Create radio buttons. `options` maps values to labels.
function choice(label, options, onChoose) {
  const group = element("fieldset", { class: "choice" }, element("legend", {}, label));
  const name = `choice-${label}`;
  for (const [value, text] of Object.entries(options)) {
    const input = element("input", { type: "radio", name, value, onchange: () => onChoose(value) });
    group.append(element("label", {}, input, element("span", {}, text)));
  }
  group.setValue = (chosen) => {
    for (const input of group.querySelectorAll("input")) input.checked = input.value === chosen;
  };
  return group;
}

// Return a number as a text with a minus sign, such as "−0.62".
function decimal(value, digits = 2) {
  return value.toFixed(digits).replace("-", "−");
}

// Return a probability as a text, such as "62 %".
function percent(value) {
  return value >= 0.1 || value === 0 ? `${Math.round(100 * value)} %` : `${(100 * value).toFixed(1)} %`;
}
