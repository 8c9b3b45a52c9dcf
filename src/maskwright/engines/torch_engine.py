"""The torch engine: CPU or one CUDA device.

Weights and moments are fp32 in flat buffers; the model multiplies in bf16 (a copy made once an update) or fp32. The
flat buffers are in two parts, decayed matrices and undecayed vectors, so the optimizer is two fused calls whatever the
depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskwright.core import config as run
from maskwright.core import hardware
from maskwright.core.errors import ConfigError, HealthError
from maskwright.data import bits
from maskwright.data.batch import Batch
from maskwright.engines.base import EvalStats, StepStats, TrainState
from maskwright.model.config import ModelConfig
from maskwright.model.roberta_torch import NEVER_PREDICTED, Roberta, assign, extract, masked_lm_loss

DROPOUT_PURPOSE = 7


def choose_device(wanted: str) -> str:
    """`auto` takes a CUDA device when there is one. Raises `ConfigError` rather than falling back."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "cuda was asked for, but torch sees no CUDA device",
            where="engine.device",
            fix="check the driver and that torch is a CUDA build, or say cpu",
        )
    return wanted


def choose_dtype(wanted: str, device: str) -> torch.dtype:
    """`auto` takes bf16 where the hardware multiplies it faster; decided by its feature flags, so always the same."""
    if wanted == "auto":
        if device == "cuda":
            wanted = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
        else:
            wanted = "bf16" if hardware.cpu_multiplies_bf16_faster() else "fp32"
    return torch.bfloat16 if wanted == "bf16" else torch.float32


