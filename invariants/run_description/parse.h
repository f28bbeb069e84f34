// RunDescription from and to text: one line for people and replays, JSON for files.
//
// The line: key=value pairs joined by ';', in any order, each key once. Keys that are left
// out have RunDescription's defaults. PrintRun writes every key that differs from its
// default, and model, so that ParseRun(PrintRun(run)) equals run.
//   model=TEXT           what --model accepts; resolved by the caller's importer. A ';' in it
//                        is written %3B, a '%' %25. It becomes model.name, as it stands
//   ties=A:B,C:B         tensor A is tied to B: B's values are used where A was, and A is gone, so
//                        that the indices of later tensors move down. Indices below are after it
//   units=0-1,2,3-4      groups of stages, in order of first stage; stages of a group joined
//                        by '+' or '-' (a range); "!" behind a group: not resharded after
//                        forward. Default: the importer's. A unit has the importer's name
//                        if that has the same stages, else one made of its stages' names
//   frozen=0,3           the tensors without gradient, all of them. Default: the importer's
//   usage=3@rank:0@micro_batch:1@steps:even,4@steps:never
//                        when a tensor is used (UsageRule); what is not named is "every"
//   groups=0+2@weight_decay:0,1@learning_rate:0.1@beta1:0.5@beta2:0.9
//                        optimizer groups; what is not named is the optimizer's
//   mode=, prefetch=, layout=, world_size=, shard_group_size=, bucket_cap_bytes=,
//   grad_sync=, broadcast_bucket_view=0|1, scale_before_reduce=0|1,
//   keep_unsharded_between_micro_batches=0|1, parameter_dtype=, reduce_dtype=,
//   master_dtype=, moment_dtype=, parameter_tier=, optimizer_tier=
//   optimizer=, learning_rate=, beta1=, beta2=, epsilon=, weight_decay=, momentum=
//   steps=, micro_batch_size=, num_micro_batches=, seed=, clip_grad_norm=
// Defaults that depend on the mode: prefetch backward_pre for full_shard, else
// not_applicable; layout owner for zero1_broadcast, else flat.
//
// JSON (schema "shardproof.run/1"): the same keys in one object, numbers as numbers, 0|1 as
// false|true; model is the text, or an object {name, kind, tensors[{name, shape, fan_in,
// trainable, aliases[]}], stages[{name, tensors[]}], units[{name, stages[],
// reshard_after_forward}]} with kind mlp, probe or opaque.
//
// Errors: InvalidArgument that names the key, its value and what is accepted; unknown and
// repeated keys, and a wrong schema, are errors. The result has passed Validate.
#ifndef INVARIANTS_RUN_DESCRIPTION_PARSE_H_
#define INVARIANTS_RUN_DESCRIPTION_PARSE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

// Turns the model's text into a description; trainer/model/importers has one.
using ModelImporter = std::function<absl::StatusOr<ModelDescription>(absl::string_view)>;

absl::StatusOr<RunDescription> ParseRun(absl::string_view line, const ModelImporter& importer);
absl::StatusOr<RunDescription> ParseRunJson(absl::string_view json, const ModelImporter& importer);

// The line. model.name stands for the model, so it must be what the importer accepts.
std::string PrintRun(const RunDescription& run);
// The JSON, with the model written out in full.
std::string PrintRunJson(const RunDescription& run);

}  // namespace shardproof

#endif  // INVARIANTS_RUN_DESCRIPTION_PARSE_H_
