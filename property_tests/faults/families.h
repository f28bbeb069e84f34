// The faults of the catalogue, a file a family. Private to this folder; see catalogue.h.
#ifndef PROPERTY_TESTS_FAULTS_FAMILIES_H_
#define PROPERTY_TESTS_FAULTS_FAMILIES_H_

#include <vector>

#include "property_tests/faults/fault.h"

namespace shardproof {

std::vector<Fault> ReductionFaults();  // classes A, B
std::vector<Fault> ClippingFaults();   // class C
std::vector<Fault> OrderingFaults();   // class D
std::vector<Fault> LifetimeFaults();   // classes E, F
std::vector<Fault> LayoutFaults();     // classes G, H
std::vector<Fault> TensorFaults();     // classes I, J
std::vector<Fault> StepFaults();       // classes K, M, N, P, Q

}  // namespace shardproof

#endif  // PROPERTY_TESTS_FAULTS_FAMILIES_H_
