// Hugging Face config.json files: the shapes that transformers gives each architecture's
// parameters, in the order in which it registers them.

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "invariants/run_description/json_syntax.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/model/import_internal.h"
#include "trainer/model/importers.h"

namespace shardproof {
namespace {

using internal::kMaxTensors;
using internal::ModelBuilder;
using Json = nlohmann::json;

// No width of a real model comes near, and products of two of them fit int64.
constexpr int64_t kMaxField = int64_t{1} << 30;

// At most: two embeddings, two of the final norm, the head.
constexpr int64_t kTensorsOutsideBlocks = 5;

// Fields of one config. The first error stays; a field that is refused reads as 1, so that
// arithmetic on it is harmless until status() is asked.
class Fields {
 public:
  Fields(absl::string_view file, const Json& config) : file_(file), config_(config) {}

  const absl::Status& status() const { return status_; }

  int64_t Positive(absl::string_view key) { return Between(key, Find(key), 1); }
  int64_t PositiveOr(absl::string_view key, int64_t fallback) {
    const Json* value = Find(key);
    return value == nullptr ? fallback : Between(key, value, 1);
  }
  int64_t NotNegative(absl::string_view key) { return Between(key, Find(key), 0); }
  bool Has(absl::string_view key) const { return Find(key) != nullptr; }

  bool FlagOr(absl::string_view key, bool fallback) {
    const Json* value = Find(key);
    if (value == nullptr) return fallback;
    if (value->is_boolean()) return value->get<bool>();
    Refuse(key, value->dump(), "true or false");
    return fallback;
  }

  void RequireDivisor(absl::string_view key, int64_t value, absl::string_view divisor_key,
                      int64_t divisor) {
    if (value % divisor == 0) return;
    Refuse(key, absl::StrCat(value),
           absl::StrCat("a multiple of ", divisor_key, ", which is ", divisor));
  }
  void RequireAtMost(absl::string_view key, int64_t value, absl::string_view limit_key,
                     int64_t limit) {
    if (value <= limit) return;
    Refuse(key, absl::StrCat(value), absl::StrCat("at most ", limit_key, ", which is ", limit));
  }
  // Counts before anything is built: names of a billion tensors would fill the memory.
  void RequireFewTensors(absl::string_view key, int64_t count, int64_t tensors_each) {
    const int64_t most = (kMaxTensors - kTensorsOutsideBlocks) / tensors_each;
    if (count <= most) return;
    Refuse(key, absl::StrCat(count),
           absl::StrCat("at most ", most, " (", tensors_each, " tensors each, ", kMaxTensors,
                        " in all)"));
  }

 private:
  // A null counts as absent, as in transformers.
  const Json* Find(absl::string_view key) const {
    const auto found = config_.find(std::string(key));
    return found == config_.end() || found->is_null() ? nullptr : &*found;
  }

  int64_t Between(absl::string_view key, const Json* value, int64_t low) {
    const std::string accepted = absl::StrCat("an integer from ", low, " to ", kMaxField);
    if (value == nullptr) {
      Refuse(key, "missing", accepted);
      return 1;
    }
    // An unsigned value beyond int64 must not wrap to a small one.
    const bool fits =
        value->is_number_integer() &&
        !(value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(kMaxField));
    const int64_t number = fits ? value->get<int64_t>() : -1;
    if (number >= low && number <= kMaxField) return number;
    Refuse(key, value->dump(), accepted);
    return 1;
  }

  void Refuse(absl::string_view key, absl::string_view value, absl::string_view accepted) {
    status_.Update(internal::Refuse(file_, key, value, accepted));
  }

