// The catalogue where ranks' memory is a GPU's: which faults can run there, what must find them,
// and the faults for worlds whose sums have no fixed order.
#ifndef PROPERTY_TESTS_FAULTS_DEVICE_FAULTS_H_
#define PROPERTY_TESTS_FAULTS_DEVICE_FAULTS_H_

#include <string>
#include <vector>

#include "invariants/run_description/run_description.h"
#include "property_tests/faults/fault.h"
#include "property_tests/faults/kill.h"
#include "property_tests/faults/kill_matrix.h"

namespace shardproof {

// Why a fault cannot run on GPUs, in words; "" if it can. Two rules: one that decorates
// communicators computes on the host with what a call points to, which is device memory there; and
// one that only the check of another engine must find is not that engine's to miss.
std::string WhyNotOnDevices(const Fault& fault);

// AllFaults(), of which each either runs or says why not.
struct DeviceFault {
  Fault fault;  // its killers are those of the engine with values
  std::string left_out;
};
std::vector<DeviceFault> DeviceFaults();

// "87 faults: 84 run, 3 left out", and below it each reason with its rows.
std::string DeviceFaultsText(const std::vector<DeviceFault>& faults);

// What is wrong with the outcome of a DeviceFault; empty if nothing. Every killer must have found
// it, with two exceptions. Where the operations of a plan are not ordered, `ordering` must object,
// and what values such a race leaves is the GPU's affair. And a run may end in an engine's error
// instead if that says which rank could not go on. A fault that is none must pass every check.
std::string DeviceComplaint(const FaultOutcome& outcome);

// What is wrong with how an edit fares on GPUs beside the cpu engine; "" if nothing. Both find it,
// by one check at least that they share, or neither. Whether values show what `ordering` finds is a
// race's affair, and what CPUs find may end on GPUs in an error that names a rank.
std::string OtherThanOnCpus(const KillReport& cpu, const KillReport& gpu);

// Whether an error is a hang or a disagreement that names a rank.
bool NamesARank(const absl::Status& error);

// Faults of well-conditioned layers on two ranks, whose values are judged by bounds where sums
// have no fixed order: a missing reduction, a sum instead of a mean, a gather that nobody sees and
// a wrong offset of a shard. None of them hangs. numeric_equivalence must find each.
std::vector<Fault> FaultsWithinBounds();

}  // namespace shardproof

#endif  // PROPERTY_TESTS_FAULTS_DEVICE_FAULTS_H_
