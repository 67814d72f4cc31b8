// What is wrong with a report as it is laid out now, each trouble in words; empty if nothing is.
() => {
  const SLACK_PX = 1.5, CONTRAST_TEXT = 4.5, CONTRAST_MARK = 3.0;
  const troubles = [];
  const said = (element) => (element.textContent || element.tagName).trim().slice(0, 40);
  const within = (inner, outer) =>
    inner.left >= outer.left - SLACK_PX && inner.right <= outer.right + SLACK_PX &&
    inner.top >= outer.top - SLACK_PX && inner.bottom <= outer.bottom + SLACK_PX;
  const apart = (a, b) =>
    a.right <= b.left + SLACK_PX || b.right <= a.left + SLACK_PX ||
    a.bottom <= b.top + SLACK_PX || b.bottom <= a.top + SLACK_PX;
  const rgb = (colour) => colour.match(/[\d.]+/g).slice(0, 3).map(Number);
  const light = (colour) => {
    const [r, g, b] = rgb(colour).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };

  const root = document.documentElement;
  if (root.scrollWidth > window.innerWidth) {
    troubles.push(`the page is ${root.scrollWidth} px wide in a window of ${window.innerWidth}`);
  }
  for (const element of document.querySelectorAll("header *, main *")) {
    if (element.closest(".table table") || element.closest("svg")) continue;
    const box = element.getBoundingClientRect();
    if (box.width && box.right > window.innerWidth + SLACK_PX) {
      troubles.push(`<${element.tagName.toLowerCase()}> reaches over the edge: ${said(element)}`);
    }
  }

  const plots = [...document.querySelectorAll("figure")];
  if (!plots.length) troubles.push("no plot at all");
  for (const figure of plots) {
    const name = said(figure.querySelector("figcaption"));
    const shown = [...figure.querySelectorAll("svg")].filter(
      (svg) => svg.getBoundingClientRect().width > 0);
    if (shown.length !== 1) {
      troubles.push(`${name}: ${shown.length} pictures are shown, not one`);
      continue;
    }
    const box = shown[0].getBoundingClientRect();
    const card = getComputedStyle(figure.closest(".card")).backgroundColor;
    const bars = [...shown[0].querySelectorAll("rect.bar")];
    const seen = bars.filter((bar) => {
      const mark = bar.getBoundingClientRect();
      return mark.width >= 1 && mark.height >= 1;
    });
    if (!seen.length) troubles.push(`${name}: no bar can be seen`);
    for (const bar of seen) {
      if (!within(bar.getBoundingClientRect(), box)) troubles.push(`${name}: a bar leaves the plot`);
      if (contrast(getComputedStyle(bar).fill, card) < CONTRAST_MARK) {
        troubles.push(`${name}: a bar is as pale as the page`);
      }
    }
    const texts = [...shown[0].querySelectorAll("text")].filter((text) => text.textContent.trim());
    if (!texts.length) troubles.push(`${name}: no text`);
    texts.forEach((text, place) => {
      const own = text.getBoundingClientRect();
      if (own.height < 8) troubles.push(`${name}: text of ${own.height} px: ${said(text)}`);
      if (!within(own, box)) troubles.push(`${name}: text leaves the plot: ${said(text)}`);
      if (contrast(getComputedStyle(text).fill, card) < CONTRAST_TEXT) {
        troubles.push(`${name}: pale text: ${said(text)}`);
      }
      for (const other of texts.slice(place + 1)) {
        // The boxes of two texts that stand aslant beside each other overlap; they do not.
        if (text.hasAttribute("transform") && other.hasAttribute("transform")) continue;
        if (!apart(own, other.getBoundingClientRect())) {
          troubles.push(`${name}: texts overlap: ${said(text)} and ${said(other)}`);
        }
      }
    });
  }
  return troubles;
}
