// What each worker did over the last minute: one lane each, its closures as bars.
//
// Only the lanes that are scrolled into view are drawn, on a canvas that stays where it is while
// an empty box of all lanes' height scrolls under it.

import type { Span } from '../protocol';
import { Fold, make, setHidden, setText, Visibility, type Context, type Section } from './section';
import { formatCount, plural } from './format';
import { WINDOW, type State } from './store';

const LANE = 16; // pixels
const BAR = 10;
const MOST_LANES = 12; // shown at once
const AXIS = 18;
const TICK = 10; // seconds
const LOST = 'worker lost'; // the kind of an event

export class Timeline implements Section {
  readonly needs = ['timeline', 'workers', 'summary', 'events'] as const;
  private readonly fold: Fold;
  private readonly scroller: HTMLElement;
  private readonly lanes: HTMLElement;
  private readonly canvas: HTMLCanvasElement;
  private readonly axis: HTMLCanvasElement;
  private readonly summary: HTMLElement;
  private readonly sizes: ResizeObserver;
  private readonly visible = new Visibility();
  private width = 0;
  private top = 0; // how far it is scrolled
  private described = 0; // when, by the coordinator's clock

  constructor(
    root: HTMLElement,
    private readonly context: Context,
  ) {
    const redraw = (): void => {
      context.redraw(this);
    };
    this.fold = new Fold(root, 'Timeline', true, context, this);
    this.scroller = make('div', 'psnb-timeline', this.fold.body);
    this.scroller.tabIndex = 0;
    this.scroller.setAttribute('role', 'group');
    this.scroller.setAttribute('aria-label', 'Timeline of the workers; scrolls');
    this.lanes = make('div', 'psnb-lanes', this.scroller);
    this.canvas = make('canvas', 'psnb-lanes-canvas', this.lanes);
    this.axis = make('canvas', 'psnb-axis', this.fold.body);
    this.summary = make('div', 'psnb-timeline-text', this.fold.body);
    this.summary.id = `psnb-timeline-${crypto.getRandomValues(new Uint32Array(1)).join()}`;
    this.canvas.setAttribute('role', 'img');
    this.canvas.setAttribute('aria-label', 'Closures of each worker over the last minute; open bars still run');
    this.canvas.setAttribute('aria-describedby', this.summary.id);
    this.axis.setAttribute('aria-hidden', 'true');
    // Asked for in the midst of changes, it would have the page laid out once more.
    const scrolled = (): void => {
      this.top = this.scroller.scrollTop;
      redraw();
    };
    this.scroller.addEventListener('scroll', scrolled, { passive: true });
    this.sizes = new ResizeObserver((entries) => {
      this.width = Math.floor(entries[0]?.contentRect.width ?? 0);
      redraw();
    });
    this.sizes.observe(this.lanes);
    this.visible.watch(this.scroller, redraw);
  }

  update(state: State): void {
    const lanes = laneOrder(state);
    setHidden(this.fold.root, !lanes.length);
    if (!this.fold.open) return;
    const height = `${LANE * lanes.length}px`;
    if (this.lanes.style.height !== height) this.lanes.style.height = height;
    if (!this.visible.has(this.scroller) || !this.width) return;
    this.describe(state);
    const shown = Math.min(MOST_LANES, lanes.length) + 1;
    const first = Math.min(Math.floor(this.top / LANE), Math.max(0, lanes.length - shown + 1));
    this.draw(state, lanes, first, Math.min(MOST_LANES, lanes.length) * LANE);
    this.drawAxis();
  }

  recolor(): void {
    this.context.redraw(this);
  }

  dispose(): void {
    this.sizes.disconnect();
    this.visible.dispose();
  }

  /** The same in words; while it runs, at most every two seconds, for those who read along. */
  private describe(state: State): void {
    const { time, tone } = state.summary;
    if (tone === 'busy' && Math.abs(time - this.described) < 2) return;
    this.described = time;
    let closures = 0;
    let failed = 0;
    let working = 0;
    for (const spans of state.timeline.values()) {
      for (const span of spans) {
        closures += span.closures;
        failed += span.failed;
      }
      if (spans.length) working++;
    }
    const workers = `${formatCount(working)} of ${plural(state.workers.size, 'worker')}`;
    const ended = `${plural(closures, 'closure')} in the last minute`;
    const bad = failed ? `, ${formatCount(failed)} failed (marked)` : ', none failed';
    const lost = state.summary.workers_lost;
    const gone = lost ? `; ${plural(lost, 'worker')} lost so far (red lines)` : '';
    setText(this.summary, `${workers} ran ${ended}${bad}${gone}`);
  }

  private get gutter(): number {
    return Math.min(110, Math.round(this.width / 4));
  }

