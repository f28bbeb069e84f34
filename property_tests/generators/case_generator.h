// Random training runs that shrink to cases a person can read.
//
// A CaseSpec is what is drawn: small numbers, in the order in which they should shrink. It is
// turned into a RunDescription by MakeCase. Sizes lean to what breaks sharding: tensors of one
// element, extents around the number of ranks, fewer elements than ranks, bucket caps from
// below one tensor to above the model, units of any grouping.
#ifndef PROPERTY_TESTS_GENERATORS_CASE_GENERATOR_H_
#define PROPERTY_TESTS_GENERATORS_CASE_GENERATOR_H_

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "invariants/run_description/parse.h"
#include "invariants/run_description/run_description.h"
#include "rapidcheck.h"

namespace shardproof {

struct CaseSpec {
  // MLP: layer widths, at least two. Probe: extents, read as shapes of rank 1 to 3.
  std::vector<int32_t> widths = {1, 1};
  bool probe = false;
  bool bias = false;
  // By stage: whether it joins the unit of the stage before it.
  std::vector<bool> joins;
  // Puts first and last stage into one root unit that stays unsharded after forward.
  bool root = false;
  Mode mode = Mode::kReplicated;
  Prefetch prefetch = Prefetch::kNotApplicable;
  LayoutKind layout = LayoutKind::kFlat;
  int32_t world_size = 1;
  // Elements of a bucket; the cap is 4 bytes each.
  int32_t bucket_elements = 1;
  int32_t micro_batch_size = 1;
  int32_t num_micro_batches = 1;
  bool sync_last = false;
  bool keep_unsharded = false;
  bool bucket_view = false;
  bool scale_before = false;
  bool sgd = false;
  bool no_momentum = false;  // SGD only
  // Tensors at these places (modulo the number of tensors) are frozen.
  std::vector<int32_t> frozen;
  int32_t weight_decay_hundredths = 0;
  int32_t seed = 1;
};

// What is fixed; the rest is drawn. An empty list leaves the axis free.
struct CaseLimits {
  std::vector<Mode> modes;
  std::vector<Prefetch> prefetches;  // of full_shard
  std::vector<int32_t> world_sizes;
  int32_t max_layers = 5;
  int32_t max_width = 33;
  // Probe models, micro-batches, SGD, groupings and the options of modes; without: one MLP
  // layer a unit, one micro-batch, AdamW.
  bool all_features = true;
};

rc::Gen<CaseSpec> AnyCase(const CaseLimits& limits);

// The run, valid by construction; three steps. `importer` reads the model's text.
absl::StatusOr<RunDescription> MakeCase(const CaseSpec& spec, const ModelImporter& importer);

// "mlp:3,4:bias", as --model would say it.
std::string ModelText(const CaseSpec& spec);

// For RapidCheck's reports.
std::ostream& operator<<(std::ostream& out, const CaseSpec& spec);

}  // namespace shardproof

#endif  // PROPERTY_TESTS_GENERATORS_CASE_GENERATOR_H_
