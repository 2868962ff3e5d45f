"""Tests of exported JAX models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import psnb
import psnb.jax
from psnb.errors import ConfigurationError, ExportError
from tests.models.export.followed import manager_of
from tests.models.export.models import BATCH, IDS, NEW, JaxModel, X, assert_close, random_rows
from tests.models.export.test_hostile_models import forge


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_it_predicts_what_the_distributed_model_does(tmp_path: Path, combiner: str) -> None:
    model = JaxModel(combiner=combiner)
    loaded = psnb.load_model(psnb.export(tmp_path / "model", model.forward, example=BATCH))
    assert_close(loaded.predict(BATCH), model.forward(BATCH))
    one = {"ads": NEW["ads"][:1], "words": NEW["words"][:1], "x": NEW["x"][:1]}
    for batch in (NEW, one):  # of other sizes, and with ids that were not seen
        assert_close(loaded.predict(batch), model.forward(batch))


def test_it_follows_checkpoints_and_compiles_nothing_again(tmp_path: Path) -> None:
    model = JaxModel()
    manager = manager_of(model.strategy, tmp_path / "run")
    path = psnb.export(tmp_path / "m", model.forward, example=BATCH, follow=manager)
    loaded = psnb.load_model(path)
    before = loaded.predict(BATCH)
    compiled = loaded._state.computation._run  # type: ignore[attr-defined]
    model.params.assign({"w": np.float32([3, -1, 2]), "b": np.float32(0.25)})
    model.ads.assign([3, 77], random_rows(2, 3))
    manager.save()
    assert loaded.refresh()
    for batch in (BATCH, NEW):
        assert_close(loaded.predict(batch), model.forward(batch))
    assert not np.allclose(loaded.predict(BATCH)["raw"], before["raw"])
    assert loaded._state.computation._run is compiled  # type: ignore[attr-defined]


def test_feeds_are_what_a_prediction_needs(tmp_path: Path) -> None:
    loaded = psnb.load_model(psnb.export(tmp_path / "m", JaxModel().forward, example=BATCH))
    assert [(feed.name, feed.dtype, feed.shape, feed.holds) for feed in loaded.feeds] == [
        ("ads", "int64", (None, 2), "examples"),
        ("words", "int64", (None,), "ragged"),
        ("x", "float32", (None, 3), "examples"),
    ]
    assert [(each.name, each.shape) for each in loaded.fetches] == [
        ("raw", (None,)),
        ("score", (None,)),
    ]
    with pytest.raises(ConfigurationError, match="differ in their length"):
        loaded.predict({**BATCH, "x": X[:2]})


def made(function: Any, ids: Any = None, **options: Any) -> psnb.jax.ForwardPass:
    model = JaxModel()
    tables = {"ads": model.ads}
    return psnb.jax.forward(function, params=model.params, tables=tables, ids=ids, **options)


def rows_of(params: Any, rows: Any, batch: Any) -> Any:
    return rows["ads"].sum(1) + params["b"]


def test_ids_that_are_computed_are_computed_with_all_their_bits(tmp_path: Path) -> None:
    def ids(batch: Any) -> dict[str, Any]:
        return {"ads": batch["ads"][:, :1] * 2**33 + batch["shift"][:, None]}

    batch = {"ads": IDS % 7, "shift": np.arange(4) + 2**50, "unused": np.array(["a"] * 4)}
    model = made(rows_of, ids)
    loaded = psnb.load_model(psnb.export(tmp_path / "m", model, example=batch))
    assert [feed.name for feed in loaded.feeds] == ["ads", "shift"]
    np.testing.assert_allclose(loaded.predict(batch), model(batch), atol=1e-6)
    half = {name: each[2:] for name, each in batch.items()}
    np.testing.assert_allclose(loaded.predict(half), model(half), atol=1e-6)


@pytest.mark.parametrize(
    ("function", "ids", "said"),
    [
        (rows_of, lambda b: {"ads": np.stack([b["ads"][:, 0]] * 2, 1)}, "operators and jax.numpy"),
        (rows_of, lambda b: {"ads": b["words"].take(np.arange(4))}, "are Ragged and are made in"),
        (rows_of, lambda b: {}, "must return the ids of"),
        (lambda p, r, b: np.asarray(b["x"]), None, "cannot be exported for batches of any size"),
        (lambda p, r, b: b["words"] + 1, None, "it is Ragged"),
        (lambda p, r, b: {1: b["x"]}, None, "returns arrays in dicts, lists and tuples"),
    ],
    ids=["numpy", "made bags", "none", "numpy in the function", "bags", "keys"],
)
def test_what_cannot_be_exported_is_reported(
    tmp_path: Path, function: Any, ids: Any, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        psnb.export(tmp_path / "m", made(function, ids), example=BATCH)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("example", "said"),
    [
        (None, "needs example="),
        ({"ads": IDS, "x": X[:2]}, "their lengths differ"),
        ({"words": IDS}, "could not be found"),
    ],
    ids=["none", "lengths", "names"],
)
def test_invalid_examples_are_reported(tmp_path: Path, example: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        psnb.export(tmp_path / "m", made(rows_of), example=example)


def test_integers_of_64_bits_that_the_program_takes_are_checked(tmp_path: Path) -> None:
    model = made(lambda p, r, b: r["ads"].sum(1) * b["count"][:, None])
    batch = {"ads": IDS, "count": np.arange(4)}
    loaded = psnb.load_model(psnb.export(tmp_path / "m", model, example=batch))
    np.testing.assert_allclose(loaded.predict(batch), model(batch), atol=1e-6)
    with pytest.raises(ConfigurationError, match="feed 'count': expected numbers that fit int32"):
        loaded.predict({**batch, "count": np.arange(4) + 2**40})


def test_structures_of_batches_and_outputs_stay(tmp_path: Path) -> None:
    def function(params: Any, rows: Any, batch: Any) -> Any:
        return (batch[0] * 2, [batch[1]["y"], {"k": rows["ads"][:, 0]}])

    batch = (X, {"y": np.arange(4.0, dtype=np.float32)}, IDS)
    model = made(function, lambda b: {"ads": b[2]})
    loaded = psnb.load_model(psnb.export(tmp_path / "m", model, example=batch))
    assert [feed.name for feed in loaded.feeds] == ["0", "1.y", "2"]
    assert [fetch.name for fetch in loaded.fetches] == ["0", "1.0", "1.1.k"]
    found, expected = loaded.predict((X, batch[1]["y"], IDS)), model(batch)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, expected)


def test_a_size_is_compiled_once(tmp_path: Path) -> None:
    loaded = psnb.load_model(psnb.export(tmp_path / "m", JaxModel().forward, example=BATCH))
    loaded.predict(BATCH)
    for _ in range(3):
        loaded.predict(BATCH)
        assert loaded._state.computation._run._cache_size() == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "target", ["xla_ffi_python_cpu_callback", "AllocateBuffer", "lapack_sgesdd", "Sharding-"]
)
def test_programs_that_call_what_no_model_needs_are_refused(tmp_path: Path, target: str) -> None:
    def calls(x: Any) -> Any:
        return jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    refused(tmp_path, target, calls)


def refused(tmp_path: Path, target: str, calls: Callable[[Any], Any]) -> None:
    """Forge a model of a program, and check that it is not loaded."""
    path = psnb.export(tmp_path / "m", made(lambda p, r, b: b["x"] * 2), example=BATCH)
    check = jax_export.DisabledSafetyCheck.custom_call(target)
    hostile = jax_export.export(jax.jit(calls), disabled_checks=[check], platforms=["cpu"])(
        jax.ShapeDtypeStruct((4, 3), np.float32)
    )
    (path / "program.jax").write_bytes(hostile.serialize())
    forge(path)
    with pytest.raises(ExportError, match=f"calls '{target}', which is not an operation of"):
        psnb.load_model(path)


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


_LETTERS = {name: np.uint8(ord(name)) for name in "ALNRSUV"}
_SIDE = {"side": _LETTERS["L"]}
_TRSM = {"uplo": _LETTERS["L"], "trans_x": _LETTERS["N"], "diag": _LETTERS["N"]}
_INFO, _PIVOTS = array(dtype=np.int32), array(9, dtype=np.int32)

ROUTINES: list[tuple[str, list[Any], list[Any], dict[str, Any]]] = [
    ("lapack_sgetrf_ffi", [array(9, 9)], [array(1, 1), _PIVOTS, _INFO], {}),
    ("lapack_sgetrf_ffi", [array(9, 9)], [array(9, 9), array(1, dtype=np.int32), _INFO], {}),
    ("lapack_sgetrf_ffi", [array(2, 9, 9)], [array(2, 9, 9), _PIVOTS, _INFO], {}),
    ("lapack_dgetrf_ffi", [array(9, 9)], [array(9, 9), _PIVOTS, _INFO], {}),
    ("lapack_sgeqrf_ffi", [array(9, 4)], [array(9, 4), array(1)], {}),
    ("lapack_spotrf_ffi", [array(9, 9)], [array(1, 1), _INFO], {"uplo": _LETTERS["L"]}),
    ("lapack_spotrf_ffi", [array(9, 4)], [array(9, 4), _INFO], {"uplo": _LETTERS["L"]}),
    ("lapack_sorgqr_ffi", [array(9, 4), array(5)], [array(9, 4)], {}),
    ("lapack_sorgqr_ffi", [array(4, 9), array(4)], [array(4, 9)], {}),
    ("lapack_strsm_ffi", [array(1, 1), array(9, 9)], [array(1, 1)], _SIDE | _TRSM),
    ("lapack_strsm_ffi", [array(4, 4), array(9, 4)], [array(9, 4)], _SIDE | _TRSM),
    ("lapack_strsm_ffi", [array(4, 4), array(4, 9)], [array(4, 9)], _TRSM),
    (
        *("lapack_ssyevd_ffi", [array(9, 9)], [array(9, 9), array(1), _INFO]),
        {"mode": _LETTERS["V"], "uplo": _LETTERS["L"]},
    ),
    (
        *("lapack_sgesdd_ffi", [array(9, 4)]),
        [array(9, 4), array(4), array(9, 4), array(4, 4), _INFO],
        {"mode": _LETTERS["A"]},  # of mode S
    ),
    ("cusolver_getrf_ffi", [array(9, 9)], [array(9, 9), array(1, dtype=np.int32), _INFO], {}),
    ("cu_lu_pivots_to_permutation", [_PIVOTS], [array(4, dtype=np.int32)], {}),
    ("lapack_sgtsv_ffi", [array(4)], [array(4)], {}),
]


@pytest.mark.parametrize(
    ("target", "takes", "gives", "options"), ROUTINES, ids=[each[0] for each in ROUTINES]
)
def test_routines_whose_results_do_not_fit_their_arguments_are_refused(
    tmp_path: Path, target: str, takes: list[Any], gives: list[Any], options: dict[str, Any]
) -> None:
    def calls(x: Any) -> Any:
        given = [jnp.ones(each.shape, each.dtype) * x[0, 0].astype(each.dtype) for each in takes]
        found = jax.ffi.ffi_call(target, gives)(*given, **options)
        return x + found[0].ravel()[0].astype(x.dtype)

    refused(tmp_path, target, calls)


def test_routines_of_matrices_of_the_batch_are_refused_when_it_is_exported(tmp_path: Path) -> None:
    forward = made(lambda p, r, b: jnp.linalg.qr(b["x"][:, :, None] * jnp.eye(3))[1].sum((1, 2)))
    with pytest.raises(ConfigurationError, match=r"calls 'lapack_.*do not depend on the batch"):
        psnb.export(tmp_path / "m", forward, example=BATCH)


OTHER_ROUTINE = pytest.mark.second_tier("a routine of LAPACK: another one is in the first tier")


@pytest.mark.parametrize(
    "what",
    [
        lambda x: jnp.linalg.qr(jnp.eye(3) + x[0, 0])[0].sum(),
        pytest.param(
            lambda x: jnp.linalg.svd(jnp.eye(3, 2) + x[0, 0])[1].sum(), marks=OTHER_ROUTINE
        ),
        pytest.param(
            lambda x: jnp.linalg.svd(jnp.eye(3, 2) + x[0, 0], full_matrices=False)[0].sum(),
            marks=OTHER_ROUTINE,
        ),
        pytest.param(
            lambda x: jnp.linalg.svd(jnp.eye(3, 2) + x[0, 0], compute_uv=False).sum(),
            marks=OTHER_ROUTINE,
        ),
        pytest.param(
            lambda x: jnp.linalg.qr(jnp.eye(3, 2) + 1j * x[0, 0], "complete")[0].real.sum(),
            marks=OTHER_ROUTINE,
        ),
        pytest.param(lambda x: jnp.linalg.eigh(jnp.eye(3) + x[0, 0])[0].sum(), marks=OTHER_ROUTINE),
        pytest.param(
            lambda x: jnp.linalg.inv(jnp.stack([jnp.eye(3) + x[0, 0]] * 2)).sum(),
            marks=OTHER_ROUTINE,
        ),
        pytest.param(lambda x: jnp.linalg.inv(jnp.eye(3) + x[0, 0]).sum(), marks=OTHER_ROUTINE),
        pytest.param(
            lambda x: jnp.linalg.cholesky(jnp.eye(3) + x[0, 0] ** 2).sum(), marks=OTHER_ROUTINE
        ),
        lambda x: jax.lax.approx_max_k(jnp.arange(8.0) * x[0, 0], 2)[0].sum(),
        lambda x: jax.scipy.linalg.solve_triangular(jnp.eye(3) + x[0, 0], jnp.ones(3)).sum(),
        lambda x: jax.random.normal(jax.random.key(0), (3,)).sum(),
        lambda x: (jax.lax.top_k(x, 2)[0] + jnp.sort(x)[:, :2] + jnp.arcsin(x)[:, :2]).sum(),
    ],
)
def test_operations_beside_those_of_xla_are_exported(tmp_path: Path, what: Any) -> None:
    forward = made(lambda p, r, b: what(b["x"]) + 0 * b["x"].sum(1))
    loaded = psnb.load_model(psnb.export(tmp_path / "m", forward, example=BATCH))
    np.testing.assert_allclose(loaded.predict(BATCH), what(X) + np.zeros(4), atol=1e-5)


@pytest.mark.skipif(not hasattr(jax.lax, "empty"), reason="this JAX has no such operation")
def test_what_cannot_be_loaded_is_not_exported(tmp_path: Path) -> None:
    forward = made(lambda p, r, b: b["x"] + jax.lax.empty((3,), np.float32))
    with pytest.raises(
        ConfigurationError,
        match=r"calls 'AllocateBuffer', which is not an operation that exported models may call",
    ):
        psnb.export(tmp_path / "m", forward, example=BATCH)


@pytest.mark.parametrize("content", [b"", b"x" * 100], ids=["empty", "text"])
def test_programs_that_are_none_are_refused(tmp_path: Path, content: bytes) -> None:
    path = psnb.export(tmp_path / "m", made(rows_of), example=BATCH)
    (path / "program.jax").write_bytes(content)
    forge(path)
    with pytest.raises(ExportError, match="is not a program of JAX"):
        psnb.load_model(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["arguments"].pop(), "arguments, found others"),
        (lambda d: d["arguments"].__setitem__(0, ["dense", "x"]), "no dense parameter"),
        (lambda d: d["arguments"].__setitem__(0, ["feed", "x"]), "there is no feed"),
        (lambda d: d["arguments"].__setitem__(0, ["file", "x"]), "Invalid enum value 'file'"),
        (lambda d: d["arguments"].__setitem__(0, 3), r"got `int` - at `\$\.arguments"),
        (lambda d: d["features"]["ads"].update(table="x"), "has no table"),
        (lambda d: d["features"]["ads"].update(feed="x"), "has no ids"),
        (lambda d: d["features"]["ads"].update(feed=None), "has no ids"),
        (lambda d: d["features"]["ads"].update(combiner="sum"), "its combiner"),
        (lambda d: d.update(x64="yes"), r"Expected `bool`, got `str` - at `\$\.x64"),
        (lambda d: d.update(computed=[[], ["ads"]]), "ids.jax is missing"),
    ],
)
def test_details_that_do_not_fit_are_refused(tmp_path: Path, change: Any, said: str) -> None:
    path = psnb.export(tmp_path / "m", made(rows_of), example=BATCH)
    forge(path, lambda content: change(content["detail"]))
    with pytest.raises(ExportError, match=said):
        psnb.load_model(path)
