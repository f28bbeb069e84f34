// From what --model says to a ModelDescription.
#ifndef TRAINER_MODEL_IMPORTERS_H_
#define TRAINER_MODEL_IMPORTERS_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

// Accepted, with the result's `name` equal to `text`, so that it can be imported again:
//   mlp:LxW            L bias-free Linear(W, W)                     mlp:8x2048
//   mlp:D0,D1,...[:bias]  Linear(D0, D1), Linear(D1, D2), ...       mlp:33,65,17:bias
//     tensors layers.I.weight [out, in], layers.I.bias [out]; one stage and unit a layer
//   probe:SHAPES       tensors of any shapes, extents joined by x   probe:10x3,7,2x2x2
//     tensors t0, t1, ...; one stage and unit a tensor
//   probe:FILE         the tensors, stages and units of a config or safetensors file, with
//                      the probe's gradients
//   FILE.json          a Hugging Face config; model_type gpt2, qwen2, llama, mixtral or
//                      deepseek_v3; one unit a block and a root unit (embeddings, final norm,
//                      head) that stays unsharded after forward; kind kOpaque
//   FILE.safetensors   the shapes in the file's header, one stage and unit a group of names:
//                      see ImportSafetensorsHeader; kind kOpaque
// InvalidArgument or NotFound: one line that names the text or file, the field, the
// offending value and what is accepted.
absl::StatusOr<ModelDescription> ImportModel(absl::string_view text);

// The config as text. `name` goes into messages and ModelDescription::name.
absl::StatusOr<ModelDescription> ImportConfig(absl::string_view name, absl::string_view json);

// The first bytes of a .safetensors file: 8 bytes little-endian header length, then JSON.
// `bytes` may end after the header; `file_bytes` is the file's whole size. Tensors in the
// order of their data; the stages and units are the groups of names that share their first
// numbered component ("model.layers.3."), by number; the rest is the root, one stage before
// them, unsharded after forward. Integer tensors are not trainable.
absl::StatusOr<ModelDescription> ImportSafetensorsHeader(absl::string_view name,
                                                         absl::string_view bytes,
                                                         int64_t file_bytes);

}  // namespace shardproof

#endif  // TRAINER_MODEL_IMPORTERS_H_