  const std::string file_;
  const Json& config_;
  absl::Status status_;
};

// ---------------------------------------------------------------- gpt2

// transformers' Conv1D keeps its weight as [in, out].
void AddConv1d(ModelBuilder& builder, absl::string_view name, int64_t in, int64_t out) {
  builder.Add(absl::StrCat(name, ".weight"), {in, out}, in);
  builder.Add(absl::StrCat(name, ".bias"), {out}, in);
}

void AddLayerNorm(ModelBuilder& builder, absl::string_view name, int64_t width) {
  builder.Norm(name, width);
  builder.Add(absl::StrCat(name, ".bias"), {width}, width);
}

absl::StatusOr<ModelDescription> ImportGpt2(absl::string_view name, Fields& fields) {
  const int64_t width = fields.Positive("n_embd");
  const int64_t layers = fields.Positive("n_layer");
  const int64_t vocabulary = fields.Positive("vocab_size");
  const int64_t positions = fields.Positive("n_positions");
  const int64_t inner = fields.PositiveOr("n_inner", 4 * width);
  fields.RequireDivisor("n_embd", width, "n_head", fields.Positive("n_head"));
  fields.RequireFewTensors("n_layer", layers, 12);
  const bool tied = fields.FlagOr("tie_word_embeddings", true);
  SHARDPROOF_RETURN_IF_ERROR(fields.status());

  ModelBuilder builder(name, ModelKind::kOpaque);
  builder.BeginStage("embeddings");
  const int32_t table = builder.Add("transformer.wte.weight", {vocabulary, width}, width);
  builder.Add("transformer.wpe.weight", {positions, width}, width);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string block = absl::StrCat("transformer.h.", layer);
    builder.BeginStage(block);
    AddLayerNorm(builder, block + ".ln_1", width);
    AddConv1d(builder, block + ".attn.c_attn", width, 3 * width);
    AddConv1d(builder, block + ".attn.c_proj", width, width);
    AddLayerNorm(builder, block + ".ln_2", width);
    AddConv1d(builder, block + ".mlp.c_fc", width, inner);
    AddConv1d(builder, block + ".mlp.c_proj", inner, width);
  }
  builder.BeginStage("head");
  AddLayerNorm(builder, "transformer.ln_f", width);
  if (tied) {
    builder.Tie(table, "lm_head.weight");
  } else {
    builder.Linear("lm_head", vocabulary, width);
  }
  return std::move(builder).WithARootUnit();
}

// ---------------------------------------------------------------- llama and its relatives

// What all decoders that follow llama have around their blocks.
struct Decoder {
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t vocabulary = 0;
  bool tied = false;
};

Decoder ReadDecoder(Fields& fields) {
  Decoder decoder;
  decoder.hidden = fields.Positive("hidden_size");
  decoder.layers = fields.Positive("num_hidden_layers");
  decoder.vocabulary = fields.Positive("vocab_size");
  decoder.tied = fields.FlagOr("tie_word_embeddings", false);
  return decoder;
}

// add_block(builder, "model.layers.I", I) adds attention and MLP; the norms follow them.
template <typename AddBlock>
ModelDescription BuildDecoder(absl::string_view name, const Decoder& decoder, AddBlock add_block) {
  ModelBuilder builder(name, ModelKind::kOpaque);
  builder.BeginStage("embeddings");
  const int32_t table = builder.Add("model.embed_tokens.weight",
                                    {decoder.vocabulary, decoder.hidden}, decoder.hidden);
  for (int64_t layer = 0; layer < decoder.layers; ++layer) {
    const std::string block = absl::StrCat("model.layers.", layer);
    builder.BeginStage(block);
    add_block(builder, block, layer);
    builder.Norm(block + ".input_layernorm", decoder.hidden);
    builder.Norm(block + ".post_attention_layernorm", decoder.hidden);
  }
  builder.BeginStage("head");
  builder.Norm("model.norm", decoder.hidden);
  if (decoder.tied) {
    builder.Tie(table, "lm_head.weight");
  } else {
    builder.Linear("lm_head", decoder.vocabulary, decoder.hidden);
  }
  return std::move(builder).WithARootUnit();
}

struct Attention {
  int64_t hidden = 0;
  int64_t query = 0;      // heads * head_dim
  int64_t key_value = 0;  // key-value heads * head_dim
  bool qkv_bias = false;
  bool output_bias = false;
};

// llama takes as many key-value heads as heads when the field is absent; the defaults of the
// others are those of one model, so theirs is required.
Attention ReadAttention(Fields& fields, bool key_value_heads_required) {
  Attention attention;
  attention.hidden = fields.Positive("hidden_size");
  const int64_t heads = fields.Positive("num_attention_heads");
  const int64_t key_value_heads = key_value_heads_required
                                      ? fields.Positive("num_key_value_heads")
                                      : fields.PositiveOr("num_key_value_heads", heads);
  fields.RequireDivisor("num_attention_heads", heads, "num_key_value_heads", key_value_heads);
  if (!fields.Has("head_dim")) {
    fields.RequireDivisor("hidden_size", attention.hidden, "num_attention_heads", heads);
  }
  const int64_t head_dim = fields.PositiveOr("head_dim", attention.hidden / heads);
  attention.query = heads * head_dim;
  attention.key_value = key_value_heads * head_dim;
  return attention;
}

void AddAttention(ModelBuilder& builder, const std::string& block, const Attention& attention) {
  const std::string name = block + ".self_attn.";
  builder.Linear(name + "q_proj", attention.query, attention.hidden, attention.qkv_bias);
  builder.Linear(name + "k_proj", attention.key_value, attention.hidden, attention.qkv_bias);
  builder.Linear(name + "v_proj", attention.key_value, attention.hidden, attention.qkv_bias);
  builder.Linear(name + "o_proj", attention.hidden, attention.query, attention.output_bias);
}

void AddGatedMlp(ModelBuilder& builder, const std::string& name, int64_t hidden,
                 int64_t intermediate, bool bias = false) {
  builder.Linear(name + ".gate_proj", intermediate, hidden, bias);
  builder.Linear(name + ".up_proj", intermediate, hidden, bias);
  builder.Linear(name + ".down_proj", hidden, intermediate, bias);
}

absl::StatusOr<ModelDescription> BuildDense(absl::string_view name, Fields& fields,
                                            const Attention& attention, bool mlp_bias) {
  const Decoder decoder = ReadDecoder(fields);
  const int64_t intermediate = fields.Positive("intermediate_size");
  fields.RequireFewTensors("num_hidden_layers", decoder.layers, 16);
  SHARDPROOF_RETURN_IF_ERROR(fields.status());
  return BuildDecoder(name, decoder, [&](ModelBuilder& builder, const std::string& block, int64_t) {
    AddAttention(builder, block, attention);
    AddGatedMlp(builder, block + ".mlp", decoder.hidden, intermediate, mlp_bias);
  });
}

absl::StatusOr<ModelDescription> ImportLlama(absl::string_view name, Fields& fields) {
  Attention attention = ReadAttention(fields, /*key_value_heads_required=*/false);
  attention.qkv_bias = attention.output_bias = fields.FlagOr("attention_bias", false);
  return BuildDense(name, fields, attention, fields.FlagOr("mlp_bias", false));
}

absl::StatusOr<ModelDescription> ImportQwen2(absl::string_view name, Fields& fields) {
  Attention attention = ReadAttention(fields, /*key_value_heads_required=*/true);
  attention.qkv_bias = true;
  return BuildDense(name, fields, attention, /*mlp_bias=*/false);
}

absl::StatusOr<ModelDescription> ImportMixtral(absl::string_view name, Fields& fields) {
  const Decoder decoder = ReadDecoder(fields);
  const Attention attention = ReadAttention(fields, /*key_value_heads_required=*/true);
  const int64_t intermediate = fields.Positive("intermediate_size");
  const int64_t experts = fields.Positive("num_local_experts");
  fields.RequireFewTensors("num_local_experts", experts, 3);
  fields.RequireFewTensors("num_hidden_layers", decoder.layers, 7 + 3 * experts);
  SHARDPROOF_RETURN_IF_ERROR(fields.status());
  return BuildDecoder(name, decoder, [&](ModelBuilder& builder, const std::string& block, int64_t) {
    AddAttention(builder, block, attention);
    const std::string moe = block + ".block_sparse_moe";
    builder.Linear(moe + ".gate", experts, decoder.hidden);
    for (int64_t e = 0; e < experts; ++e) {
      const std::string expert = absl::StrCat(moe, ".experts.", e);
      builder.Linear(expert + ".w1", intermediate, decoder.hidden);
      builder.Linear(expert + ".w2", decoder.hidden, intermediate);
      builder.Linear(expert + ".w3", intermediate, decoder.hidden);
    }
  });
}

// ---------------------------------------------------------------- deepseek_v3

// Multi-head latent attention: queries, and keys with values, go through a low-rank waist.
struct LatentAttention {
  int64_t hidden = 0;
  int64_t query_rank = 0;  // 0: queries are projected directly
  int64_t key_value_rank = 0;
  int64_t rope = 0;
  int64_t query = 0;      // heads * (nope + rope)
  int64_t key_value = 0;  // heads * (nope + value)
  int64_t value = 0;      // heads * value
  bool bias = false;
};

LatentAttention ReadLatentAttention(Fields& fields) {
  LatentAttention attention;
  const int64_t heads = fields.Positive("num_attention_heads");
  const int64_t nope = fields.Positive("qk_nope_head_dim");
  const int64_t value = fields.Positive("v_head_dim");
  attention.hidden = fields.Positive("hidden_size");
  attention.query_rank = fields.PositiveOr("q_lora_rank", 0);
  attention.key_value_rank = fields.Positive("kv_lora_rank");
  attention.rope = fields.Positive("qk_rope_head_dim");
  attention.query = heads * (nope + attention.rope);
  attention.key_value = heads * (nope + value);
  attention.value = heads * value;
  attention.bias = fields.FlagOr("attention_bias", false);
  return attention;
}

void AddLatentAttention(ModelBuilder& builder, const std::string& block,
                        const LatentAttention& attention) {
  const std::string name = block + ".self_attn.";
  if (attention.query_rank == 0) {
    builder.Linear(name + "q_proj", attention.query, attention.hidden);
  } else {
    builder.Linear(name + "q_a_proj", attention.query_rank, attention.hidden, attention.bias);
    builder.Norm(name + "q_a_layernorm", attention.query_rank);
    builder.Linear(name + "q_b_proj", attention.query, attention.query_rank);
  }
  builder.Linear(name + "kv_a_proj_with_mqa", attention.key_value_rank + attention.rope,
                 attention.hidden, attention.bias);
  builder.Norm(name + "kv_a_layernorm", attention.key_value_rank);
  builder.Linear(name + "kv_b_proj", attention.key_value, attention.key_value_rank);
  builder.Linear(name + "o_proj", attention.hidden, attention.value, attention.bias);
}

struct Experts {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t routed = 0;
  int64_t shared = 0;
};

void AddExperts(ModelBuilder& builder, const std::string& mlp, const Experts& experts) {
  for (int64_t e = 0; e < experts.routed; ++e) {
    AddGatedMlp(builder, absl::StrCat(mlp, ".experts.", e), experts.hidden, experts.intermediate);
  }
  builder.Linear(mlp + ".gate", experts.routed, experts.hidden);
  // The router's load balancing moves this one, not the optimizer.
  builder.Add(mlp + ".gate.e_score_correction_bias", {experts.routed}, experts.routed,
              /*trainable=*/false);
  AddGatedMlp(builder, mlp + ".shared_experts", experts.hidden,
              experts.shared * experts.intermediate);
}

absl::StatusOr<ModelDescription> ImportDeepseekV3(absl::string_view name, Fields& fields) {
  const Decoder decoder = ReadDecoder(fields);
  const LatentAttention attention = ReadLatentAttention(fields);
  const int64_t intermediate = fields.Positive("intermediate_size");
  const int64_t dense_layers = fields.NotNegative("first_k_dense_replace");
  const Experts experts = {decoder.hidden, fields.Positive("moe_intermediate_size"),
                           fields.Positive("n_routed_experts"),
                           fields.Positive("n_shared_experts")};
  fields.RequireAtMost("first_k_dense_replace", dense_layers, "num_hidden_layers", decoder.layers);
  // Every layer behind the dense ones has experts; other frequencies are not of this family.
  fields.RequireAtMost("moe_layer_freq", fields.PositiveOr("moe_layer_freq", 1), "1", 1);
  fields.RequireFewTensors("n_routed_experts", experts.routed, 3);
  fields.RequireFewTensors("num_hidden_layers", decoder.layers, 17 + 3 * experts.routed);
  SHARDPROOF_RETURN_IF_ERROR(fields.status());
  return BuildDecoder(name, decoder,
                      [&](ModelBuilder& builder, const std::string& block, int64_t layer) {
                        AddLatentAttention(builder, block, attention);
                        const std::string mlp = block + ".mlp";
                        if (layer < dense_layers) {
                          AddGatedMlp(builder, mlp, decoder.hidden, intermediate);
                        } else {
                          AddExperts(builder, mlp, experts);
                        }
                      });
}

struct Architecture {
  absl::string_view model_type;
  absl::StatusOr<ModelDescription> (*import)(absl::string_view name, Fields& fields);
};

constexpr Architecture kArchitectures[] = {{"gpt2", ImportGpt2},
                                           {"qwen2", ImportQwen2},
                                           {"llama", ImportLlama},
                                           {"mixtral", ImportMixtral},
                                           {"deepseek_v3", ImportDeepseekV3}};

}  // namespace

absl::StatusOr<ModelDescription> ImportConfig(absl::string_view name, absl::string_view json) {
  if (const absl::Status status = CheckJsonSyntax(json); !status.ok()) {
    return internal::Refuse(name, "the file", status.message(), "a config in JSON");
  }
  const Json config = Json::parse(json.begin(), json.end(), nullptr, false);
  if (!config.is_object()) {
    return internal::Refuse(name, "the file", config.dump(), "a JSON object");
  }
  const auto type = config.find("model_type");
  for (const Architecture& architecture : kArchitectures) {
    if (type == config.end() || *type != std::string(architecture.model_type)) continue;
    Fields fields(name, config);
    SHARDPROOF_ASSIGN_OR_RETURN(ModelDescription model, architecture.import(name, fields));
    return internal::Finish(std::move(model), name);
  }
  return internal::Refuse(name, "model_type", type == config.end() ? "missing" : type->dump(),
                          "gpt2, qwen2, llama, mixtral, deepseek_v3");
}

}  // namespace shardproof
