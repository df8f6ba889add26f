// Functions that create elements of the page.

// Create an HTML element. `attributes` may have event listeners, with names such as "onclick".
function element(tag, attributes = {}, ...children) {
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) created.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) created.setAttribute(name, value === true ? "" : value);
  }
  created.append(...children);
  return created;
}

function svgElement(tag, attributes) {
  const created = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) created.setAttribute(name, value);
  return created;
}

// Let the Tab key reach only one of the buttons, and let the arrow keys move the focus. `moves` maps each key
// to the change of the button index, such as {ArrowDown: 1, ArrowUp: -1}.
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

// Create a slider with a label. `format(value)` must return the text that shows a value.
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

// Create a group of radio buttons. `options` maps the value of each button to its label.
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

// Format a number with a fixed number of decimal places, such as "−0.62".
function decimal(value, digits = 2) {
  return value.toFixed(digits).replace("-", "−");
}

// Format a probability as a percentage, such as "62 %".
function percent(value) {
  return value >= 0.1 || value === 0 ? `${Math.round(100 * value)} %` : `${(100 * value).toFixed(1)} %`;
}

// Return a number and its noun, such as "1 token" or "2 tokens".
function counted(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}

// Return a text in quotation marks, with a full stop unless the text itself ends a sentence.
function quotedAtEnd(text) {
  return /[\p{Sentence_Terminal}…]$/u.test(text) ? `“${text}”` : `“${text}”.`;
}
