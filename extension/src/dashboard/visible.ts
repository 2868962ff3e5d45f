// Which elements can be seen: what cannot is not drawn.

export class Visibility {
  private readonly seen = new Set<Element>();
  private readonly observer: IntersectionObserver;

  /** `appeared` is told of elements that came into view, of the page or of the scrolled `root`. */
  constructor(root: Element | null, appeared: (elements: Element[]) => void) {
    const changed = (entries: IntersectionObserverEntry[]): void => {
      const fresh: Element[] = [];
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) this.seen.delete(target);
        else if (!this.seen.has(target)) {
          this.seen.add(target);
          fresh.push(target);
        }
      }
      if (fresh.length) appeared(fresh);
    };
    this.observer = new IntersectionObserver(changed, { root, rootMargin: '100px' });
  }

  watch(element: Element): void {
    this.observer.observe(element);
  }

  forget(element: Element): void {
    this.observer.unobserve(element);
    this.seen.delete(element);
  }

  has(element: Element): boolean {
    return this.seen.has(element);
  }

  dispose(): void {
    this.observer.disconnect();
  }
}
