// A collective that nobody is told of. Values stay right and every event is as it should be: only
// who watches the GPUs can tell.
#ifndef PROPERTY_TESTS_FAULTS_SECRET_COLLECTIVE_H_
#define PROPERTY_TESTS_FAULTS_SECRET_COLLECTIVE_H_

#include <string>

#include "property_tests/faults/fault.h"
#include "property_tests/faults/kill.h"

namespace shardproof {

// A run with at least two collectives of one group.
inline constexpr char kSecretRun[] =
    "model=mlp:6,5,3:bias;mode=zero2;world_size=2;micro_batch_size=3;steps=3";

// All ranks issue a barrier before the second collective of each of their communicators. It touches
// no memory of the run, and the ledger, which lies outside, does not see it.
PartsEdit CommunicateInSecret();

// What is wrong with the report of an edited run on GPUs with a witness; "" if nothing:
// collective_ledger must have found it, by its rule about kernels and by no other, and nothing else
// may have.
std::string SecretComplaint(const KillReport& report);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_FAULTS_SECRET_COLLECTIVE_H_
