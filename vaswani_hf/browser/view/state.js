// Stores the state of the page: the choices of the user. The fragment of the URL contains each value that
// differs from its default, so that a copied URL shows the same choices.

// Convert a URL fragment such as "#kind=cross&layer=2" to a state. Ignore unknown names.
function parseFragment(fragment, defaults) {
  const state = { ...defaults };
  for (const [name, text] of new URLSearchParams(fragment.replace(/^#/, ""))) {
    if (!(name in defaults)) continue;
    if (typeof defaults[name] !== "number") state[name] = text;
    else if (text.trim() !== "" && Number.isFinite(Number(text))) state[name] = Number(text);
  }
  return state;
}

// Convert a state to a URL fragment without the "#".
function formatFragment(state, defaults) {
  const changed = Object.keys(defaults).filter((name) => state[name] !== defaults[name]);
  return new URLSearchParams(changed.map((name) => [name, String(state[name])])).toString();
}

// Create a store of the state of the page. `check(state)` must return the state with impossible values
// corrected. `set` changes values, writes the URL fragment, and calls the subscribers of the changed values.
function createStore(defaults, check) {
  const subscribers = [];
  const store = { state: check(parseFragment(location.hash, defaults)) };

  function apply(next) {
    const before = store.state;
    store.state = check(next);
    for (const { names, update } of subscribers) {
      if (names.some((name) => before[name] !== store.state[name])) update();
    }
  }

  store.set = (changes) => {
    apply({ ...store.state, ...changes });
    // The page of `vaswani demo` shows the view in an `<iframe srcdoc>`. The URL of the frame is about:srcdoc,
    // and for this URL `replaceState` throws an error in Chrome and Safari.
    if (location.protocol === "about:") return;
    const fragment = formatFragment(store.state, defaults);
    history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname + location.search);
  };
  store.subscribe = (names, update) => subscribers.push({ names, update });
  const readAddress = () => apply(parseFragment(location.hash, defaults));
  addEventListener("hashchange", readAddress);
  store.close = () => removeEventListener("hashchange", readAddress);
  return store;
}

// Round a number, and limit it to the range from `least` to `most`.
function clamp(value, least, most) {
  return Math.min(Math.max(Math.round(value), least), most);
}
