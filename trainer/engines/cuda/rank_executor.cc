#include "trainer/engines/cuda/rank_executor.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "invariants/run_description/status_macros.h"
#include "trainer/engines/cuda/cuda_kernels.h"
#include "trainer/engines/cuda/cuda_status.h"
#include "trainer/engines/cuda/update_factors.h"
#include "trainer/engines/plan_bounds.h"
#include "trainer/engines/step_report.h"
#include "trainer/model/model_compute.h"

namespace shardproof {
namespace {

// Between two looks at a step that is under way. Steps are timed on the device, so this costs
// none of what is reported.
constexpr auto kPause = std::chrono::microseconds(50);

// Launches that a rank lets be pending: half of what CUDA takes before it makes the host wait, and
// enough for the GPU to have work for milliseconds. And of those, how many one mark stands for.
constexpr int64_t kMostPending = 512;
constexpr int64_t kBetweenMarks = 64;

// "operation 12 (all_gather of unit 3 on the communication stream)".
std::string DescribeOperation(const StepPlan& plan, int32_t index) {
  const Op& op = plan.ops[index];
  std::string text = absl::StrCat("operation ", index);
  absl::StrAppend(&text, " (");
  if (op.kind == OpKind::kCollective) {
    absl::StrAppend(&text, Name(op.collective));
  } else {
    absl::StrAppend(&text, "of phase ", Name(op.phase));
  }
  if (op.unit >= 0) absl::StrAppend(&text, ", unit ", op.unit);
  if (op.bucket >= 0) absl::StrAppend(&text, ", bucket ", op.bucket);
  if (op.micro_batch >= 0) absl::StrAppend(&text, ", micro-batch ", op.micro_batch);
  return absl::StrCat(text, ", ", Name(op.stream), " stream)");
}

// First, stride and count of a group, and the stream.
using GroupKey = std::tuple<int32_t, int32_t, int32_t, StreamId>;

// Each once, ascending.
std::vector<GroupKey> GroupsOf(absl::Span<const StepPlan* const> plans) {
  std::vector<GroupKey> keys;
  for (const StepPlan* plan : plans) {
    for (const Op& op : plan->ops) {
      if (op.kind != OpKind::kCollective) continue;
      keys.emplace_back(op.group.first, op.group.stride, op.group.count, op.stream);
    }
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

// A wait for what is enqueued later would be none.
absl::Status CheckWaits(const StepPlan& plan) {
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    for (const int32_t wait : plan.WaitsOf(plan.ops[op])) {
      if (static_cast<size_t>(wait) < op) continue;
      return absl::DeadlineExceededError(absl::StrCat(
          "the plan of rank ", plan.rank.value, " cannot go on at ",
          DescribeOperation(plan, static_cast<int32_t>(op)), ", which waits for operation ", wait,
          ": operations are issued in the plan's order, and waits are for earlier ones"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

RankExecutor::RankExecutor(const EngineContext& context, Rank rank, bool alone)
    : context_(context),
      run_(context.run),
      rank_(rank),
      alone_(alone),
      window_(kMostPending, kBetweenMarks) {
  updates_.assign(run_.model.tensors.size(), 0);
}

absl::Status RankExecutor::At(int32_t op, const absl::Status& status) const {
  if (status.ok()) return status;
  std::string where = absl::StrCat("rank ", rank_.value);
  if (op >= 0) absl::StrAppend(&where, ", ", DescribeOperation(plan_, op));
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

absl::Status RankExecutor::Prepare(StepPlan first, const StepPlan& steady) {
  if (!SameBuffers(first, steady)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan of rank ", rank_.value,
                     " has other buffers in step 1 than before; accepted: "
                     "the same number, each of the same dtype and elements"));
  }
  for (const StepPlan* plan : {static_cast<const StepPlan*>(&first), &steady}) {
    SHARDPROOF_RETURN_IF_ERROR(CheckPlan(run_, context_.parts.placement, *plan));
    SHARDPROOF_RETURN_IF_ERROR(CheckWaits(*plan));
  }
  SHARDPROOF_RETURN_IF_ERROR(At(-1, streams_.Create()));
  SHARDPROOF_RETURN_IF_ERROR(AllocateMemory(first, steady));
  plan_ = std::move(first);
  SHARDPROOF_RETURN_IF_ERROR(At(-1, events_.Fit(plan_)));
  return At(-1, UploadInitialState());
}

// In front of an error of an allocation, who asked; with what the mode needs if it was too much.
absl::Status RankExecutor::MemoryError(const DeviceNeed& need, const absl::Status& status) const {
  return absl::IsResourceExhausted(status) ? WithNeed(need, status) : At(-1, status);
}

absl::Status RankExecutor::AllocateMemory(const StepPlan& first, const StepPlan& steady) {
  SHARDPROOF_RETURN_IF_ERROR(At(-1, MakeModelCompute(run_).status()));
  const StepPlan* const plans[] = {&first, &steady};
  kept_ = LayOutKept(plans);
  std::vector<Arena> arenas;
  for (const StepPlan* plan : plans) {
    SHARDPROOF_ASSIGN_OR_RETURN(Arena arena, LayOutArena(kept_, *plan));
    arenas.push_back(std::move(arena));
  }
  const Placement& placement = context_.parts.placement;
  const WorkspaceNeeds scattered = Larger(FindWorkspaceNeeds(run_, placement, first),
                                          FindWorkspaceNeeds(run_, placement, steady));
  // CudaStages and the arena give the model nothing that is not aligned.
  const CudaModelOptions options = {.tf32 = context_.options.tf32, .aligned = true};
  DeviceNeed need = {rank_, context_.world.device(rank_), ModeRowName(run_.sharding)};
  need.workspace = CudaModelWorkspaceBytes(run_, options) + WorkspaceBytes(scattered) +
                   static_cast<int64_t>(sizeof(Results));
  need = RankArena::NeedOf(std::move(need), arenas);
  // First: the model needs some more memory for a moment, and the arena is the most of it.
  SHARDPROOF_RETURN_IF_ERROR(RankArena::CheckRoom(need));
  absl::StatusOr<std::unique_ptr<CudaModel>> model = MakeCudaModel(run_, options);
  if (!model.ok()) return MemoryError(need, model.status());
  model_ = *std::move(model);
  SHARDPROOF_RETURN_IF_ERROR(arena_.Allocate(need, kept_, arenas, /*measured=*/alone_));
  SHARDPROOF_RETURN_IF_ERROR(arena_.Use(first, std::move(arenas[0])));
  absl::StatusOr<DeviceMemory> results = DeviceMemory::Allocate(sizeof(Results), "a loss");
  if (!results.ok()) return MemoryError(need, results.status());
  device_results_ = *std::move(results);
  SHARDPROOF_RETURN_IF_ERROR(At(-1, results_.Create()));
  double* const loss = &static_cast<Results*>(device_results_.data())->loss;
  arithmetic_ = std::make_unique<CudaStages>(*model_, loss);
  SHARDPROOF_RETURN_IF_ERROR(MemoryError(need, arithmetic_->Reserve(scattered)));
  stages_ = std::make_unique<StageRunner>(run_, context_.parts.placement, *arithmetic_);
  return absl::OkStatus();
}

// On the host first: what lies in one buffer goes there in one copy.
absl::Status RankExecutor::UploadInitialState() {
  std::vector<std::vector<float>> values(plan_.buffers.size());
  for (const int32_t buffer : plan_.live_before) {
    const uint32_t bits = PoisonBits(Poison::kNeverWritten, buffer);
    values[buffer].assign(static_cast<size_t>(arena_.floats(buffer)), std::bit_cast<float>(bits));
  }
  FillInitialState(run_, context_.parts.placement, plan_, [&](int32_t buffer) {
    values[buffer].resize(static_cast<size_t>(arena_.floats(buffer)));
    return values[buffer].data();
  });
  for (size_t buffer = 0; buffer < values.size(); ++buffer) {
    SHARDPROOF_CUDA_OK(cudaMemcpy(arena_.buffers()[buffer], values[buffer].data(),
                                  values[buffer].size() * sizeof(float), cudaMemcpyHostToDevice));
  }
  SHARDPROOF_CUDA_OK(cudaDeviceSynchronize());
  return absl::OkStatus();
}

absl::Status RankExecutor::Connect(const StepPlan& steady) {
  const StepPlan* const plans[] = {&plan_, &steady};
  return ConnectGroups(plans);
}

absl::Status RankExecutor::Install(StepPlan plan) {
  if (!SameBuffers(plan_, plan)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan of rank ", rank_.value,
                     " has other buffers than before; accepted: the same "
                     "number, each of the same dtype and elements"));
  }
  SHARDPROOF_RETURN_IF_ERROR(CheckPlan(run_, context_.parts.placement, plan));
  SHARDPROOF_RETURN_IF_ERROR(CheckWaits(plan));
  SHARDPROOF_ASSIGN_OR_RETURN(Arena arena, LayOutArena(kept_, plan));
  SHARDPROOF_RETURN_IF_ERROR(At(-1, arena_.Use(plan, std::move(arena))));
  SHARDPROOF_RETURN_IF_ERROR(
      MemoryError(arena_.need(),
                  arithmetic_->Reserve(FindWorkspaceNeeds(run_, context_.parts.placement, plan))));
  SHARDPROOF_RETURN_IF_ERROR(At(-1, events_.Fit(plan)));
  plan_ = std::move(plan);
  const StepPlan* const plans[] = {&plan_};
  return ConnectGroups(plans);
}

size_t RankExecutor::CountGroups(const StepPlan& plan) {
  const StepPlan* const plans[] = {&plan};
  return GroupsOf(plans).size();
}

// In one order on all ranks, so that those that share several groups meet in each.
absl::Status RankExecutor::ConnectGroups(absl::Span<const StepPlan* const> plans) {
  for (const auto& [first, stride, count, stream] : GroupsOf(plans)) {
    auto end = std::make_unique<GroupEnd>();
    end->group = {first, stride, count};
    end->stream = stream;
    if (EndOf(end->group, stream) != nullptr) continue;
    absl::StatusOr<std::unique_ptr<Communicator>> connected =
        context_.world.Connect(rank_, end->group, streams_.of(stream), context_.options.timeout);
    if (!connected.ok()) return At(-1, connected.status());
    end->connected = *std::move(connected);
    Communicator* inner = end->connected.get();
    if (context_.parts.decorate) end->decorated = context_.parts.decorate(rank_, inner);
    if (end->decorated != nullptr) inner = end->decorated.get();
    end->recorded = context_.ledger.Record(inner);
    groups_.push_back(std::move(end));
  }
  return absl::OkStatus();
}

RankExecutor::GroupEnd* RankExecutor::EndOf(Group group, StreamId stream) {
  for (const std::unique_ptr<GroupEnd>& end : groups_) {
    if (end->group == group && end->stream == stream) return end.get();
  }
  return nullptr;
}

absl::Status RankExecutor::RunStep(int64_t data_step, const std::atomic<bool>& stop) {
  const absl::Time deadline = absl::Now() + context_.options.timeout;
  SHARDPROOF_RETURN_IF_ERROR(EnqueueStep(data_step, deadline, stop));
  SHARDPROOF_RETURN_IF_ERROR(AwaitStep(deadline, stop));
  absl::StatusOr<double> milliseconds = streams_.Milliseconds();
  if (!milliseconds.ok()) return At(-1, milliseconds.status());
  milliseconds_ = *milliseconds;
  return absl::OkStatus();
}

absl::Status RankExecutor::EnqueueStep(int64_t data_step, absl::Time deadline,
                                       const std::atomic<bool>& stop) {
  started_.clear();
  ended_ = 0;
  oldest_.store(-1);
  window_.Clear();  // the last step has ended
  place_of_op_.assign(plan_.ops.size(), -1);
  clipped_ = false;
  stages_->BeginStep();
  SHARDPROOF_RETURN_IF_ERROR(At(-1, BeginStep()));
  for (size_t op = 0; op < plan_.ops.size(); ++op) {
    const int32_t index = static_cast<int32_t>(op);
    at_op_.store(index);
    SHARDPROOF_RETURN_IF_ERROR(AwaitRoom(deadline, stop));
    SHARDPROOF_RETURN_IF_ERROR(At(index, Issue(index, data_step)));
    SHARDPROOF_RETURN_IF_ERROR(At(index, NoteLaunches(plan_.ops[index])));
  }
  at_op_.store(-1);
  return At(-1, EndStep());
}

// Waits only where CUDA would make the host wait too, soon.
absl::Status RankExecutor::AwaitRoom(absl::Time deadline, const std::atomic<bool>& stop) {
  while (true) {
    SHARDPROOF_RETURN_IF_ERROR(MayGoOn(deadline, stop));
    const absl::StatusOr<bool> room =
        window_.HasRoom([this](int32_t mark) { return marks_.Done(mark); });
    if (!room.ok()) return At(-1, room.status());
    if (*room) return absl::OkStatus();
    // Their errors, and how far they are for TimedOut.
    SHARDPROOF_RETURN_IF_ERROR(CollectivesHaveEnded().status());
    std::this_thread::sleep_for(kPause);
  }
}

absl::Status RankExecutor::MayGoOn(absl::Time deadline, const std::atomic<bool>& stop) {
  if (stop.load()) {
    return absl::CancelledError(
        absl::StrCat("rank ", rank_.value, " stopped, since another rank had failed"));
  }
  if (absl::Now() <= deadline) return absl::OkStatus();
  SHARDPROOF_RETURN_IF_ERROR(CollectivesHaveEnded().status());
  return TimedOut();
}

absl::Status RankExecutor::NoteLaunches(const Op& op) {
  const int32_t mark = window_.Add(op.stream, LaunchesOf(op));
  return mark < 0 ? absl::OkStatus() : marks_.Record(mark, streams_.of(op.stream));
}

std::string RankExecutor::Whereabouts() const {
  std::string text = absl::StrCat("rank ", rank_.value);
  const int32_t at = at_op_.load();
  const int32_t oldest = oldest_.load();
  if (at >= 0) absl::StrAppend(&text, ", at ", DescribeOperation(plan_, at));
  if (oldest < 0) return text;
  return absl::StrCat(text, ", whose oldest collective not seen to end is ",
                      DescribeOperation(plan_, oldest));
}

absl::Status RankExecutor::BeginStep() {
  SHARDPROOF_CUDA_OK(
      cudaMemsetAsync(device_results_.data(), 0, sizeof(Results), streams_.compute()));
  return streams_.Begin();
}

absl::Status RankExecutor::EndStep() {
  SHARDPROOF_RETURN_IF_ERROR(streams_.End());
  SHARDPROOF_CUDA_OK(cudaMemcpyAsync(results_.get(), device_results_.data(), sizeof(Results),
                                     cudaMemcpyDeviceToHost, streams_.compute()));
  return streams_.Finish();
}

// Allocations are poisoned before the operation, on its stream, and what it frees after it. The
// arena gives memory to a next owner only behind that.
absl::Status RankExecutor::Issue(int32_t index, int64_t data_step) {
  const Op& op = plan_.ops[index];
  const cudaStream_t stream = streams_.of(op.stream);
  const bool poison = context_.options.poison;
  for (const int32_t wait : plan_.WaitsOf(op)) {
    if (plan_.ops[wait].stream == op.stream) continue;
    SHARDPROOF_RETURN_IF_ERROR(events_.Wait(wait, stream));
  }
  for (int32_t i = op.first_access; i < op.first_access + op.access_count; ++i) {
    const PlanAccess& access = plan_.accesses[i];
    if (access.kind != AccessKind::kAllocate) continue;
    SHARDPROOF_RETURN_IF_ERROR(arena_.Begin(i, access.buffer, poison, stream));
  }
  SHARDPROOF_RETURN_IF_ERROR(IssueBody(op, index, data_step, stream));
  for (const PlanAccess& access : plan_.AccessesOf(op)) {
    if (access.kind != AccessKind::kFree || !poison) continue;
    SHARDPROOF_RETURN_IF_ERROR(arena_.Poison(Poison::kFreed, access.buffer, stream));
  }
  return events_.Record(index, stream);
}

absl::Status RankExecutor::IssueBody(const Op& op, int32_t index, int64_t data_step,
                                     cudaStream_t stream) {
  const int64_t count = op.recv.range.count;
  switch (op.kind) {
    case OpKind::kCollective:
      return StartCollective(op, index);
    case OpKind::kForward:
    case OpKind::kBackward:
    case OpKind::kLoss:
      return RunStages(op, data_step, stream);
    case OpKind::kScale:
      SHARDPROOF_CUDA_OK(cuda::Scale(arena_.data(op.recv), count, op.scale, stream));
      return absl::OkStatus();
    case OpKind::kScaleBy:
      SHARDPROOF_CUDA_OK(cuda::ScaleBy(arena_.data(op.recv), count, arena_.data(op.send), stream));
      return absl::OkStatus();
    case OpKind::kAccumulate:
      SHARDPROOF_CUDA_OK(cuda::Add(arena_.data(op.recv), arena_.data(op.send), count, stream));
      return absl::OkStatus();
    case OpKind::kCopy:
      SHARDPROOF_CUDA_OK(cudaMemcpyAsync(arena_.data(op.recv), arena_.data(op.send),
                                         static_cast<size_t>(count) * sizeof(float),
                                         cudaMemcpyDeviceToDevice, stream));
      return absl::OkStatus();
    case OpKind::kNorm:
      return SumSquares(op, stream);
    case OpKind::kClipCoefficient:
      return FindCoefficient(op, stream);
    case OpKind::kOptimizerUpdate:
      return Update(op, stream);
    case OpKind::kReshard:
    case OpKind::kRelease:
      break;
  }
  return absl::OkStatus();
}

absl::Status RankExecutor::StartCollective(const Op& op, int32_t index) {
  CollectiveCall call;
  call.kind = op.collective;
  call.dtype = op.dtype;
  call.elements = op.elements;
  call.send = arena_.data(op.send);
  call.recv = arena_.data(op.recv);
  call.root = Rank{op.root};
  call.label = op.unit >= 0 ? op.unit : op.bucket;
  GroupEnd* const end = EndOf(op.group, op.stream);
  place_of_op_[index] = static_cast<int32_t>(started_.size());
  if (ended_ == started_.size()) oldest_.store(index);
  SHARDPROOF_ASSIGN_OR_RETURN(const CollectiveHandle handle, end->recorded->Start(call));
  started_.push_back({index, end->recorded.get(), handle});
  return absl::OkStatus();
}

absl::Status RankExecutor::RunStages(const Op& op, int64_t data_step, cudaStream_t stream) {
  const MicroBatch micro_batch = {data_step, rank_, op.micro_batch};
  arithmetic_->SetStream(stream);
  if (op.kind == OpKind::kForward) {
    stages_->Forward(plan_, op, micro_batch, arena_.buffers());
  } else if (op.kind == OpKind::kBackward) {
    stages_->Backward(plan_, op, micro_batch, arena_.buffers());
  } else {
    stages_->Loss(plan_, micro_batch, arena_.buffers());
  }
  return arithmetic_->status();
}

absl::Status RankExecutor::SumSquares(const Op& op, cudaStream_t stream) {
  double* const sum = reinterpret_cast<double*>(arena_.buffers()[op.recv.buffer]);
  SHARDPROOF_CUDA_OK(cudaMemsetAsync(sum, 0, sizeof(double), stream));
  for (const UpdateRange& range : plan_.UpdatesOf(op)) {
    SHARDPROOF_CUDA_OK(cuda::AddSquares(arena_.data(range.gradient), range.count, sum, stream));
  }
  return absl::OkStatus();
}

// The plan may free both buffers within the step, so what is shown of them is copied.
absl::Status RankExecutor::FindCoefficient(const Op& op, cudaStream_t stream) {
  const double* const sum = reinterpret_cast<double*>(arena_.buffers()[op.send.buffer]);
  float* const coefficient = arena_.data(op.recv);
  Results* const results = static_cast<Results*>(device_results_.data());
  SHARDPROOF_CUDA_OK(cuda::ClipCoefficient(sum, op.scale, coefficient, stream));
  SHARDPROOF_CUDA_OK(
      cudaMemcpyAsync(&results->squares, sum, sizeof(double), cudaMemcpyDeviceToDevice, stream));
  SHARDPROOF_CUDA_OK(cudaMemcpyAsync(&results->coefficient, coefficient, sizeof(float),
                                     cudaMemcpyDeviceToDevice, stream));
  clipped_ = true;
  return absl::OkStatus();
}

absl::Status RankExecutor::Update(const Op& op, cudaStream_t stream) {
  for (const UpdateRange& update : plan_.UpdatesOf(op)) {
    updates_[update.counter_of] += update.advance;
    SHARDPROOF_RETURN_IF_ERROR(UpdateRangeOf(update, stream));
  }
  return absl::OkStatus();
}

absl::Status RankExecutor::UpdateRangeOf(const UpdateRange& update, cudaStream_t stream) {
  const OptimizerDescription optimizer =
      HyperParametersOf(run_.optimizer, update.hyper_parameters_of);
  const int64_t counter = updates_[update.counter_of];
  const float* const gradient = arena_.data(update.gradient);
  float* const parameter = arena_.data(update.parameter);
  float* const exp_avg = arena_.data(update.exp_avg);
  if (optimizer.kind == OptimizerKind::kAdamW) {
    SHARDPROOF_CUDA_OK(cuda::AdamW(AdamWFactorsOf(optimizer, counter), update.count, gradient,
                                   parameter, exp_avg, arena_.data(update.exp_avg_sq), stream));
  } else {
    SHARDPROOF_CUDA_OK(cuda::Sgd(SgdFactorsOf(optimizer, counter), update.count, gradient,
                                 parameter, optimizer.momentum == 0 ? nullptr : exp_avg, stream));
  }
  return absl::OkStatus();
}

absl::Status RankExecutor::AwaitStep(absl::Time deadline, const std::atomic<bool>& stop) {
  while (true) {
    SHARDPROOF_ASSIGN_OR_RETURN(const bool ended, HasEnded());
    if (ended) return absl::OkStatus();
    SHARDPROOF_RETURN_IF_ERROR(MayGoOn(deadline, stop));
    std::this_thread::sleep_for(kPause);
  }
}

// Collectives are asked too, since some errors show there alone.
absl::StatusOr<bool> RankExecutor::HasEnded() {
  SHARDPROOF_ASSIGN_OR_RETURN(const bool communicated, CollectivesHaveEnded());
  if (!communicated) return false;
  const absl::StatusOr<bool> finished = streams_.Finished();
  if (!finished.ok()) return At(-1, finished.status());
  return *finished;
}

// Of those started so far.
absl::StatusOr<bool> RankExecutor::CollectivesHaveEnded() {
  for (; ended_ < started_.size(); ++ended_) {
    const StartedCollective& next = started_[ended_];
    const absl::StatusOr<bool> done = next.communicator->Poll(next.handle);
    if (!done.ok()) return At(next.op, done.status());
    oldest_.store(next.op);
    if (!*done) return false;
  }
  oldest_.store(-1);
  return true;
}

absl::Status RankExecutor::TimedOut() const {
  const std::string within =
      absl::StrCat("not ended within ", absl::FormatDuration(context_.options.timeout));
  if (ended_ == started_.size()) {
    return absl::DeadlineExceededError(absl::StrCat("rank ", rank_.value, ": the step has ", within,
                                                    ", though all its collectives have"));
  }
  const StartedCollective& first = started_[ended_];
  const absl::Status why = first.communicator->Wait(first.handle, absl::ZeroDuration());
  if (!why.ok()) return At(first.op, why);
  // It ended at the last moment; the step is late all the same.
  return At(first.op, absl::DeadlineExceededError(absl::StrCat("the step has ", within)));
}

absl::Status RankExecutor::CopyState() {
  host_.resize(plan_.buffers.size());
  for (size_t buffer = 0; buffer < host_.size(); ++buffer) {
    if (kept_.offset[buffer] < 0) continue;
    const size_t count = static_cast<size_t>(arena_.floats(static_cast<int32_t>(buffer)));
    if (host_[buffer] == nullptr) host_[buffer] = std::make_unique<float[]>(count);
    const absl::Status copied = CudaStatus(
        cudaMemcpyAsync(host_[buffer].get(), arena_.buffers()[buffer], count * sizeof(float),
                        cudaMemcpyDeviceToHost, streams_.compute()),
        "cudaMemcpyAsync");
    SHARDPROOF_RETURN_IF_ERROR(At(-1, copied));
  }
  return At(-1, CudaStatus(cudaStreamSynchronize(streams_.compute()), "cudaStreamSynchronize"));
}

ClipObservation RankExecutor::clip() const {
  if (!clipped_) return {};
  return {std::sqrt(results_->squares), results_->coefficient};
}

bool RankExecutor::adds_in_rank_order() const {
  return std::all_of(groups_.begin(), groups_.end(), [](const std::unique_ptr<GroupEnd>& end) {
    return end->recorded->adds_in_rank_order();
  });
}

DeviceMemoryFigures RankExecutor::memory() const {
  DeviceMemoryFigures figures;
  figures.rank = rank_;
  figures.arena_steady = kept_.bytes;
  figures.arena_total = arena_.total();
  figures.plan_peak = arena_.plan_peak();
  figures.workspace =
      model_->workspace_bytes() + arithmetic_->workspace_bytes() + device_results_.bytes();
  figures.driver_steady = arena_.driver_steady();
  figures.driver_peak = arena_.driver_peak();
  return figures;
}

}  // namespace shardproof
