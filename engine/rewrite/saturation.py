"""Equality saturation of the rule table with the package egglog, and extraction by the same cost.

The e-graph's language has one sort. A node is an op, a number that stands for its attributes, and
operands; egglog does matching, congruence and equality, and the rules' builders stay the Python
functions that the greedy engine calls. Rules that are not local are left to the greedy engine,
which runs after extraction: pointwise chains, which have exponentially many partial results, and
the packing rules, which depend on who else reads an operand.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from engine.errors import GraphError
from engine.rewrite.extraction import extract
from engine.rewrite.greedy import Applied, admissible
from engine.rewrite.rules import Pattern, Rule, table
from engine.rewrite.term import Term, topological
from engine.rewrite.terms import Terms

MAX_ROUNDS = 30
MAX_TERMS = 20_000
"""Bounds of saturation; what was found until then is extracted."""

LANGUAGE = """
(sort Term)
(sort Terms (Vec Term))
(constructor Op (String i64 Terms) Term)
(function operand (Terms i64) Term :merge old)
(function number (String i64 Terms) i64 :merge (min old new))
(function least (Term) i64 :merge (min old new))
(function class (i64) i64 :merge (min old new))
(function at (i64) Term :merge old)
(relation equal (i64 i64))
(relation one-of (i64 String))
(relation found (i64 i64 i64 i64))
(ruleset build)
(ruleset match)
(ruleset classify)
(rule ((equal a b) (= x (at a)) (= y (at b))) ((union x y)) :ruleset build)
(rule ((= x (at n)) (= m (least x))) ((set (class n) m)) :ruleset classify)
"""

MAX_NODES = 3
"""Nodes of the largest pattern; `found` has a place for each."""


def saturate(terms: Terms) -> tuple[Terms, list[Applied]]:
    """The cheapest equivalent terms that were found; the given ones if none is cheaper."""
    rules = [(rule, pattern) for rule in table() if rule.local for pattern in rule.patterns]
    graph = _EGraph(terms, rules)
    for term in topological(terms.values()):
        graph.insert(term)
    for _ in range(MAX_ROUNDS):
        if not graph.grow() or len(graph.terms) > MAX_TERMS:
            break
    before = terms.total()
    extracted = extract(terms, graph.terms, graph.classes())
    after = extracted.total()
    if after > before:
        return terms, []
    return extracted, [Applied("equality saturation", f"{len(graph.terms)} terms", before, after)]


class _EGraph:
    """An egglog program fed with terms; terms are known to it by their place in `terms`."""

    def __init__(self, pool: Terms, rules: list[tuple[Rule, Pattern]]) -> None:
        self.terms: list[Term] = []
        self._pool, self._rules = pool, rules
        self._engine = _engine()
        self._numbers: dict[Term, int] = {}
        self._heads: dict[tuple[str, str], int] = {}
        self._seen: set[tuple[int, ...]] = set()
        self._rows_of: dict[str, list[tuple[Any, ...]]] = {"equal": []}
        self._sets: dict[tuple[str, ...], int] = {}
        text = [_query(number, pattern, self._sets) for number, (_, pattern) in enumerate(rules)]
        facts = [f'(one-of {k} "{name}")' for names, k in self._sets.items() for name in names]
        self._run("\n".join([LANGUAGE, *text, *facts]))

    def insert(self, term: Term) -> int:
        """The number of a term, told to the e-graph before the next matching if it is new."""
        if term in self._numbers:
            return self._numbers[term]
        operands = [self.insert(value) for value in term.inputs]
        number = self._numbers[term] = len(self.terms)
        self.terms.append(term)
        head = self._heads.setdefault((term.key[1], term.owner), len(self._heads))
        table = f"row{len(operands)}"
        if table not in self._rows_of:
            self._run(_constructor(len(operands)))
        self._rows_of.setdefault(table, []).append((number, term.op, head, *operands))
        return number

    def grow(self) -> bool:
        """Match all rules once and add what they build; whether anything was new."""
        classes = self.classes()
        self._run("(run match 1)")
        for row in sorted(self._rows("found") - self._seen):
            self._seen.add(row)
            rule, pattern = self._rules[row[0]]
            instance = self._instance(pattern, iter(row[1:]), classes)
            matched = pattern.match(instance)
            if matched is None:
                continue
            root = self.terms[row[1]]
            self._pool.position = root.position
            built = rule.build(self._pool, *matched)
            new = admissible(self._pool, instance, built) if isinstance(built, Term) else None
            if new is not None and new is not root:
                number = self.insert(new)
                self._rows_of["equal"].append((row[1], number))
        return any(self._rows_of.values())

    def classes(self) -> list[int]:
        """For each term the number of the first term known to be equal to it."""
        self._feed()
        self._run("(run-schedule (saturate (run build))) (run classify 1)")
        found = {number: first for number, first in self._rows("class")}
        return [found[number] for number in range(len(self.terms))]

    def _instance(self, pattern: Pattern, numbers: Iterator[int], classes: list[int]) -> Term:
        """What a pattern matched, as one term: its nodes as found, all else by the first equal."""
        node = self.terms[next(numbers)]
        inputs = [self.terms[classes[self._numbers[value]]] for value in node.inputs]
        for place, inner in pattern.operands.items():
            inputs[place] = self._instance(inner, numbers, classes)
        return self._pool.with_inputs(node, inputs)

    def _feed(self) -> None:
        """Hand new rows over, by file: told one by one they would take most of the time."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "rows.tsv"
            for table, rows in self._rows_of.items():
                if rows:
                    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
                    self._run(f'(input {table} "{path.as_posix()}")')
                    rows.clear()

    def _run(self, text: str) -> Any:
        return self._engine.run_program(*self._engine.parse_program(text))

    def _rows(self, table: str) -> set[tuple[int, ...]]:
        (output,) = self._run(f"(print-function {table} {1 << 30})")
        dag = output.termdag

        def integers(places: list[int]) -> Iterator[int]:
            for place in places:
                yield dag.get(place).value.value

        rows = set()
        for call, value in output.terms:
            result = [value] if table == "class" else []
            rows.add(tuple(integers([*dag.get(call).args, *result])))
        return rows


