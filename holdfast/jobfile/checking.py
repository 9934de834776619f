"""Check a whole job file before any user code is imported: keys and types first, then consistency."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.jobfile.building import build_stage, stand_in, without_stage
from holdfast.jobfile.handlers import UserFunction, there_may_be
from holdfast.jobfile.keys import FILE, is_dotted
from holdfast.jobfile.problems import Problems, below
from holdfast.jobfile.reading import Node
from holdfast.jobfile.shapes import discreet
from holdfast.model.did_you_mean import did_you_mean
from holdfast.model.resource import ResourceSpec
from holdfast.model.tuning import Tuning


def check(document: Node, problems: Problems) -> None:
    """Add everything that is wrong. A broken part is not checked any further."""
    FILE.check(document, "", problems)
    resources = document.get("resources")
    known = [] if resources is None else [name for name, _ in resources.items()]
    if resources is not None:
        for name, node in resources.items():
            if node.sound:
                _whole(node, below("resources", name), problems, _read_limits)
    pipelines = document.get("pipelines")
    if pipelines is not None:
        for name, node in pipelines.items():
            _Pipeline(name, node, below("pipelines", name), known, problems).check()


class _Pipeline:
    """One pipeline that is being checked."""

    def __init__(self, name: str, node: Node, path: str, resources: Collection[str], problems: Problems) -> None:
        self.name, self.node, self.path, self.resources, self.problems = name, node, path, resources, problems
        stages = node.get("stages")
        self.stages: Mapping[str, Node] = {} if stages is None else dict(stages.items())

    def check(self) -> None:
        self._check_functions()
        for name, node in self.stages.items():
            self._check_stage(name, node)
        self._check_order()
        self._check_tuning()

    def _check_functions(self) -> None:
        merge, tuning = self.node.get("merge"), self.node.get("tuning")
        guards = tuning.get("guards") if tuning is not None else None
        _may_be(merge, below(self.path, "merge"), self.problems)
        _may_be(self.node.get("data"), below(self.path, "data"), self.problems)
        if guards is not None:
            _may_be(guards.get("handler"), f"{self.path}.tuning.guards.handler", self.problems)
        for name, stage in self.stages.items():
            path = below(f"{self.path}.stages", name)
            for key in ("handler", "normalise", "estimate", "returns"):
                _may_be(stage.get(key), below(path, key), self.problems)
            units = stage.get("units")
            for unit, node in units.items() if units is not None else ():
                _may_be(node, below(f"{path}.units", unit), self.problems)

    def _check_stage(self, name: str, node: Node) -> None:
        path = below(f"{self.path}.stages", name)
        for key, known in (("after", list(self.stages)), ("resource", list(self.resources))):
            for at, one in _texts(node.get(key)):
                if one.value not in known:
                    what = f"{'stage' if key == 'after' else 'resource'} {one.value!r} is not defined"
                    what = discreet(one, f"{what}, {did_you_mean(one.value, known)}")
                    self.problems.add(one.place, f"{path}.{key}{at}", what)
        if not node.sound:
            return

        def find(_node: Node, _path: str, /, *, a_type: bool = False) -> UserFunction | None:
            return None if a_type else stand_in

        try:
            build_stage(name, node, path, find)
        except HoldfastError as error:
            self.problems.add(node.key_place, path, discreet(node, without_stage(str(error), name)))

    def _check_order(self) -> None:
        after = {
            name: [one.value for _, one in _texts(node.get("after")) if one.value in self.stages]
            for name, node in self.stages.items()
        }
        circle = _circle(after)
        if circle:
            node = self.stages[circle[0]].value["after"]
            what = f"the stages {' → '.join(circle)} wait for each other in a cycle, expected an order that ends"
            self.problems.add(node.place, below(below(f"{self.path}.stages", circle[0]), "after"), what)

    def _check_tuning(self) -> None:
        tuning = self.node.get("tuning")
        path = f"{self.path}.tuning"
        stages = tuning.get("stages") if tuning is not None else None
        for name, node in stages.items() if stages is not None else ():
            if name not in self.stages:
                what = f"stage {name!r} is not defined, {did_you_mean(name, list(self.stages))}"
                self.problems.add(node.key_place, below(f"{path}.stages", name), what)
            elif node.sound:
                _whole(node, below(f"{path}.stages", name), self.problems, _read_limits)
        if tuning is not None and tuning.sound:
            _whole(tuning, path, self.problems, self._read_own)

    def _read_own(self, given: Mapping[str, Any]) -> None:
        """The tuning without that of single stages, which was read separately."""
        Tuning.read(self.name, (), {key: value for key, value in given.items() if key != "stages"}, where="@")


def _read_limits(given: Mapping[str, Any]) -> None:
    ResourceSpec.read("", given, where="@")


def _whole(node: Node, path: str, problems: Problems, read: Callable[[Mapping[str, Any]], None]) -> None:
    """Let the model read a mapping whose single values are right: together they may not be."""
    try:
        read(node.plain())
    except HoldfastError as error:
        problems.add(node.key_place, path, discreet(node, str(error).removeprefix("@: ")))


def _may_be(node: Node | None, path: str, problems: Problems) -> None:
    """Report a handler whose module does not exist together with all other problems. Importing it shows the rest."""
    for at, one in _texts(node):
        if one.sound and is_dotted(one.value) and not there_may_be(one.value):
            top = one.value.partition(":")[0].partition(".")[0]
            what = f"there is no module {top!r}, expected the full dotted path of a function, as in books.extract"
            problems.add(one.place, f"{path}{at}", discreet(one, what))


def _texts(node: Node | None) -> list[tuple[str, Node]]:
    """One text or several, each with its suffix of the path."""
    if node is None:
        return []
    nodes = [(f"[{at}]", one) for at, one in enumerate(node.value)] if isinstance(node.value, list) else [("", node)]
    return [(at, one) for at, one in nodes if isinstance(one.value, str)]


def _circle(after: Mapping[str, Sequence[str]]) -> list[str]:
    """A cycle of stages, with the first one again at the end; empty if there is none."""
    waiting = {name: len(set(before)) for name, before in after.items()}
    behind: dict[str, list[str]] = {name: [] for name in after}
    for name, before in after.items():
        for one in set(before):
            behind[one].append(name)
    ready = [name for name, count in waiting.items() if not count]
    while ready:
        done = ready.pop()
        del waiting[done]
        for name in behind[done]:
            waiting[name] -= 1
            if not waiting[name]:
                ready.append(name)
    if not waiting:
        return []
    # Each remaining stage waits for another one, so going back must find a cycle.
    path = [next(iter(waiting))]
    while True:
        last = next(name for name in after[path[-1]] if name in waiting)
        if last in path:
            return [last, *reversed(path[path.index(last) :])]
        path.append(last)
