"""Where a training spends its time, from the stacks of Python that the sampler took. Pure.

The training is the loop around the optimizer's step: what runs before the loop (imports, downloads)
and after it counts for nothing. Each look at the main thread inside of that loop belongs to one
kind, by what stands on the stack, by whether the thread ran, and by whether it held the GIL:
Python code holds it, torch's operations release it.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.bench.results import Line
from cudadoctor.model.machine import OptStr

LIBRARY = re.compile(
    r"[/\\](site|dist)-packages[/\\]|[/\\]lib(64)?[/\\]python3(\.\d+t?)?[/\\]|[/\\]python\d+\.zip"
    r"|^<frozen|^<eval_with_key|[/\\]torchinductor_|[/\\]Lib[/\\](?!.*[/\\]Lib[/\\])",
)
"""Files that are not the user's; a cell of a notebook is."""
SYNC = re.compile(
    r"\.(item|cpu|tolist|numpy|synchronize|nonzero)\(|\.to\(\s*(device\s*=\s*)?[\"']cpu"
    r"|\bprint\(|\bfloat\(|\bint\(|\bbool\("
)
"""What makes Python wait until the GPU has finished all that it was told."""
GRADIENTS = ("backward", "manual_backward")
COPY = re.compile(r"\.to\(|\.cuda\(")
READS = re.compile(
    r"(?<![A-Za-z])(open|read(?!y)|recv|load(?!er)|fetch|download|requests?\b|urlopen|get_object"
    r"|socket|ssl|https?\b|fsspec|s3)"
)
"""Words of a line, a function or a library that gets data from somewhere."""
LOOPS_SHARE = 0.25
PYTHON_SHARE = 0.15
"""Of the looks at a loop over samples so many hold the GIL; of large products next to none."""

Kind = Literal[
    "workers",
    "start",
    "load",
    "load-wait",
    "sync",
    "copy",
    "python",
    "library",
    "wait",
    "ranks",
    "torch",
    "torch-wait",
]
"""workers: it waits for the workers of a DataLoader. start: it starts them. load, load-wait: it
loads a batch itself, and computes or waits. sync: it waits for the GPU. copy: it copies between
the memories. python: Python code. library: a library that is not torch. wait: it waits for anything
else. ranks: for other ranks. torch: operations of torch; torch-wait: it waits inside of one, for
other threads or ranks.
"""


class Where(Struct, frozen=True, kw_only=True):
    """A line of the user's. share: of the looks at what is said to cost the time. code: its text.

    calls: the library that it called, of kind library.
    """

    file: str
    line: int
    function: str
    share: float
    code: OptStr = None
    calls: OptStr = None


class Stacks(Struct, frozen=True, kw_only=True):
    """What the stacks come to.

    looks: at the main thread while it trained; began, ended: seconds of the first and the last.
    seen: "training" where a loop with a backward pass ran, "loading" where only a DataLoader was at
    work, "" neither. shares: of each kind. lines: the line of each kind.
    loading_busy: of the looks at workers that loaded, those in which they computed.
    optimizer: share of the looks inside an optimizer. all_looks: also before the training.
    refused: why stacks could not be read; refused_workers: of workers only.
    """

    looks: int = 0
    all_looks: int = 0
    worker_looks: int = 0
    began: float | None = None
    ended: float | None = None
    seen: str = ""
    shares: dict[str, float] = {}
    lines: dict[str, Where] = {}
    busiest: Where | None = None
    loading_busy: float | None = None
    optimizer: float = 0.0
    refused: str = ""
    refused_workers: str = ""


class Frame(NamedTuple):
    file: str
    line: int
    name: str

    @property
    def theirs(self) -> bool:
        """Whether it is code of the user."""
        return not LIBRARY.search(self.file)

    def within(self, *places: str) -> bool:
        """Whether its file is one of torch's under such a place."""
        path = self.file.replace("\\", "/")
        return any(f"-packages/torch/{place}" in path for place in places)


class Look(NamedTuple):
    """One thread at one moment; frames from the innermost outwards."""

    t: float
    pid: int
    worker: bool
    active: bool
    gil: bool
    frames: tuple[Frame, ...]

    @property
    def user(self) -> Frame | None:
        """The innermost frame of the user's."""
        return next((frame for frame in self.frames if frame.theirs), None)

    @property
    def inner(self) -> tuple[Frame, ...]:
        """What the user's innermost line has called."""
        own = next((at for at, frame in enumerate(self.frames) if frame.theirs), len(self.frames))
        return self.frames[:own]

    @property
    def steps(self) -> bool:
        """Whether it computes gradients or updates parameters."""
        return any(
            (frame.within("optim/") and frame.name.rpartition(".")[2] in ("step", "wrapper"))
            or (frame.within("autograd/__init__", "_tensor.py") and "backward" in frame.name)
            for frame in self.frames
        )

    @property
    def loads(self) -> bool:
        """Whether a DataLoader is asked for a batch."""
        return any(frame.within("utils/data/dataloader.py") for frame in self.frames)


