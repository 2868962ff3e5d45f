// Holding in place what is below a cell whose output becomes shorter.

/**
 * For some seconds, scrolls by as much as the cell around an element grows or shrinks, if its end is
 * in view or above: then what people read below it does not jump. Near the beginning of the page it
 * cannot scroll that far: the cell keeps the rest as empty space until it is out of view. Browsers
 * scroll by themselves, but leave that rest.
 */
export function holdBelow(element: Element, seconds = 5): void {
  const cell = element.closest<HTMLElement>('.jp-Cell');
  const scroller = cell && scrollerOf(cell);
  if (!cell || !scroller) return;
  let { height } = cell.getBoundingClientRect();
  const sizes = new ResizeObserver(() => {
    const box = cell.getBoundingClientRect();
    const grown = box.height - height;
    height = box.height;
    if (box.bottom - grown >= scroller.getBoundingClientRect().bottom) return;
    const missing = -(scroller.scrollTop + grown);
    if (missing > 0) cell.style.minHeight = `${(height += missing)}px`;
    scroller.scrollTop += grown;
  });
  sizes.observe(cell);
  const { overflowAnchor } = scroller.style;
  scroller.style.overflowAnchor = 'none'; // Not both.
  setTimeout(() => {
    sizes.disconnect();
    scroller.style.overflowAnchor = overflowAnchor;
    releaseOutOfView(cell);
  }, 1000 * seconds);
}

function releaseOutOfView(cell: HTMLElement): void {
  const views = new IntersectionObserver((entries) => {
    if (entries.at(-1)?.isIntersecting) return;
    views.disconnect();
    cell.style.minHeight = '';
  });
  views.observe(cell);
}

function scrollerOf(element: HTMLElement): HTMLElement | null {
  let found = element.parentElement;
  while (found && !/auto|scroll/.test(getComputedStyle(found).overflowY)) found = found.parentElement;
  return found;
}
