// Elements. Text gets in as text only: a model's name or an error's message is never read as markup.

export function byId(id) {
  return document.getElementById(id);
}

/** An element with classes, and children that are elements or text. */
export function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** Touches the document only where something changes: selections and screen readers stay where they are. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** One row of a table; roles are given because the narrow layout takes the table's own away. */
export function makeRow(cells) {
  const row = make("tr");
  row.setAttribute("role", "row");
  for (const cell of cells) row.append(cell);
  return row;
}

/** `label` names the column where the narrow layout has no head. */
export function makeCell(label, className, ...children) {
  const cell = make("td", className, ...children);
  cell.setAttribute("role", "cell");
  if (label) cell.dataset.label = label;
  return cell;
}

/**
 * Makes `parent` hold one row for each item, in their order, and returns the rows. A row is made anew
 * only where `factsOf` its item have changed; `kept` is the Map that remembers them.
 */
export function syncRows(parent, kept, items, { keyOf, factsOf, makeElement }) {
  const keys = new Set(items.map(keyOf));
  for (const [key, { element }] of kept) {
    if (!keys.has(key)) {
      element.remove();
      kept.delete(key);
    }
  }
  let next = parent.firstElementChild;
  return items.map((item) => {
    const key = keyOf(item);
    const facts = JSON.stringify(factsOf(item));
    let entry = kept.get(key);
    if (!entry || entry.facts !== facts) {
      const element = makeElement(item);
      if (entry) {
        if (entry.element === next) next = element;
        entry.element.replaceWith(element);
      }
      entry = { facts, element };
      kept.set(key, entry);
    }
    if (entry.element === next) next = next.nextElementSibling;
    else parent.insertBefore(entry.element, next);
    return entry.element;
  });
}
