"""SmolLM2 that continues a text: the newest tokens against a cache of keys and values.

The same program serves one token and a piece of a prompt. Its graph is static; where the tokens
stand in the text is an input.
"""

from __future__ import annotations

from dataclasses import replace

from engine import ops
from engine.graph import Graph, Node
from models.nn import Scope
from models.smollm2 import SmolLm2Config, decode, rotation
from models.workload import Network

IDS, POSITION, LAST, LOGITS = "ids", "position", "last", "logits"


def continuation(config: SmolLm2Config, tokens: int, context: int) -> Network:
    """A network that takes `tokens` further tokens of a text of at most `context` tokens.

    Inputs: "ids" u32 [tokens]; "position" u32 [1], that of the first of them; with several tokens
    also "last" u32 [1], the index of the token whose successor is wanted: what is behind it may be
    anything, and is overwritten later. Output: "logits" [1, vocabulary] of the successor. The
    states "cache.*" hold keys and values of the text so far, for programs of any `tokens`.
    """
    scope = Scope(Graph())
    graph = scope.graph
    position = graph.input(POSITION, (1,), "u32")
    angles = rotation(graph, config, context)

    def mix(layer: Scope, q: Node, k: Node, v: Node) -> Node:
        q, k = (ops.rope(x, *angles, position) for x in (q, k))
        keys, values = (
            ops.write_rows(_cache(layer, name, config, context), rows, position)
            for name, rows in (("keys", k), ("values", v))
        )
        return ops.cached_attention(q, keys, values, position)

    def pick(x: Node) -> Node:
        return ops.gather(x, graph.input(LAST, (1,), "u32")) if tokens > 1 else x

    logits = decode(scope, replace(config, tokens=tokens), mix, pick)
    graph.output(LOGITS, logits)
    return Network(graph, scope.layouts)


def _cache(layer: Scope, name: str, config: SmolLm2Config, context: int) -> Node:
    shape = (config.kv_heads, context, config.head)
    return layer.graph.state(f"cache.{layer.prefix}.{name}", shape)