def _engine() -> Any:
    try:
        from egglog.bindings import EGraph
    except ImportError as missing:
        raise GraphError(
            "rewriting by equality saturation needs the package egglog: "
            "pip install 'dinovision[egraph]', or use the greedy engine"
        ) from missing
    return EGraph()


def _constructor(arity: int) -> str:
    """The table `rowK` of terms with K operands, and the rule that makes them."""
    operands = [f"x{place}" for place in range(arity)]
    listed = f"(vec-of {' '.join(operands)})" if arity else "(vec-empty)"
    known = " ".join(f"(= {x} (at n{x}))" for x in operands)
    # A table of operands, because matching joins tables but only filters by vec-get.
    places = " ".join(f"(set (operand all {k}) {x})" for k, x in enumerate(operands))
    return f"""
(relation row{arity} (i64 String i64{" i64" * arity}))
(rule ((row{arity} n op head {" ".join(f"n{x}" for x in operands)}) {known})
      ((let all {listed})
       (let term (Op op head all))
       (set (at n) term)
       (set (number op head all) n)
       (set (least term) n)
       {places})
      :ruleset build)
"""


def _query(number: int, pattern: Pattern, sets: dict[tuple[str, ...], int]) -> str:
    """An egglog rule that records the numbers of the nodes which a pattern matches."""
    facts: list[str] = []
    nodes = count()

    def visit(pattern: Pattern, term: str) -> None:
        k = next(nodes)
        name = f"op{k}"
        if len(pattern.ops) == 1:
            name = f'"{pattern.ops[0]}"'
        facts.append(f"(= {term} (Op {name} h{k} v{k}))")
        facts.append(f"(= n{k} (number {name} h{k} v{k}))")
        if len(pattern.ops) > 1:
            facts.append(f"(one-of {sets.setdefault(pattern.ops, len(sets))} {name})")
        for place, inner in pattern.operands.items():
            facts.append(f"(= c{k}_{place} (operand v{k} {place}))")
            visit(inner, f"c{k}_{place}")

    visit(pattern, "root")
    used = next(nodes)
    places = [f"n{k}" if k < used else "0" for k in range(MAX_NODES)]
    return f"(rule ({' '.join(facts)}) ((found {number} {' '.join(places)})) :ruleset match)"
