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
"""

_NAME_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.+"

# Tests start in the runfiles of the main workspace, so a path below it works as it is. Started by hand from elsewhere, the script looks for the
# runfiles beside itself.
_LAUNCHER = """#!/bin/sh
[ -e {binary} ] || cd "$0.runfiles"/{workspace} || exit 2
exec {command} "$@"
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
            workspace = _quoted(ctx.workspace_name),
        ),
        is_executable = True,
    )
    runfiles = ctx.runfiles(files = [binary] + ctx.files.data)
    for target in [ctx.attr.binary] + ctx.attr.data:
        runfiles = runfiles.merge(target[DefaultInfo].default_runfiles)
    return [DefaultInfo(executable = launcher, runfiles = runfiles)]

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
    },
    test = True,
)

def _target_name(check, mode, world_size):
    name = "%s_%s_w%d" % (check, mode.replace("/", "_"), world_size)
    for i in range(len(name)):
        if name[i] not in _NAME_CHARACTERS:
            fail("the check '%s' or the mode '%s' has a '%s', which a target's name cannot hold" % (check, mode, name[i]))
    return name

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

    # A test_suite with an empty list means all tests of the package, so an empty axis must not get that far.
    for axis, values in [("checks", checks), ("modes", modes), ("world_sizes", world_sizes)]:
        if not values:
            fail("invariant_suite '%s' has no %s, so it would test nothing" % (name, axis))
    if name in checks:
        fail("invariant_suite '%s' has the name of one of its checks: both name a test_suite" % name)

    all_tests = []
    for check in checks:
        tests = []
        for mode in modes:
            for world_size in world_sizes:
                test = _target_name(check, mode, world_size)
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
