// Whether the state after a step follows from what the trainer showed before it.
//
// For each rank: moments and parameters after the step against the optimizer's formula
// (optimizer_rule.h) applied to that rank's own reduced gradient, and to its own moments and
// parameters of the step before. Where the step did not use the tensor (UsageRule) they must not
// have changed at all. Before the first step moments are zero and parameters the reference's
// previous ones, as values before training are not shown.
//
// A rank that holds a parameter but not its moments did not update it: that copy is left to
// `liveness`, which compares the copies. Where the optimizer has no moments (SGD without
// momentum), a rank that shows no reduced gradient of the parameter is taken for one that did not
// update it. That some rank shows each gradient is the rule of `padding`.
#ifndef INVARIANTS_CHECKS_OBSERVED_UPDATES_H_
#define INVARIANTS_CHECKS_OBSERVED_UPDATES_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "invariants/checks/optimizer_rule.h"
#include "invariants/observation/observation.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

class ObservedUpdates {
 public:
  // The first element of a tensor, on a rank and in a class, that does not follow.
  struct Deviation {
    StateClass state = StateClass::kParameter;
    int32_t rank = -1;
    int32_t tensor = -1;
    int64_t element = -1;
    float actual = 0;
    double expected = 0;
    double before = 0;     // of the same element
    double tolerance = 0;  // 0: it must not change
  };

  // `run` must outlive this.
  void Begin(const RunDescription& run);
  // By class (exp_avg, exp_avg_sq, parameter), rank and tensor. The values are copied: they are
  // the next step's past.
  std::vector<Deviation> Step(const StepObservation& observed, const ReferenceStep& reference);
  // The largest share of its tolerance that an element used in the last Step; at most 1 where
  // nothing deviates. Elements that may not change have no share.
  double max_share() const { return max_share_; }
  // What the last Step could not judge for want of a gradient or of the values before; "" when it
  // judged all.
  const std::string& missing() const { return missing_; }
  // A step without values: what follows has no past.
  void Forget();

 private:
  // A run of elements that a rank shows, by tensor and first element.
  struct Piece {
    int32_t tensor = -1;
    ElementRange range;
    const float* values = nullptr;
  };
  using Classes = std::array<std::vector<Piece>, 4>;  // by StateClass
  struct Past {
    int32_t rank = -1;
    Classes pieces;
    std::vector<std::vector<float>> storage;
  };

  struct Reader {
    const std::vector<Piece>* pieces = nullptr;
    const Piece* last = nullptr;
    // Null where the element was not shown.
    const float* Find(int32_t tensor, int64_t element);
  };

  Classes Collect(const RankState& state) const;
  bool ReadBefore(const Piece& piece, int64_t element, ElementState* before);
  bool HasAll(const Piece& piece, int64_t element, bool used);
  void JudgePiece(const Piece& piece, StateClass state);
  void Miss(const char* what, const Piece& piece);
  void Remember(const RankState& state, const Classes& now);

  const RunDescription* run_ = nullptr;
  std::vector<int64_t> elements_;
  bool has_moments_ = false;
  bool first_step_ = true;  // nothing was shown or forgotten before
  bool initial_ = true;     // before this step moments were zero
  std::vector<Past> past_;  // of the step before
  std::vector<Past> next_;
  double max_share_ = 0;
  std::string missing_;

  // Of the rank that is being judged.
  int64_t step_ = 0;
  const ReferenceStep* reference_ = nullptr;
  int32_t rank_ = -1;
  Classes now_;
  std::array<Reader, 4> now_readers_;
  std::array<Reader, 4> past_readers_;
  std::vector<Deviation> deviations_;
};

}  // namespace shardproof

#endif  // INVARIANTS_CHECKS_OBSERVED_UPDATES_H_
