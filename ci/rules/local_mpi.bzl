"""@local_mpi: this machine's OpenMPI, or targets that are skipped.

MPI_HOME overrides the search; without it Debian's and Ubuntu's place is looked at.
"""

_HEAD = """
load("@rules_cc//cc:cc_library.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

# No platform has this value, so a target that asks for it is skipped.
constraint_setting(name = "mpi_installed")

constraint_value(
    name = "absent",
    constraint_setting = ":mpi_installed",
)
"""

_MPI = """
cc_library(
    name = "mpi",
    srcs = ["mpi_lib/libmpi.so.40"],
    hdrs = glob(["mpi_include/*.h"]),
    # Not the C++ bindings, which MPI gave up in 2012.
    defines = ["OMPI_SKIP_MPICXX"],
    includes = ["mpi_include"],
)
"""

_MISSING = """
cc_library(
    name = "mpi",
    target_compatible_with = [":absent"],
)
"""

def _first(ctx, candidates):
    for candidate in candidates:
        if ctx.path(candidate).exists:
            return ctx.path(candidate)
    return None

def mpirun_candidates(home):
    """Where mpirun may be, best place first. Debian's /usr/bin/mpirun is that of whichever MPI is the chosen alternative, which may be MPICH."""
    bin = home + "/bin" if home else "/usr/bin"
    return [bin + "/mpirun.openmpi", bin + "/mpirun"]

def _local_mpi_impl(ctx):
    home = ctx.os.environ.get("MPI_HOME")
    places = [home] if home else ["/usr/lib/x86_64-linux-gnu/openmpi", "/usr/lib/aarch64-linux-gnu/openmpi"]
    header = _first(ctx, [place + "/include/mpi.h" for place in places])
    library = _first(ctx, [place + lib_dir + "/libmpi.so.40" for place in places for lib_dir in ["/lib", "/.."]])
    mpirun = _first(ctx, mpirun_candidates(home))
    has_mpi = header != None and library != None and mpirun != None
    if has_mpi:
        ctx.symlink(header.dirname, "mpi_include")
        ctx.symlink(library, "mpi_lib/libmpi.so.40")
    ctx.file("BUILD", _HEAD + (_MPI if has_mpi else _MISSING))
    ctx.file("defs.bzl", 'HAS_MPI = %s\nMPIRUN = "%s"\n' % (has_mpi, mpirun if has_mpi else ""))

local_mpi = repository_rule(
    implementation = _local_mpi_impl,
    environ = ["MPI_HOME"],
    local = True,
    configure = True,
)
