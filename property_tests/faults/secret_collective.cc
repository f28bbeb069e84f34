#include "property_tests/faults/secret_collective.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/forwarding_communicator.h"
#include "invariants/run_description/status_macros.h"

namespace shardproof {
namespace {

class CommunicatesInSecret : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  absl::StatusOr<CollectiveHandle> Start(const CollectiveCall& call) override {
    if (calls_++ == 1) {
      CollectiveCall secret;
      secret.kind = CollectiveKind::kBarrier;
      SHARDPROOF_RETURN_IF_ERROR(inner().Start(secret).status());
    }
    return inner().Start(call);
  }

 private:
  int calls_ = 0;
};

}  // namespace

PartsEdit CommunicateInSecret() {
  return [](const RunDescription&, EngineParts parts) {
    parts.decorate = [](Rank, Communicator* inner) -> std::unique_ptr<Communicator> {
      return std::make_unique<CommunicatesInSecret>(inner);
    };
    return parts;
  };
}

std::string SecretComplaint(const KillReport& report) {
  if (!report.error.ok()) return absl::StrCat("error: ", report.error.message());
  if (!report.refusal.empty()) return absl::StrCat("refused: ", report.refusal);
  if (report.killers.empty()) return "found by nothing";
  if (report.killers != std::vector<std::string>{"collective_ledger"}) {
    return absl::StrCat("found by ", absl::StrJoin(report.killers, ", "),
                        " and not by collective_ledger alone");
  }
  for (const CheckResult& check : report.failures) {
    for (const Violation& violation : check.violations) {
      if (absl::StartsWith(violation.rule, "the GPU runs one kernel for each")) continue;
      return absl::StrCat("found by another rule than that about kernels: ", violation.rule);
    }
  }
  return "";
}

}  // namespace shardproof
