(() => {
  // What is wrong with the page's layout, as lists of words; see tests/pages/test_pages.py.
  const width = document.documentElement.clientWidth;
  const label = (node) => `${node.tagName.toLowerCase()} "${node.textContent.trim().slice(0, 40)}"`;
  const shown = (node) => {
    const box = node.getBoundingClientRect(), style = getComputedStyle(node);
    return box.width > 0 && box.height > 0 && style.visibility !== "hidden" && style.display !== "none";
  };
  const scrolls = (node) => ["auto", "scroll", "hidden"].includes(getComputedStyle(node).overflowX);
  const inBox = (node) => node && node !== document.body && (scrolls(node) || inBox(node.parentElement));

  // ---- Colours

  const parse = (text) => {
    const parts = text.match(/[\d.]+/g).map(Number);
    return parts.length > 3 ? parts : [...parts, 1];
  };
  const over = (top, below) => below.map((value, i) => i < 3 ? top[i] * top[3] + value * (1 - top[3]) : 1);
  const luminance = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  // The colour behind an HTML element, and for text of a drawing that of the last shape below its middle.
  const ground = (node) => {
    if (!node) return parse(getComputedStyle(document.documentElement).backgroundColor.replace("rgba(0, 0, 0, 0)", "rgb(255, 255, 255)"));
    const own = parse(getComputedStyle(node).backgroundColor);
    return own[3] === 1 ? own : over(own, ground(node.parentElement));
  };
  const below = (text) => {
    const svg = text.closest("svg"), box = text.getBoundingClientRect();
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    let colour = ground(svg.parentElement);
    for (const shape of svg.querySelectorAll("rect, text")) {
      if (shape === text) break;
      const of = shape.getBoundingClientRect(), style = getComputedStyle(shape);
      if (shape.tagName !== "rect" || x < of.left || x > of.right || y < of.top || y > of.bottom) continue;
      const fill = parse(style.fill);
      colour = over([...fill.slice(0, 3), fill[3] * style.fillOpacity * style.opacity], colour);
    }
    return colour;
  };
  const opacity = (node) => node ? getComputedStyle(node).opacity * opacity(node.parentElement) : 1;

  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || ["SCRIPT", "STYLE", "TITLE", "title"].includes(node.tagName) || !shown(node)) continue;
    const style = getComputedStyle(node), drawn = node.closest("svg");
    const colour = parse(drawn ? style.fill : style.color), behind = drawn ? below(node) : ground(node);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    const found = contrast(over([...colour.slice(0, 3), colour[3] * opacity(node)], behind), behind);
    if (found < (large ? 3 : 4.5)) faint.push(`${label(node)}: contrast ${found.toFixed(2)}`);
  }

  return {
    width: [width, document.documentElement.scrollWidth],
    wide: [...document.body.querySelectorAll("*")]
      .filter((node) => shown(node) && node.getBoundingClientRect().right > width + 1 && !inBox(node.parentElement) && !node.closest("svg svg"))
      .map(label),
    empty: [...document.querySelectorAll("section, figure, .panel, .scroll, h2, table")]
      .filter((node) => !node.closest("details:not([open])") && node.checkVisibility())
      .filter((node) => { const box = node.getBoundingClientRect(); return box.width < 20 || box.height < 10; })
      .map(label),
    headings: [...document.querySelectorAll("h1, h2")].filter(shown).map((node) => node.textContent),
    small: [...document.querySelectorAll("svg[role=img] text")].filter(shown)
      .filter((node) => node.getBoundingClientRect().height < 9).map(label),
    // Cells that are much taller than wide: a column of words that the others leave no room.
    narrow: [...document.querySelectorAll("td")].filter(shown)
      .filter((node) => { const box = node.getBoundingClientRect(); return node.textContent.trim() && box.height > 2 * box.width && box.height > 60; })
      .map(label),
    faint,
  };
})()
