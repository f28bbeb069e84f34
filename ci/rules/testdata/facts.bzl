"""What a target of this package says about itself, or a rule about a machine, for a test to compare."""

load("//ci/rules:local_cuda.bzl", "cuda_candidates", "cuda_targets")
load("//ci/rules:local_mpi.bzl", "mpirun_candidates")

def facts(name):
    """Lines with the facts by which machines and schedulers choose the target `name`, which is declared above."""
    rule = native.existing_rule(name)
    lines = ["tag " + tag for tag in sorted(rule["tags"])]
    for attribute in ["env", "exec_properties"]:
        for key in sorted(rule[attribute].keys()):
            lines.append("%s %s=%s" % (attribute, key, rule[attribute][key]))
    return lines

def cuda_facts():
    """A line for each file of a CUDA toolkit and of NCCL: what a machine has that lacks this one alone, and which targets are skipped there."""
    everything = {name: paths[0] for name, paths in cuda_candidates("/cuda", None).items()}
    lines = []
    for missing in ["nothing"] + sorted(everything.keys()):
        targets = cuda_targets({name: path for name, path in everything.items() if name != missing})
        skipped = []
        for rule in targets.build.split("cc_library(")[1:]:
            if "target_compatible_with" in rule:
                skipped.append(rule.split("\"")[1])
        lines.append("without %s: HAS_CUDA=%s HAS_NCCL=%s skipped=%s" % (missing, targets.has_cuda, targets.has_nccl, ",".join(sorted(skipped)) or "none"))
    return lines

def mpirun_facts():
    """A line for each way in which mpirun is looked for: the places, in their order."""
    return [
        "without MPI_HOME: " + " ".join(mpirun_candidates(None)),
        "MPI_HOME=/mpi: " + " ".join(mpirun_candidates("/mpi")),
    ]
