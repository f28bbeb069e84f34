"""shardproof's whole suite on a trainer of your own, from any workspace.

A library that includes invariants/suite/sharded_trainer.h and defines `shardproof::MakeTrainerUnderTest()` is all that this needs:

    load("@shardproof//ci/rules:sharding_suite.bzl", "sharding_suite")

    cc_library(
        name = "my_trainer",
        srcs = ["my_trainer.cc"],
        deps = ["@shardproof//invariants/suite:sharded_trainer"],
    )

    sharding_suite(
        name = "suite",
        modes = ["zero2", "full_shard/backward_pre"],
        trainer = ":my_trainer",
    )

gives the tests `:suite_padding_zero2`, `:suite_padding_full_shard_backward_pre` and so on for each of the nine checks, the suite `:suite` of them all, and the
programs

    bazel run :suite_fuzz -- --duration=10m --seed=7
    bazel run :suite_replay -- --run='model=mlp:4,4;mode=zero2;world_size=2'

Both exit 1 when a check fails, when the trainer ends in an error and when no check saw anything, and 2 on bad input. The fuzzer lists the checks that
saw nothing. The page for trainer authors is invariants/suite/README.md.
"""

load("//ci/rules:suite.bzl", "arg_test")
load("@rules_cc//cc:cc_binary.bzl", "cc_binary")
load("@rules_cc//cc:cc_test.bzl", "cc_test")

CHECKS = [
    "aggregate_factors",
    "numeric_equivalence",
    "collective_ledger",
    "padding",
    "unshard_lifecycle",
    "peak_memory",
    "issue_order",
    "ordering",
    "liveness",
]

MODES = [
    "replicated",
    "zero1_broadcast",
    "zero1_allgather",
    "zero2",
    "shard_grad_op",
    "full_shard/backward_pre",
    "full_shard/backward_post",
    "full_shard/none",
]

# Labels of this repository, whichever workspace calls the macro.
_PROGRAMS = Label("//invariants/suite:trainer_programs")
_TEST_MAIN = Label("//invariants/suite:trainer_test_main.cc")
_FUZZ_MAIN = Label("//invariants/suite:trainer_fuzz_main.cc")
_REPLAY_MAIN = Label("//invariants/suite:trainer_replay_main.cc")

def _check_list(name, what, values, accepted):
    if not values:
        fail("sharding_suite '%s' has no %s, so it would test nothing" % (name, what))
    for value in values:
        if value not in accepted:
            fail("sharding_suite '%s': %s '%s' is unknown; accepted: %s" % (name, what, value, ", ".join(accepted)))

def sharding_suite(
        name,
        trainer,
        modes = MODES,
        checks = CHECKS,
        world_sizes = [1, 2, 3, 4],
        not_observed = [],
        size = "small",
        tags = [],
        **kwargs):
    """Tests for each check and mode, a test_suite of them, a fuzzer and a replay program.

    Every test trains fixed and random runs on all world sizes. Runs that the trainer refuses are left out; a test in which it refuses all of them fails.

    Args:
      name: the test_suite; the prefix of everything else.
      trainer: a cc_library that defines shardproof::MakeTrainerUnderTest().
      modes: mode rows.
      checks: names of checks.
      world_sizes: numbers of ranks.
      not_observed: checks for which the trainer tells too little. Their tests ask for just that verdict, so that the list stays true. A check that is
        not listed here fails when it sees nothing.
      size: of every test.
      tags: of every test.
      **kwargs: other attributes of every test, such as timeout.
    """
    _check_list(name, "modes", modes, MODES)
    _check_list(name, "checks", checks, CHECKS)
    if not_observed:
        _check_list(name, "not_observed", not_observed, checks)
    if not world_sizes:
        fail("sharding_suite '%s' has no world_sizes, so it would test nothing" % name)

    replay = name + "_replay"
    replay_target = "//%s:%s" % (native.package_name(), replay)
    sizes = "--world_sizes=" + ",".join([str(world_size) for world_size in world_sizes])
    cc_test(
        name = name + "_test",
        srcs = [_TEST_MAIN],
        # It means nothing without arguments.
        tags = ["manual"],
        deps = [trainer, _PROGRAMS],
    )
    cc_binary(
        name = name + "_fuzz",
        testonly = True,
        srcs = [_FUZZ_MAIN],
        args = [
            "--replay_target=" + replay_target,
            "--modes=" + ",".join(modes),
            sizes,
        ],
        deps = [trainer, _PROGRAMS],
    )
    cc_binary(
        name = replay,
        testonly = True,
        srcs = [_REPLAY_MAIN],
        deps = [trainer, _PROGRAMS],
    )

    tests = []
    for check in checks:
        for mode in modes:
            test = "%s_%s_%s" % (name, check, mode.replace("/", "_"))
            arg_test(
                name = test,
                size = size,
                arguments = [
                    "--check=" + check,
                    "--mode=" + mode,
                    "--replay_target=" + replay_target,
                    sizes,
                ] + (["--expect_not_observed"] if check in not_observed else []),
                binary = ":" + name + "_test",
                tags = tags,
                **kwargs
            )
            tests.append(":" + test)
    native.test_suite(
        name = name,
        # A suite of manual tests would otherwise run them in //...
        tags = ["manual"] if "manual" in tags else [],
        tests = tests,
    )
