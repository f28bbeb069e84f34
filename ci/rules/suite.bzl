"""Hundreds of test targets that share one test binary.

An invariant is checked for every mode and world size, and each of those should be a target of its own: selected, cached, scheduled and reported
by name. Linking a binary for each would take hours on a small machine, so a target here is only a few lines of shell that start the one
binary with this target's arguments.

    load("//ci/rules:suite.bzl", "invariant_suite")

    cc_test(
        name = "check_invariant",
        srcs = ["check_invariant.cc"],
        tags = ["manual"],
        deps = [...],
    )

    invariant_suite(
        name = "fixed_cases",
        binary = ":check_invariant",
        checks = ["padding", "liveness"],
        modes = ["zero2", "full_shard/backward_pre"],
        world_sizes = [1, 4],
    )

gives `:padding_full_shard_backward_pre_w4` (`--check=padding --mode=full_shard/backward_pre --world_size=4`) and its seven siblings, the suites
`:padding` and `:liveness`, and `:fixed_cases` with all eight.

gpu_invariant_suite does the same for GPUs, one target for each check, mode and number of GPUs: `:padding_zero2_gpu2`.
"""

load("//ci/rules:cuda.bzl", "requires_nccl")
load("//ci/rules:gpu_test.bzl", "gpu_properties", "gpu_suite", "gpu_tags")

_NAME_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.+"

# Tests start in the runfiles of the main workspace, so a path below it works as it is. Started by hand from elsewhere, the script looks for the
# runfiles beside itself.
_LAUNCHER = """#!/bin/sh
[ -e {binary} ] || cd "$0.runfiles"/{workspace} || exit 2
{environment}exec {command} "$@"
"""

def _quoted(word):
    return "'" + word.replace("'", "'\\''") + "'"

def _arg_test_impl(ctx):
    binary = ctx.executable.binary

    # A leading ./ because the shell searches PATH for a name without a slash, as a binary of the root package has.
    path = "./" + binary.short_path
    arguments = [ctx.expand_location(argument, ctx.attr.data) for argument in ctx.attr.arguments]
    launcher = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.write(
        output = launcher,
        content = _LAUNCHER.format(
            binary = _quoted(path),
            command = " ".join([_quoted(word) for word in [path] + arguments]),
            environment = "".join(["export %s=%s\n" % (name, _quoted(value)) for name, value in ctx.attr.env.items()]),
            workspace = _quoted(ctx.workspace_name),
        ),
        is_executable = True,
    )
    runfiles = ctx.runfiles(files = [binary] + ctx.files.data)
    for target in [ctx.attr.binary] + ctx.attr.data:
        runfiles = runfiles.merge(target[DefaultInfo].default_runfiles)

    # Bazel hears of the environment too, so that a program of --run_under has it.
    return [
        DefaultInfo(executable = launcher, runfiles = runfiles),
        testing.TestEnvironment(ctx.attr.env),
    ]

arg_test = rule(
    implementation = _arg_test_impl,
    doc = "A test that runs a binary other tests run too, with arguments of its own; --test_arg comes after them, and XML_OUTPUT_FILE, sharding " +
          "and --test_filter reach the binary through the environment as in a cc_test.",
    attrs = {
        "arguments": attr.string_list(
            doc = "Passed to the binary word for word; $(rootpath LABEL) names a file of data.",
        ),
        "binary": attr.label(
            cfg = "target",
            doc = "The program. A cc_test serves; tag it manual if it means nothing without arguments.",
            executable = True,
            mandatory = True,
        ),
        "data": attr.label_list(
            allow_files = True,
            doc = "Files the test reads, by their path in the workspace.",
        ),
        "env": attr.string_dict(
            doc = "Environment variables of the binary.",
        ),
    },
    test = True,
)

def _target_name(check, mode, suffix):
    name = "%s_%s_%s" % (check, mode.replace("/", "_"), suffix)
    for i in range(len(name)):
        if name[i] not in _NAME_CHARACTERS:
            fail("the check '%s' or the mode '%s' has a '%s', which a target's name cannot hold" % (check, mode, name[i]))
    return name

# A test_suite with an empty list means all tests of the package, so an empty axis must not get that far.
def _check_axes(macro, name, axes):
    for axis, values in axes:
        if not values:
            fail("%s '%s' has no %s, so it would test nothing" % (macro, name, axis))

