// A wrong shape makes every expectation behind it wrong, so totals and names of published
// models are pinned exactly; a mistyped model ends in one line that says what is accepted.
#include "trainer/model/importers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace shardproof {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

ModelDescription Imported(const absl::StatusOr<ModelDescription>& model) {
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *model : ModelDescription();
}

ModelDescription Fixture(absl::string_view name) {
  return Imported(ImportModel(absl::StrCat("fixtures/models/", name, ".config.json")));
}

std::string ErrorOf(const absl::StatusOr<ModelDescription>& model) {
  if (model.ok()) return "accepted";
  EXPECT_THAT(std::string(model.status().message()), Not(HasSubstr("\n")));
  return std::string(model.status().message());
}

const TensorSpec& TensorNamed(const ModelDescription& model, absl::string_view name) {
  for (const TensorSpec& tensor : model.tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return model.tensors[0];
}

std::string TestFile(absl::string_view name, absl::string_view content) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

// ---------------------------------------------------------------- published models

TEST(ImportModel, CountsTheParametersOfPublishedModelsExactly) {
  const std::pair<const char*, int64_t> totals[] = {
      {"gpt2", 124'439'808},
      {"qwen2.5-0.5b", 494'032'768},
      {"llama-3.1-8b", 8'030'261'248},
      {"llama-3.1-70b", 70'553'706'496},
      {"llama-3.1-405b", 405'853'388'800},
      {"mixtral-8x7b", 46'702'792'704},
      {"deepseek-v3", 671'026'419'200},
  };
  for (const auto& [name, total] : totals) {
    const ModelDescription model = Fixture(name);
    EXPECT_EQ(ParameterElements(model), total) << name;
    EXPECT_EQ(model.kind, ModelKind::kOpaque);
    EXPECT_EQ(model.name, absl::StrCat("fixtures/models/", name, ".config.json"));
  }
}

TEST(ImportModel, HasARootUnitAndOneUnitABlock) {
  const ModelDescription model = Fixture("gpt2");
  ASSERT_EQ(model.stages.size(), 14u);
  EXPECT_EQ(model.stages.front().name, "embeddings");
  EXPECT_EQ(model.stages[1].name, "transformer.h.0");
  EXPECT_EQ(model.stages.back().name, "head");
  ASSERT_EQ(model.units.size(), 13u);
  EXPECT_EQ(model.units[0].name, "root");
  EXPECT_THAT(model.units[0].stages, ElementsAre(0, 13));
  EXPECT_FALSE(model.units[0].reshard_after_forward);
  EXPECT_EQ(model.units[12].name, "transformer.h.11");
  EXPECT_THAT(model.units[12].stages, ElementsAre(12));
  EXPECT_TRUE(model.units[12].reshard_after_forward);
}

TEST(ImportModel, ATiedHeadUsesTheEmbeddingAgain) {
  for (const char* name : {"gpt2", "qwen2.5-0.5b"}) {
    const ModelDescription model = Fixture(name);
    EXPECT_THAT(model.tensors[0].aliases, ElementsAre("lm_head.weight"));
    EXPECT_EQ(model.stages.front().tensors.front(), 0);
    EXPECT_EQ(model.stages.back().tensors.back(), 0);
  }
  const ModelDescription untied = Fixture("llama-3.1-8b");
  EXPECT_THAT(untied.tensors[0].aliases, IsEmpty());
  EXPECT_THAT(TensorNamed(untied, "lm_head.weight").shape, ElementsAre(128256, 4096));
}

TEST(ImportModel, KeepsGpt2sInputFirstWeights) {
  const ModelDescription model = Fixture("gpt2");
  const TensorSpec& weight = TensorNamed(model, "transformer.h.3.mlp.c_proj.weight");
  EXPECT_THAT(weight.shape, ElementsAre(3072, 768));
  EXPECT_EQ(weight.fan_in, 3072);
  const TensorSpec& bias = TensorNamed(model, "transformer.h.3.mlp.c_proj.bias");
  EXPECT_THAT(bias.shape, ElementsAre(768));
  EXPECT_EQ(bias.fan_in, 3072);
  EXPECT_THAT(TensorNamed(model, "transformer.h.0.attn.c_attn.weight").shape,
              ElementsAre(768, 2304));
  EXPECT_EQ(TensorNamed(model, "transformer.wpe.weight").fan_in, 768);
}

TEST(ImportModel, GivesQwen2BiasesToQueriesKeysAndValuesOnly) {
  const ModelDescription model = Fixture("qwen2.5-0.5b");
  std::vector<std::string> biases;
  for (const int32_t t : model.stages[1].tensors) {
    const TensorSpec& tensor = model.tensors[t];
    if (tensor.name.ends_with(".bias")) biases.push_back(tensor.name);
  }
  EXPECT_THAT(biases, ElementsAre("model.layers.0.self_attn.q_proj.bias",
                                  "model.layers.0.self_attn.k_proj.bias",
                                  "model.layers.0.self_attn.v_proj.bias"));
  EXPECT_THAT(TensorNamed(model, "model.layers.0.self_attn.k_proj.weight").shape,
              ElementsAre(128, 896));
}

TEST(ImportModel, GivesMixtralEightExpertsABlock) {
  const ModelDescription model = Fixture("mixtral-8x7b");
  EXPECT_EQ(model.stages[1].tensors.size(), 4u + 1 + 3 * 8 + 2);
  EXPECT_THAT(TensorNamed(model, "model.layers.31.block_sparse_moe.experts.7.w2.weight").shape,
              ElementsAre(4096, 14336));
}

TEST(ImportModel, GivesDeepseekLatentAttentionAndAFrozenRouterBias) {
  const ModelDescription model = Fixture("deepseek-v3");
  const std::string attention = "model.layers.60.self_attn.";
  EXPECT_THAT(TensorNamed(model, attention + "kv_a_proj_with_mqa.weight").shape,
              ElementsAre(512 + 64, 7168));
  EXPECT_THAT(TensorNamed(model, attention + "kv_b_proj.weight").shape,
              ElementsAre(128 * 256, 512));
  EXPECT_THAT(TensorNamed(model, attention + "q_b_proj.weight").shape,
              ElementsAre(128 * 192, 1536));
  EXPECT_THAT(TensorNamed(model, "model.layers.2.mlp.gate_proj.weight").shape,
              ElementsAre(18432, 7168));
  EXPECT_THAT(TensorNamed(model, "model.layers.3.mlp.experts.255.down_proj.weight").shape,
              ElementsAre(7168, 2048));
  EXPECT_FALSE(TensorNamed(model, "model.layers.3.mlp.gate.e_score_correction_bias").trainable);
  EXPECT_EQ(ParameterElements(model) - TrainableElements(model), 58 * 256);
}

// ---------------------------------------------------------------- mlp: and probe:

TEST(ImportModel, BuildsAnMlpOfEqualLayers) {
  const ModelDescription model = Imported(ImportModel("mlp:8x2048"));
  EXPECT_EQ(model.name, "mlp:8x2048");
  EXPECT_EQ(model.kind, ModelKind::kMlp);
  ASSERT_EQ(model.tensors.size(), 8u);
  EXPECT_EQ(model.tensors[7].name, "layers.7.weight");
  EXPECT_THAT(model.tensors[7].shape, ElementsAre(2048, 2048));
  EXPECT_EQ(model.tensors[7].fan_in, 2048);
  EXPECT_EQ(model.units.size(), 8u);
  EXPECT_TRUE(model.units[0].reshard_after_forward);
}

TEST(ImportModel, BuildsAnMlpFromItsWidths) {
  const ModelDescription model = Imported(ImportModel("mlp:33,65,17:bias"));
  ASSERT_EQ(model.tensors.size(), 4u);
  EXPECT_EQ(model.tensors[2].name, "layers.1.weight");
  EXPECT_THAT(model.tensors[2].shape, ElementsAre(17, 65));
  EXPECT_EQ(model.tensors[3].name, "layers.1.bias");
  EXPECT_THAT(model.tensors[3].shape, ElementsAre(17));
  EXPECT_EQ(model.tensors[3].fan_in, 65);
  EXPECT_THAT(model.stages[1].tensors, ElementsAre(2, 3));
  EXPECT_EQ(Imported(ImportModel("mlp:3,4")).tensors.size(), 1u);
}

TEST(ImportModel, RejectsMlpsWithBadWidths) {
  for (const char* width :
       {"0", "-4", "x", "", "4.5", " 4", "+4", "4y", "0x10", "9223372036854775808"}) {
    const std::string text = absl::StrCat("mlp:3,", width);
    EXPECT_THAT(ErrorOf(ImportModel(text)), AllOf(StartsWith(text), HasSubstr("accepted: ")));
    EXPECT_THAT(ErrorOf(ImportModel(absl::StrCat("mlp:8x", width))), HasSubstr("accepted: "));
    EXPECT_THAT(ErrorOf(ImportModel(absl::StrCat("mlp:", width, "x8"))), HasSubstr("accepted: "));
  }
  EXPECT_THAT(ErrorOf(ImportModel("mlp:3,-4")),
              HasSubstr("a width is '-4'; accepted: an integer from 1"));
  EXPECT_THAT(ErrorOf(ImportModel("mlp:3,4,")), HasSubstr("a width is ''"));
  EXPECT_THAT(ErrorOf(ImportModel("mlp:3,4:bias:bias")), HasSubstr("'4:bias'"));
  EXPECT_THAT(ErrorOf(ImportModel("mlp:8x2048:bias")), HasSubstr("'2048:bias'"));
  EXPECT_THAT(ErrorOf(ImportModel("mlp:8")), HasSubstr("the number of widths is 1"));
  EXPECT_THAT(ErrorOf(ImportModel("mlp:")), HasSubstr("a width is ''"));
}

TEST(ImportModel, RejectsMlpsBeyondTheLimitsAtOnce) {
  EXPECT_THAT(ErrorOf(ImportModel("mlp:999999999x4096")),
              HasSubstr("the number of layers is 999999999; accepted: at most 1000000"));
  EXPECT_THAT(ErrorOf(ImportModel("mlp:2x4294967296")), HasSubstr("at most"));
  EXPECT_THAT(ErrorOf(ImportModel("mlp:1000x1000000000")), HasSubstr("accepted: "));
}

TEST(ImportModel, BuildsAProbeOfAnyShapes) {
  const ModelDescription model = Imported(ImportModel("probe:10x3,7,2x2x2"));
  EXPECT_EQ(model.name, "probe:10x3,7,2x2x2");
  EXPECT_EQ(model.kind, ModelKind::kProbe);
  ASSERT_EQ(model.tensors.size(), 3u);
  EXPECT_EQ(model.tensors[2].name, "t2");
  EXPECT_THAT(model.tensors[2].shape, ElementsAre(2, 2, 2));
  EXPECT_EQ(model.units.size(), 3u);
}

TEST(ImportModel, RejectsProbesWithBadShapes) {
  for (const char* shapes : {"3x-1", "3,", ",3", "3xx3", "x", "3 x 3", "3x4z", "a"}) {
    const std::string text = absl::StrCat("probe:", shapes);
    EXPECT_THAT(ErrorOf(ImportModel(text)), AllOf(StartsWith(text), HasSubstr("an extent of shape"),
                                                  HasSubstr("accepted: an integer from 0")));
  }
  EXPECT_THAT(ErrorOf(ImportModel("probe:0,3x0")), HasSubstr("only empty tensors"));
  EXPECT_THAT(ErrorOf(ImportModel("probe:")), HasSubstr("the list of shapes is empty"));
  EXPECT_THAT(ErrorOf(ImportModel("probe:4294967296x4294967296")), HasSubstr("at most"));
  std::string many = "probe:1";
  for (int i = 0; i < 1'000'000; ++i) many += ",1";
  EXPECT_THAT(ErrorOf(ImportModel(many)), HasSubstr("the number of tensors is 1000001"));
}

TEST(ImportModel, BuildsAProbeWithTheShapesOfAFile) {
  const ModelDescription model = Imported(ImportModel("probe:fixtures/models/gpt2.config.json"));
  EXPECT_EQ(model.kind, ModelKind::kProbe);
  EXPECT_EQ(model.name, "probe:fixtures/models/gpt2.config.json");
  EXPECT_EQ(ParameterElements(model), 124'439'808);
  EXPECT_EQ(model.units.size(), 13u);
}

// ---------------------------------------------------------------- texts and files

TEST(ImportModel, RejectsTextsOfNoKnownForm) {
  for (const char* text : {"", "gpt2", "8x2048", "MLP:8x2048", "a\nb"}) {
    EXPECT_THAT(ErrorOf(ImportModel(text)),
                AllOf(HasSubstr("mlp:LxW"), HasSubstr("FILE.safetensors")));
  }
  EXPECT_THAT(ErrorOf(ImportModel("gpt2")), HasSubstr("model: 'gpt2' is unknown"));
}

TEST(ImportModel, SaysNotFoundForFilesThatDoNotExist) {
  for (const char* text : {"missing.json", "missing.safetensors", "probe:missing.json"}) {
    const absl::StatusOr<ModelDescription> model = ImportModel(text);
    EXPECT_EQ(model.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(ErrorOf(model), AllOf(StartsWith("missing."), HasSubstr("does not exist")));
  }
}

TEST(ImportModel, RejectsDirectoriesAndDevices) {
  EXPECT_THAT(ErrorOf(ImportModel("fixtures/models")), HasSubstr("fixtures/models: the path is a "
                                                                 "directory"));
  const std::string link = ::testing::TempDir() + "/device.json";
  std::remove(link.c_str());
  ASSERT_EQ(symlink("/dev/zero", link.c_str()), 0);
  EXPECT_THAT(ErrorOf(ImportModel(link)), HasSubstr("no regular file"));
}

TEST(ImportModel, RejectsFilesThatAreNoConfigs) {
  EXPECT_THAT(ErrorOf(ImportModel(TestFile("empty.json", ""))),
              AllOf(StartsWith("empty.json: "), HasSubstr("not JSON")));
  EXPECT_THAT(ErrorOf(ImportModel(TestFile("text.json", "layers: 3\n"))), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf(ImportModel(TestFile("list.json", "[1]"))),
              HasSubstr("accepted: a JSON object"));
  EXPECT_THAT(ErrorOf(ImportModel(TestFile("large.json", std::string((16 << 20) + 1, ' ')))),
              HasSubstr("16777217 bytes"));
}

// ---------------------------------------------------------------- configs

const char kLlama[] =
    R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 100, "head_dim": null})";

// The small llama with one field's text replaced.
std::string LlamaWith(absl::string_view from, absl::string_view to) {
  const std::string config = absl::StrReplaceAll(kLlama, {{from, to}});
  EXPECT_NE(config, kLlama) << from;
  return ErrorOf(ImportConfig("small.json", config));
}

TEST(ImportConfig, RejectsFieldsThatAreMissing) {
  for (const char* field : {"hidden_size", "intermediate_size", "num_hidden_layers",
                            "num_attention_heads", "vocab_size"}) {
    EXPECT_THAT(LlamaWith(absl::StrCat("\"", field, "\""), "\"other\""),
                AllOf(StartsWith(absl::StrCat("small.json: ", field, " is missing")),
                      HasSubstr("accepted: an integer from 1 to 1073741824")));
  }
  EXPECT_THAT(LlamaWith("\"vocab_size\": 100", "\"vocab_size\": null"),
              HasSubstr("vocab_size is missing"));
}

TEST(ImportConfig, RejectsFieldsThatAreNoPositiveIntegers) {
  for (const char* value : {"0", "-1", "1.5", "64.0", "\"64\"", "true", "[64]", "1073741825",
                            "18446744073709551615", "9223372036854775808", "1e300"}) {
    const std::string error =
        LlamaWith("\"vocab_size\": 100", absl::StrCat("\"vocab_size\": ", value));
    EXPECT_THAT(error, AllOf(StartsWith("small.json: vocab_size is "),
                             HasSubstr("accepted: an integer from 1 to 1073741824")))
        << value;
  }
  EXPECT_THAT(LlamaWith("\"vocab_size\": 100", "\"vocab_size\": -7"),
              HasSubstr("vocab_size is -7"));
  EXPECT_THAT(LlamaWith("\"head_dim\": null", "\"head_dim\": 0"), HasSubstr("head_dim is 0"));
  EXPECT_THAT(LlamaWith("\"head_dim\": null", "\"mlp_bias\": 1"),
              HasSubstr("mlp_bias is 1; accepted: true or false"));
}

TEST(ImportConfig, RejectsARepeatedField) {
  EXPECT_THAT(LlamaWith("\"head_dim\": null", "\"vocab_size\": 7"),
              HasSubstr("the key 'vocab_size' is repeated"));
}

TEST(ImportConfig, RejectsHeadsThatDoNotDivideTheWidth) {
  EXPECT_THAT(LlamaWith("\"hidden_size\": 64", "\"hidden_size\": 66"),
              HasSubstr("hidden_size is 66; accepted: a multiple of num_attention_heads, which "
                        "is 4"));
  EXPECT_THAT(LlamaWith("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3"),
              HasSubstr("num_attention_heads is 4; accepted: a multiple of num_key_value_heads"));
  EXPECT_THAT(ErrorOf(ImportConfig("g.json", R"({"model_type": "gpt2", "n_embd": 10, "n_layer": 1,
                  "n_head": 3, "n_positions": 4, "vocab_size": 5})")),
              HasSubstr("n_embd is 10; accepted: a multiple of n_head"));
}

TEST(ImportConfig, RespectsAnExplicitHeadDim) {
  std::string config = absl::StrReplaceAll(
      kLlama, {{"\"head_dim\": null", "\"head_dim\": 5"}, {"_size\": 64", "_size\": 66"}});
  const ModelDescription model = Imported(ImportConfig("small.json", config));
  EXPECT_THAT(TensorNamed(model, "model.layers.0.self_attn.q_proj.weight").shape,
              ElementsAre(20, 66));
  EXPECT_THAT(TensorNamed(model, "model.layers.0.self_attn.o_proj.weight").shape,
              ElementsAre(66, 20));
}

TEST(ImportConfig, GivesLlamaTheBiasesItsConfigAsksFor) {
  const std::string config = absl::StrReplaceAll(
      kLlama, {{"\"head_dim\": null", "\"attention_bias\": true, \"mlp_bias\": true"}});
  const ModelDescription model = Imported(ImportConfig("small.json", config));
  EXPECT_EQ(model.stages[1].tensors.size(), 16u);
  EXPECT_EQ(TensorNamed(model, "model.layers.1.mlp.down_proj.bias").fan_in, 96);
}

TEST(ImportConfig, RejectsUnknownArchitecturesByName) {
  EXPECT_THAT(LlamaWith("\"llama\"", "\"bert\""),
              HasSubstr("small.json: model_type is \"bert\"; accepted: gpt2, qwen2, llama, "
                        "mixtral, deepseek_v3"));
  EXPECT_THAT(LlamaWith("\"llama\"", "3"), HasSubstr("model_type is 3"));
  EXPECT_THAT(ErrorOf(ImportConfig("small.json", "{}")), HasSubstr("model_type is missing"));
}

TEST(ImportConfig, RejectsMoreTensorsThanTheLimitAtOnce) {
  EXPECT_THAT(LlamaWith("layers\": 2", "layers\": 1000000000"),
              HasSubstr("num_hidden_layers is 1000000000; accepted: at most "));
  const char* const mixtral =
      R"({"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "vocab_size": 100, "num_local_experts": 1000000000})";
  EXPECT_THAT(ErrorOf(ImportConfig("m.json", mixtral)),
              HasSubstr("num_local_experts is 1000000000; accepted: at most "));
}

TEST(ImportConfig, RejectsTotalsBeyondInt64) {
  const std::string config = absl::StrReplaceAll(
      kLlama, {{"_size\": 64", "_size\": 1073741824"}, {"_size\": 96", "_size\": 1073741824"}});
  EXPECT_THAT(ErrorOf(ImportConfig("small.json", config)),
              AllOf(StartsWith("small.json: "), HasSubstr("elements")));
}

std::string DeepseekWith(absl::string_view from, absl::string_view to) {
  const std::string config = absl::StrReplaceAll(
      R"({"model_type": "deepseek_v3", "hidden_size": 8, "intermediate_size": 12,
          "moe_intermediate_size": 6, "num_hidden_layers": 3, "first_k_dense_replace": 1,
          "num_attention_heads": 2, "n_routed_experts": 4, "n_shared_experts": 2,
          "q_lora_rank": 5, "kv_lora_rank": 3, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2,
          "v_head_dim": 4, "vocab_size": 9})",
      {{from, to}});
  const absl::StatusOr<ModelDescription> model = ImportConfig("d.json", config);
  return model.ok() ? absl::StrCat(ParameterElements(*model)) : ErrorOf(model);
}

TEST(ImportConfig, ChecksDeepseeksOwnFields) {
  EXPECT_THAT(DeepseekWith("\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 4"),
              HasSubstr("first_k_dense_replace is 4; accepted: at most num_hidden_layers"));
  EXPECT_THAT(DeepseekWith("\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": -1"),
              HasSubstr("an integer from 0"));
  EXPECT_THAT(DeepseekWith("\"q_lora_rank\": 5", "\"moe_layer_freq\": 2"),
              HasSubstr("moe_layer_freq is 2"));
  EXPECT_THAT(DeepseekWith("kv_lora_rank", "rank"), HasSubstr("kv_lora_rank is missing"));
}

TEST(ImportConfig, CountsASmallDeepseekByHand) {
  // Attention: queries 5*8 + 5 + 12*5, keys and values 5*8 + 3 + 16*3, output 8*8.
  const int attention = 40 + 5 + 60 + 40 + 3 + 48 + 64;
  const int dense = 3 * 8 * 12;
  const int sparse = 4 * 3 * 8 * 6 + 4 * 8 + 4 + 3 * 8 * 12;
  const int around = 2 * 9 * 8 + 8;
  const int total = around + 3 * (attention + 2 * 8) + dense + 2 * sparse;
  EXPECT_EQ(DeepseekWith("none", ""), absl::StrCat(total));
  // Without a rank, queries take one matrix of 12*8.
  EXPECT_EQ(DeepseekWith("\"q_lora_rank\": 5", "\"q_lora_rank\": null"),
            absl::StrCat(total - 3 * (40 + 5 + 60) + 3 * 12 * 8));
}

// ---------------------------------------------------------------- safetensors

std::string LengthPrefix(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
  return bytes;
}

std::string SafetensorsStart(absl::string_view header) {
  return absl::StrCat(LengthPrefix(header.size()), header);
}

absl::StatusOr<ModelDescription> ImportHeader(absl::string_view header, int64_t data_bytes) {
  const std::string start = SafetensorsStart(header);
  return ImportSafetensorsHeader("w.safetensors", start,
                                 static_cast<int64_t>(start.size()) + data_bytes);
}

// Entries of one-dimensional F32 tensors, four bytes each, in this order.
std::string HeaderOf(const std::vector<std::string>& names) {
  std::string header;
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StrAppend(&header, i == 0 ? "{" : ",", "\"", names[i],
                    R"(": {"dtype": "F32", "shape": [1], "data_offsets": [)", 4 * i, ",", 4 * i + 4,
                    "]}");
  }
  return header + "}";
}

TEST(ImportSafetensors, OrdersTensorsByDataAndIgnoresMetadata) {
  const ModelDescription model = Imported(ImportHeader(
      R"({"__metadata__": {"format": "pt"},
          "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [8, 32]},
          "b": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]},
          "c": {"dtype": "I64", "shape": [], "data_offsets": [32, 40]}})",
      40));
  ASSERT_EQ(model.tensors.size(), 3u);
  EXPECT_EQ(model.kind, ModelKind::kOpaque);
  EXPECT_EQ(model.name, "w.safetensors");
  EXPECT_EQ(model.tensors[0].name, "b");
  EXPECT_EQ(model.tensors[1].name, "a");
  EXPECT_THAT(model.tensors[1].shape, ElementsAre(2, 3));
  EXPECT_EQ(model.tensors[1].fan_in, 3);
  EXPECT_TRUE(model.tensors[1].trainable);
  EXPECT_THAT(model.tensors[2].shape, ElementsAre(1));
  EXPECT_FALSE(model.tensors[2].trainable);
}

