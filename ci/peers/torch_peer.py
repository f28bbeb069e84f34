#!/usr/bin/env python3
"""The benchmark's workload in PyTorch: what `zero_train --bench` is compared with.

Layers Linear(width, width, bias=False) with ReLU between, mean squared error, AdamW, FP32 without
TF32, other data on every rank, made on the GPU in every step. One process a GPU under torchrun, or
one process by itself:

  torchrun --nproc_per_node=2 ci/peers/torch_peer.py --modes=all
  python3 ci/peers/torch_peer.py --modes=ddp,fsdp2_reshard

Prints one JSON object, schema "shardproof.peer/1", on rank 0's stdout, or writes it to --output.
Fields that zero_train's JSON has too (trainer/bench/bench_report.h) mean the same: median_ms,
p95_ms and cv (percent) of the slowest rank of each step by CUDA events, unstable, samples. In
addition, by mode:
  factors      bytes of all ranks over those of the model: [parameters, gradients, Adam], after a step
  nccl         kernels of rank 0 in one more step by torch.profiler, by kind; null if not asked for
  steady_mib   what PyTorch has allocated after a step, beyond what it had before the mode: the most
  peak_mib     of any rank; peak_mib at most in a step. Inputs and activations are in it, cuBLAS's
               workspaces are not.
  before_mib   what PyTorch had allocated before the mode, the most of any rank: the workspaces. More
               than before the first mode: modes that ran earlier have left something.
No mode's figures depend on which ran before it: workspaces are allocated before the first, objects of
one mode are collected before the next and are nothing that Python's collector walks through in timed
steps, and torch.profiler, which leaves launches slower, starts when all modes have been timed.
Exit status 2 and one line on stderr for bad input.
"""
import argparse
import gc
import json
import os
import re
import statistics
import sys

import torch
import torch.distributed as dist
from torch import nn

FSDP1_PREFETCH = {
    "fsdp1_backward_pre": "BACKWARD_PRE",
    "fsdp1_backward_post": "BACKWARD_POST",
    "fsdp1_none": None,
}
MODES = ["ddp", "zero_redundancy_optimizer", "fsdp1_shard_grad_op", *FSDP1_PREFETCH, "fsdp2_no_reshard", "fsdp2_reshard"]
# What zero_train uses by default (invariants/run_description/run_description.h).
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


class BadInput(Exception):
    pass


def make_model(args, device):
    layers = []
    for layer in range(args.layers):
        if layer > 0:
            layers.append(nn.ReLU())
        layers.append(nn.Linear(args.width, args.width, bias=False, device=device))
    return nn.Sequential(*layers)


def adamw(parameters, args):
    return torch.optim.AdamW(parameters, fused=True if args.fused else None, **ADAMW)


def ddp(model, args, device):
    return nn.parallel.DistributedDataParallel(
        model, device_ids=[device.index], bucket_cap_mb=args.bucket_cap_mb, gradient_as_bucket_view=True
    )


def fsdp1(model, mode, device):
    from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, ShardingStrategy

    shard_grad_op = mode == "fsdp1_shard_grad_op"
    prefetch = "BACKWARD_PRE" if shard_grad_op else FSDP1_PREFETCH[mode]
    options = {
        "sharding_strategy": ShardingStrategy.SHARD_GRAD_OP if shard_grad_op else ShardingStrategy.FULL_SHARD,
        "backward_prefetch": BackwardPrefetch[prefetch] if prefetch else None,
        "device_id": device,
        "use_orig_params": True,
    }
    units = [FullyShardedDataParallel(m, **options) if isinstance(m, nn.Linear) else m for m in model]
    return FullyShardedDataParallel(nn.Sequential(*units), **options)


def fsdp2(model, mode):
    from torch.distributed.fsdp import fully_shard

    reshard = mode == "fsdp2_reshard"
    for module in model:
        if isinstance(module, nn.Linear):
            fully_shard(module, reshard_after_forward=reshard)
    fully_shard(model, reshard_after_forward=reshard)
    return model