class TorchEngine:
    """See `base.Engine`. `seed` keys dropout by (seed, step, virtual worker), so a resumed run draws the same."""

    def __init__(self, model: ModelConfig, optimizer: run.Optimizer, engine: run.Engine, seed: int) -> None:
        self.config, self.optimizer_config, self.seed = model, optimizer, seed
        self.device = choose_device(engine.device)
        self.dtype = choose_dtype(engine.dtype, self.device)
        self.threads = engine.threads or hardware.usable_cores()
        torch.set_num_threads(self.threads)
        if self.device == "cpu":
            hardware.keep_freed_memory()
        torch.backends.cuda.matmul.allow_tf32 = False
        name = torch.cuda.get_device_name() if self.device == "cuda" else f"cpu, {self.threads} threads"
        self.description = f"torch {torch.__version__} on {name}, {str(self.dtype).removeprefix('torch.')}"
        self._step = 0
        self._lay_out()
        self._optimizer: torch.optim.AdamW | None = None

    def _lay_out(self) -> None:
        """One flat fp32 buffer of all weights, matrices first; the model's parameters are views of it or of its
        copy."""
        with torch.device("meta"):
            self.model = Roberta(self.config)
        self.model.to_empty(device=self.device)
        named = sorted(self.model.named_parameters(), key=lambda item: item[1].ndim < 2)
        sizes = [parameter.numel() for _, parameter in named]
        self._decayed = sum(size for size, (_, parameter) in zip(sizes, named, strict=True) if parameter.ndim >= 2)
        self._weights = torch.zeros(sum(sizes), device=self.device)
        self._parameters = dict(named)
        self._multiplied = self._weights if self.dtype is torch.float32 else self._weights.to(self.dtype)
        for name, view in self._views(self._multiplied).items():
            self._parameters[name].data = view

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        """`flat` by the parameters' names, in their shapes."""
        parts = flat.split([parameter.numel() for parameter in self._parameters.values()])
        return {
            name: part.view(parameter.shape)
            for (name, parameter), part in zip(self._parameters.items(), parts, strict=True)
        }

    def _start_optimizer(self) -> torch.optim.AdamW:
        if self._optimizer is None:
            options, cut = self.optimizer_config, self._decayed
            self._gradients = torch.zeros_like(self._weights)
            self._gradient_views = self._views(self._gradients)
            if self.dtype is torch.float32:
                for name, view in self._gradient_views.items():
                    self._parameters[name].grad = view
            matrices, vectors = self._weights[:cut], self._weights[cut:]
            matrices.grad, vectors.grad = self._gradients[:cut], self._gradients[cut:]
            groups: list[dict[str, Any]] = [{"params": [matrices]}, {"params": [vectors], "weight_decay": 0.0}]
            self._optimizer = torch.optim.AdamW(
                groups,
                lr=options.learning_rate,
                betas=(options.beta1, options.beta2),
                eps=options.eps,
                weight_decay=options.weight_decay,
                fused=True,
            )
        return self._optimizer

    # ---- one update ------------------------------------------------------------------------------------------

    def step(self, batches: Sequence[Batch], learning_rate: float) -> StepStats:
        weight = sum(batch.predicted for batch in batches)
        optimizer = self._start_optimizer()
        self._gradients.zero_()
        losses = [self._accumulate(batch, worker, max(weight, 1.0)) for worker, batch in enumerate(batches)]
        norm = torch.linalg.vector_norm(self._gradients)
        loss_sum, grad_norm = float(torch.stack(losses).sum(dtype=torch.float64)), float(norm)
        if not (math.isfinite(loss_sum) and math.isfinite(grad_norm)):
            raise HealthError(
                f"step {self._step}: loss {loss_sum / max(weight, 1.0)}, gradient norm {grad_norm}; stopped before the "
                "update",
                fix="start a new run with a lower optimizer.learning_rate or more warm-up; look at that step's data",
            )
        longest = self.optimizer_config.max_grad_norm
        if longest is not None:
            # torch.nn.utils.clip_grad_norm_'s rule, on the flat buffer
            self._gradients.mul_(torch.clamp(longest / (norm + 1e-6), max=1.0))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()
        if self._multiplied is not self._weights:
            self._multiplied.copy_(self._weights)
        self._step += 1
        return StepStats(loss_sum, weight, grad_norm)

    def _accumulate(self, batch: Batch, worker: int, weight: float) -> Tensor:
        """Adds one micro-batch's gradient, already divided by the global weight; returns its loss sum on the device."""
        if self.config.hidden_dropout_prob or self.config.attention_probs_dropout_prob:
            torch.manual_seed(int(bits.key(self.seed, DROPOUT_PURPOSE, self._step, worker) >> np.uint64(1)))
        self.model.train()
        loss = masked_lm_loss(*self._predict(batch))
        (loss / weight).backward()
        if self.dtype is not torch.float32:
            for name, parameter in self._parameters.items():
                if parameter.grad is not None:
                    self._gradient_views[name].add_(parameter.grad)
                    parameter.grad = None
        return loss.detach()

    def _predict(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [K, V], labels [K] and weights [K] on the device."""

        def put(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(self.device, non_blocking=True)

        logits = self.model(
            put(batch.input_ids), put(batch.position_ids), put(batch.segment_ids), put(batch.predict_index)
        )
        return logits, put(batch.labels).long(), put(batch.weights)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> EvalStats:
        self.model.eval()
        logits, labels, weights = self._predict(batch)
        loss = masked_lm_loss(logits, labels, weights)
        correct = ((logits.argmax(-1) == labels) * weights).sum()
        return EvalStats(float(loss), float(weights.sum()), float(correct))

    # ---- state -----------------------------------------------------------------------------------------------

    def read(self) -> TrainState:
        moments = {}
        if self._optimizer is not None and self._step:
            for kind in ("exp_avg", "exp_avg_sq"):
                parts = [self._optimizer.state[group["params"][0]][kind] for group in self._optimizer.param_groups]
                moments[kind] = extract(self._views(torch.cat(parts)), self.config)
        return TrainState(self._step, extract(self._views(self._weights), self.config), moments)

    def write(self, state: TrainState) -> None:
        self._step = state.step
        assign(self._views(self._weights), state.parameters, self.config, NEVER_PREDICTED)
        if self._multiplied is not self._weights:
            self._multiplied.copy_(self._weights)
        if state.moments:
            optimizer, cut = self._start_optimizer(), self._decayed
            flat = {kind: torch.zeros_like(self._weights) for kind in state.moments}
            for kind, moments in state.moments.items():
                assign(self._views(flat[kind]), moments, self.config)
            for group, part in zip(optimizer.param_groups, (slice(0, cut), slice(cut, None)), strict=True):
                optimizer.state[group["params"][0]] = {
                    "step": torch.tensor(float(state.step), device=self.device),
                    **{kind: moment[part].clone() for kind, moment in flat.items()},
                }

    def close(self) -> None:
        self._optimizer = None
        if self.device == "cuda":
            torch.cuda.empty_cache()
