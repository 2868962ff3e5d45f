// The door of the dashboard: the notebook's widget and JupyterLab's panel draw with it. Its styles
// are in style/dashboard.css.

export * from './format';
export { Store, toNumber, type Listener, type MetricState, type Part, type State } from './store';
export { Dashboard } from './view';
