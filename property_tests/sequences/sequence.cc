#include "property_tests/sequences/sequence.h"

#include <bit>
#include <memory>
#include <optional>
#include <ostream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "invariants/checks/all_checks.h"
#include "invariants/checks/check.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/replicated/replicated_trainer.h"

namespace shardproof {
namespace {

constexpr std::pair<CommandKind, absl::string_view> kNames[] = {
    {CommandKind::kTrain, "train"},
    {CommandKind::kForward, "forward"},
    {CommandKind::kEvaluate, "evaluate"},
    {CommandKind::kFail, "fail"},
    {CommandKind::kDropGradients, "drop_gradients"},
    {CommandKind::kView, "view"},
    {CommandKind::kEdit, "edit"},
    {CommandKind::kDiscardEdit, "discard_edit"}};

bool HasOperand(CommandKind kind) {
  return kind == CommandKind::kEvaluate || kind == CommandKind::kFail ||
         kind == CommandKind::kEdit || kind == CommandKind::kDiscardEdit;
}

constexpr int64_t kEvaluationSteps = 1 << 20;  // far from what training reads

bool SameBits(const float* a, const float* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return false;
  }
  return true;
}

class SequenceRunner {
 public:
  SequenceRunner(const RunDescription& run, std::unique_ptr<LiveTrainer> trainer,
                 std::unique_ptr<ReplicatedTrainer> model)
      : run_(run), trainer_(std::move(trainer)), model_(std::move(model)) {}

  absl::Status Run(const std::vector<Command>& commands) {
    for (size_t i = 0; i < commands.size(); ++i) {
      at_ = absl::StrCat("command ", i, " (", PrintSequence({commands[i]}), "): ");
      SHARDPROOF_RETURN_IF_ERROR(Do(commands[i]));
    }
    return absl::OkStatus();
  }

 private:
  template <typename... Parts>
  absl::Status Finding(const Parts&... parts) const {
    return absl::FailedPreconditionError(absl::StrCat(at_, parts...));
  }

  absl::Status Do(const Command& command) {
    switch (command.kind) {
      case CommandKind::kTrain:
        return Train();
      case CommandKind::kForward:
        return Forward(trainer_->steps_done());
      case CommandKind::kEvaluate:
        return Forward(kEvaluationSteps + command.operand);
      case CommandKind::kFail:
        return Idle(trainer_->FailInTheMiddle(command.operand / 100.0));
      case CommandKind::kDropGradients:
        return Idle(trainer_->DropGradients());
      case CommandKind::kView:
        return View(/*edit=*/-1, /*write_back=*/false);
      case CommandKind::kEdit:
        return View(command.operand, /*write_back=*/true);
      case CommandKind::kDiscardEdit:
        return View(command.operand, /*write_back=*/false);
    }
    return absl::OkStatus();
  }

  // A step may come after anything, so each is judged by itself.
  absl::Status Train() {
    SHARDPROOF_ASSIGN_OR_RETURN(const StepObservation* const observed, trainer_->Train());
    std::optional<float> coefficient;
    if (!observed->clips.empty()) coefficient = observed->clips[0].coefficient;
    const ReferenceStep& reference = model_->Step(coefficient);
    for (const std::unique_ptr<Check>& check : AllChecks()) {
      check->Begin(run_);
      check->Step(*observed, &reference);
      const CheckResult result = check->Finish();
      if (result.verdict != Verdict::kFail) continue;
      return Finding(Describe(result, result.violations[0]));
    }
    return Idle(observed);
  }

  absl::Status Forward(int64_t data_step) {
    SHARDPROOF_ASSIGN_OR_RETURN(const StepObservation* const observed,
                                trainer_->Forward(data_step));
    const std::vector<double> losses = model_->Losses(data_step);
    for (size_t rank = 0; rank < losses.size(); ++rank) {
      if (observed->losses.size() != losses.size() || observed->losses[rank] != losses[rank]) {
        return Finding("the loss of rank ", rank, " is ",
                       rank < observed->losses.size() ? observed->losses[rank] : 0, ", expected ",
                       losses[rank], ": forward read other parameters than the model's");
      }
    }
    return Idle(observed);
  }