def make_trainer(mode, args, device):
    """The wrapped model and its optimizer."""
    model = make_model(args, device)
    if mode == "ddp":
        model = ddp(model, args, device)
    elif mode == "zero_redundancy_optimizer":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        model = ddp(model, args, device)
        options = dict(ADAMW, fused=True) if args.fused else ADAMW
        return model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, **options)
    elif mode.startswith("fsdp1_"):
        model = fsdp1(model, mode, device)
    else:
        model = fsdp2(model, mode)
    return model, adamw(model.parameters(), args)


class Trainer:
    def __init__(self, mode, args, device):
        torch.manual_seed(args.seed)  # the same model on every rank
        self.model, self.optimizer = make_trainer(mode, args, device)
        self.generator = torch.Generator(device=device)
        self.generator.manual_seed(args.seed * 1000003 + dist.get_rank())  # other data on every rank
        shape = (args.micro_batch_size, args.width)
        self.input = torch.empty(shape, device=device)
        self.target = torch.empty(shape, device=device)
        self.start = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)

    def step(self):
        """One training step; milliseconds by events on the current stream."""
        self.start.record()
        self.input.uniform_(-1, 1, generator=self.generator)
        self.target.uniform_(-1, 1, generator=self.generator)
        self.optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(self.model(self.input), self.target)
        loss.backward()
        self.optimizer.step()
        self.end.record()
        self.end.synchronize()
        return self.start.elapsed_time(self.end)

    def state_bytes(self):
        """Bytes of this rank's parameters, gradients and Adam moments."""
        parameters = list(self.model.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        # ZeroRedundancyOptimizer keeps its rank's part in an optimizer of its own.
        optimizer = getattr(self.optimizer, "optim", self.optimizer)
        moments = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq") if key in state]
        return [sum(local_bytes(t) for t in tensors) for tensors in (parameters, gradients, moments)]


def local_bytes(tensor):
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # FSDP2's are DTensors
    return local.numel() * local.element_size()


def over_ranks(values, device, operation):
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=operation)
    return tensor.tolist()


def quantile(samples, q):
    """Linear interpolation between order statistics, as trainer/bench/statistics.h."""
    ordered = sorted(samples)
    position = (len(ordered) - 1) * q
    below = int(position)
    if below + 1 >= len(ordered):
        return ordered[-1]
    return ordered[below] + (position - below) * (ordered[below + 1] - ordered[below])


def cv_percent(samples):
    return statistics.stdev(samples) / statistics.fmean(samples) * 100 if len(samples) > 1 else 0.0


