"""requirements.txt, for pip and for uv.

torch's own index is an extra one and torch is pinned with its local version. So pip and uv find
the same wheel, although pip takes the highest version of all indexes and uv the first index that
has the package, extra ones first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudadoctor.installers.files.heading import heading
from cudadoctor.installers.files.markers import marker_of
from cudadoctor.installers.pip import split_compiled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.installers.files.stack import Hashes, Stack
    from cudadoctor.knowledge import Knowledge


def text(stack: Stack, kb: Knowledge, hashes: Hashes | None = None) -> str:
    """The whole file; with hashes, every file that was resolved is pinned."""
    lines = heading(stack, kb, _use(hashes), *_compiled(stack))
    lines.append("")
    if stack.index:
        lines.append(f"--extra-index-url {stack.index}")
    lines += _pinned(stack, hashes) if hashes else [*torch_lines(stack), *_then(stack)]
    return "\n".join(lines) + "\n"


def torch_lines(stack: Stack) -> Iterator[str]:
    """torch and its companions as requirements, with markers where platforms differ."""
    tagged = [one for one in stack.platforms if stack.index and not one.startswith("macos")]
    plain = [one for one in stack.platforms if one not in tagged]
    for release, platforms in (
        (f"{stack.torch}+{stack.lead.variant}", tagged),
        (stack.torch, plain),
    ):
        if platforms:
            marker = marker_of(platforms, stack.platforms)
            yield f"torch=={release}" + (f" ; {marker}" if marker else "")
    # pip and uv both prefer what torch's index has; it does not tag them on every platform.
    yield from (f"{name}=={release}" for name, release in stack.companions)


def _use(hashes: Hashes | None) -> str:
    if hashes:
        return "Install it with: pip install --require-hashes -r requirements.txt"
    return (
        "Install it with: pip install -r requirements.txt (uv: uv pip install -r requirements.txt)"
    )


def _compiled(stack: Stack) -> tuple[str, ...]:
    compiled = split_compiled(stack.then)[1]
    if not compiled:
        return ()
    last = f"pip install --no-build-isolation {' '.join(compiled)}"
    return (f"After it, since these are compiled against torch: {last}",)


def _then(stack: Stack) -> tuple[str, ...]:
    return split_compiled(stack.then)[0]


def _pinned(stack: Stack, hashes: Hashes) -> Iterator[str]:
    """Every resolved release with its digests, torch and what belongs to it first."""
    first = [name for name, _ in stack.pins]
    found = {(canonical(name), version): some for (name, version), some in hashes.items()}
    ordered = sorted(
        found, key=lambda one: (first.index(one[0]) if one[0] in first else len(first), one)
    )
    for name, version in ordered:
        digests = sorted(set(found[name, version]))
        yield " \\\n    ".join((f"{name}=={version}", *(f"--hash=sha256:{one}" for one in digests)))


def canonical(name: str) -> str:
    """The name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