  absl::Status View(int32_t edit, bool write_back) {
    SHARDPROOF_RETURN_IF_ERROR(trainer_->OpenView().status());
    SHARDPROOF_RETURN_IF_ERROR(CompareView());
    bool stays = write_back;
    if (edit >= 0) {
      const int32_t tensor = edit % static_cast<int32_t>(run_.model.tensors.size());
      // A mode with whole parameters cannot undo an edit: it must say so, and end the view.
      stays = stays || !ShardsUnits(run_.sharding.mode);
      SHARDPROOF_RETURN_IF_ERROR(Edit(tensor, stays));
    }
    if (edit >= 0 && stays && !write_back) {
      const absl::Status refused = trainer_->CloseView(/*write_back=*/false).status();
      if (refused.code() != absl::StatusCode::kUnimplemented) {
        return Finding("an edit of whole parameters was discarded silently: ", refused.ToString());
      }
    }
    return Idle(trainer_->CloseView(stays));
  }

  absl::Status CompareView() const {
    for (int32_t rank = 0; rank < run_.sharding.world_size.value; ++rank) {
      for (size_t tensor = 0; tensor < run_.model.tensors.size(); ++tensor) {
        SHARDPROOF_ASSIGN_OR_RETURN(const std::vector<float> seen,
                                    trainer_->Read(Rank{rank}, static_cast<int32_t>(tensor)));
        const float* const expected = model_->State().tensors[tensor].parameter;
        if (SameBits(seen.data(), expected, static_cast<int64_t>(seen.size()))) continue;
        return Finding("rank ", rank, "'s view of ", run_.model.tensors[tensor].name,
                       " is not the model's parameter");
      }
    }
    return absl::OkStatus();
  }

  // Exact in float32, and nothing that training would do.
  absl::Status Edit(int32_t tensor, bool stays) {
    SHARDPROOF_ASSIGN_OR_RETURN(std::vector<float> values, trainer_->Read(Rank{0}, tensor));
    for (float& value : values) value = -0.5f * value;
    for (int32_t rank = 0; rank < run_.sharding.world_size.value; ++rank) {
      SHARDPROOF_RETURN_IF_ERROR(trainer_->Write(Rank{rank}, tensor, values));
    }
    if (stays) model_->SetParameter(tensor, values);
    return absl::OkStatus();
  }

  absl::Status Idle(const absl::StatusOr<const StepObservation*>& observed) const {
    SHARDPROOF_RETURN_IF_ERROR(observed.status());
    for (const RankEvents& events : (*observed)->events) {
      SHARDPROOF_RETURN_IF_ERROR(CompareAllocations(events));
    }
    for (const RankState& state : (*observed)->states) {
      SHARDPROOF_RETURN_IF_ERROR(CompareState(state));
    }
    return absl::OkStatus();
  }

  absl::Status CompareAllocations(const RankEvents& events) const {
    std::vector<bool> live(events.buffers.size(), false);
    for (int32_t buffer : events.live_before) live[buffer] = true;
    for (const Event& event : events.events) {
      for (uint32_t i = event.first_access; i < event.first_access + event.access_count; ++i) {
        const Access& access = events.accesses[i];
        if (access.kind == AccessKind::kAllocate) live[access.buffer] = true;
        if (access.kind == AccessKind::kFree) live[access.buffer] = false;
      }
    }
    for (size_t buffer = 0; buffer < live.size(); ++buffer) {
      const BufferInfo& info = events.buffers[buffer];
      const bool stays = info.role == BufferRole::kParameter ||
                         info.role == BufferRole::kOptimizerState ||
                         info.role == BufferRole::kScalar ||
                         (info.role == BufferRole::kGradient && trainer_->gradients_live());
      if (live[buffer] == stays || info.elements == 0) continue;
      if (stays && info.role == BufferRole::kGradient) continue;  // a unit that nothing reduced
      return Finding("rank ", events.ranks.first, ": buffer ", buffer, " (", Name(info.role),
                     ", unit ", info.unit, ", bucket ", info.bucket, ") is ",
                     live[buffer] ? "still allocated" : "gone", " when the trainer is idle");
    }
    return absl::OkStatus();
  }

