// CaseSpec: a random training run before it is one, small numbers that any value of is valid.
//
// What is drawn (case_generator.h) is a CaseSpec; MakeCase turns it into a RunDescription. Places
// are read modulo what they point into, and what a mode or model cannot have is left out, so
// that shrinking one number never makes another one invalid.
#ifndef PROPERTY_TESTS_GENERATORS_CASE_SPEC_H_
#define PROPERTY_TESTS_GENERATORS_CASE_SPEC_H_

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "invariants/run_description/parse.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

// Two places of the model share their values; shapes are made equal for it. MLP: places are
// layers, and `next_too` ties their biases as well, which makes a layer that is used twice.
// Probe: places are tensors, and `next_too` ties the two that follow them.
struct TieSpec {
  int32_t kept = 0;
  int32_t tied = 0;
  bool next_too = false;
};

// Probe only: a tensor that is not used always. Rank and micro-batch are taken modulo how many
// there are; -1: every one.
struct UsageSpec {
  int32_t tensor = 0;
  int32_t rank = -1;
  int32_t micro_batch = -1;
  StepUse steps = StepUse::kNever;
};

// An optimizer group. `changes` is a set of bits: 1 weight_decay, 2 learning_rate, 4 beta1,
// 8 beta2 (AdamW only). A tensor that an earlier group has stays there.
struct GroupSpec {
  std::vector<int32_t> tensors;
  int32_t changes = 1;
};

enum class CapRelation : uint8_t {
  kElements,  // `number` elements
  kTensor,    // the elements of the tensor at place `number`
  kModel,     // all elements
};

// How large a bucket gets; `off` elements are added to what the relation says, and there is at
// least one.
struct CapSpec {
  CapRelation relation = CapRelation::kElements;
  int32_t number = 1;
  int32_t off = 0;
};

struct CaseSpec {
  int32_t world_size = 1;
  bool probe = false;
  // MLP: layer widths. Probe: extents, read as shapes of rank 1, 2, 3, 1, ... Fewer than two are
  // filled up with 1, and so is a 0 where no tensor may be empty.
  std::vector<int32_t> widths;
  bool bias = false;  // MLP only
  std::vector<TieSpec> ties;
  // By stage: 0 has a unit of its own, n joins the unit of the n-th stage before it. So units may
  // interleave.
  std::vector<int32_t> joins;
  // Puts the last stage into the unit of the first.
  bool root = false;
  // Units that stay unsharded after forward, by place.
  std::vector<int32_t> unsharded;
  Mode mode = Mode::kReplicated;
  Prefetch prefetch = Prefetch::kNotApplicable;
  LayoutKind layout = LayoutKind::kFlat;
  CapSpec cap;
  int32_t micro_batch_size = 1;
  int32_t num_micro_batches = 1;
  bool sync_last = false;
  bool keep_unsharded = false;
  bool bucket_view = false;
  bool scale_before = false;
  bool sgd = false;
  bool no_momentum = false;     // SGD only
  std::vector<int32_t> frozen;  // by place; -1 is the last tensor
  std::vector<UsageSpec> usage;
  std::vector<GroupSpec> groups;
  int32_t clip = 0;         // one of: none, 0.001, 0.5, 1e6
  bool large_rate = false;  // probe only: a learning rate of 0.5
  int32_t weight_decay_hundredths = 0;
  int32_t seed = 1;
};

// The run, valid by construction; three steps. `importer` reads the model's text.
absl::StatusOr<RunDescription> MakeCase(const CaseSpec& spec, const ModelImporter& importer);

// "mlp:3,4:bias", as --model would say it.
std::string ModelText(const CaseSpec& spec);

// For RapidCheck's reports.
std::ostream& operator<<(std::ostream& out, const CaseSpec& spec);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_GENERATORS_CASE_SPEC_H_
