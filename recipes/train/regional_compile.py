"""Regional compilation: compile one block of the model instead of the whole model.

What it does: a transformer repeats the same block many times. Compiling each block by itself
(block.compile()) lets torch.compile reuse the code of the first block for all others, so that the
compile time does not grow with the depth. The compile cache keeps generated code on disk, so that
the next run starts faster.

When it helps: compiling takes minutes, as with deep models, or you restart often.

When it hurts: nothing is fused across blocks, which costs little in practice. Blocks with different
shapes or options are compiled one by one.

How to check: count the graphs (TORCH_LOGS="recompiles" names the reasons for more), and compare the
time of the first step.

Troubleshooting:
- "torch._dynamo hit config.recompile_limit": each block compiles again, such as for an attribute
  that differs between blocks (an index, a drop rate). Make it a tensor or a buffer, or remove it.
- Compiling again at every start: the cache is in /tmp/torchinductor_$USER by default, and a
  container or a cluster node loses it. Set TORCHINDUCTOR_CACHE_DIR to a folder that stays, or save
  torch.compiler.save_cache_artifacts() and load it on the next node.
- Two graphs instead of one: the input of the first block needs no gradient, and those of the others
  do. Compile the embedding separately.
- Nothing is compiled, without a message: in some versions, block.compile() does nothing for a plain
  torch.nn.Sequential. Write the block as a class with its own forward().
- state_dict keys do not change with block.compile(), unlike with torch.compile(block), which adds
  "_orig_mod.".
- A cache on a network file system is slow or broken: keep it on a local disk, one for each node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from proof import Batch, Proof, apart, labeled, main

# --- Copy from here ------------------------------------------------------------------------------


def compile_blocks(blocks: torch.nn.ModuleList, backend: str) -> None:
    """Compile the repeated blocks in place; the code of the first serves all."""
    for block in blocks:
        block.compile(backend=backend)  # backend="inductor" is the default


# --- Copy to here. The rest is the proof. --------------------------------------------------------
TOLERANCE = 1e-3  # relative to the first loss: fused kernels round in a different order


class Block(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.gelu(self.inner(self.norm(x)))


class Network(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(depth))
        self.first, self.head = torch.nn.Linear(width, width), torch.nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)  # the blocks' inputs need gradients, that of the first too
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def compile_nothing(blocks: torch.nn.ModuleList, backend: str) -> None:
    pass


def network(width: int, depth: int, device: str) -> Any:
    torch.manual_seed(0)
    return Network(width, depth).to(device)


def train(model: Any, batches: list[Batch]) -> Iterator[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def prove(proof: Proof) -> None:
    from torch._dynamo.utils import counters

    # aot_eager captures the graphs without generating code: enough to count them anywhere.
    backend = "inductor" if proof.device == "cuda" else "aot_eager"
    change = proof.technique(compile_blocks, instead=compile_nothing)
    shape = (proof.width, proof.depth, proof.device)
    batches = labeled(proof.steps, proof.width, proof.device)
    plain = proof.train("eager", train(network(*shape), batches))
    torch.compiler.reset()
    counters.clear()
    model = network(*shape)
    change(model.blocks, backend)
    regional = proof.train("compiled blocks", train(model, batches))
    graphs, calls = counters["stats"]["unique_graphs"], counters["stats"]["calls_captured"]
    torch.compiler.reset()
    counters.clear()
    whole = torch.compile(network(*shape), backend=backend)
    proof.train("compiled whole", train(whole, batches[:1]))
    every = counters["stats"]["calls_captured"]
    off = apart(regional, plain)
    proof.same(
        off <= TOLERANCE and plain[-1] < plain[0],
        f"losses within {off:.1e}, relative to the first (tolerance {TOLERANCE:.0e})",
    )
    proof.active(graphs == 1, f"{graphs} graph for {proof.depth} blocks")
    proof.purpose(
        0 < calls * proof.depth <= every,
        f"{calls} operations were compiled; compiling the whole model takes {every}",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(20, 6), width=64, depth=(12, 6))
