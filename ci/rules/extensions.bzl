"""What MODULE.bazel takes from this machine: CUDA with NCCL, and OpenMPI. For Bazel 7 and newer; NOT RUN by this project's gate.

WORKSPACE never loads this file: Bazel 4 knows no module extensions. There dependencies.bzl declares the same repositories.
"""

load("//ci/rules:local_cuda.bzl", "local_cuda")
load("//ci/rules:local_mpi.bzl", "local_mpi")

def _local_machine_impl(_module_ctx):
    local_cuda(name = "local_cuda")
    local_mpi(name = "local_mpi")

local_machine = module_extension(implementation = _local_machine_impl)
