// What an agent sees of a page: the accessibility tree as text, or its HTML, with ids that stay with their elements.
(() => {
  let ids = new WeakMap(), next = 1;
  const elements = new Map();
  const LEAVES = new Set(["button", "link", "checkbox", "radio", "tab", "menuitem", "option", "switch", "textbox",
    "searchbox", "spinbutton", "slider", "combobox", "listbox", "treeitem", "menuitemcheckbox", "menuitemradio"]);
  const FRAMES = new Set(["row", "list", "listitem", "dialog", "alertdialog", "tablist", "tabpanel", "menu", "menubar",
    "navigation", "article", "form", "region", "tree", "grid", "radiogroup", "heading", "banner", "main", "search"]);
  const GRAPHICS = "circle, rect, polygon, ellipse, line, path, polyline, text, image, use";
  const DRAGGED = ".ui-draggable, .ui-slider-handle, .ui-sortable-handle, .ui-resizable-se, [draggable=true]";
  const BARE = ".ui-resizable-handle:not(.ui-icon)";
  const TAGS = { A: "link", BUTTON: "button", SELECT: "combobox", TEXTAREA: "textbox", OPTION: "option", UL: "list",
    OL: "list", LI: "listitem", TR: "row", FORM: "form", NAV: "navigation", MAIN: "main", ARTICLE: "article", DIALOG: "dialog",
    HEADER: "banner", IMG: "img", SUMMARY: "button", ...Object.fromEntries([1, 2, 3, 4, 5, 6].map(n => ["H" + n, "heading"])) };
  const INPUTS = { checkbox: "checkbox", radio: "radio", button: "button", submit: "button", reset: "button", image: "button",
    number: "spinbutton", range: "slider", search: "searchbox", date: "date", time: "time", color: "colour", file: "file" };
  const quote = text => JSON.stringify(text.replace(/\s+/g, " ").trim());
  const round = Math.round;

  const idOf = element => {
    if (!ids.has(element)) {
      elements.set(next, element);
      ids.set(element, next++);
    }
    return ids.get(element);
  };
  const find = id => {
    const element = elements.get(id);
    return element && element.isConnected ? element : null;
  };
  // Roles and names by the rules of ARIA, for what pages have; the browser's own answer takes a millisecond an element.
  const roleOf = element => {
    const given = element.getAttribute("role");
    if (given && given !== "presentation" && given !== "none") return given;
    if (element.tagName === "INPUT") return INPUTS[element.type] || "textbox";
    if (element.tagName === "A" && !element.hasAttribute("href")) return "generic";
    if (element.tagName === "SELECT" && (element.multiple || element.size > 1)) return "listbox";
    return TAGS[element.tagName] || "generic";
  };
  const textOf = ids => ids.split(/\s+/).map(id => document.getElementById(id)?.textContent || "").join(" ");
  const named = element => {
    const labels = [...(element.labels || [])].map(label => label.innerText).join(" ");
    const pressed = element.matches("input[type=button], input[type=submit], input[type=reset]") ? element.value : "";
    const content = element.matches("input, select, textarea, img, canvas") ? "" : element.innerText;
    return (textOf(element.getAttribute("aria-labelledby") || "") || element.getAttribute("aria-label") || labels || pressed ||
      content || element.alt || element.title || element.placeholder || "").trim();
  };
  const hex = colour => {
    const parts = (colour.match(/[\d.]+/g) || []).map(Number);
    if (parts.length < 3 || parts[3] === 0) return "";
    return "#" + parts.slice(0, 3).map(part => part.toString(16).padStart(2, "0")).join("");
  };
  const classes = element => [...element.classList].filter(name => !/^(ui-(?!icon-)|jq)/.test(name)).map(name => "." + name).join("");
  const icons = element => [...element.children].filter(child => !child.children.length && !child.textContent.trim() &&
    getComputedStyle(child).backgroundImage !== "none").map(classes).join(" ");
  const place = box => `${round(box.width)}x${round(box.height)} at ${round(box.x + box.width / 2)},` +
    `${round(box.y + box.height / 2)}`;

  const states = (element, role, style) => {
    const said = [];
    if (element.matches("textarea, input:not([type=checkbox], [type=radio], [type=button], [type=submit])"))
      said.push(`value=${JSON.stringify(element.value)}`);
    else if (element.isContentEditable) said.push("editable");
    if (element.tagName === "SELECT")
      for (const option of element.options)
        said.push((option.selected ? "selected " : "option ") + quote(option.text));
    if (element.checked || element.getAttribute("aria-checked") === "true") said.push("checked");
    if (element.getAttribute("aria-selected") === "true") said.push("selected");
    if (element.disabled || element.getAttribute("aria-disabled") === "true") said.push("disabled");
    if (element.hasAttribute("aria-expanded"))
      said.push(element.getAttribute("aria-expanded") === "true" ? "expanded" : "collapsed");
    if (element.hasAttribute("aria-valuenow")) said.push(`value=${element.getAttribute("aria-valuenow")}`);
    for (const name of element.classList)
      if (/^(selected|active|clicked|chosen|current|highlighted)$/.test(name)) said.push("." + name);
    if (document.activeElement === element && element !== document.body) said.push("focused");
    if (/auto|scroll/.test(style.overflowY) && element.scrollHeight > element.clientHeight + 1)
      said.push(`scrolled ${round(element.scrollTop)} of ${element.scrollHeight - element.clientHeight}`);
    if (element.matches(DRAGGED) || (element.tagName === "TEXTAREA" && style.resize !== "none"))
      said.push(place(element.getBoundingClientRect()));
    return said;
  };

  const graphic = element => {
    const style = getComputedStyle(element), box = element.getBoundingClientRect();
    const corners = element.points ? ` corners=${element.points.numberOfItems}` : "";
    const text = element.tagName === "text" ? ` ${quote(element.textContent)}` : "";
    const fill = hex(style.fill) || hex(style.stroke);
    return `${element.tagName}${text}${corners}${fill && " " + fill} ${place(box)}`;
  };

  const empty = (element, style) => {
    const box = element.getBoundingClientRect();
    if (box.width < 3 || box.height < 3 || element.matches(BARE)) return "";
    const colour = hex(style.backgroundColor), picture = style.backgroundImage !== "none";
    const seen = colour || picture || !/normal|none/.test(style.content) || style.cursor === "pointer" || parseFloat(style.borderTopWidth) ||
      element.matches("img, canvas, " + DRAGGED) || named(element);
    if (!seen) return "";
    const kind = element.matches("img, canvas") ? element.tagName.toLowerCase() : "box";
    const name = named(element) ? " " + quote(named(element)) : "";
    const sort = classes(element) && " " + classes(element);
    return `${kind}${name}${sort}${colour && " " + colour} ${place(box)}`;
  };

  const lines = (skip) => {
    const found = [];
    const say = (depth, element, words) =>
      found.push("  ".repeat(depth) + (element ? `[${idOf(element)}] ` : "") + words.filter(Boolean).join(" "));

    const within = (element, depth) => {
      for (const node of element.childNodes) {
        if (node.nodeType === Node.ELEMENT_NODE) visit(node, depth);
        else if (node.nodeType === Node.TEXT_NODE && node.data.trim() && getComputedStyle(element).visibility !== "hidden")
          say(depth, null, ["text", quote(node.data)]);
      }
    };
    const visit = (element, depth) => {
      if (element.matches("script, style, noscript, template, head") || (skip && element.matches(skip))) return;
      const style = getComputedStyle(element);
      if (style.display === "none" || style.opacity === "0") return;
      if (element instanceof SVGElement && element.tagName !== "svg") {
        if (element.matches(GRAPHICS)) say(depth, element, [graphic(element)]);
        return within(element.matches("text") ? document.createElement("i") : element, depth);
      }
      const role = roleOf(element);
      if (LEAVES.has(role) || element.matches("input, textarea, select, button")) {
        if (style.visibility === "hidden" || !element.getClientRects().length) return;
        const name = named(element);
        const typed = /textbox|searchbox|spinbutton|combobox|listbox|date|time/.test(role);
        const sort = name || typed ? "" : [classes(element), hex(style.backgroundColor), /checkbox|radio/.test(role) ? "" :
          place(element.getBoundingClientRect())].filter(Boolean).join(" ");
        return say(depth, element, [role, name && quote(name), sort, icons(element),
          ...states(element, role, style)]);
      }
      const text = [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim());
      if (![...element.children].some(child => child.tagName !== "BR")) {
        if (style.visibility === "hidden") return;
        const said = states(element, role, style);
        if (text) return say(depth, element, [role === "heading" ? role : "text", quote(element.innerText), ...said]);
        const words = empty(element, style);
        if (words || said.length) say(depth, element, [words || "box", ...said.filter(word => !words.includes(word))]);
        return;
      }
      const said = states(element, role, style);
      const pointer = style.cursor === "pointer" && getComputedStyle(element.parentElement).cursor !== "pointer";
      if (FRAMES.has(role) || said.some(word => word[0] !== ".") || pointer) {
        const name = role === "dialog" || element.hasAttribute("aria-label") ? named(element) : "";
        say(depth, element, [FRAMES.has(role) ? role : "group", name && quote(name), ...said]);
        return within(element, depth + 1);
      }
      return within(element, depth);
    };
    within(document.body, 0);
    return found;
  };

  const tree = skip => {
    const found = lines(skip), root = document.scrollingElement;
    const below = root ? root.scrollHeight - root.clientHeight : 0;
    if (below > 1) found.push(`page scrolled ${round(root.scrollTop)} of ${below}`);
    const chosen = String(getSelection() || "");
    if (chosen.trim()) found.push(`selection ${quote(chosen)}`);
    return found.join("\n");
  };

  const html = skip => {
    const copy = document.body.cloneNode(true);
    const here = document.body.querySelectorAll("*"), there = copy.querySelectorAll("*");
    const gone = [];
    here.forEach((element, index) => {
      const twin = there[index];
      if (element.matches("script, style, noscript, template") || (skip && element.matches(skip))) return gone.push(twin);
      if (element.getClientRects().length) twin.setAttribute("ref", idOf(element));
      if (element.matches("input, textarea")) twin.setAttribute("value", element.value);
      if (element.checked) twin.setAttribute("checked", "");
      if (element.tagName === "OPTION") twin.toggleAttribute("selected", element.selected);
      for (const name of [...twin.attributes].map(attribute => attribute.name))
        if (/^(data-|on|jquery)/.test(name)) twin.removeAttribute(name);
      return null;
    });
    gone.forEach(twin => twin.remove());
    return copy.innerHTML.replace(/<!--[^]*?-->/g, "").replace(/\s*\n\s*/g, "\n").trim();
  };

  const frame = window.requestAnimationFrame.real || window.requestAnimationFrame;
  const drawn = () => new Promise(done => frame(() => done()));
  const missing = id => `there is no element ${id} to be seen`;

  // What actions need; each answers with a sentence when it cannot.

  // Where to point the mouse: [x, y] in pixels of the window. What lies outside is scrolled to.
  const point = async id => {
    const element = find(id);
    if (!element || !element.getClientRects().length) return missing(id);
    const spots = [[.5, .5], [.15, .15], [.85, .15], [.15, .85], [.85, .85], [.5, .15], [.5, .85], [.15, .5], [.85, .5]];
    // The middle (of the first line, where text runs over several), unless something else lies there.
    const free = () => {
      const box = element.getClientRects()[0];
      const places = spots.map(([right, down]) => [box.x + box.width * right, box.y + box.height * down]);
      const hit = ([x, y]) => {
        const at = document.elementFromPoint(x, y);
        return at && (at === element || element.contains(at));
      };
      return [places.find(hit), places[0]];
    };
    const [found] = free();
    if (found) return found;
    element.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
    await drawn();
    const [after, middle] = free();
    return after || middle;
  };
  const scroll = async (id, across, down) => {
    const element = id ? find(id) : document.scrollingElement;
    if (!element) return missing(id);
    element.scrollBy({ left: across, top: down, behavior: "instant" });
    await drawn();
    return [];
  };
  // Put the focus into a field, with all that it holds selected. Dates and the like cannot be typed: they are set here,
  // and [1] is the answer.
  const ready = (id, text) => {
    const element = find(id);
    if (!element || !element.getClientRects().length) return missing(id);
    if (!element.isContentEditable && !element.matches("input, textarea") || element.disabled || element.readOnly)
      return `element ${id} is no field that can be filled`;
    if (element.matches("[type=checkbox], [type=radio], [type=button], [type=submit]"))
      return `element ${id} is no field that can be filled`;
    if (element.matches("[type=date], [type=time], [type=month], [type=week], [type=color], [type=range]")) {
      const before = element.value;
      element.value = text;
      if (element.value !== text) {
        element.value = before;
        return `element ${id} takes a ${element.type}, as in ${{ date: "2024-01-31", time: "13:05" }[element.type] || before}`;
      }
      for (const name of ["input", "change"]) element.dispatchEvent(new Event(name, { bubbles: true }));
      return [1];
    }
    element.focus();
    if (element.isContentEditable) getSelection().selectAllChildren(element);
    else element.select();
    return [];
  };
  const select = (id, texts) => {
    const element = find(id);
    if (!element || element.tagName !== "SELECT") return `element ${id} is no list to select in`;
    const tidy = text => text.replace(/\s+/g, " ").trim();
    const chosen = texts.map(text => [...element.options].find(option => tidy(option.text) === tidy(text)));
    if (chosen.includes(undefined)) return `element ${id} has no option ${quote(texts[chosen.indexOf(undefined)])}`;
    if (chosen.length > 1 && !element.multiple) return `element ${id} takes one option`;
    element.focus();
    for (const option of element.options) option.selected = chosen.includes(option);
    for (const name of ["input", "change"]) element.dispatchEvent(new Event(name, { bubbles: true }));
    return [];
  };
  // New numbers for all elements, from `first` on.
  const restart = first => {
    ids = new WeakMap();
    elements.clear();
    next = first;
  };

  // Where the mouse is, and the element that was told so. When what lies under a mouse at rest changes, the browser
  // tells the new element with one of its next frames: whoever looks waits for that, lest it come sooner or later.
  let mouse = null, entered = null;
  for (const name of ["mousemove", "mouseover"])
    window.addEventListener(name, event => {
      mouse = [event.clientX, event.clientY];
      entered = event.target;
    }, true);
  const settled = async () => {
    for (let frames = 0; frames < 4 && mouse && document.elementFromPoint(...mouse) !== entered; frames++) await drawn();
  };

  const state = { tree, html, point, scroll, ready, select, restart, settled, leaving: false };
  Object.defineProperty(window, "__seen", { value: state });
  window.navigation?.addEventListener("navigate", event => {
    if (!event.destination.sameDocument && event.downloadRequest === null) state.leaving = true;
  });
  // A form is sent a moment after its button was pressed; `navigate` comes only then.
  window.addEventListener("submit", event => {
    const form = event.target, here = ["", "_self"].includes(event.submitter?.formTarget || form.target);
    if (!event.defaultPrevented && here && form.method !== "dialog") state.leaving = true;
  });
})();