TEST(ImportSafetensors, GroupsTensorsByTheirFirstNumber) {
  const ModelDescription model = Imported(ImportHeader(
      HeaderOf({"lm_head.weight", "model.layers.10.mlp.weight", "model.layers.2.experts.0.weight",
                "model.layers.2.mlp.weight", "model.embed.weight", "vision.1.weight"}),
      24));
  ASSERT_EQ(model.units.size(), 4u);
  EXPECT_EQ(model.units[0].name, "root");
  EXPECT_FALSE(model.units[0].reshard_after_forward);
  EXPECT_THAT(model.stages[0].tensors, ElementsAre(0, 4));
  EXPECT_EQ(model.units[1].name, "model.layers.2");
  EXPECT_TRUE(model.units[1].reshard_after_forward);
  EXPECT_THAT(model.stages[1].tensors, ElementsAre(2, 3));
  EXPECT_EQ(model.units[2].name, "model.layers.10");
  EXPECT_EQ(model.units[3].name, "vision.1");
}

TEST(ImportSafetensors, NeedsNoRootWhenEveryNameHasANumber) {
  const ModelDescription model =
      Imported(ImportHeader(HeaderOf({"0.weight", "0.bias", "2.weight"}), 12));
  ASSERT_EQ(model.units.size(), 2u);
  EXPECT_EQ(model.units[0].name, "0");
  EXPECT_TRUE(model.units[0].reshard_after_forward);
}

