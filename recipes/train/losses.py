"""Losses for rare classes and overconfident models: label smoothing, focal loss, class weights.

What it does: class weights multiply the loss of every sample by a factor for its class; a balanced
sampler draws rare classes more often instead. Label smoothing asks for a probability of 0.9 or so,
not 1, for the right class. Focal loss counts samples less if the model already gets them right.
drop_last leaves out the last batch of an epoch if it is not full.

When it helps: class weights or a balanced sampler, if you must not miss the rare class. Label
smoothing or focal loss, if the probabilities of an overfitted model are used and not only its
answers. drop_last, if the model contains BatchNorm or every batch must have the same shape
(torch.compile, CUDA graphs).

When it hurts: class weights and balanced sampling do not add information. They trade precision for
recall, and the probabilities no longer match how often the class occurs. To move only the balance
between recall and precision, choose another threshold for a model trained with the plain loss. A
balanced sampler repeats the few rare samples, so the model overfits to them. Label smoothing and
focal loss make a model that was well calibrated underconfident. drop_last in validation changes the
result.

How to check: look at recall and precision of every class, not at the accuracy: a model that never
predicts a class with 5% of the samples is right in 95% of the cases. For calibration, compare the
mean probability of the predicted class with the accuracy, as this script does.

Troubleshooting:
- The accuracy is high, but the model always predicts the same class: look at the recall of each
  class. Use class weights or a balanced sampler.
- "weight tensor should be defined either for all N classes or no classes": pass one weight per
  class, in the order of the class indices, also for classes that do not occur.
- "Expected all tensors to be on the same device" with class weights: move the weights to the GPU.
- The loss is much larger or smaller with class weights or focal loss: losses of different kinds
  cannot be compared. Compare recall, precision and the plain cross-entropy on validation data.
- "sampler option is mutually exclusive with shuffle": leave out shuffle=True; the sampler draws in
  random order.
- "Expected more than 1 value per channel when training, got input size torch.Size([1, 64])": the
  last batch has a single sample, and BatchNorm cannot compute a variance. Use drop_last=True.
- With both class weights and a balanced sampler, the model predicts the rare class far too often:
  use only one of them.
- With WeightedRandomSampler under DDP, all processes draw the same samples: give each process a
  generator with another seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from proof import Proof, main
from torch.nn import functional
from torch.utils import data

# --- Copy from here ------------------------------------------------------------------------------


def class_weights(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """One weight per class; every class has the same share of the loss."""
    return len(labels) / (classes * torch.bincount(labels, minlength=classes).clamp(min=1))


def weighted(scores: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores, labels, weight=weights)


def balanced_loader(dataset: Any, labels: torch.Tensor, classes: int, batch: int) -> Any:
    """Draws every class equally often, with replacement; all batches are full."""
    chances = class_weights(labels, classes)[labels]
    sampler = data.WeightedRandomSampler(chances.tolist(), len(labels))
    return data.DataLoader(dataset, batch, sampler=sampler, drop_last=True)


def smoothed(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores, labels, label_smoothing=0.1)


def focal(scores: torch.Tensor, labels: torch.Tensor, gamma: float = 2.0) -> torch.Tensor:
    """Cross-entropy times (1 - p)**gamma, where p is the probability of the right class."""
    loss = functional.cross_entropy(scores, labels, reduction="none")
    return ((1 - torch.exp(-loss)) ** gamma * loss).mean()


# --- Copy to here. The rest is the proof. --------------------------------------------------------
BATCH, WIDTH = 64, 16
Data = tuple[torch.Tensor, torch.Tensor]
Loss = Callable[..., torch.Tensor]


def plain(scores: torch.Tensor, labels: torch.Tensor, *_: Any) -> torch.Tensor:
    return functional.cross_entropy(scores, labels)


def plain_loader(dataset: Any, *_: Any) -> Any:
    return data.DataLoader(dataset, BATCH, shuffle=True)


def samples(count: int, chances: list[float], seed: int) -> Data:
    """Points around one center per class; the classes overlap."""
    draw, classes = torch.Generator().manual_seed(seed), len(chances)
    centers = torch.randn(classes, WIDTH, generator=torch.Generator().manual_seed(7))
    y = torch.multinomial(torch.tensor(chances), count, True, generator=draw)
    return centers[y] + 1.8 * torch.randn(count, WIDTH, generator=draw), y


def trained(loader: Any, classes: int, loss_of: Loss, epochs: int, device: str) -> Any:
    """The model, the labels of each batch, and the size of their gradients at the last layer."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(WIDTH, 128), torch.nn.ReLU(), torch.nn.Linear(128, classes)
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    seen: list[Data] = []
    for _ in range(epochs):
        for x, y in loader:
            scores = model(x.to(device))
            pulls: list[torch.Tensor] = []
            scores.register_hook(pulls.append)
            loss_of(scores, y.to(device)).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append((y, pulls[0].abs().sum(1).cpu()))
    return model, seen


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def judged(model: Any, known: Data, device: str) -> dict[str, float]:
    """Recall and precision of class 1; how far confidence and accuracy are apart."""
    best, said = model(known[0].to(device)).softmax(1).cpu().max(1)
    right, rare = said == known[1], known[1] == 1
    gaps = [
        float((best[part] - right[part].float()).sum().abs())
        for part in ((best * 10).long() == tenth for tenth in range(11))
    ]
    return {
        "recall": float(right[rare].float().mean()),
        "precision": float(rare[said == 1].float().mean()),
        "confidence": float(best.mean()),
        "accuracy": float(right.float().mean()),
        "calibration error": sum(gaps) / len(best),
    }


