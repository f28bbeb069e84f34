"""@local_cuda: the CUDA toolkit, cuBLAS, CUPTI and NCCL of this machine, or targets that are skipped.

Layouts met so far: everything under CUDA_HOME/{include,lib}, and a Debian/Ubuntu one with NCCL in
/usr/include and /usr/lib/x86_64-linux-gnu. CUDA_HOME and NCCL_HOME override the search.

HAS_CUDA is nvcc and the runtime. HAS_NCCL is all of what programs for GPUs are linked with (if_cuda of cuda.bzl): were it true with one of the libraries missing,
the programs would depend on a target that is skipped, and be skipped themselves instead of built without GPUs.
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

def cuda_candidates(home, nccl_home):
    """Where each file may be, best place first: {name: [paths]}, with a shared library under the first of its names. `nccl_home` may be None."""
    libs = [home + "/lib64", home + "/lib"]
    nccl_roots = [nccl_home] if nccl_home else [home, "/usr"]
    candidates = {
        "nvcc": [home + "/bin/nvcc"],
        "libcudart_static.a": [d + "/libcudart_static.a" for d in libs],
        "nccl.h": [root + "/include/nccl.h" for root in nccl_roots],
        "libnccl.so.2": [root + lib + "/libnccl.so.2" for root in nccl_roots for lib in ["/lib64", "/lib", "/lib/x86_64-linux-gnu"]],
    }
    for libraries in _SHARED_LIBRARIES.values():
        for sonames in libraries:
            candidates[sonames[0]] = [d + "/" + soname for soname in sonames for d in libs + [home + "/extras/CUPTI/lib64"]]
    return candidates

def cuda_targets(found):
    """What is made of `found`, {name of cuda_candidates: path}, without what is missing.

    Returns a struct: build is the text of the BUILD file, links is {path in the repository: path on this machine}, has_cuda and has_nccl are the two answers.
    """
    has_cuda = "nvcc" in found and "libcudart_static.a" in found
    has_nccl = has_cuda and "nccl.h" in found and "libnccl.so.2" in found
    links = {}
    build = _HEAD
    if has_cuda:
        build += _CUDART
        links["cuda_lib/libcudart_static.a"] = found["libcudart_static.a"]
    else:
        build += _MISSING % "cudart"
    if has_nccl:
        build += _NCCL
        links["nccl_include/nccl.h"] = found["nccl.h"]
        links["nccl_lib/libnccl.so.2"] = found["libnccl.so.2"]
    else:
        build += _MISSING % "nccl"
    for name, libraries in _SHARED_LIBRARIES.items():
        paths = [found[sonames[0]] for sonames in libraries if sonames[0] in found]
        if has_cuda and len(paths) == len(libraries):
            linked = ["cuda_lib/" + path.rpartition("/")[2] for path in paths]
            for i in range(len(paths)):
                links[linked[i]] = paths[i]
            build += _SHARED % (name, repr(linked))
        else:
            has_nccl = False
            build += _MISSING % name
    return struct(build = build, has_cuda = has_cuda, has_nccl = has_nccl, links = links)

def _local_cuda_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    found = {}
    for name, paths in cuda_candidates(home, ctx.os.environ.get("NCCL_HOME")).items():
        for path in paths:
            if name not in found and ctx.path(path).exists:
                found[name] = path
    targets = cuda_targets(found)
    if targets.has_cuda:
        ctx.symlink(home + "/include", "cuda_include")
    for link, path in targets.links.items():
        ctx.symlink(path, link)
    ctx.file("BUILD", targets.build)
    ctx.file("defs.bzl", 'CUDA_HOME = "%s"\nHAS_CUDA = %s\nHAS_NCCL = %s\n' % (home, targets.has_cuda, targets.has_nccl))

local_cuda = repository_rule(
    implementation = _local_cuda_impl,
    environ = ["CUDA_HOME", "NCCL_HOME"],
    local = True,
    configure = True,
)