def user_files(lines: Iterable[Line]) -> set[str]:
    """The files whose text is of use."""
    files = {
        frame[0]
        for line in lines
        for thread in line.get("threads", ())
        for frame in thread["frames"]
    }
    return {file for file in files if not LIBRARY.search(file) and not file.startswith("<")}


# --- the text of the user's files -----------------------------------------------------------------


class Source:
    """Loops and imports of a file; of one that cannot be parsed nothing is known."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        try:
            self.tree: ast.AST = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            self.tree = ast.Module([], [])

    def code(self, line: int) -> OptStr:
        return self.lines[line - 1].strip() if 0 < line <= len(self.lines) else None

    @cached_property
    def _scopes(self) -> list[tuple[range, list[range]]]:
        """Each function, and the whole file, with the loops of its own; outer before inner."""
        found: list[tuple[range, list[range]]] = []

        def visit(node: ast.AST, loops: list[range]) -> None:
            for child in ast.iter_child_nodes(node):
                own = loops
                if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    own = []
                    found.append((_span(child), own))
                elif isinstance(child, (ast.For, ast.AsyncFor, ast.While)):
                    loops.append(_span(child))
                visit(child, own)

        top: list[range] = []
        found.append((range(1 << 30), top))
        visit(self.tree, top)
        return found

    def loops(self, line: int) -> list[range]:
        """The loops around a line within its function, the outermost first."""
        inside = [(len(span), loops) for span, loops in self._scopes if line in span]
        _, loops = min(inside, key=lambda scope: scope[0], default=(0, []))
        return sorted((loop for loop in loops if line in loop), key=len, reverse=True)

    @cached_property
    def functions(self) -> dict[str, range]:
        """The functions of the file, methods too, by their names."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found[node.name] = _span(node)
        return found

    @cached_property
    def _called_names(self) -> list[tuple[str, str, int]]:
        """The name of what each call calls, the name that it belongs to, and its line."""
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                target = node.func
                if isinstance(target, ast.Name):
                    found.append((target.id, "", node.lineno))
                elif isinstance(target, ast.Attribute):
                    # In a chain over several lines the last name stands on the last of them.
                    line = target.end_lineno or node.lineno
                    found.append((target.attr, _name(target.value), line))
        return found

    def trains(self, names: Collection[str]) -> set[int]:
        """The lines that compute gradients, or call a function of one of these names."""
        called = {line for name, _, line in self._called_names if name in names}
        return called | self.trainers | self._gradients

    @cached_property
    def _gradients(self) -> set[int]:
        return {line for name, _, line in self._called_names if name in GRADIENTS}

    @cached_property
    def trainers(self) -> set[int]:
        """The lines that let a library train."""
        return {
            line
            for name, owner, line in self._called_names
            if name in ("fit", "train") and "trainer" in owner.lower()
        }

    @cached_property
    def _imported(self) -> dict[str, str]:
        """The module that a name of the file comes from: imported, or made by a call of it."""
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for name in node.names:
                    found[name.asname or name.name.partition(".")[0]] = name.name.partition(".")[0]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for name in node.names:
                    found[name.asname or name.name] = node.module.partition(".")[0]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                module = next((found[part] for part in _chain(node.value) if part in found), None)
                for target in node.targets if module else ():
                    found.setdefault(_name(target), str(module))
        return found

    @cached_property
    def _calls(self) -> dict[int, list[str]]:
        """The modules whose functions each line calls by name."""
        found, known = defaultdict(list), self._imported
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                module = next((known[name] for name in _chain(node) if name in known), None)
                for line in _span(node) if module else ():
                    found[line].append(str(module))
        return found

    def calls(self, line: int) -> list[str]:
        return self._calls.get(line, [])


def _name(node: ast.AST) -> str:
    """The last part of a name; "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _chain(call: ast.Call) -> list[str]:
    """The names of what is called, the outermost first: self.tokenizer.encode."""
    names, target = [], call.func
    while isinstance(target, ast.Attribute):
        names.append(target.attr)
        target = target.value
    return [*([target.id] if isinstance(target, ast.Name) else []), *reversed(names)]


def _span(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


class Sources:
    """The user's files by their names. training: of each the lines that lead to gradients."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.known = {file: Source(text) for file, text in texts.items()}
        self.unknown = Source("")
        names: set[str] = set()
        while True:
            self.training = {file: one.trains(names) for file, one in self.known.items()}
            more = {
                name
                for file, one in self.known.items()
                for name, span in one.functions.items()
                if any(line in span for line in self.training[file])
            }
            if more <= names:
                break
            names |= more

    def __getitem__(self, file: str) -> Source:
        return self.known.get(file, self.unknown)


