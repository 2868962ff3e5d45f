"""Which operators of ATen an exported model may call, and with what arguments.

ATen has some 1,200 operators that change nothing. Some of them read or write outside of their
tensors when their arguments are forged, or return uninitialized memory: operators of sparse, nested
and quantized tensors, ``as_strided``, ``empty``, ``resize``, ``_unsafe_index``, gradients
(``…_backward``), packed sequences, ``segment_reduce``, ``ctc_loss``, ``fractional_max_pool2d``. To
forbid these by name was tried, and each release of PyTorch brings more. PyTorch's tags do not
separate them (``core`` has ``empty`` and ``as_strided``), and differ by release.

So this is the list of what ``torch.export`` makes of models and of functions of tensors (some 480
were exported), with their kin. Those that take indices, sizes or modes were called with such as
cannot be, in processes whose fresh memory was filled with one byte and then with another one.
What crashed, or gave other results, is not here, or its arguments are checked: it reads, writes or
returns memory outside of its tensors when these fail (PyTorch 2.13 on a CPU), or ends the process.

A name stands for all overloads that change nothing; ``name.overload`` for this one only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from psnb.errors import ExportError

_MOST = 1 << 62

Given = Mapping[str, Any]
"""The arguments of an operator, by name."""


def checked(called: Any) -> Callable[..., Any]:
    """Return an operator that checks its arguments, if PyTorch does not."""
    name = str(called._schema.name).partition("::")[2]
    return partial(_call, called, _CHECKS[name]) if name in _CHECKS else called


def _call(called: Any, check: Callable[[Given], bool], *args: Any, **kwargs: Any) -> Any:
    given = {each.name: each.default_value for each in called._schema.arguments}
    given |= dict(zip(given, args, strict=False)) | kwargs
    try:
        good = check(given)
    except (AttributeError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise _wrong(called) from error  # arguments of other kinds, or of other shapes
    if not good:
        raise _wrong(called)
    return called(*args, **kwargs)


def _wrong(called: Any) -> ExportError:
    return ExportError(
        f"the model calls {called} with arguments that cannot be: its memory would be left. If the "
        "batch is what the model was trained with, the model is damaged or forged: export it again"
    )


def _repeats(given: Given) -> bool:
    """Return whether there is room for all rows: negative repeats make it smaller."""
    repeats = given["repeats"]
    if not isinstance(repeats, Tensor) or not repeats.numel():
        return True
    return int(repeats.min()) >= 0 and int(repeats.max()) * repeats.numel() < _MOST


def _bags(given: Given) -> bool:
    """Return whether bags lie one behind the other, and within the indices."""
    if given["weight"].dim() != 2 or given["indices"].dim() != 1 or given["offsets"].dim() != 1:
        return False
    offsets, count = given["offsets"], given["indices"].numel()
    if not offsets.numel():
        return True
    ascend = not bool((offsets[1:] < offsets[:-1]).any())
    return ascend and int(offsets[0]) == 0 and int(offsets[-1]) <= count


def _lstm(given: Given) -> bool:
    """Return whether all layers have their arrays, and these fit each other; none is empty."""
    x, (hidden, cell) = given["input"], given["hx"]
    layers, ways = given["num_layers"], 2 if given["bidirectional"] else 1
    out, size = hidden.shape[2], cell.shape[2]
    batch = x.shape[0 if given["batch_first"] else 1]
    good = x.dim() == 3 and all(
        each.shape[:2] == (layers * ways, batch) and each.dim() == 3 for each in (hidden, cell)
    )
    expected: list[tuple[int, ...]] = []
    for number in range(layers * ways):
        width = x.shape[2] if number < ways else ways * out
        expected += [(4 * size, width), (4 * size, out)]
        expected += [(4 * size,)] * 2 if given["has_biases"] else []
        expected += [(out, size)] if out != size else []
    arrays = given["params"]
    return (
        good
        and bool(out and size)
        and [tuple(each.shape) for each in arrays] == expected
        and all(each.dtype == x.dtype for each in (hidden, cell, *arrays))
    )


def _channels(given: Given) -> bool:
    """Return whether each array has a number for each channel, and what it divides by is there."""
    count = given["input"].shape[1]
    names = ("weight", "bias", "running_mean", "running_var")
    arrays = [given[name] for name in names if given.get(name) is not None]
    there = given.get("running_mean") is not None and given.get("running_var") is not None
    return all(tuple(e.shape) == (count,) for e in arrays) and (
        there or bool(given.get("training"))
    )


def _attention(given: Given) -> bool:
    """Return whether each key has a value."""
    return bool(given["key"].shape[-2] == given["value"].shape[-2])


def _flash_attention(given: Given) -> bool:
    """Return whether all have the same heads, the mask fits, and there is something to divide."""
    query, key, value, mask = (given[name] for name in ("query", "key", "value", "attn_mask"))
    heads = {(*each.shape[:2], *each.shape[3:]) for each in (query, key, value)}
    scores = (*query.shape[:3], key.shape[2])
    fits = mask is None or torch.broadcast_shapes(mask.shape, scores) == scores
    full = all(each.shape[1] and each.shape[2] for each in (query, key, value))
    return query.dim() == 4 and len(heads) == 1 and fits and full and _attention(given)


def _modes(given: Given) -> bool:
    """Return whether the modes are known; with others, nothing is written."""
    return given["interpolation_mode"] in (0, 1, 2) and given["padding_mode"] in (0, 1, 2)


def _division(given: Given) -> bool:
    """Return whether all quotients are integers: the least one by -1 ends the process."""
    if given.get("rounding_mode") != "trunc":
        return True
    dividend, divisor = (torch.as_tensor(given[name]) for name in ("self", "other"))
    kind = torch.result_type(dividend, divisor)
    if kind.is_floating_point or kind.is_complex:
        return True
    # As for division: a single number takes the dtype of the other array.
    least = kind != torch.bool and bool((dividend.to(kind) == torch.iinfo(kind).min).any())
    return not (least and bool((divisor.to(kind) == -1).any()))


_CHECKS: dict[str, Callable[[Given], bool]] = {
    "_embedding_bag": _bags,
    "_native_batch_norm_legit": _channels,
    "_native_batch_norm_legit_functional": _channels,
    "_native_batch_norm_legit_no_training": _channels,
    "_scaled_dot_product_flash_attention_for_cpu": _flash_attention,
    "div": _division,
    "divide": _division,
    "embedding_bag": _bags,
    "grid_sampler": _modes,
    "grid_sampler_2d": _modes,
    "grid_sampler_3d": _modes,
    "lstm": _lstm,
    "repeat_interleave": _repeats,
    "scaled_dot_product_attention": _attention,
}

_POINTWISE = """
    __and__ __lshift__ __or__ __rshift__ __xor__ abs absolute acos acosh add addcdiv addcmul angle
    arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp
    clamp_max clamp_min clip complex conj conj_physical copysign cos cosh deg2rad digamma div divide
    elu eq erf erfc erfinv exp exp2 expm1 fake_quantize_per_channel_affine
    fake_quantize_per_tensor_affine fix float_power floor floor_divide fmax fmin fmod frac frexp gcd
    ge gelu glu greater greater_equal gt hardshrink hardsigmoid hardswish hardtanh heaviside hypot
    i0 igamma igammac imag isclose isfinite isinf isnan isneginf isposinf isreal lcm ldexp le
    leaky_relu lerp less less_equal lgamma log log10 log1p log2 log_sigmoid log_sigmoid_forward
    logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit lt masked_fill maximum
    minimum mish mul multiply mvlgamma nan_to_num ne neg negative nextafter not_equal polar
    polygamma positive pow prelu rad2deg real reciprocal relu relu6 remainder round rrelu rsqrt rsub
    selu sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink sqrt square sub subtract
    tan tanh threshold true_divide trunc where xlogy
    special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
    special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
    special_chebyshev_polynomial_w special_entr special_erf special_erfc special_erfcx
    special_erfinv special_exp2 special_expit special_expm1 special_gammainc special_gammaincc
    special_gammaln special_hermite_polynomial_h special_hermite_polynomial_he special_i0
    special_i0e special_i1 special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p
    special_log1p special_log_ndtr special_log_softmax special_logit special_logsumexp
    special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
    special_modified_bessel_k1 special_multigammaln special_ndtr special_ndtri special_polygamma
    special_psi special_round special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
    special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
    special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_sinc
    special_softmax special_spherical_bessel_j0 special_xlog1py special_xlogy special_zeta
