"""What people install: sdist and wheel, in environments that have neither Node nor this clone.

Each environment is made by pip of what registries have today, and is gone after its tests.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import psnb
from tests.conftest import wait_until
from tests.test_packaging import NOTEBOOK_ONLY, smaller_way

ROOT = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.second_tier("pip installs gigabytes of what others have released"),
    pytest.mark.timeout(1200),
]

WITHOUT = r"""
import importlib.util
for name in {names}:
    assert importlib.util.find_spec(name) is None, name
"""

CLOSURES = r"""
import sys
import numpy as np
import psnb

def step(seed):
    ids = np.random.default_rng(seed).integers(1000, size=64)
    rows.push(ids, rows.lookup(ids) - 1.0)
    return sorted({name.partition(".")[0] for name in sys.modules})

if __name__ == "__main__":
    client = psnb.connect(sys.argv[1]) if sys.argv[1:] else psnb.local_cluster(workers=1, servers=1)
    client.wait_for_workers(2, 60)
    strategy = psnb.ParameterServerStrategy(client)
    rows = strategy.embedding("rows", dim=3, optimizer=psnb.Adagrad(0.5))
    coordinator = psnb.ClusterCoordinator(strategy)
    remotes = [coordinator.schedule(step, (seed,)) for seed in range(50)]
    coordinator.join()
    on_server = client.run(lambda: sorted({name.partition(".")[0] for name in sys.modules}))
    print(psnb.__file__, sys.version_info[:2], coordinator)
    print("loaded", *{name for names in on_server.values() for name in names})
    strategy.close()
    client.close()
"""
"""Trains rows on a cluster, on this machine or at an address."""


def run(*command: object, cwd: Path, **more: str) -> str:
    """Run a command as a stranger would, without Node and this clone; return what it prints."""
    done = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env=environment(Path(str(command[0])).parent, **more),
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, f"{shlex.join(map(str, command))}\n{said[-8000:]}"
    return said


def environment(path: Path, **more: str) -> Mapping[str, str]:
    """Return the variables of a process that finds programs in one folder only."""
    kept = {"HOME", "TMPDIR", "LANG", "OMP_NUM_THREADS", "JAX_PLATFORMS"}
    return {**{k: v for k, v in os.environ.items() if k in kept}, "PATH": str(path), **more}


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist, as `make release` makes them of the front end that is built."""
    folder = tmp_path_factory.mktemp("released")
    run(
        *(sys.executable, "-m", "build", "--outdir", folder, ROOT),
        cwd=folder,
        HATCH_JUPYTER_BUILDER_SKIP_NPM="1",
    )
    (wheel,), (sdist,) = folder.glob("psnb-*.whl"), folder.glob("psnb-*.tar.gz")
    return wheel, sdist


@contextmanager
def installed(
    folder: Path, *arguments: object, python: str | Path = sys.executable
) -> Iterator[Path]:
    """A virtual environment in which pip has installed something; its folder of programs."""
    subprocess.run([python, "-m", "venv", folder], check=True, timeout=200)
    try:
        pip(folder / "bin", *arguments)
        yield folder / "bin"
    finally:
        shutil.rmtree(folder)


def pip(programs: Path, *arguments: object) -> None:
    """Install something."""
    quiet = ("--quiet", "--disable-pip-version-check")
    run(programs / "python", "-m", "pip", "install", *quiet, *arguments, cwd=programs)


