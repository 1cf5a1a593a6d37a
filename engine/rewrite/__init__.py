"""Graph rewriting: one table of rules (`rules`), two engines (`greedy`, `saturation`), one cost.

Values, names, gradients and effects stay; gradients keep storage that nothing else shares.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from engine.errors import GraphError
from engine.graph import Graph, Node
from engine.rewrite.fusion import MAX_OPERANDS
from engine.rewrite.greedy import Applied, apply_rules
from engine.rewrite.rules import Rule, table
from engine.rewrite.terms import Terms, updates_are_last
from engine.specialize import DeviceFacts

Engine = Literal["greedy", "egraph"]

__all__ = ["MAX_OPERANDS", "Applied", "Engine", "rewrite", "rewrite_forward", "rewrite_traced"]


def rewrite(graph: Graph, engine: Engine = "greedy", facts: DeviceFacts | None = None) -> Graph:
    """An equivalent graph that costs no more; the original is left as it is.

    "egraph" needs the package egglog (GraphError without it). Graphs in which something reads
    what an effect has changed come back unchanged.
    """
    return rewrite_traced(graph, engine, facts)[0]


def rewrite_traced(
    graph: Graph, engine: Engine = "greedy", facts: DeviceFacts | None = None
) -> tuple[Graph, list[Applied]]:
    """`rewrite`, and which rules were applied where, with the cost before and after each."""
    if engine not in get_args(Engine):
        raise GraphError(f"rewriting engine {engine!r} is not one of greedy, egraph")
    if not updates_are_last(graph):
        return graph, []
    terms, rules = Terms.of(graph, facts or DeviceFacts()), table()
    before = apply_rules(terms, _first(rules))
    if engine == "egraph":
        from engine.rewrite.saturation import saturate

        extracted, found = saturate(terms)
        found += apply_rules(extracted, rules)
        trace = apply_rules(terms, rules)
        # Extraction does not foresee what rules that are not local will still do.
        if extracted.total() < terms.total():
            terms, trace = extracted, found
    else:
        trace = apply_rules(terms, rules)
    return terms.graph(), [*before, *trace]


def rewrite_forward(loss: Node) -> Node:
    """The loss from ops that rules of stage 0 found, appended to its graph, so that gradients are
    taken of those ops; outputs declared so far are led over to them.

    What is declared later of the old ops becomes the same when the whole graph is rewritten.
    """
    graph = loss.graph
    forward = Graph()
    forward.nodes, forward.outputs = graph.nodes, {**graph.outputs, "": loss}
    terms = Terms.of(forward, DeviceFacts())
    if graph.effects or not apply_rules(terms, _first(table())):
        return loss
    new = terms.appended_to(graph)
    graph.outputs |= {name: new[terms.outputs[name]] for name in graph.outputs}
    return new[terms.outputs[""]]


def _first(rules: Iterable[Rule]) -> list[Rule]:
    return [rule for rule in rules if rule.stage == 0]
