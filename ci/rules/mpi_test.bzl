"""mpi_test: a program as ranks under OpenMPI's mpirun, as a test."""

load("//ci/rules:mpi.bzl", "requires_mpi")
load("@local_mpi//:defs.bzl", "MPIRUN")
load("@rules_cc//cc:cc_binary.bzl", "cc_binary")
load("@rules_shell//shell:sh_test.bzl", "sh_test")

def mpi_test(name, ranks, srcs = [], deps = [], binary = None, args = [], data = [], tags = [], size = "small", **kwargs):
    """Runs `ranks` processes of a program; passes if all exit with 0.

    The program is `binary`, or made of `srcs` and `deps` and brings its own main. Where OpenMPI is missing the test is skipped. ci/rules/mpirun.sh says
    how mpirun is called; a test that calls mpirun itself has that script in its data.

    Args:
      name: of the test
      ranks: how many processes
      srcs: of the program
      deps: of the program
      binary: a program made elsewhere
      args: of the program
      data: of the program
      tags: of the test; the one that tells Bazel of `ranks` busy processors is added
      size: of the test
      **kwargs: other attributes of the test
    """
    if binary == None:
        binary = ":%s_ranks" % name
        cc_binary(
            name = name + "_ranks",
            testonly = True,
            srcs = srcs,
            data = data,
            target_compatible_with = requires_mpi(),
            visibility = ["//visibility:private"],
            deps = deps,
        )
    sh_test(
        name = name,
        size = size,
        srcs = ["//ci/rules:mpirun.sh"],
        args = ["--mpirun=" + MPIRUN, str(ranks), "$(location %s)" % binary] + args,
        data = [binary] + data,
        tags = ["cpu:%d" % ranks] + tags,
        target_compatible_with = requires_mpi(),
        **kwargs
    )
