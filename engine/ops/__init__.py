"""Operation families. Importing this package registers every op; see `engine.op`."""

from engine.ops.conv import conv2d, unfold
from engine.ops.matmul import linear, matmul
from engine.ops.norm import layer_norm, softmax
from engine.ops.pointwise import add, affine, div, expand, gelu, mul, sigmoid, square, sub, unary
from engine.ops.reduce import reduce_mean, reduce_sum
from engine.ops.rope import rope
from engine.ops.shape import concat, copy, pad, permute, reshape, take
from engine.ops.update import AdamUpdate, SgdUpdate

__all__ = [
    "AdamUpdate",
    "SgdUpdate",
    "add",
    "affine",
    "concat",
    "conv2d",
    "copy",
    "div",
    "expand",
    "gelu",
    "layer_norm",
    "linear",
    "matmul",
    "mul",
    "pad",
    "permute",
    "reduce_mean",
    "reduce_sum",
    "reshape",
    "rope",
    "sigmoid",
    "softmax",
    "square",
    "sub",
    "take",
    "unary",
    "unfold",
]
