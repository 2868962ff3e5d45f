"""The ``psnb`` command."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psnb
from psnb._src.utils.checks import path_text
from psnb._src.utils.paths import AnyPath, as_path
from psnb._src.utils.text import printable

_ABOUT = """\
psnb trains models in notebooks, on a Dask cluster: the parameters are on servers,
workers compute gradients, and the notebook schedules them. Most of it is used from
Python (import psnb); this command shows it at work.
"""

_EXAMPLE = """\
example:
  psnb demo --workers 2 --checkpoint-dir my-demo
      train on a cluster on this machine; again, to resume where it was
  psnb predict my-model day-17.csv --to scores.csv
      score a file with an exported model
  psnb checkpoints my-demo --verify
      list what was saved, and check that it is whole

psnb COMMAND --help lists all options of a command.
"""


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, found {text!r}")
    return value


def _folder(text: str) -> AnyPath:
    return as_path(path_text("DIRECTORY", text))


def _parsers() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Return the parser of the command line, and those of its commands by name."""
    parser = argparse.ArgumentParser(
        prog="psnb",
        description=_ABOUT,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"psnb {psnb.__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, title="commands", metavar="COMMAND"
    )
    demo = commands.add_parser(
        "demo",
        help="train a wide & deep model on 327,346 flights",
        description="Train a wide & deep model on 327,346 flights, with its parameters on servers. "
        "Run it again with the same --checkpoint-dir to resume.",
    )
    demo.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="a running Dask cluster, for example tcp://host:8786, instead of a local one; its "
        'servers are the workers started with --resources "ps=1"',
    )
    demo.add_argument(
        "--workers", type=_positive, help="worker processes of the local cluster (default: 2)"
    )
    demo.add_argument(
        "--servers",
        type=_positive,
        help="parameter servers (default: 1, or all that the running cluster has); in one that has "
        "none, that number of its workers",
    )
    demo.add_argument(
        "--security",
        action="store_true",
        help="keep other users of this host out of the local cluster; needs psnb[security]",
    )
    demo.add_argument(
        "--epochs",
        type=_positive,
        default=1,
        help="passes over the training flights; with more than one the model learns rare flights "
        "by heart, and the held-out AUC falls (default: %(default)s)",
    )
    demo.add_argument(
        "--batch-size", type=_positive, default=512, help="flights a step (default: %(default)s)"
    )
    demo.add_argument(
        "--checkpoint-dir",
        type=Path,
        default=Path("psnb-demo"),
        help="where to save and resume (default: %(default)s)",
    )
    demo.add_argument(
        "--checkpoint-seconds",
        type=_positive,
        default=10,
        help="seconds between saves within an epoch (default: %(default)s)",
    )
    predict = commands.add_parser(
        "predict",
        help="score files with an exported model",
        description="Write a row of predictions for each row of CSV, JSON-lines or Parquet files, "
        "with a model that psnb.export wrote. Columns have the names of its feeds; in CSV, a feed "
        "of several numbers a row has the columns NAME.0, NAME.1, ...",
    )
    predict.add_argument("model", metavar="MODEL", type=Path, help="the folder of the model")
    predict.add_argument("files", metavar="FILES", nargs="+", help="what to score, in this order")
    predict.add_argument("--to", metavar="OUT", help="where to write (default: standard output)")
    predict.add_argument(
        "--format",
        choices=("csv", "jsonl", "parquet"),
        help="what to write (default: by the end of OUT, else csv)",
    )
    predict.add_argument(
        "--batch-size", type=_positive, default=1024, help="rows at a time (default: %(default)s)"
    )
    checkpoints = commands.add_parser(
        "checkpoints",
        help="list, verify and prune the checkpoints in a folder",
        description="List the checkpoints in a folder, the oldest first: when each was written, "
        "how many parameters and bytes it has, how many of these are new and not shared with one "
        "before, its metadata, and whether it is whole. The exit status is 1 if one is damaged.",
    )
    checkpoints.add_argument(
        "directory", metavar="DIRECTORY", type=_folder, help="the folder, or its address"
    )
    checkpoints.add_argument(
        "--verify", action="store_true", help="read all files and check what is in them"
    )
    checkpoints.add_argument(
        "--prune",
        metavar="N",
        type=_positive,
        help="first remove all but the newest N, if these are whole; those in use stay",
    )
    runs = commands.add_parser(
        "runs",
        help="list the runs that a folder has checkpoints of",
        description="List the runs whose checkpoints and saved histories are in a folder, or three "
        "levels below it, the oldest first: what psnb.runs returns.",
    )
    runs.add_argument(
        "directory", metavar="DIRECTORY", type=_folder, help="the folder, or its address"
    )
    runs.add_argument(
        "--updates",
        metavar="N",
        type=_positive,
        help="write the newest N as lines of JSON, with their curves, as the panel takes them",
    )
    return parser, commands.choices


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0, 1 for an error, 130 when interrupted."""
    parser, commands = _parsers()
    given = parser.parse_args(arguments)
    try:
        _COMMANDS[given.command](commands[given.command], given)
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it
    except (psnb.errors.PsnbError, ImportError, OSError) as error:
        print(f"psnb: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"psnb: interrupted; {_INTERRUPTED[given.command]}", file=sys.stderr)
        return 130
    return 0


def _demo(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    if given.scheduler is not None and given.workers is not None:
        parser.error("--workers is for the local cluster: a running one has the workers it has")
    if given.scheduler is not None and given.security:
        parser.error("--security is for the local cluster: a running one is as it was started")
    from psnb._src.demo import flights
    from psnb._src.demo.run import run

    if given.batch_size > flights.TRAINING:
        parser.error(f"--batch-size must be {flights.TRAINING:,} at most: the training flights")
    options = {name: value for name, value in vars(given).items() if name != "command"}
    run(**options | {"workers": given.workers or 2})


def _predict(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    from psnb._src.models.export.loaded import load_model
    from psnb._src.models.export.scoring import score_files

    model = load_model(given.model)
    rows = score_files(model, given.files, given.to, given.format, given.batch_size)
    if given.to is not None:
        print(f"psnb: {rows:,} rows are in {given.to}")


def _checkpoints(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    from psnb._src.checkpoint.listing import folder_listing, prune_verified

    if given.prune is not None:
        gone = prune_verified(given.directory, given.prune)
        print(f"removed: {', '.join(gone) or 'none'}")
    found = folder_listing(given.directory, verify=given.verify)
    print(found.text)
    if found.damaged:
        raise psnb.errors.CheckpointError(
            f"{found.damaged} of {found.count} checkpoints in {given.directory} cannot be restored"
        )


def _runs(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    from psnb._src.training.run_updates import update_of

    found = psnb.runs(given.directory)
    if given.updates is None:
        print(found)
        return
    if not found:
        raise psnb.errors.CheckpointError(
            "\n".join([f"there is no run in {given.directory}", *found.wrong])
        )
    for run in found[-given.updates :]:
        print(json.dumps(update_of(run)))


_COMMANDS = {"demo": _demo, "predict": _predict, "checkpoints": _checkpoints, "runs": _runs}

_INTERRUPTED = {
    "demo": "run the same command again to resume from the last checkpoint",
    "predict": "nothing was written",
    "checkpoints": "no checkpoint is half removed",
    "runs": "nothing was changed",
}

if __name__ == "__main__":
    sys.exit(main())