def nccl_kernels(trainer):
    """Kernels of collectives in one step of this rank, by kind."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        trainer.step()
        torch.cuda.synchronize()
    counts = {}
    for event in profiler.events():
        match = re.match(r"nccl(?:Dev)?Kernel_(?:(?:NVLS|Symk)_)?([A-Za-z]+)", event.name)
        if match:
            counts[match.group(1)] = counts.get(match.group(1), 0) + 1
    return dict(sorted(counts.items()))


def allocate_workspaces(args, device):
    """Makes PyTorch allocate the workspaces that it keeps for cuBLAS to its end.

    There is one for each handle and stream: of this thread for forward, of autograd's for backward.
    """
    layer = nn.Linear(args.width, args.width, bias=False, device=device)
    batch = torch.ones((args.micro_batch_size, args.width), device=device, requires_grad=True)
    layer(batch).sum().backward()
    torch.cuda.synchronize(device)


def forget_modes():
    """Nothing of earlier modes is left on the device; models refer to themselves."""
    gc.collect()
    torch.cuda.empty_cache()


def timed_steps(trainer, args):
    """Milliseconds by step. Objects that are there before are none that the collector looks at."""
    gc.collect()
    gc.freeze()
    times = [trainer.step() for _ in range(args.bench_steps)]
    gc.unfreeze()
    return times


def bench_mode(mode, args, device):
    forget_modes()
    before = torch.cuda.memory_allocated(device)
    trainer = Trainer(mode, args, device)
    for _ in range(args.warmup_steps):
        trainer.step()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    times = timed_steps(trainer, args)
    allocated = [before, torch.cuda.memory_allocated(device) - before, torch.cuda.max_memory_allocated(device) - before]
    before_mib, steady, peak = over_ranks([size / (1 << 20) for size in allocated], device, dist.ReduceOp.MAX)
    model_bytes = args.layers * args.width * args.width * 4
    factors = [b / model_bytes for b in over_ranks(trainer.state_bytes(), device, dist.ReduceOp.SUM)]
    times = over_ranks(times, device, dist.ReduceOp.MAX)
    cv = cv_percent(times)
    return {
        "mode": mode,
        "median_ms": quantile(times, 0.5),
        "p95_ms": quantile(times, 0.95),
        "cv": cv,
        "unstable": cv > 5,
        "samples": len(times),
        "steady_mib": steady,
        "peak_mib": peak,
        "before_mib": before_mib,
        "factors": factors,
        "nccl": None,
    }


def count_kernels(mode, args, device):
    forget_modes()
    trainer = Trainer(mode, args, device)
    trainer.step()  # allocates, and connects
    return nccl_kernels(trainer)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", default="all", help="all, or some of " + ",".join(MODES))
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--micro_batch_size", type=int, default=1024, help="samples of a rank")
    parser.add_argument("--bench_steps", type=int, default=60)
    parser.add_argument("--warmup_steps", type=int, default=10)
    parser.add_argument("--bucket_cap_mb", type=int, default=64, help="of DDP, in MiB")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fused", action="store_true", help="AdamW's fused kernels instead of PyTorch's default")
    parser.add_argument("--profile", action="store_true", help="count NCCL kernels in one more step")
    parser.add_argument("--output", default="", help="a file for the JSON instead of stdout")
    args = parser.parse_args()
    args.modes = MODES if args.modes == "all" else args.modes.split(",")
    for mode in args.modes:
        if mode not in MODES:
            raise BadInput(f"--modes: {mode!r} is none; accepted: all, {', '.join(MODES)}")
    for name in ("layers", "width", "micro_batch_size", "bench_steps", "bucket_cap_mb"):
        if getattr(args, name) < 1:
            raise BadInput(f"--{name}={getattr(args, name)}; accepted is 1 or more")
    if args.warmup_steps < 1:
        raise BadInput(f"--warmup_steps={args.warmup_steps}; accepted is 1 or more: the first step allocates")
    return args


def join_job():
    """This rank's device; without a launcher this process is the whole job."""
    if not torch.cuda.is_available():
        raise BadInput("no GPU that PyTorch can use")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if local_rank >= torch.cuda.device_count():
        raise BadInput(f"LOCAL_RANK={local_rank} with {torch.cuda.device_count()} GPUs; accepted is below that")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group("nccl")
    else:
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    return device


def make_report(args, device, modes):
    return {
        "schema": "shardproof.peer/1",
        "framework": f"PyTorch {torch.__version__}",
        "device": torch.cuda.get_device_name(device),
        "world_size": dist.get_world_size(),
        "versions": {
            "cuda_runtime": torch.version.cuda,
            "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()),
        },
        "model": f"mlp:{args.layers}x{args.width}",
        "micro_batch_size": args.micro_batch_size,
        "warmup_steps": args.warmup_steps,
        "bench_steps": args.bench_steps,
        "fused_adamw": args.fused,
        "modes": modes,
    }


def run(args):
    device = join_job()
    torch.set_float32_matmul_precision("highest")  # no TF32
    allocate_workspaces(args, device)
    modes = [bench_mode(mode, args, device) for mode in args.modes]
    if args.profile:
        for report in modes:
            report["nccl"] = count_kernels(report["mode"], args, device)
    if dist.get_rank() == 0:
        text = json.dumps(make_report(args, device, modes), indent=2) + "\n"
        if args.output:
            with open(args.output, "w", encoding="utf-8") as file:
                file.write(text)
        else:
            sys.stdout.write(text)
    gc.collect()  # models refer to the process group and to themselves
    # Not after an error: it could wait for collectives that nobody ends.
    dist.destroy_process_group()


def main():
    try:
        run(parse_arguments())
    except BadInput as error:
        print(f"torch_peer: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
