"""@local_cuda: the CUDA toolkit, cuBLAS, CUPTI and NCCL of this machine, or targets that are skipped.

Layouts met so far: everything under CUDA_HOME/{include,lib}, and a Debian/Ubuntu one with NCCL in
/usr/include and /usr/lib/x86_64-linux-gnu. CUDA_HOME and NCCL_HOME override the search.
"""

_HEAD = """
load("@rules_cc//cc:cc_library.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

# No platform has this value, so a target that asks for it is skipped.
constraint_setting(name = "cuda")

constraint_value(
    name = "absent",
    constraint_setting = ":cuda",
)
"""

# Not all headers: each becomes an input of each action, and the toolkit has two thousand. What is left out (Thrust, CUB, libcu++) nothing
# here uses.
_CUDART = """
cc_library(
    name = "cudart",
    srcs = ["cuda_lib/libcudart_static.a"],
    hdrs = glob(
        [
            "cuda_include/*.h",
            "cuda_include/*.hpp",
            "cuda_include/crt/**",
            "cuda_include/cccl/nv/**",
        ],
        exclude = ["cuda_include/nccl*"],
        allow_empty = True,
    ),
    includes = ["cuda_include", "cuda_include/cccl"],
    linkopts = ["-ldl", "-lrt", "-lpthread"],
)
"""

_SHARED = """
cc_library(
    name = "%s",
    srcs = %s,
    deps = [":cudart"],
)
"""

_NCCL = """
cc_library(
    name = "nccl",
    srcs = ["nccl_lib/libnccl.so.2"],
    hdrs = ["nccl_include/nccl.h"],
    includes = ["nccl_include"],
    deps = [":cudart"],
)
"""

_MISSING = """
cc_library(
    name = "%s",
    target_compatible_with = [":absent"],
)
"""

# cuBLAS loads cublasLt by its name, so a test needs both beside it.
_SHARED_LIBRARIES = {
    "cublas": [["libcublas.so.13", "libcublas.so.12"], ["libcublasLt.so.13", "libcublasLt.so.12"]],
    "cupti": [["libcupti.so.13", "libcupti.so.12"]],
}

def _first(ctx, candidates):
    for candidate in candidates:
        if ctx.path(candidate).exists:
            return ctx.path(candidate)
    return None

def _local_cuda_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    nccl_home = ctx.os.environ.get("NCCL_HOME")
    nccl_roots = [nccl_home] if nccl_home else [home, "/usr"]
    nvcc = _first(ctx, [home + "/bin/nvcc"])
    lib = _first(ctx, [home + "/lib64", home + "/lib"])
    nccl_h = _first(ctx, [root + "/include/nccl.h" for root in nccl_roots])
    nccl_so = _first(ctx, [root + lib_dir + "/libnccl.so.2" for root in nccl_roots for lib_dir in ["/lib64", "/lib", "/lib/x86_64-linux-gnu"]])
    has_cuda = nvcc != None and lib != None
    has_nccl = has_cuda and nccl_h != None and nccl_so != None
    build = _HEAD
    if has_cuda:
        ctx.symlink(home + "/include", "cuda_include")
        build += _CUDART
        ctx.symlink(lib.get_child("libcudart_static.a"), "cuda_lib/libcudart_static.a")
    else:
        build += _MISSING % "cudart"
    for name, libraries in _SHARED_LIBRARIES.items():
        found = []
        for sonames in libraries:
            so = _first(ctx, [d + "/" + soname for soname in sonames for d in [str(lib), home + "/extras/CUPTI/lib64"]]) if has_cuda else None
            if so:
                ctx.symlink(so, "cuda_lib/" + so.basename)
                found.append("cuda_lib/" + so.basename)
        if len(found) == len(libraries):
            build += _SHARED % (name, repr(found))
        else:
            build += _MISSING % name
    if has_nccl:
        ctx.symlink(nccl_h, "nccl_include/nccl.h")
        ctx.symlink(nccl_so, "nccl_lib/libnccl.so.2")
        build += _NCCL
    else:
        build += _MISSING % "nccl"
    ctx.file("BUILD", build)
    ctx.file("defs.bzl", 'CUDA_HOME = "%s"\nHAS_CUDA = %s\nHAS_NCCL = %s\n' % (home, has_cuda, has_nccl))

local_cuda = repository_rule(
    implementation = _local_cuda_impl,
    environ = ["CUDA_HOME", "NCCL_HOME"],
    local = True,
    configure = True,
)
