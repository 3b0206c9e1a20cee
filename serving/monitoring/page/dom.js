// Elements. Text is set as text only, so that model names and error messages are never read as markup.

export function byId(id) {
  return document.getElementById(id);
}

/** Returns an element with classes, and children that are elements or text. */
export function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** Changes the text only if it differs, so that selections and screen readers keep their place. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Returns a row of a table, with roles: the narrow layout removes the roles of the elements. */
export function makeRow(cells) {
  const row = make("tr");
  row.setAttribute("role", "row");
  for (const cell of cells) row.append(cell);
  return row;
}

/** Returns a cell. `label` names its column in the narrow layout, which has no table head. */
export function makeCell(label, className, ...children) {
  const cell = make("td", className, ...children);
  cell.setAttribute("role", "cell");
  if (label) cell.dataset.label = label;
  return cell;
}

/**
 * Makes `parent` hold one row for each item, in their order, and returns the rows. A row is made again
 * only if `factsOf` its item have changed. `kept` is the Map of the present rows.
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
