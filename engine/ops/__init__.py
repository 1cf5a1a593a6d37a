"""Operation families. Importing this package registers every op; see `engine.op`."""

from engine.ops import norm_grad as _norm_grad  # noqa: F401
from engine.ops.activated_norm import ActivatedNorm
from engine.ops.attention import attention
from engine.ops.average import Average
from engine.ops.cached_attention import cached_attention
from engine.ops.cached_heads import DecodeAttention, WriteHeads
from engine.ops.cast import cast
from engine.ops.concat import concat, concatenate
from engine.ops.conv import conv1d, conv2d
from engine.ops.embedding import embedding, gather, scatter_add
from engine.ops.extra import extra
from engine.ops.heads import JoinHeads, RopeColumns
from engine.ops.loss import cross_entropy, l1, mean_square, mse, soft_cross_entropy
from engine.ops.matmul import linear, matmul
from engine.ops.moved_product import MovedProduct
from engine.ops.norm import group_norm, group_norm_silu, layer_norm, rms_norm
from engine.ops.packed import PackedMatmul
from engine.ops.packed_attention import PackedAttention
from engine.ops.pointwise import (
    add,
    affine,
    div,
    expand,
    gelu,
    gelu_tanh,
    greater,
    maximum,
    minimum,
    mul,
    neg,
    relu,
    sigmoid,
    silu,
    square,
    sub,
    tanh,
    unary,
)
from engine.ops.pool import avg_pool2d, global_avg_pool, max_pool2d, upsample_nearest
from engine.ops.prologue import Prologue
from engine.ops.reduce import (
    argmax,
    argmin,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_sum,
    reduce_variance,
)
from engine.ops.rope import rope
from engine.ops.shape import (
    copy,
    pad,
    permute,
    reshape,
    split,
    stop_gradient,
    take,
)
from engine.ops.softmax import log_softmax, softmax
from engine.ops.strided import Strided
from engine.ops.swiglu import swiglu, swiglu_concat
from engine.ops.update import AdamUpdate, SgdUpdate
from engine.ops.upsample import upsample_bilinear
from engine.ops.window import fold, unfold
from engine.ops.write_rows import write_rows

__all__ = [
    "ActivatedNorm",
    "AdamUpdate",
    "Average",
    "DecodeAttention",
    "JoinHeads",
    "MovedProduct",
    "PackedAttention",
    "PackedMatmul",
    "Prologue",
    "RopeColumns",
    "SgdUpdate",
    "Strided",
    "WriteHeads",
    "add",
    "affine",
    "argmax",
    "argmin",
    "attention",
    "avg_pool2d",
    "cached_attention",
    "cast",
    "concat",
    "concatenate",
    "conv1d",
    "conv2d",
    "copy",
    "cross_entropy",
    "div",
    "embedding",
    "expand",
    "extra",
    "fold",
    "gather",
    "gelu",
    "gelu_tanh",
    "global_avg_pool",
    "greater",
    "group_norm",
    "group_norm_silu",
    "l1",
    "layer_norm",
    "linear",
    "log_softmax",
    "matmul",
    "max_pool2d",
    "maximum",
    "mean_square",
    "minimum",
    "mse",
    "mul",
    "neg",
    "pad",
    "permute",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_sum",
    "reduce_variance",
    "relu",
    "reshape",
    "rms_norm",
    "rope",
    "scatter_add",
    "sigmoid",
    "silu",
    "soft_cross_entropy",
    "softmax",
    "split",
    "square",
    "stop_gradient",
    "sub",
    "swiglu",
    "swiglu_concat",
    "take",
    "tanh",
    "unary",
    "unfold",
    "upsample_bilinear",
    "upsample_nearest",
    "write_rows",
]