TEST(ImportSafetensors, ReadsTheHeaderOfAFileOnly) {
  const std::string path = TestFile(
      "good.safetensors", SafetensorsStart(HeaderOf({"t.0.w", "t.1.w"})) + std::string(8, '\0'));
  EXPECT_EQ(ParameterElements(Imported(ImportModel(path))), 2);
  EXPECT_EQ(Imported(ImportModel("probe:" + path)).kind, ModelKind::kProbe);
}

TEST(ImportSafetensors, RejectsFilesThatEndBeforeTheHeaderDoes) {
  EXPECT_THAT(ErrorOf(ImportModel(TestFile("short.safetensors", "1234567"))),
              HasSubstr("short.safetensors: the file's size is 7 bytes; accepted: at least 8"));
  EXPECT_THAT(ErrorOf(ImportModel(TestFile("none.safetensors", ""))), HasSubstr("0 bytes"));
  EXPECT_THAT(ErrorOf(ImportModel(TestFile("long.safetensors", LengthPrefix(100) + "{}"))),
              HasSubstr("the header's length is 100 bytes; accepted: at most 2"));
  EXPECT_THAT(ErrorOf(ImportModel(TestFile("huge.safetensors", LengthPrefix(~0ull) + "{}"))),
              HasSubstr("the header's length is 18446744073709551615 bytes"));
  EXPECT_THAT(ErrorOf(ImportSafetensorsHeader("w.safetensors", LengthPrefix(100) + "{}", 1000)),
              HasSubstr("the header is cut off after 2 bytes; accepted: all of its 100 bytes"));
  EXPECT_THAT(ErrorOf(ImportSafetensorsHeader("w.safetensors", LengthPrefix(200'000'000),
                                              int64_t{1} << 40)),
              HasSubstr("accepted: at most 100000000"));
}