  private draw(state: State, lanes: number[], first: number, height: number): void {
    const draw = fit(this.canvas, this.width, height);
    if (!draw) return;
    const { theme } = this.context;
    const { gutter } = this;
    const scale = (this.width - gutter) / WINDOW;
    const x = (time: number): number =>
      Math.max(gutter, this.width + (time - state.summary.time) * scale);
    draw.font = theme.font;
    draw.textBaseline = 'middle';
    draw.fillStyle = theme.color('--psnb-faint');
    for (let seconds = TICK; seconds < WINDOW; seconds += TICK) {
      draw.fillRect(Math.round(this.width - seconds * scale), 0, 1, height);
    }
    for (let lane = first; lane < lanes.length; lane++) {
      const y = lane * LANE - this.top;
      if (y >= height) break;
      const index = lanes[lane] ?? 0;
      const worker = state.workers.get(index);
      const name = worker?.name ?? String(index);
      draw.fillStyle = theme.color('--psnb-muted');
      draw.fillText(shorten(draw, name, gutter - 8), 0, y + LANE / 2);
      const top = y + (LANE - BAR) / 2;
      drawLane(draw, state.timeline.get(index) ?? [], x, top, this.context);
      for (const event of state.events) {
        if (event.kind !== LOST || event.worker !== name) continue;
        if (event.time < state.summary.time - WINDOW) continue;
        draw.fillStyle = theme.color('--psnb-bad');
        draw.fillRect(Math.round(x(event.time)) - 1, y, 2, LANE);
      }
      if (typeof worker?.running_since === 'number') {
        drawRunning(draw, x(worker.running_since), this.width, top, this.context);
      }
    }
  }

  private drawAxis(): void {
    const draw = fit(this.axis, this.width, AXIS);
    if (!draw) return;
    const { theme } = this.context;
    const scale = (this.width - this.gutter) / WINDOW;
    const step = scale * TICK < 48 ? 2 * TICK : TICK;
    draw.font = theme.font;
    draw.textBaseline = 'middle';
    draw.fillStyle = theme.color('--psnb-muted');
    for (let seconds = 0; seconds < WINDOW; seconds += step) {
      draw.textAlign = seconds ? 'center' : 'right';
      const text = seconds ? `−${seconds} s` : 'now';
      draw.fillText(text, this.width - seconds * scale, AXIS / 2);
    }
  }
}

/** The workers that have a lane: all, in the order of the table. */
function laneOrder({ workers, timeline }: State): number[] {
  return [...new Set([...workers.keys(), ...timeline.keys()])].sort((a, b) => a - b);
}

function drawLane(
  draw: CanvasRenderingContext2D,
  spans: readonly Span[],
  x: (time: number) => number,
  y: number,
  { theme }: Context,
): void {
  draw.fillStyle = theme.color('--psnb-accent');
  let end = -Infinity;
  for (const span of spans) {
    // A hairline between two closures, where there is room for one.
    const left = x(span.start);
    const right = Math.max(left + 1, x(span.end) - 1);
    if (right <= end || span.failed === span.closures) continue;
    draw.fillRect(Math.max(left, end), y, right - Math.max(left, end), BAR);
    end = right;
  }
  draw.fillStyle = theme.color('--psnb-bad');
  for (const span of spans) {
    if (!span.failed) continue;
    const left = x(span.start);
    const right = Math.max(left + 2, x(span.end) - 1);
    if (span.failed === span.closures) draw.fillRect(left, y, right - left, BAR);
    // Not everyone sees colours: failures stick out of their lane.
    const middle = (left + right) / 2;
    draw.beginPath();
    draw.moveTo(middle - 4, y - 3);
    draw.lineTo(middle + 4, y - 3);
    draw.lineTo(middle, y + 4);
    draw.fill();
  }
}

/** What still runs: an outline that is open to the right, as nobody knows its end. */
function drawRunning(
  draw: CanvasRenderingContext2D,
  left: number,
  right: number,
  y: number,
  { theme }: Context,
): void {
  draw.strokeStyle = theme.color('--psnb-accent');
  draw.beginPath();
  draw.moveTo(right, y + 0.5);
  draw.lineTo(left + 0.5, y + 0.5);
  draw.lineTo(left + 0.5, y + BAR - 0.5);
  draw.lineTo(right, y + BAR - 0.5);
  draw.stroke();
}

/** Gives a canvas its size in the screen's pixels, cleared. */
function fit(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D | null {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const draw = canvas.getContext('2d');
  draw?.setTransform(ratio, 0, 0, ratio, 0, 0);
  draw?.clearRect(0, 0, width, height);
  return draw;
}

const widths = new Map<string, string>();

/** A name that fits, with an ellipsis if need be. */
function shorten(draw: CanvasRenderingContext2D, name: string, width: number): string {
  const key = `${draw.font} ${width} ${name}`;
  let text = widths.get(key);
  if (text !== undefined) return text;
  text = name;
  while (text && draw.measureText(text === name ? text : `${text}…`).width > width) {
    text = text.slice(0, -1);
  }
  if (text !== name) text += '…';
  if (widths.size > 1000) widths.clear();
  widths.set(key, text);
  return text;
}
