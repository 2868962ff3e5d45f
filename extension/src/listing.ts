// What the panel and the status bar say of coordinators, and what the panel says when there is none.

import type { Obstacle, Reach } from './connection';
import { formatCount, formatOf, formatParts, formatRate, formatSince, webAddress } from './dashboard/format';
import { toNumber, type Store } from './dashboard/store';
import type { Identity, Source, Tone, Training } from './protocol';

export interface Figure {
  value: string;
  label: string;
  alarming: boolean;
}

const NO_NEWS = 'It has sent nothing yet.';

/** Rows of all sources with the last `seconds` of their queues: what runs first, then the newest; those that are gone last. */
export function rows(
  sources: readonly Source[],
  store: (coordinator: string) => Store | undefined,
  kernelName: (kernel: string) => string,
  seconds: number,
): Row[] {
  const found = sources.map((source) =>
    row(source, store(source.coordinator), kernelName(source.kernel), seconds),
  );
  // A coordinator has one name everywhere, so two may have the same here.
  const shared = found.filter(({ title }, i) => found.some((other, j) => j !== i && other.title === title));
  for (const each of shared) each.kernel += processOf(store(each.coordinator)?.state?.identity);
  return found
    .sort(
      (a, b) =>
        Number(a.gone) - Number(b.gone) ||
        Number(b.works) - Number(a.works) ||
        b.started - a.started ||
        a.coordinator.localeCompare(b.coordinator),
    );
}

function processOf(identity: Identity | undefined): string {
  return identity?.host ? `, process ${identity.process} on ${identity.host}` : '';
}

/** What there is instead of a kernel. */
const WHERE: Record<Source['kind'], string> = {
  kernel: 'no kernel of this server',
  scheduler: 'seen through its scheduler',
  saved: 'a saved run',
};

/** What the panel says of one coordinator. */
export type Row = ReturnType<typeof row>;

function row(source: Source, store: Store | undefined, kernel: string, seconds: number) {
  const { identity, summary, notice, depth, controls } = store?.state ?? {};
  const oldest = (summary?.time ?? 0) - seconds;
  const name = identity?.name ?? '';
  const file = source.notebook.split('/').pop() ?? '';
  const gone = source.gone !== '';
  const paused = controls?.resume === '';
  const command = paused ? ('resume' as const) : ('pause' as const);
  const figures: Figure[] = summary
    ? [
        ...training(summary.training),
        figure(formatRate(toNumber(summary.closures_per_second)), 'closures/s'),
        ...(summary.examples_per_second === null
          ? []
          : [figure(formatRate(toNumber(summary.examples_per_second)), 'examples/s')]),
        figure(shortCount(summary.queued), 'queued'),
        figure(shortCount(summary.in_flight), 'in flight'),
        ...alarming(summary.failed, 'failed'),
        ...alarming(summary.workers_lost, summary.workers_lost === 1 ? 'worker lost' : 'workers lost'),
        ...alarming(summary.servers_lost, summary.servers_lost === 1 ? 'server lost' : 'servers lost'),
      ]
    : []; // until it has sent something
  return {
    coordinator: source.coordinator,
    title: name || file || source.address || source.coordinator,
    notebook: source.notebook,
    file,
    /** The kernel's name, or what there is instead of one. */
    kernel: kernel || WHERE[source.kind],
    cluster: identity?.cluster || source.address,
    /** Which of those that have had this address. */
    clusterSince: since(identity?.cluster_id ?? '', identity?.cluster_started ?? 0, summary?.time ?? 0),
    clusterId: identity?.cluster_id ?? '',
    dashboard: webAddress(identity?.dashboard ?? ''),
    state: summary?.state ?? (gone ? 'gone' : 'no news'),
    tone: summary?.tone ?? 'quiet',
    meaning: summary?.meaning ?? source.gone,
    /** Why nothing more comes from it, or what people must know of it. */
    notice: source.gone || notice || (summary ? '' : (store?.problem ?? NO_NEWS)),
    gone,
    works: !gone && summary !== undefined && summary.queued + summary.in_flight > 0,
    started: identity?.started ?? 0,
    figures,
    /** Queued closures lately, oldest first. */
    queue: (depth ?? []).filter(([time]) => time >= oldest).map(([, queued]) => queued),
    control: {
      command,
      why: gone ? source.gone : summary ? (controls?.[command] ?? '') : NO_NEWS,
    },
  };
}

function training(now: Training | null): Figure[] {
  if (!now) {
    return [];
  }
  const { epoch, epochs, batch, batches, validating } = now;
  return [
    epoch === null ? figure(formatOf(batch, batches), 'batches') : figure(formatOf(epoch, epochs), 'epochs'),
    ...(validating ? [figure(formatParts(validating), 'validated')] : []),
  ];
}

function alarming(count: number, label: string): Figure[] {
  return count ? [figure(shortCount(count), label, true)] : [];
}

/** Which cluster it is, of those that have had one address; empty if that is not known. */
export function since(id: string, started: number, now: number): string {
  const short = id.replace(/^Scheduler-/, '').slice(0, 8);
  return started ? `${short}, since ${formatSince(started, now)}` : short;
}

function figure(value: string, label: string, alarming = false): Figure {
  return { value, label, alarming };
}

/** The document in front: its path on the server, and the id of its kernel if it has one. */
export interface Document {
  path: string;
  kernel: string;
}

/** Sources of a document's kernel; while it has none, those of the same path. */
export function sourcesOf(document: Document | null, sources: readonly Source[]): Source[] {
  if (!document) {
    return [];
  }
  return sources.filter(
    (source) =>
      source.gone === '' &&
      (document.kernel ? source.kernel === document.kernel : source.notebook === document.path),
  );
}

/** The text of the status bar: what somebody must do something about, then what is queued and in flight. */
export function statusText(
  summaries: readonly { state: string; tone: Tone; queued: number; in_flight: number }[],
): string {
  const bad = [...new Set(summaries.filter((one) => one.tone === 'bad').map((one) => one.state))];
  const queued = shortCount(summaries.reduce((sum, one) => sum + one.queued, 0));
  const inFlight = shortCount(summaries.reduce((sum, one) => sum + one.in_flight, 0));
  return `psnb: ${[...bad, `${queued} queued`, `${inFlight} in flight`].join(', ')}`;
}

/** A count in few characters. */
export function shortCount(value: number): string {
  return value < 10_000 ? formatCount(value) : formatRate(value);
}

/** Why the list is empty or not to be trusted; nothing if all is well. */
export interface Blank extends Obstacle {
  title: string;
  /** Whether trying again is a way out. */
  retry: boolean;
}

export const FIRST_LINES =
  'import psnb\n\n' +
  'client = psnb.local_cluster(workers=2, servers=1)\n' +
  'strategy = psnb.ParameterServerStrategy(client)\n' +
  'coordinator = psnb.ClusterCoordinator(strategy)';

export function blank(reach: Reach, sources: number): Blank | null {
  if (reach.state === 'unreachable') {
    return { ...reach, title: 'Hub unreachable', retry: true };
  }
  if (reach.state === 'connecting') {
    return {
      title: 'Connecting',
      reason: sources
        ? 'The connection to the Jupyter server broke; the figures are older. Connecting again…'
        : 'Connecting to the hub on the Jupyter server…',
      remedy: '',
      retry: false,
    };
  }
  if (sources === 0) {
    return {
      title: 'No coordinator yet',
      reason: 'Every coordinator on this server appears here. Start one in a notebook:',
      remedy: FIRST_LINES,
      retry: false,
    };
  }
  return null;
}
