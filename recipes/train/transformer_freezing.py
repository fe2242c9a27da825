"""Fine-tuning a transformer: gradual unfreezing, and a smaller learning rate for lower layers.

What it does: at first, only the head learns. In each stage, one more block is unfrozen, from the
top down, and lower blocks get smaller learning rates (discriminative learning rates, as in ULMFiT).
backward() stops at the lowest block that learns: blocks below it get no gradients, keep nothing for
backward() and have no optimizer state.

When it helps: you fine-tune a pretrained transformer on little data, and training all of it at once
would overwrite what it knows, or does not fit in memory.

When it hurts: with much data, or a task far from the pretraining, training everything gives better
results. Every stage costs steps. To save more memory, compare with LoRA (the peft library).

How to check: list the parameters whose .grad is not None after backward(). Count the bytes of the
tensors in optimizer.state. This script does both in every stage.

Troubleshooting:
- A block that was unfrozen does not learn: its parameters are not in the optimizer. Put all blocks
  into the optimizer at the start, as here; parameters without a gradient are skipped and have no
  state yet.
- Frozen blocks still change: optimizer.zero_grad(set_to_none=False) leaves zeros as gradients, and
  AdamW then still applies weight decay and momentum. Use the default, set_to_none=True.
- Memory does not go down although most blocks are frozen: a block below them, such as the
  embedding, still learns, so backward() must pass through all blocks. Freeze from the bottom up.
- "element 0 of tensors does not require grad and does not have a grad_fn", with gradient
  checkpointing: the inputs of the frozen blocks need no gradient. Use use_reentrant=False, or
  model.enable_input_require_grads() in transformers.
- The learning rates of all layers are the same: the scheduler was created with one max_lr. Pass a
  list, one value per parameter group.
- "Expected to have finished reduction in the prior iteration", under DDP: layers were frozen or
  unfrozen after wrapping. Wrap the model again after each stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from proof import Batch, Proof, main, operations_seen, saved_bytes

# --- Copy from here ------------------------------------------------------------------------------


def groups(blocks: Sequence[torch.nn.Module], lr: float, decay: float) -> list[dict[str, Any]]:
    """Parameter groups for the optimizer; blocks in order: embedding, layers, head."""
    rates = [lr * decay**depth for depth in range(len(blocks))][::-1]  # the head has the full lr
    return [
        {"params": list(block.parameters()), "lr": rate}
        for block, rate in zip(blocks, rates, strict=True)
    ]


def learn_only(blocks: Sequence[torch.nn.Module], last: int) -> None:
    """Freeze all blocks but the last ones. Call it with 1, 2, 3 … to unfreeze gradually."""
    for number, block in enumerate(blocks, 1):
        block.requires_grad_(number > len(blocks) - last)


# --- Copy to here. The rest is the proof. --------------------------------------------------------
WIDTH, LENGTH, WORDS, LR, DECAY = 32, 12, 50, 1e-3, 0.5


class Transformer(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = torch.nn.Linear(WIDTH, 4)

    def blocks(self) -> list[torch.nn.Module]:
        return [self.embedding, *self.layers, self.head]

    def forward(self, words: torch.Tensor) -> Any:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def sentences(steps: int, device: str) -> list[Batch]:
    """The label is the most frequent kind of word, of four kinds."""
    draw = torch.Generator().manual_seed(0)
    words = [torch.randint(WORDS, (32, LENGTH), generator=draw) for _ in range(steps)]
    kinds = [torch.nn.functional.one_hot(some % 4, 4).sum(1).argmax(1) for some in words]
    return [(x.to(device), y.to(device)) for x, y in zip(words, kinds, strict=True)]


def same_rates(blocks: Sequence[torch.nn.Module], lr: float, decay: float) -> list[dict[str, Any]]:
    return [{"params": list(block.parameters()), "lr": lr} for block in blocks]


def learn_all(blocks: Sequence[torch.nn.Module], last: int) -> None:
    pass


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    states = [tensor for state in optimizer.state.values() for tensor in state.values()]
    return sum(tensor.nbytes for tensor in states if tensor.dim())


def steps(model: Any, optimizer: Any, batches: list[Batch]) -> Iterator[torch.Tensor]:
    for x, y in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        yield loss.detach()


def largest_change(block: Any, before: list[torch.Tensor]) -> float:
    pairs = zip(block.parameters(), before, strict=True)
    return max(float((new.detach() - old).abs().max()) for new, old in pairs)


def prove(proof: Proof) -> None:
    freeze = proof.technique(learn_only, instead=learn_all)
    grouped = proof.technique(groups, instead=same_rates)
    torch.manual_seed(0)
    model = Transformer(proof.layers).to(proof.device)
    blocks, batches = model.blocks(), sentences(proof.steps, proof.device)
    whole = torch.optim.AdamW(model.parameters(), lr=LR)
    list(steps(model, whole, batches))  # stands for the pretraining

    optimizer = torch.optim.AdamW(grouped(blocks, LR, DECAY), weight_decay=0.0)
    learned, kept, norms, moments = [], [], [], []
    before: list[list[torch.Tensor]] = []
    for last in range(1, len(blocks) + 1):
        freeze(blocks, last)
        before = [[weight.detach().clone() for weight in b.parameters()] for b in blocks]
        kept.append(saved_bytes(lambda: model(batches[0][0]), model.parameters()))
        with operations_seen() as seen:
            list(steps(model, optimizer, batches[:1]))
        norms.append(seen.names.count("aten::native_layer_norm_backward"))
        changes = [largest_change(block, old) for block, old in zip(blocks, before, strict=True)]
        learned.append([number for number, change in enumerate(changes, 1) if change])
        moments.append(state_bytes(optimizer))
        proof.train(f"the last {last} of {len(blocks)}", steps(model, optimizer, batches))

    # The first step of Adam moves weights by its learning rate, whatever the gradient.
    fresh = torch.optim.AdamW(grouped(blocks, LR, DECAY), weight_decay=0.0)
    before = [[weight.detach().clone() for weight in b.parameters()] for b in blocks]
    list(steps(model, fresh, batches[:1]))
    moved = [largest_change(block, old) / LR for block, old in zip(blocks, before, strict=True)]
    wanted = [
        list(range(len(blocks) + 1 - last, len(blocks) + 1)) for last in range(1, 1 + len(blocks))
    ]
    right = sum(found == expected for found, expected in zip(learned, wanted, strict=True))
    proof.active(
        right == len(blocks) and norms[0] == 0 < norms[-1],
        f"in {right} of {len(blocks)} stages, exactly the unfrozen blocks changed; backward() ran"
        f" through {', '.join(map(str, norms))} normalizations",
    )
    expected = [DECAY**depth for depth in range(len(blocks))][::-1]
    near = all(abs(a / b - 1) < 0.02 for a, b in zip(moved, expected, strict=True))
    proof.active(near, f"from the embedding up, weights moved by {[round(m, 3) for m in moved]} lr")
    proof.purpose(
        moments[0] < moments[1] < moments[-1] == state_bytes(whole) and kept[0] < 0.1 * kept[-1],
        f"from the first stage to the last, AdamW kept {moments[0]} to {moments[-1]} bytes, and"
        f" autograd {kept[0]} to {kept[-1]} bytes for backward()",
    )


if __name__ == "__main__":
    main(__doc__, prove, steps=(40, 8), layers=(4, 2))