"""

_REDUCTIONS = """
    _log_softmax _safe_softmax _softmax all allclose amax amin aminmax any argmax argmin
    count_nonzero cummax cummin cumprod cumsum cumulative_trapezoid dist log_softmax logcumsumexp
    logsumexp max mean median min mode nanmean nanmedian nanquantile nansum norm prod quantile
    softmax std std_mean sum trace trapezoid var var_mean
"""

_PRODUCTS = """
    _cdist_forward _linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd
    _pdist_forward _trilinear addbmm addmm addmv addr baddbmm bilinear bmm cdist chain_matmul
    cholesky cholesky_inverse cholesky_solve corrcoef cosine_similarity cov cross det dot einsum
    equal ger inner inverse istft kron linear logdet matmul matrix_exp matrix_power mm mv outer
    pairwise_distance pdist pinverse qr slogdet stft svd tensordot trapz vander vdot
    fft_fft fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_hfft fft_hfft2 fft_hfftn fft_ifft
    fft_ifft2 fft_ifftn fft_ifftshift fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2
    fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq fft_rfftn
    linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cross linalg_det linalg_diagonal
    linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_inv linalg_inv_ex linalg_lu_factor
    linalg_lu_factor_ex linalg_matmul linalg_matrix_exp linalg_matrix_norm linalg_matrix_power
    linalg_matrix_rank linalg_multi_dot linalg_norm linalg_pinv linalg_qr linalg_slogdet
    linalg_solve linalg_solve_ex linalg_solve_triangular linalg_svd linalg_svdvals linalg_vecdot
    linalg_vector_norm