# --- when it trains -------------------------------------------------------------------------------


class Region(NamedTuple):
    """Lines of a file that a stack goes through while the training runs."""

    file: str
    lines: range

    def holds(self, look: Look) -> bool:
        return any(frame.file == self.file and frame.line in self.lines for frame in look.frames)


def _written(sources: Sources) -> set[Region]:
    """The loops whose text computes gradients: a short step may never be seen on a stack."""
    return {
        Region(file, loops[0] if loops else range(line, line + 1))
        for file, lines in sources.training.items()
        for line in lines
        if (loops := sources[file].loops(line)) or line in sources[file].trainers
    }


def _region(looks: list[Look], sources: Sources) -> Region | None:
    """The outermost loop around the steps; without one the user's line that calls for them."""
    found: Counter[Region] = Counter()
    for look in looks:
        theirs = [frame for frame in reversed(look.frames) if frame.theirs]
        around = (
            Region(frame.file, loops[0])
            for frame in theirs
            if (loops := sources[frame.file].loops(frame.line))
        )
        called = (Region(frame.file, range(frame.line, frame.line + 1)) for frame in theirs)
        if region := next(around, None) or next(called, None):
            found[region] += 1
    return max(found, key=lambda region: (found[region], len(region.lines)), default=None)


class Nested:
    """Loops within the loop of a step: loops over samples, as a rule."""

    def __init__(self, looks: list[Look], sources: Sources) -> None:
        self.sources = sources
        self.marks: dict[str, set[int]] = defaultdict(set)
        self.steps: dict[str, set[range]] = defaultdict(set)
        seen = {(frame.file, frame.line) for look in looks for frame in look.frames if frame.theirs}
        written = {(file, line) for file, lines in sources.training.items() for line in lines}
        for file, line in seen | written:
            if loops := sources[file].loops(line):
                self.marks[file].add(line)
                self.steps[file].add(loops[-1])

    def hold(self, look: Look) -> bool:
        """Whether the stack is inside of one. A loop that steps or loads is none."""
        for frame in look.frames:
            loops = self.sources[frame.file].loops(frame.line) if frame.theirs else []
            for outer, inner in pairwise(loops):
                marked = any(line in inner for line in self.marks[frame.file])
                if outer in self.steps[frame.file] and not marked:
                    return True
        return False


# --- what it does ---------------------------------------------------------------------------------


def kind_of(look: Look, sources: Sources, *, nested: bool) -> Kind | None:
    """What the thread that trains does; None for what happens once (compiling)."""
    frames, user, inner = look.frames, look.user, look.inner
    compiles = ("_dynamo/convert_frame", "_inductor/compile_fx", "_inductor/async_compile")
    if any(frame.within(*compiles) for frame in frames):
        return None
    if look.loads:
        return _loading(look)
    if any(frame.within("distributed/") for frame in inner) and not look.active:
        return "ranks"
    if user is None:
        return None
    source = sources[user.file]
    code = source.code(user.line) or ""
    printed = any(frame.within("_tensor_str.py", "cuda/__init__") for frame in inner)
    torch = (
        bool(inner)
        and inner[-1].within("")
        and not inner[-1].within("serialization", "utils/tensorboard", "distributed/checkpoint")
    )
    at_torch = not inner or torch
    if printed or (at_torch and SYNC.search(code) and not (look.active and look.gil)):
        return "sync"
    if nested and at_torch:
        return "python"
    if not inner and COPY.search(code) and not look.gil:
        return "copy"
    if torch:
        return "torch" if look.active else "torch-wait"
    if not look.active:
        named = (code, user.name, *(frame.file for frame in inner))
        return "load-wait" if any(READS.search(name) for name in named) else "wait"
    if inner:
        return "library" if "-packages" in inner[-1].file else "python"
    if look.gil:
        return "python"
    return "library" if _foreign(source.calls(user.line)) else "torch"


def _loading(look: Look) -> Kind:
    names = {
        frame.name.rpartition(".")[2]
        for frame in look.frames
        if frame.within("utils/data/dataloader.py")
    }
    if any(frame.within("utils/data/_utils/fetch.py") for frame in look.frames):
        return "load" if look.active else "load-wait"
    if names & {"_try_get_data", "_get_data", "_try_put_index"}:
        return "workers"
    return "start" if names & {"__init__", "_shutdown_workers", "_reset"} else "load"