TEST(ImportSafetensors, RejectsHeadersThatAreNoObjectsOfTensors) {
  EXPECT_THAT(ErrorOf(ImportHeader("{nope", 0)), HasSubstr("the header is not JSON"));
  EXPECT_THAT(ErrorOf(ImportHeader("[]", 0)), HasSubstr("accepted: a JSON object"));
  EXPECT_THAT(ErrorOf(ImportHeader("{}", 0)), HasSubstr("the number of tensors is 0"));
  EXPECT_THAT(ErrorOf(ImportHeader(R"({"__metadata__": {}})", 0)),
              HasSubstr("the number of tensors is 0"));
  EXPECT_THAT(ErrorOf(ImportHeader(R"({"t": 3})", 0)),
              HasSubstr("tensor 't' is 3; accepted: an object"));
  EXPECT_THAT(ErrorOf(ImportHeader(HeaderOf({"t", "t"}), 8)), HasSubstr("the key 't' is repeated"));
}

// One F32 tensor 't' of shape [2] with eight bytes, and one field replaced.
std::string EntryWith(absl::string_view from, absl::string_view to) {
  return ErrorOf(ImportHeader(
      absl::StrReplaceAll(R"({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})",
                          {{from, to}}),
      8));
}

TEST(ImportSafetensors, RejectsEntriesWithoutTypeShapeOrOffsets) {
  EXPECT_EQ(EntryWith("none", ""), "accepted");
  EXPECT_THAT(EntryWith("dtype", "x"), HasSubstr("tensor 't': dtype is missing"));
  EXPECT_THAT(EntryWith("shape", "x"), HasSubstr("tensor 't': shape is missing"));
  EXPECT_THAT(EntryWith("data_offsets", "x"), HasSubstr("tensor 't': data_offsets is missing"));
  EXPECT_THAT(EntryWith("\"F32\"", "\"F12\""),
              AllOf(HasSubstr("dtype is \"F12\""), HasSubstr("BF16")));
  EXPECT_THAT(EntryWith("\"F32\"", "32"), HasSubstr("dtype is 32"));
}