"""

_LAYERS = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d _embedding_bag _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    _scaled_dot_product_flash_attention_for_cpu _upsample_bicubic2d_aa.vec
    _upsample_bilinear2d_aa.vec _upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec
    _upsample_nearest_exact3d.vec adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d affine_grid_generator alpha_dropout
    avg_pool1d avg_pool2d avg_pool3d batch_norm channel_shuffle col2im constant_pad_nd conv1d conv2d
    conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution dropout embedding
    embedding_bag embedding_renorm feature_alpha_dropout feature_dropout grid_sampler
    grid_sampler_2d grid_sampler_3d group_norm gru.input gru_cell im2col instance_norm layer_norm
    lstm.input lstm_cell max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices
    max_pool3d max_pool3d_with_indices max_unpool2d native_dropout native_group_norm
    native_layer_norm one_hot pad pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d
    reflection_pad3d renorm replication_pad1d replication_pad2d replication_pad3d rms_norm
    rnn_relu.input rnn_relu_cell rnn_tanh.input rnn_tanh_cell scaled_dot_product_attention
    upsample_bicubic2d.vec upsample_bilinear2d.vec upsample_linear1d.vec upsample_nearest1d.vec
    upsample_nearest2d.vec upsample_nearest3d.vec upsample_trilinear3d.vec
"""

_LOSSES = """
    binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy_loss
    hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss
    multilabel_margin_loss nll_loss nll_loss2d nll_loss2d_forward nll_loss_forward nll_loss_nd
    poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss
"""

_SHAPES = """
    _conj _neg_view _unsafe_view adjoint alias atleast_1d atleast_2d atleast_3d block_diag
    broadcast_tensors broadcast_to cartesian_prod cat chunk column_stack combinations concat
    concatenate contiguous detach diag diag_embed diagflat diagonal diff dim dsplit dstack expand
    expand_as flatten flip fliplr flipud hsplit hstack is_complex is_floating_point lift lift_fresh
    mH mT matrix_H meshgrid moveaxis movedim narrow numel numpy_T pad_sequence permute ravel repeat
    reshape reshape_as resolve_conj resolve_neg roll rot90 row_stack select size slice split
    split_with_sizes squeeze stack sum_to_size swapaxes swapdims sym_numel sym_size t tensor_split
    tile transpose tril triu unbind unflatten unfold unsafe_chunk unsafe_split
    unsafe_split_with_sizes unsqueeze view view_as view_as_complex view_as_real vsplit vstack
"""

_PLACES = """
    _unique _unique2 argsort argwhere bincount bucketize diagonal_scatter gather histc index
    index_add index_copy index_fill index_put index_reduce index_select isin kthvalue masked_scatter
    masked_select msort nonzero nonzero_numpy put repeat_interleave scatter scatter_add
    scatter_reduce searchsorted select_scatter slice_scatter sort take take_along_dim topk
    unique_consecutive unique_dim
"""

_NEW = """
    _local_scalar_dense _to_copy arange bartlett_window bernoulli blackman_window cauchy clone copy
    exponential eye fill full full_like geometric hamming_window hann_window item kaiser_window
    lift_fresh_copy linspace log_normal logspace multinomial new_full new_ones new_zeros normal ones
    ones_like poisson rand rand_like randint randint_like randn randn_like randperm scalar_tensor to
    tril_indices triu_indices type_as uniform zero zeros zeros_like
"""

ALLOWED = frozenset(
    " ".join((_POINTWISE, _REDUCTIONS, _PRODUCTS, _LAYERS, _LOSSES, _SHAPES, _PLACES, _NEW)).split()
)

_OF_NUMBERS = {"gcd.int", "remainder.int", "remainder.default"}
"""Overloads that divide numbers, not tensors, and end the process where that cannot be."""


def is_allowed(called: Any) -> bool:
    """Return whether an exported model may call an operator of ATen."""
    schema = called._schema
    namespace, _, name = str(schema.name).partition("::")
    whole = f"{name}.{schema.overload_name or 'default'}"
    if whole in _OF_NUMBERS:
        return False
    named = {name, whole}
    return namespace == "aten" and not schema.is_mutable and not ALLOWED.isdisjoint(named)
