"""cuda_library: compiles .cu files with nvcc into a cc_library."""

load("@local_cuda//:defs.bzl", "CUDA_HOME", "HAS_CUDA", "HAS_NCCL")
load("@rules_cc//cc:cc_library.bzl", "cc_library")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

_MODE_FLAGS = {
    "dbg": ["-O0", "-g", "-lineinfo"],
    "fastbuild": ["-O1"],
    "opt": ["-O3"],
}

def requires_cuda():
    """target_compatible_with of a target that needs the CUDA toolkit."""
    return [] if HAS_CUDA else ["@local_cuda//:absent"]

def requires_nccl():
    """target_compatible_with of a target that needs NCCL, and so CUDA."""
    return [] if HAS_NCCL else ["@local_cuda//:absent"]

def if_cuda(present, absent = []):
    """`present` where CUDA and NCCL are installed, else `absent`: for the deps of programs that are built either way."""
    return present if HAS_NCCL else absent

def _nvcc_objects_impl(ctx):
    contexts = [dep[CcInfo].compilation_context for dep in ctx.attr.deps]
    inputs = depset(ctx.files.hdrs, transitive = [c.headers for c in contexts])
    objects = []
    for src in ctx.files.srcs:
        object = ctx.actions.declare_file("%s/%s.pic.o" % (ctx.label.name, src.basename))
        args = ctx.actions.args()
        args.add("-c", src)
        args.add("-o", object)
        args.add("-std=c++20")
        args.add("-Xcompiler=-fPIC,-Wall,-Wextra,-ffp-contract=off")

        # Bits are compared: a kernel fuses a product into a sum only where it says so (fmaf).
        args.add("-fmad=false")

        # Bazel's sandboxes share one folder for temporary files and reuse process ids, which nvcc names its files by.
        args.add("--objdir-as-tempdir")

        # Code for these GPUs, and PTX that the driver compiles for those that come after them.
        args.add_all(["-gencode=arch=compute_%s,code=[sm_%s,compute_%s]" % (a, a, a) for a in ctx.attr.archs])
        args.add_all(_MODE_FLAGS[ctx.var["COMPILATION_MODE"]])
        args.add("-I.")
        args.add_all(depset(transitive = [c.quote_includes for c in contexts]), before_each = "-I")
        args.add_all(depset(transitive = [c.includes for c in contexts]), before_each = "-I")
        args.add_all(depset(transitive = [c.system_includes for c in contexts]), before_each = "-isystem")
        args.add_all(depset(transitive = [c.defines for c in contexts]), before_each = "-D")
        args.add_all(ctx.attr.copts)
        ctx.actions.run(
            executable = CUDA_HOME + "/bin/nvcc",
            arguments = [args],
            inputs = depset([src], transitive = [inputs]),
            outputs = [object],
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s with nvcc" % src.short_path,
            use_default_shell_env = True,
        )
        objects.append(object)
    return [DefaultInfo(files = depset(objects))]

_nvcc_objects = rule(
    implementation = _nvcc_objects_impl,
    attrs = {
        # The oldest is also what collectives/nccl/requirements.h asks a GPU for.
        "archs": attr.string_list(default = ["90"]),
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "srcs": attr.label_list(allow_files = [".cu"]),
    },
)

def cuda_library(name, srcs, hdrs = [], deps = [], copts = [], **kwargs):
    """A cc_library whose sources are CUDA."""
    _nvcc_objects(
        name = name + "_nvcc",
        srcs = srcs,
        hdrs = hdrs,
        copts = copts,
        target_compatible_with = requires_cuda(),
        deps = deps,
    )
    cc_library(
        name = name,
        srcs = [":%s_nvcc" % name],
        hdrs = hdrs,
        target_compatible_with = requires_cuda(),
        deps = deps + ["@local_cuda//:cudart"],
        **kwargs
    )