  absl::Status CompareState(const RankState& state) const {
    for (const StateSegment& segment : state.segments) {
      if (segment.tensor < 0 || segment.values == nullptr) continue;
      const ReferenceTensor& tensor = model_->State().tensors[segment.tensor];
      const float* expected = segment.state == StateClass::kParameter  ? tensor.parameter
                              : segment.state == StateClass::kExpAvg   ? tensor.exp_avg
                              : segment.state == StateClass::kExpAvgSq ? tensor.exp_avg_sq
                                                                       : nullptr;
      if (expected == nullptr) continue;  // gradients come and go
      if (SameBits(segment.values, expected + segment.range.first, segment.range.count)) continue;
      return Finding("rank ", state.ranks.first, ": ", Name(segment.state), " of ",
                     run_.model.tensors[segment.tensor].name, " from element ", segment.range.first,
                     " is not the model's");
    }
    for (const TensorStep& steps : state.steps) {
      const int64_t expected = model_->State().tensors[steps.tensor].updates;
      if (steps.updates == expected) continue;
      return Finding("rank ", state.ranks.first, ": ", run_.model.tensors[steps.tensor].name,
                     " has ", steps.updates, " updates, expected ", expected);
    }
    return absl::OkStatus();
  }

  const RunDescription& run_;
  const std::unique_ptr<LiveTrainer> trainer_;
  const std::unique_ptr<ReplicatedTrainer> model_;
  std::string at_;
};

}  // namespace

std::string PrintSequence(const std::vector<Command>& commands) {
  return absl::StrJoin(commands, ",", [](std::string* out, const Command& command) {
    for (const auto& [kind, name] : kNames) {
      if (kind == command.kind) absl::StrAppend(out, name);
    }
    if (HasOperand(command.kind)) absl::StrAppend(out, ":", command.operand);
  });
}

absl::StatusOr<std::vector<Command>> ParseSequence(absl::string_view text) {
  std::vector<Command> commands;
  for (const absl::string_view entry : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(entry, absl::MaxSplits(':', 1));
    bool known = false;
    Command command;
    for (const auto& [kind, name] : kNames) {
      if (name != parts.first) continue;
      command.kind = kind;
      known = HasOperand(kind) ? absl::SimpleAtoi(parts.second, &command.operand) &&
                                     command.operand >= 0 && command.operand < 100
                               : parts.second.empty();
    }
    if (!known) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the command '", entry,
          "' is unknown; accepted: train, forward, evaluate:N, fail:N, drop_gradients, view, "
          "edit:N, discard_edit:N with N from 0 to 99"));
    }
    commands.push_back(command);
  }
  return commands;
}

rc::Gen<std::vector<Command>> AnySequence() {
  const auto command = rc::gen::map(
      rc::gen::pair(rc::gen::inRange(0, 11), rc::gen::inRange(0, 100)),
      [](const std::pair<int, int>& drawn) {
        // Training, the most frequent, is what shrinking ends in.
        const size_t kind = drawn.first < 4 ? 0 : static_cast<size_t>(drawn.first - 3);
        return Command{kNames[kind].first, HasOperand(kNames[kind].first) ? drawn.second : 0};
      });
  return rc::gen::mapcat(rc::gen::inRange<size_t>(1, 13), [command](size_t count) {
    return rc::gen::container<std::vector<Command>>(count, command);
  });
}

absl::Status RunSequence(const RunDescription& run, const std::vector<Command>& commands,
                         const LivePlans& plans) {
  SHARDPROOF_ASSIGN_OR_RETURN(std::unique_ptr<LiveTrainer> trainer,
                              LiveTrainer::Create(run, {.limit_bytes = int64_t{1} << 40}, plans));
  SHARDPROOF_ASSIGN_OR_RETURN(std::unique_ptr<ReplicatedTrainer> model,
                              ReplicatedTrainer::Create(run));
  return SequenceRunner(run, std::move(trainer), std::move(model)).Run(commands);
}

std::ostream& operator<<(std::ostream& out, const Command& command) {
  return out << PrintSequence({command});
}

}  // namespace shardproof
