// RapidCheck draws a fresh seed in every run unless RC_PARAMS says otherwise, so that a
// cached pass would mean nothing and a red one could not be repeated.
#ifndef PROPERTY_TESTS_GENERATORS_RAPIDCHECK_DEFAULTS_H_
#define PROPERTY_TESTS_GENERATORS_RAPIDCHECK_DEFAULTS_H_

#include <cstdint>
#include <optional>

namespace shardproof {

// SHARDPROOF_CASES, the number of random cases that a person asks every test for. None when it is
// not set; what is no whole number from 1 counts as not set too, and is told on stderr.
std::optional<int64_t> CaseBudget();

// Adds a fixed seed and a number of cases to RC_PARAMS, each only where it does not give its
// own. The number is CaseBudget's, else `max_success`. Call at the start of main: RapidCheck reads
// the variable once, at its first use.
void SetRapidCheckDefaults(int32_t max_success);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_GENERATORS_RAPIDCHECK_DEFAULTS_H_
