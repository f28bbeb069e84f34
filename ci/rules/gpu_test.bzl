"""gpu_test: a test on real GPUs, one target for each number of them.

    load("//ci/rules:gpu_test.bzl", "gpu_test")

    gpu_test(
        name = "rings_test",
        srcs = ["rings_test.cc"],
        gpus = [2, 8],
        deps = [...],
    )

gives `:rings_test_gpu2`, `:rings_test_gpu8` and the suite `:rings_test`. The targets carry facts only; how they are run is a config of .bazelrc:
`bazel test --config=gpu2 //...` runs those for two GPUs, and without a config none is built or run. Where NCCL is missing they are skipped.

A test learns from SHARDPROOF_GPUS how many GPUs it was made for. With fewer it must fail: a skip inside of a test looks like a pass.
"""

load("//ci/rules:cuda.bzl", "requires_nccl")
load("@rules_cc//cc:cc_test.bzl", "cc_test")

# Numbers of GPUs for which there are a pool (ci/executors), a config (.bazelrc) and a tag (ci/tags.txt).
GPU_COUNTS = [1, 2, 4, 8]

def gpu_properties(count, prefix = "test."):
    """exec_properties of a test for `count` GPUs. With the prefix only its run goes to the pool of GPU machines, and its compiling and linking do not."""
    return {
        prefix + "Pool": "gpu-%d" % count,
        prefix + "gpu_count": str(count),
    }

def gpu_tags(name, count, tags = []):
    """Tags of the test `name` for `count` GPUs; `tags` are others of its own, which must not speak of GPUs."""
    if count not in GPU_COUNTS:
        fail("'%s' asks for %s GPUs; accepted: %s" % (name, count, ", ".join([str(n) for n in GPU_COUNTS])))
    for tag in tags:
        if tag.startswith("requires-gpu") or tag.startswith("resources:gpu"):
            fail("'%s' has the tag '%s'; what it needs of GPUs is said by its count, %d" % (name, tag, count))
    return tags + [
        "requires-gpu-nvidia",
        "requires-gpu-nvidia:%d" % count,
        "resources:gpu:%d" % count,
    ]

def gpu_suite(name, tests):
    """A test_suite of GPU tests. Its tag keeps it out of runs without GPUs: Bazel would build the members of any other suite in //..."""
    native.test_suite(
        name = name,
        tags = ["requires-gpu-nvidia"],
        tests = tests,
    )

def gpu_test(
        name,
        srcs,
        deps,
        gpus = [1],
        size = "medium",
        tags = [],
        env = {},
        **kwargs):
    """A cc_test for each number of GPUs and a suite of them.

    Args:
      name: the suite; the tests are NAME_gpuN.
      srcs: as of cc_test.
      deps: as of cc_test.
      gpus: numbers of GPUs, of GPU_COUNTS.
      size: of every test.
      tags: of every test, beside those about GPUs.
      env: of every test, beside SHARDPROOF_GPUS.
      **kwargs: other attributes of every test.
    """
    if not gpus:
        fail("gpu_test '%s' has no gpus, so it would test nothing" % name)
    tests = []
    for count in gpus:
        test = "%s_gpu%d" % (name, count)
        environment = {"SHARDPROOF_GPUS": str(count)}
        environment.update(env)
        if environment["SHARDPROOF_GPUS"] != str(count):
            fail("'%s' sets SHARDPROOF_GPUS itself" % test)
        cc_test(
            name = test,
            size = size,
            srcs = srcs,
            env = environment,
            exec_properties = gpu_properties(count),
            tags = gpu_tags(test, count, tags),
            target_compatible_with = requires_nccl(),
            deps = deps,
            **kwargs
        )
        tests.append(":" + test)
    gpu_suite(
        name = name,
        tests = tests,
    )