TEST(ImportSafetensors, RejectsBadShapes) {
  EXPECT_THAT(EntryWith("[2]", "[0]"), HasSubstr("shape is [0]; accepted: extents from 1"));
  EXPECT_THAT(EntryWith("[2]", "[-2]"), HasSubstr("shape is [-2]"));
  EXPECT_THAT(EntryWith("[2]", "[2.5]"), HasSubstr("shape is [2.5]"));
  EXPECT_THAT(EntryWith("[2]", "2"), HasSubstr("shape is 2"));
  EXPECT_THAT(EntryWith("[2]", "[18446744073709551615]"), HasSubstr("shape is ["));
  EXPECT_THAT(EntryWith("[2]", "[4294967296, 4294967296]"), HasSubstr("shape is ["));
}

TEST(ImportSafetensors, RejectsOffsetsOutsideTheFileOrOfAnotherSize) {
  for (const char* offsets : {"[8, 16]", "[0, 9]", "[-8, 0]", "[8, 0]", "[0]", "[0, 4, 8]", "0",
                              "[0, 1.5]", "[0, 18446744073709551615]"}) {
    EXPECT_THAT(EntryWith("[0, 8]", offsets),
                HasSubstr("accepted: [begin, end] within the file's 8 bytes of data"));
  }
  EXPECT_THAT(EntryWith("[0, 8]", "[0, 4]"),
              HasSubstr("data_offsets is [0,4]; accepted: a range of the shape's 8 bytes"));
}

TEST(ImportSafetensors, RejectsTensorsThatShareBytes) {
  EXPECT_THAT(ErrorOf(ImportHeader(
                  R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                      "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}})",
                  12)),
              HasSubstr("tensor 'b': begin of data_offsets is 4; accepted: from 8"));
}

TEST(ImportSafetensors, KeepsMessagesOnOneLineWhateverNamesHold) {
  EXPECT_THAT(ErrorOf(ImportHeader(R"({"a\nb": 3})", 0)), HasSubstr("'a?b'"));
}

}  // namespace
}  // namespace shardproof