def shown(name: str, result: dict[str, float]) -> dict[str, float]:
    print(f"{name:<18}" + ", ".join(f"{what} {value:.1%}" for what, value in result.items()))
    return result


def share_of_rare(seen: list[Data]) -> tuple[float, float]:
    """The rare class's share of the samples, and of the gradients at equal scores (first batch)."""
    labels = torch.cat([y for y, _ in seen])
    y, pull = seen[0]
    return float((labels == 1).float().mean()), float(pull[y == 1].sum() / pull.sum())


def prove(proof: Proof) -> None:
    device, epochs = proof.device, proof.epochs
    rare, real = samples(2_000, [0.95, 0.05], 1), samples(20_000, [0.95, 0.05], 2)
    dataset, weights = data.TensorDataset(*rare), class_weights(rare[1], 2).to(device)
    own: Loss = proof.technique(weighted, instead=plain)
    balanced = proof.technique(balanced_loader, instead=plain_loader)

    def run(name: str, loader: Any, loss_of: Loss) -> tuple[dict[str, float], Any]:
        torch.manual_seed(1)
        model, seen = trained(loader, 2, loss_of, epochs, device)
        return shown(name, judged(model, real, device)), seen

    print("5% of the samples belong to the rare class:")
    alone, before = run("plain", plain_loader(dataset), plain)
    by_weight, pulled = run("class weights", plain_loader(dataset), lambda s, y: own(s, y, weights))
    by_sampler, drawn = run("balanced sampler", balanced(dataset, rare[1], 2, BATCH), plain)
    proof.active(
        share_of_rare(pulled)[1] > 2 * share_of_rare(before)[1],
        f"with class weights, {share_of_rare(pulled)[1]:.0%} of the first gradients come from the"
        f" rare class instead of {share_of_rare(before)[1]:.0%}",
    )
    sizes = {len(y) for y, _ in drawn}
    proof.active(
        share_of_rare(drawn)[0] > 0.4 and sizes == {BATCH},
        f"the balanced sampler drew the rare class in {share_of_rare(drawn)[0]:.0%} of the samples"
        f" instead of {share_of_rare(before)[0]:.0%}; batch sizes {sorted(sizes)}",
    )
    gain = min(by_weight["recall"], by_sampler["recall"]) - alone["recall"]
    proof.purpose(
        gain > 0.1,
        f"recall of the rare class rises from {alone['recall']:.0%} to {by_weight['recall']:.0%}"
        f" with weights, {by_sampler['recall']:.0%} with the sampler; precision goes from"
        f" {alone['precision']:.0%} to {by_weight['precision']:.0%} and"
        f" {by_sampler['precision']:.0%}",
    )

    print("Ten equal classes, trained on few samples until the model is overconfident:")
    few, fresh = samples(500, [0.1] * 10, 3), samples(10_000, [0.1] * 10, 4)
    results, mild = {}, []
    for name, loss_of in (("plain", plain), ("label smoothing", smoothed), ("focal loss", focal)):
        torch.manual_seed(1)
        used = proof.technique(loss_of, instead=plain)
        model, _ = trained(plain_loader(data.TensorDataset(*few)), 10, used, 4 * epochs, device)
        results[name] = shown(name, judged(model, fresh, device))
        sure = torch.tensor([[8.0, 0.0], [0.0, 0.0]], requires_grad=True)  # certain, and undecided
        used(sure, torch.tensor([0, 0])).backward()
        mild.append(sure.grad[:, 0].tolist())
    (easy, hard), (back, _), (less, rest) = mild
    proof.active(
        back > 0 > easy and less / rest < 0.01 * easy / hard,
        f"a sample that is right with 99.97% gets a gradient of {easy:.0e}, {back:+.0e} with"
        f" smoothing (against more confidence) and {less:.0e} with focal loss",
    )
    errors = [result["calibration error"] for result in results.values()]
    proof.purpose(
        max(errors[1:]) < 0.9 * errors[0],
        f"the calibration error falls from {errors[0]:.1%} to {errors[1]:.1%} with smoothing and"
        f" {errors[2]:.1%} with focal loss",
    )


if __name__ == "__main__":
    main(__doc__, prove, epochs=(15, 10))
