"""What a workspace that uses shardproof declares: the libraries that shardproof is built with, from Debian's packages.

    local_repository(
        name = "shardproof",
        path = "../shardproof",
    )

    load("@shardproof//ci/rules:dependencies.bzl", "shardproof_dependencies")

    shardproof_dependencies()

A repository that the workspace has declared already, under the same name, is left as it is.
"""

load("//ci/rules:offline_repos.bzl", "no_coverage_tools", "rules_cc_shim", "rules_java_shim", "rules_shell_shim")
load("//ci/rules:local_cuda.bzl", "local_cuda")
load("//ci/rules:local_mpi.bzl", "local_mpi")
load("//ci/rules:system_libs.bzl", "system_libs")

def shardproof_dependencies():
    """Declares every repository that shardproof's libraries and the macro sharding_suite name."""
    for rule, name in [
        (rules_cc_shim, "rules_cc"),
        (rules_java_shim, "rules_java"),
        (rules_shell_shim, "rules_shell"),
        (no_coverage_tools, "remote_coverage_tools"),
        (local_cuda, "local_cuda"),
        (local_mpi, "local_mpi"),
    ]:
        if not native.existing_rule(name):
            rule(name = name)
    for name, attributes in _SYSTEM_LIBS.items():
        if not native.existing_rule(name):
            system_libs(name = name, **attributes)

_SYSTEM_LIBS = {
    "com_google_absl": {
        "pkg_config": {
            "//absl/flags:flag": "absl_flags",
            "//absl/flags:parse": "absl_flags_parse",
            "//absl/flags:usage": "absl_flags_usage",
            "//absl/status:status": "absl_status",
            "//absl/status:statusor": "absl_statusor",
            "//absl/strings:strings": "absl_strings",
            "//absl/strings:str_format": "absl_str_format",
            "//absl/time:time": "absl_time",
            "//absl/types:span": "absl_span",
        },
    },
    "com_google_benchmark": {
        "linkopts": {"//:benchmark": ["-lbenchmark", "-lpthread"]},
    },
    "com_google_googletest": {
        "pkg_config": {
            "//:gtest": "gmock",
            "//:gtest_main": "gmock_main",
        },
    },
    "eigen": {
        "linkopts": {"//:eigen": []},
    },
    "nlohmann_json": {
        "linkopts": {"//:json": []},
    },
    "rapidcheck": {
        "linkopts": {"//:rapidcheck": ["-lrapidcheck"]},
    },
}
