"""What starts a local cluster: `psnb.local_cluster`.

Apart from what it is made of, as importing Dask takes long: meanwhile the fork server imports it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from psnb._src.cluster.forking import begin_fork_server, import_named
from psnb._src.utils.checks import integer
from psnb._src.utils.foreign_names import explained
from psnb.errors import ClusterError, ConfigurationError

if TYPE_CHECKING:
    from distributed import Client


@explained
def local_cluster(
    workers: int = 2,
    servers: int = 1,
    threads_per_worker: int = 1,
    dashboard_address: str | None = None,
    security: bool = False,
    *,
    dashboard: bool = False,
    reuse: bool = False,
    processes: bool = True,
) -> Client:
    """Start a cluster of processes on this machine.

    Each worker and server is a process of its own, watched by a Dask nanny, which starts it again
    when it dies. The stop button of a notebook and Ctrl-C leave them alone.
    ``client.cluster.scale`` and ``adapt`` count all processes and never take a server away.

    On Linux they are forked from a process that has imported what they need, the *fork server*, and
    else start anew, which takes them a second each. It never runs anything, never imports the
    notebook's own modules, and ends with the notebook and its last process.

    With ``processes=False`` everything is in this process: it starts in a tenth of a second,
    closures see the notebook's own modules, prints and breakpoints, and share one interpreter. That
    is for trying things out, and for steps that compute outside of the interpreter.

    Parameters
    ----------
    workers : int
        Processes that run closures; 1 or more.
    servers : int
        Processes that hold parameters; 1 or more.
    threads_per_worker : int
        Closures that a worker runs at the same time; 1 or more.
    dashboard_address : str, optional
        Where Dask's own dashboard listens, for example ``":8787"``, as ``dashboard=True`` does. By
        default there is no dashboard, and Dask does not profile its tasks either. Everybody who can
        reach it sees everything: it has no password.
    security : bool
        Whether to keep the other users of this host out. They can reach the cluster's ports on
        loopback, and run code as you; a warning is logged if there are any. With True everything
        goes over TLS, only processes of this cluster and this client have its certificates, and
        without a dashboard nothing is served over HTTP. It needs ``psnb[security]``, and costs: in
        three runs on two busy cores wide & deep made 10 to 18 % fewer examples/s at batch 512, and
        up to 8 % fewer at 4,096 (``tests/benchmarks/security.py``).
    dashboard : bool
        Whether there is Dask's own dashboard, on a free port of loopback unless
        ``dashboard_address`` says where; ``client.dashboard_link`` leads there. It needs
        ``psnb[dashboard]``.
    reuse : bool
        Whether to return the client of the local cluster that this process has, if one runs: a cell
        that starts a cluster can then be run again. Else a second one is started, and a warning
        logged, as the first one continues to run.
    processes : bool
        Whether workers and servers are processes of their own, else threads of this one.

    Returns
    -------
    distributed.Client
        Connected; closing it closes the cluster as well. Also a context manager.

    Raises
    ------
    ConfigurationError
        If a number is below 1, or ``security`` is for a cluster without processes.
    ClusterError
        If its processes do not start, ``security`` or ``dashboard`` needs what is not installed,
        or with ``reuse`` a cluster runs that was started with other arguments.
    """
    workers = integer("local_cluster: workers", workers, 1)
    servers = integer("local_cluster: servers", servers, 1)
    threads_per_worker = integer("local_cluster: threads_per_worker", threads_per_worker, 1)
    if dashboard and dashboard_address is None:
        dashboard_address = "127.0.0.1:0"
    if dashboard_address is not None and find_spec("bokeh") is None:
        raise ClusterError(
            "Dask's dashboard needs the package bokeh, which is not installed: "
            "pip install 'psnb[dashboard]'"
        )
    shape = {
        "workers": workers,
        "servers": servers,
        "threads_per_worker": threads_per_worker,
        "dashboard_address": dashboard_address,
        "security": bool(security),
        "processes": bool(processes),
    }
    if security and not processes:
        raise ConfigurationError(
            "local_cluster(security=True): without processes nothing listens that needs it"
        )
    if processes:
        begin_fork_server()
    import_named(["psnb._src.cluster.local"])
    from psnb._src.cluster.local import start

    return start(shape, reuse)