def invariant_suite(
        name,
        binary,
        checks,
        modes,
        world_sizes,
        arguments = [],
        data = [],
        size = "small",
        tags = [],
        **kwargs):
    """One arg_test for each check, mode and world size, a test_suite for each check, and one for all.

    Args:
      name: the suite of all targets made here.
      binary: the test program; it takes --check=, --mode= and --world_size=.
      checks: names of checks; each also names the suite of its targets.
      modes: mode rows such as "zero2" and "full_shard/backward_pre"; '/' becomes '_' in the target's name.
      world_sizes: numbers of ranks.
      arguments: further arguments of every target, after those three.
      data: files every target reads.
      size: of every target.
      tags: of every target.
      **kwargs: other attributes of every target, such as timeout or target_compatible_with.
    """

    _check_axes("invariant_suite", name, [("checks", checks), ("modes", modes), ("world_sizes", world_sizes)])
    if name in checks:
        fail("invariant_suite '%s' has the name of one of its checks: both name a test_suite" % name)

    all_tests = []
    for check in checks:
        tests = []
        for mode in modes:
            for world_size in world_sizes:
                test = _target_name(check, mode, "w%d" % world_size)
                arg_test(
                    name = test,
                    size = size,
                    arguments = [
                        "--check=" + check,
                        "--mode=" + mode,
                        "--world_size=%d" % world_size,
                    ] + arguments,
                    binary = binary,
                    data = data,
                    tags = tags,
                    **kwargs
                )
                tests.append(":" + test)
        native.test_suite(
            name = check,
            tests = tests,
        )
        all_tests = all_tests + tests

    # Of tests, not of the suites above: Bazel 4 reads a suite of suites, but a query for the tests of one should not need two steps.
    native.test_suite(
        name = name,
        tests = all_tests,
    )

# What a machine with so many GPUs trains: engines and their numbers of ranks. One GPU is enough for any number of ranks where they share it and add in
# rank order, so those runs are compared bit for bit; with a GPU a rank NCCL adds.
_ON_GPUS = {
    1: "cuda:1,cuda_shared:2,cuda_shared:4",
    2: "cuda:2",
    4: "cuda:4",
    8: "cuda:8",
}

def gpu_invariant_suite(
        name,
        binary,
        checks,
        modes,
        gpus,
        arguments = [],
        data = [],
        size = "medium",
        tags = [],
        **kwargs):
    """One arg_test for each check, mode and number of GPUs, a suite for each number, and one for all.

    They run with --config=gpuN of .bazelrc only (gpu_test.bzl).

    Args:
      name: the suite of all targets made here; NAME_gpuN are the suites of a number.
      binary: the test program; it takes --check=, --mode= and --on=ENGINE:RANKS,..., and fails where there are fewer GPUs than SHARDPROOF_GPUS.
      checks: names of checks.
      modes: mode rows.
      gpus: numbers of GPUs.
      arguments: further arguments of every target, after those three.
      data: files every target reads.
      size: of every target.
      tags: of every target, beside those about GPUs.
      **kwargs: other attributes of every target.
    """
    _check_axes("gpu_invariant_suite", name, [("checks", checks), ("modes", modes), ("gpus", gpus)])
    all_tests = []
    for count in gpus:
        tests = []
        for check in checks:
            for mode in modes:
                test = _target_name(check, mode, "gpu%d" % count)
                arg_test(
                    name = test,
                    size = size,
                    arguments = [
                        "--check=" + check,
                        "--mode=" + mode,
                        "--on=" + _ON_GPUS[count],
                    ] + arguments,
                    binary = binary,
                    data = data,
                    env = {"SHARDPROOF_GPUS": str(count)},
                    # It does nothing but run, and Bazel 4 has no group "test" for a rule of one's own.
                    exec_properties = gpu_properties(count, prefix = ""),
                    tags = gpu_tags(test, count, tags),
                    target_compatible_with = requires_nccl(),
                    **kwargs
                )
                tests.append(":" + test)
        gpu_suite(
            name = "%s_gpu%d" % (name, count),
            tests = tests,
        )
        all_tests = all_tests + tests
    gpu_suite(
        name = name,
        tests = all_tests,
    )
