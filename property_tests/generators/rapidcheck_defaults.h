// RapidCheck draws a fresh seed in every run unless RC_PARAMS says otherwise, so that a
// cached pass would mean nothing and a red one could not be repeated.
#ifndef PROPERTY_TESTS_GENERATORS_RAPIDCHECK_DEFAULTS_H_
#define PROPERTY_TESTS_GENERATORS_RAPIDCHECK_DEFAULTS_H_

#include <cstdint>

namespace shardproof {

// Adds a fixed seed and this number of cases to RC_PARAMS, each only where it does not give
// its own. Call at the start of main: RapidCheck reads the variable once, at its first use.
void SetRapidCheckDefaults(int32_t max_success);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_GENERATORS_RAPIDCHECK_DEFAULTS_H_