@pytest.fixture(scope="module")
def notebook(
    released: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """An environment with all that a notebook needs, and the demo."""
    folder = tmp_path_factory.mktemp("notebook") / "environment"
    with installed(folder, f"{released[0]}[demo]") as programs:
        yield programs


def test_registries_would_take_both(released: tuple[Path, Path]) -> None:
    here = Path(sys.executable).parent
    run(here / "python", "-m", "twine", "check", "--strict", *released, cwd=here)
    run(here / "check-wheel-contents", released[0], cwd=here)


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_what_a_code_host_reads_is_as_it_expects(schema: str, files: str) -> None:
    found = sorted(ROOT.glob(files))
    assert found
    program = Path(sys.executable).parent / "check-jsonschema"
    run(program, "--builtin-schema", f"vendor.{schema}", *found, cwd=ROOT)


def test_sdist_and_clone_give_the_same_wheel(released: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = released
    build = (sys.executable, "-m", "build", "--wheel", "--outdir")
    run(*build, tmp_path, ROOT, cwd=tmp_path, HATCH_JUPYTER_BUILDER_SKIP_NPM="1")
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()
    shutil.unpack_archive(sdist, tmp_path)
    run(*build, tmp_path / "again", tmp_path / f"psnb-{psnb.__version__}", cwd=tmp_path)
    assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()


def test_a_notebook_has_the_demo_and_the_panel(notebook: Path, tmp_path: Path) -> None:
    said = run(notebook / "jupyter", "labextension", "list", cwd=tmp_path)
    assert re.search(rf"psnb v{psnb.__version__} .*enabled.*OK", said), said
    said = run(notebook / "jupyter", "server", "extension", "list", cwd=tmp_path)
    assert re.search(r"psnb.*enabled", said), said
    options = ("--workers", "1", "--batch-size", "65536", "--checkpoint-dir", tmp_path / "demo")
    said = run(notebook / "psnb", "demo", *options, cwd=tmp_path)
    assert re.search(r"AUC\s+0\.[5-9]", said), said
    assert (tmp_path / "demo" / "learning-curve.png").is_file()


def test_workers_and_servers_need_nothing_of_a_notebook(
    released: tuple[Path, Path], notebook: Path, tmp_path: Path
) -> None:
    with installed(tmp_path / "worker", "--upgrade", "pip") as programs, ExitStack() as stack:
        for _, _, *arguments in smaller_way():
            pip(programs, *(released[0] if each == "psnb" else each for each in arguments))
        names = (*NOTEBOOK_ONLY, "IPython", "jupyter_server", "traitlets")
        run(programs / "python", "-c", WITHOUT.format(names=names), cwd=tmp_path)

        file = tmp_path / "scheduler.json"
        for arguments in (
            ("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"),
            ("worker", "--nthreads", "1", "--no-dashboard", "--name", "w"),
            ("worker", "--nthreads", "1", "--no-dashboard", "--resources", "ps=1"),
        ):
            process = subprocess.Popen(
                [programs / "dask", *arguments, "--scheduler-file", file],
                cwd=tmp_path,
                env=environment(programs),
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            wait_until(file.is_file, "the scheduler has started")
        address = re.search(r'"address": "([^"]+)"', file.read_text())
        assert address is not None
        (tmp_path / "closures.py").write_text(CLOSURES)
        said = run(notebook / "python", "closures.py", address[1], cwd=tmp_path)
        assert "50 completed, 0 failed" in said
        loaded = set(said.partition("loaded ")[2].split())
        assert "distributed" in loaded
        assert not loaded & set(names)


def interpreter(version: str) -> str | None:
    """Return a Python of this version, if there is one."""
    name = f"python{version}"
    pyenv = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for each in (shutil.which(name), *sorted(pyenv)):
        if each is not None:
            done = subprocess.run(  # pyenv's own command may refuse
                [each, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.stdout.strip() == version:
                return str(each)
    return None


def versions() -> list[str]:
    """Return the other versions of Python that psnb says it runs on."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    found = re.findall(r"Python :: (3\.\d+)", "\n".join(classifiers))
    return [each for each in found if each != "{}.{}".format(*sys.version_info)]


@pytest.mark.parametrize("version", versions())
def test_other_versions_of_python_run_closures(
    version: str, released: tuple[Path, Path], tmp_path: Path
) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    with installed(tmp_path / "environment", released[0], python=python) as programs:
        (tmp_path / "closures.py").write_text(CLOSURES)
        said = run(programs / "python", "closures.py", cwd=tmp_path)
        assert str(tmp_path / "environment") in said
        assert f"({version.replace('.', ', ')})" in said
        assert "50 completed, 0 failed" in said
