"""What a runner is told to train: a shape, and the settings that the techniques changed."""

from typing import Any, Dict


class Settings:
    """How to train; the defaults are torch's own, and stand for the baseline.

    amp: "", bfloat16 or float16. matmul: precision of fp32 products. compile: "" or a mode.
    graphs: the whole step as one CUDA graph. optimizer: "", fused or foreach. workers: of the
    loader, -1 as many as fit. pinned: page-locked batches, copied without waiting. prefetch: the
    next batch is copied on a stream of its own. cached: decoded samples stay in memory.
    batch: a factor, 0 the largest that fits. lengths: padded or bucketed. attention: eager or
    sdpa. accumulate: micro-batches of a step.
    """

    def __init__(self, given: Dict[str, Any]) -> None:
        self.amp = str(given.get("amp", ""))
        self.matmul = str(given.get("matmul", "highest"))
        self.compile = str(given.get("compile", ""))
        self.graphs = bool(given.get("graphs", False))
        self.channels_last = bool(given.get("channels_last", False))
        self.optimizer = str(given.get("optimizer", ""))
        self.workers = int(given.get("workers", 0))
        self.pinned = bool(given.get("pinned", False))
        self.prefetch = bool(given.get("prefetch", False))
        self.cached = bool(given.get("cached", False))
        self.checkpointing = bool(given.get("checkpointing", False))
        self.batch = int(given.get("batch", 1))
        self.lengths = str(given.get("lengths", "padded"))
        self.cudnn_benchmark = bool(given.get("cudnn_benchmark", False))
        self.attention = str(given.get("attention", "eager"))
        self.accumulate = int(given.get("accumulate", 1))
        self.fault = str(given.get("fault", ""))


class Order:
    """One training. shape: sizes of model and data. factor: how many times the usual batch.

    alone: it has a process of its own that was not forked, and makes its data itself.
    """

    def __init__(self, given: Dict[str, Any]) -> None:
        self.id = int(given["id"])
        self.workload = str(given.get("workload", "cnn"))
        self.shape: Dict[str, Any] = dict(given.get("shape") or {})
        self.settings = Settings(given.get("settings") or {})
        self.device = str(given.get("device", "cpu"))
        self.seed = int(given.get("seed", 0))
        self.loss_steps = int(given.get("loss_steps", 6))
        self.warm_s = float(given.get("warm_s", 4.0))
        self.share = float(given.get("share", 0.9))
        self.pretend = bool(given.get("pretend", False))
        self.alone = bool(given.get("alone", False))
        self.factor = max(1, self.settings.batch)

    @property
    def gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def batch(self) -> int:
        return int(self.shape["batch"]) * self.factor
