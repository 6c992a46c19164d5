"""Scripts that a browser evaluates, to find text that can't be read on a page."""

TOO_WIDE = """
() => [...document.querySelectorAll('body *')]
    .filter(one => one.checkVisibility() && !one.closest('.unseen, thead, svg'))
    .filter(one => one.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
    .map(one => one.outerHTML.slice(0, 120))
"""
"""Elements that are wider than the screen."""

LOW_CONTRAST = """
() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([red, green, blue]) => {
    const [r, g, b] = [red, green, blue].map(one => {
      const share = one / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = element => {
    for (let one = element; one; one = one.parentElement) {
      const colour = parts(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  let looked = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest('svg, style')) continue;
    looked += 1;
    const [a, b] = [parts(getComputedStyle(element).color), background(element)].map(light);
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.push([contrast, element.outerHTML.slice(0, 120)]);
  }
  return [looked, found];
}
"""
"""The number of texts, and those with too little contrast, each with its contrast."""
