// OriginArithmetic: what the arithmetic of a training step does to origins.
//
// Sums of contributions and mixtures are interned in the tables of the observation, so that equal
// values have equal indices and a repeated operation is a look-up.
#ifndef TRAINER_ENGINES_PROVENANCE_ARITHMETIC_H_
#define TRAINER_ENGINES_PROVENANCE_ARITHMETIC_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "invariants/observation/origin.h"

namespace shardproof {

class OriginArithmetic {
 public:
  // Writes to the tables of `origins`, which outlives this and has none yet.
  explicit OriginArithmetic(StepOrigins* origins);

  // The sum of no terms, which is zero, and that of one.
  int32_t NoTerms() const { return 0; }
  int32_t OneTerm(const OriginTerm& term);
  // The sum of two sums.
  int32_t SumOfTerms(int32_t left, int32_t right);

  // Gradients of one element add, as do norms; memory that holds nothing stays that; anything
  // else is a mixture.
  Origin Sum(const Origin& left, const Origin& right);
  // Of equally long runs, element by element.
  std::vector<OriginRun> Sum(absl::Span<const OriginRun> left, absl::Span<const OriginRun> right);
  // Times a number of the plan.
  Origin Scaled(const Origin& value, double scale);
  // Times another value, which should be a clip coefficient.
  Origin ScaledBy(const Origin& value, const Origin& factor);
  Origin CoefficientOf(const Origin& norm);
  // One update more of a parameter or moment; anything else stays.
  static Origin Updated(Origin value);

  // Forgets what no value refers to any more. `for_each_origin(fn)` calls fn(Origin&) once for
  // each value that is kept; what it refers to gets a new index.
  template <typename ForEachOrigin>
  void Compact(ForEachOrigin for_each_origin) {
    const std::vector<std::vector<OriginTerm>> old_sets = std::move(origins_->term_sets);
    const std::vector<OriginMixture> old_mixtures = std::move(origins_->mixtures);
    Clear();
    for_each_origin([&](Origin& origin) { Keep(old_sets, old_mixtures, origin); });
  }

 private:
  void Clear();
  void Keep(const std::vector<std::vector<OriginTerm>>& old_sets,
            const std::vector<OriginMixture>& old_mixtures, Origin& origin);
  int32_t Intern(std::vector<OriginTerm> terms);
  int32_t ScaledTerms(int32_t terms, double scale);
  int32_t ClippedTerms(int32_t terms);
  Origin Mixed(MixedBy by, const Origin& left, const Origin& right);

  StepOrigins* const origins_;
  std::map<std::vector<OriginTerm>, int32_t> known_terms_;
  std::map<OriginMixture, int32_t> known_mixtures_;
  std::map<std::pair<int32_t, int32_t>, int32_t> sums_;
  std::map<std::pair<int32_t, double>, int32_t> scaled_;
  std::map<int32_t, int32_t> clipped_;
};

}  // namespace shardproof

#endif  // TRAINER_ENGINES_PROVENANCE_ARITHMETIC_H_