def _foreign(modules: Iterable[str]) -> OptStr:
    """The first library that is neither torch nor of the standard library's kind."""
    return next((name for name in modules if name not in ("torch", "time", "os", "sys")), None)


def _called(look: Look, sources: Sources) -> OptStr:
    """The library that the user's line called."""
    if look.inner:
        place = re.split(r"-packages[/\\]", look.inner[-1].file)
        return re.split(r"[/\\.]", place[1])[0] if len(place) > 1 else None
    user = look.user
    return _foreign(sources[user.file].calls(user.line)) if user else None


def read(lines: Iterable[Line], texts: Mapping[str, str]) -> Stacks:
    """What the stacks come to. texts: the user's files."""
    lines, sources = list(lines), Sources(texts)
    every = list(_looks(lines))
    mains = [look for look in every if not look.worker]
    steps = [look for look in mains if look.steps]
    marked = steps or [look for look in mains if look.loads]
    refused = {line["worker"]: str(line["why"]) for line in lines if line["kind"] == "no-stacks"}
    known = Stacks(
        all_looks=len(mains),
        refused=refused.get(False, "") if not mains else "",
        refused_workers=refused.get(True, ""),
        busiest=_where(mains, sources, len(mains)),
    )
    regions = {*_written(sources), *filter(None, [_region(marked, sources)])}
    training = [look for look in mains if any(region.holds(look) for region in regions)]
    if not training:
        return known
    began, ended = training[0].t, training[-1].t
    nested = Nested(marked, sources)
    in_loops = [look for look in training if nested.hold(look)]
    slow = sum(look.gil for look in in_loops) >= PYTHON_SHARE * len(in_loops)
    kinds: dict[str, list[Look]] = defaultdict(list)
    for look in training:
        if kind := kind_of(look, sources, nested=slow and look in in_loops):
            kinds[kind].append(look)
    workers = [look for look in every if look.worker and began <= look.t <= ended + 1]
    loading = [look for look in workers if _fetches(look)]
    count = sum(map(len, kinds.values()))
    where = {kind: _where(looks, sources, len(looks)) for kind, looks in kinds.items()}
    if slow and len(in_loops) >= LOOPS_SHARE * count:
        # The gradients of many short operations take as long as these.
        backward = [look for look in kinds["torch"] + kinds["torch-wait"] if look.steps]
        kinds["python"] += backward
        for left in ("torch", "torch-wait"):
            kinds[left] = [look for look in kinds[left] if not look.steps]
    if loading:
        busy = [look for look in loading if look.active]
        most = max(busy, [look for look in loading if not look.active], key=len)
        where["workers"] = _where(most, sources, len(loading)) or where.get("workers")
    return replace(
        known,
        looks=count,
        worker_looks=len(loading),
        began=began,
        ended=ended,
        seen="training" if steps or not marked else "loading",
        shares={kind: len(looks) / count for kind, looks in kinds.items() if looks},
        lines={kind: line for kind, line in where.items() if line},
        loading_busy=sum(look.active for look in loading) / len(loading) if loading else None,
        optimizer=sum(any(frame.within("optim/") for frame in look.frames) for look in training)
        / len(training),
    )


def _looks(lines: Iterable[Line]) -> Iterator[Look]:
    """One thread of each look: that of the training, else the main thread."""
    for line in lines:
        if line["kind"] != "stacks":
            continue
        found = [
            (
                Look(
                    line["t"],
                    line["pid"],
                    line["worker"],
                    thread["active"],
                    thread["gil"],
                    tuple(Frame(*frame) for frame in thread["frames"]),
                ),
                thread["main"],
            )
            for thread in line["threads"]
        ]
        # A notebook or a user interface may train in another thread than the main one.
        found.sort(key=lambda pair: (not pair[0].steps, not pair[1]))
        if found:
            yield found[0][0]


def _fetches(look: Look) -> bool:
    """Whether a worker loads samples; one that waits for its next task has nothing to do."""
    return any(frame.within("utils/data/_utils/fetch.py") for frame in look.frames)


def _where(looks: list[Look], sources: Sources, of: int) -> Where | None:
    """The line that most of them are at, of the function that most of them are in."""
    at = [(look, user) for look in looks if (user := look.user)]
    functions = Counter((user.file, user.name) for _, user in at)
    if not functions:
        return None
    function, count = functions.most_common(1)[0]
    inside = [(look, user) for look, user in at if (user.file, user.name) == function]
    (line, _), *_rest = Counter(user.line for _, user in inside).most_common(1)
    called = Counter(_called(look, sources) for look, user in inside if user.line == line)
    return Where(
        file=function[0],
        line=line,
        function=function[1],
        share=count / of,
        code=sources[function[0]].code(line),
        calls=called.most_common(1)[0][0],
    )
