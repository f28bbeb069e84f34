#include "invariants/observation/origin.h"

#include "invariants/run_description/name_table.h"

namespace shardproof {
namespace {

constexpr NameTableEntry<OriginKind> kOriginKinds[] = {
    {OriginKind::kPadding, "padding"},
    {OriginKind::kNeverWritten, "never_written"},
    {OriginKind::kFreed, "freed"},
    {OriginKind::kParameter, "parameter"},
    {OriginKind::kExpAvg, "exp_avg"},
    {OriginKind::kExpAvgSq, "exp_avg_sq"},
    {OriginKind::kGradient, "gradient"},
    {OriginKind::kNorm, "norm"},
    {OriginKind::kCoefficient, "coefficient"},
    {OriginKind::kMixed, "mixed"},
};

constexpr NameTableEntry<OriginUse> kOriginUses[] = {
    {OriginUse::kForwardParameter, "forward_parameter"},
    {OriginUse::kBackwardParameter, "backward_parameter"},
    {OriginUse::kNormGradient, "norm_gradient"},
    {OriginUse::kClipCoefficient, "clip_coefficient"},
    {OriginUse::kUpdateParameter, "update_parameter"},
    {OriginUse::kUpdateGradient, "update_gradient"},
    {OriginUse::kUpdateExpAvg, "update_exp_avg"},
    {OriginUse::kUpdateExpAvgSq, "update_exp_avg_sq"},
    {OriginUse::kHeldParameter, "held_parameter"},
    {OriginUse::kHeldGradient, "held_gradient"},
    {OriginUse::kHeldExpAvg, "held_exp_avg"},
    {OriginUse::kHeldExpAvgSq, "held_exp_avg_sq"},
};

}  // namespace

absl::string_view Name(OriginKind value) { return NameIn(kOriginKinds, value); }
absl::string_view Name(OriginUse value) { return NameIn(kOriginUses, value); }

}  // namespace shardproof
