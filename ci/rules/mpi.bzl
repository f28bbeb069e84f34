"""What BUILD files ask about MPI."""

load("@local_mpi//:defs.bzl", "HAS_MPI")

def requires_mpi():
    """target_compatible_with of a target that needs OpenMPI."""
    return [] if HAS_MPI else ["@local_mpi//:absent"]

def if_mpi(present, absent = []):
    """`present` where OpenMPI is installed, else `absent`: for the deps of programs that are built either way."""
    return present if HAS_MPI else absent
